r"""Which tasks have a closed form, and the numbers of theirs that it depends on (paper, section 6). No JAX here.

The closed form needs: the label head, a query that is not attended, one distinct and one background (common or null)
group, one composition with positions of both. Any parameterization will do.
"""

import dataclasses
import math

from flowsim._checks import one_of, show
from flowsim.errors import InvalidInput, NoClosedForm
from flowsim.task import Composition, Group, Task

_PARAMETERIZATIONS = ("CACO", "FACO", "CAFO", "FAFO")


@dataclasses.dataclass(frozen=True)
class ClosedFormParameters:
    r"""The numbers of a task that its closed form depends on.

    Attributes:
        distinct_count: $m$, positions of the distinct group.
        background_count: $n$, positions of the background group.
        distinct_types: $C$, types of the distinct group per class.
        classes: $K$.
        gain: $g$, by how much the score gap moves when the query-key clock moves by 1.
        drives: weight $a$ and speed $F$ of each query-key block that the loss drives, the fastest first:
            $\theta = \sum a b$ with $b$ the block's component along its drive, and $g = \sum a F$.
        log_base_odds: $\ln(m/n)$, the log odds of attention at score gap 0.
    """

    distinct_count: float
    background_count: float
    distinct_types: float
    classes: float
    gain: float
    drives: tuple[tuple[float, float], ...]

    @property
    def log_base_odds(self) -> float:
        r"""$\ln(m/n)$."""
        return math.log(self.distinct_count) - math.log(self.background_count)

    @property
    def strength_per_ratio(self) -> float:
        r"""$c/r = C (K-1)/K$, where $c$ relates the two clocks."""
        return self.distinct_types * (self.classes - 1) / self.classes

    @property
    def rho_per_ratio(self) -> float:
        r"""$\rho/r = g C (K-1)/K$, where $\rho$ is the constant of the orbit."""
        return self.gain * self.distinct_types * (self.classes - 1) / self.classes


def closed_form_parameters(task: Task, parameterization: str = "CACO") -> ClosedFormParameters:
    """The numbers of a task with a closed form.

    Args:
        task: the task.
        parameterization: four letters.

    Raises:
        NoClosedForm: naming the condition that fails.
        InvalidInput: if `task` is no task or the parameterization is unknown.
    """
    if not isinstance(task, Task):
        raise InvalidInput(f"task={show(task)} must be a flowsim.Task.")
    one_of("parameterization", parameterization, _PARAMETERIZATIONS)
    if task.other_outputs:
        _refuse(f"the head is over the vocabulary (other_outputs={task.other_outputs})", "needs other_outputs=0")
    if task.attend_query:
        _refuse("the query position is attended (attend_query=True)", "needs attend_query=False")
    distinct = [i for i, group in enumerate(task.groups) if group.role == "distinct"]
    background = [i for i, group in enumerate(task.groups) if group.role != "distinct"]
    if len(distinct) != 1 or len(background) != 1:
        names = ", ".join(f"{group.name} ({group.role})" for group in task.groups)
        _refuse(f"the task has the groups {names}", "needs one distinct and one common or null group")
    counts = _only_composition(task.compositions).counts
    for group, count in zip(task.groups, counts, strict=True):
        if count == 0:
            _refuse(f"the {group.name} group has 0 positions", "needs positions of both groups")
    own, other = task.groups[distinct[0]], task.groups[background[0]]
    return ClosedFormParameters(
        distinct_count=counts[distinct[0]],
        background_count=counts[background[0]],
        distinct_types=float(own.types),
        classes=float(task.classes),
        gain=_gain(task, own, other),
        drives=_drives(task, own, other),
    )


def _drives(task: Task, distinct: Group, background: Group) -> tuple[tuple[float, float], ...]:
    """The trivial block, whose drive has an entry for each group, and with a query per class the standard one."""
    k, c = task.classes, distinct.types
    trivial = math.sqrt(1 / c + (0 if background.role == "null" else k / background.types))
    if task.query == "shared":
        return ((math.sqrt(k) * trivial / k, math.sqrt(k) * trivial),)
    return ((trivial / k, trivial), ((k - 1) / (k * math.sqrt(c)), 1 / math.sqrt(c)))


def _gain(task: Task, distinct: Group, background: Group) -> float:
    r"""$1/C$ from the scores of the distinct tokens, and from those of common ones $1/D$ per class or $K/D$ shared.

    A shared query receives the gradient of all $K$ classes where common tokens are concerned.
    """
    if background.role == "null":
        return 1 / distinct.types
    shared_by = task.classes if task.query == "shared" else 1
    return 1 / distinct.types + shared_by / background.types


def _only_composition(compositions: tuple[Composition, ...]) -> Composition:
    first, *others = compositions
    if others:
        _refuse(f"the context mixes {len(compositions)} compositions", "needs a FixedContext")
    return first


def _refuse(fact: str, needed: str):
    raise NoClosedForm(f"No closed form: {fact}; the closed form {needed}; use flowsim.integrate.")
