r"""A factor of the scores, and the flow without it that the same model has.

With scores $s W_{QK}$ the loss is one of $\tilde W = s W_{QK}$, and the matrix feels $\partial L/\partial W_{QK} = s\,
\partial L/\partial \tilde W$. Let the circuit's matrix be a product of $d$ trained matrices ($d = 1$ collapsed, 2
factorized) and multiply each by $s^{1/d}$, so that their product is $\tilde W$. Each then moves as it would without a
scale, at a learning rate times $s^{2/d}$: once for what the gradient gains, once for the change of variables. So

- the ratio $r$ acts as $s^{2/d} r$: $s^2 r$ collapsed, $s r$ factorized;
- what factors conserve, quadratic in them, acts as $s\lambda$;
- weight decay $-\eta\mu W$ is linear in $W$ and keeps its rate $\eta\mu$, so that in units of the learning rate it
  acts as $s^{-2/d} \mu$;
- a gradient divided by its norm gains nothing from $s$: the ratio acts as $s^{1/d} r$, and the decay accordingly;
- steps of a finite size, and the modified flow that they follow, go through a linear change of variables unchanged.

Score gaps and attention are those of the scores; blocks, factors, imbalances and decays those of the matrices.
"""

from typing import Any, NamedTuple

from flowsim import _validate
from flowsim.errors import InvalidInput
from flowsim.solve.line_start import LineStart
from flowsim.task import Task
from flowsim.theory.circuits import KINDS

BY_DIMENSION = "1/sqrt(d)"
LARGEST = 1e100
"""Its square, and what else is multiplied by that, stay within float64."""


class ScoreScale(NamedTuple):
    """A scale of the scores in one parameterization.

    Attributes:
        value: the factor $s$.
        degree: number of matrices whose product the query-key matrix is.
    """

    value: Any = 1.0
    degree: int = 1

    @staticmethod
    def of(given: Any, parameterization: str, task: Task | None = None, d: int | None = None) -> "ScoreScale":
        """Checks the argument `score_scale`.

        Args:
            given: a number above 0, or `"1/sqrt(d)"`.
            parameterization: four letters.
            task: the task, for the dimension of its embeddings.
            d: dimension of the embedding; None for orthonormal ones, of as many dimensions as there are tokens, and
                queries that are none.

        Raises:
            InvalidInput: if it cannot be used.
        """
        degree = KINDS[_validate.parameterization(parameterization)[0]].degree
        if isinstance(given, str):
            _validate.one_of("score_scale", given, (BY_DIMENSION,))
            if d is None and task is not None:
                d = dimensions(task)
            if d is None:
                raise InvalidInput(
                    f"score_scale={given!r} needs a task, whose embeddings have a dimension; give a number."
                )
            return ScoreScale(d**-0.5, degree)
        if _validate.is_traced(given):
            return ScoreScale(given, degree)
        value = _validate.real("score_scale", given, above=0.0)
        if not 1 / LARGEST <= value <= LARGEST:
            raise InvalidInput(
                f"score_scale={value:g} has a square that float64 cannot work with; give a number from {1 / LARGEST:g} "
                f"to {LARGEST:g}."
            )
        return ScoreScale(value, degree)

    @property
    def state(self) -> Any:
        """What each trained matrix of the circuit is multiplied by."""
        return self.value ** (1 / self.degree)

    def gain(self, normalized: bool = False) -> Any:
        """What the ratio is multiplied by.

        Args:
            normalized: whether the circuit's gradient is divided by its norm.
        """
        return self.state if normalized else self.value ** (2 / self.degree)

    def line(self, start: LineStart) -> LineStart:
        """The start of the flow without scale, from that of the model with it."""
        return start._replace(imbalance_qk=start.imbalance_qk * self.state**2)

    @property
    def plain(self) -> dict[str, float | None]:
        """The scale as a setting of a trajectory."""
        return {"score_scale": None if _validate.is_traced(self.value) else float(self.value)}


def dimensions(task: Task) -> int:
    """Dimension of orthonormal embeddings: tokens, and queries unless they are attended and so tokens themselves."""
    sizes = {"distinct": task.classes, "common": 1, "null": 0}
    tokens = sum(sizes[group.role] * group.types for group in task.all_groups if group.role != "null")
    return tokens + (0 if task.attend_query else 1 if task.query == "shared" else task.classes)
