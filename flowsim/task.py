"""What is learnt: a symmetric attention task (paper, sections 3 and 4).

Plain, hashable dataclasses; no JAX and no SymPy here. A task is a *structure* (roles of the token groups, kind of
query, kind of head), which decides the equations, and *numbers* (classes, types, counts, probabilities), which are
bound at run time.
"""

import dataclasses
import itertools
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from flowsim.errors import InvalidInput

Role = Literal["distinct", "common", "null"]
Query = Literal["per-class", "shared"]
ROLES: tuple[Role, ...] = ("distinct", "common", "null")
QUERIES: tuple[Query, ...] = ("per-class", "shared")
QUERY_GROUP = "query"
# The probabilities of a mixture are typed in by hand: accept what decimal rounding leaves, then renormalize.
_PROBABILITY_SLACK = 1e-9


@dataclasses.dataclass(frozen=True)
class Group:
    """A group of interchangeable tokens.

    Attributes:
        name: how the group is called in tables and plots.
        role: `"distinct"` (each class has its own `types` tokens), `"common"` (every class sees the same `types`
            tokens) or `"null"` (tokens with zero embedding: score 0, no value, no parameters; `types` is ignored and
            stored as 1).
        types: number of different tokens (per class for a distinct group).
    """

    name: str
    role: Role
    types: int = 1

    def __post_init__(self):
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInput(f"Group name={self.name!r} must be a non-empty string.")
        if self.role not in ROLES:
            raise InvalidInput(f"Group {self.name!r} has role={self.role!r}; use one of {', '.join(ROLES)}.")
        types = 1 if self.role == "null" else _integer(f"Group {self.name!r} types", self.types, minimum=1)
        object.__setattr__(self, "types", types)


class Composition(NamedTuple):
    """How many positions of one sequence each group takes, and how often such a sequence occurs.

    Attributes:
        probability: positive; the probabilities of a task's compositions sum to 1.
        counts: positions per group, aligned with `Task.all_groups`; real numbers are allowed.
    """

    probability: float
    counts: tuple[float, ...]


class Structure(NamedTuple):
    """What decides the form of the equations; everything else about a task is a number.

    Attributes:
        roles: role of each group, aligned with `Task.all_groups`.
        query: `"per-class"` or `"shared"`.
        query_group: index into `roles` of the attended query, or None when the query position is not attended.
        vocabulary_head: whether there are outputs that are never the label.
    """

    roles: tuple[Role, ...]
    query: Query
    query_group: int | None
    vocabulary_head: bool


@dataclasses.dataclass(frozen=True, init=False)
class FixedContext:
    """Every sequence has the same composition.

    Args:
        distinct: positions of the distinct group, for tasks in the short form.
        common: positions of the common group, for tasks in the short form.
        null: positions of the null group, for tasks in the short form.
        counts: positions of each group in order, for tasks with `groups=`.

    Raises:
        InvalidInput: if a count is negative or not finite, all are zero, or both forms are mixed.
    """

    distinct: float | None
    common: float | None
    null: float | None
    counts: tuple[float, ...] | None

    def __init__(
        self,
        *,
        distinct: float | None = None,
        common: float | None = None,
        null: float | None = None,
        counts: Sequence[float] | None = None,
    ):
        named = {"distinct": distinct, "common": common, "null": null}
        given = {name: _count(f"FixedContext {name}", value) for name, value in named.items() if value is not None}
        if counts is not None and given:
            raise InvalidInput(f"FixedContext got counts={counts!r} and {', '.join(given)}=; give one form only.")
        if counts is None and not given:
            raise InvalidInput("FixedContext() is empty; give for instance distinct=32, common=31, or counts=(32, 31).")
        listed = None if counts is None else _counts("FixedContext counts", counts)
        _not_all_zero("FixedContext", list(given.values()) if listed is None else listed)
        for name in named:
            object.__setattr__(self, name, given.get(name))
        object.__setattr__(self, "counts", listed)

    def __repr__(self) -> str:
        if self.counts is not None:
            return f"FixedContext(counts={self.counts!r})"
        named = {"distinct": self.distinct, "common": self.common, "null": self.null}
        return f"FixedContext({', '.join(f'{name}={count:g}' for name, count in named.items() if count is not None)})"

    def compositions(self, groups: Sequence[Group]) -> list[tuple[float, tuple[float, ...]]]:
        """The single composition, aligned with `groups`."""
        if self.counts is not None:
            return [(1.0, _aligned("FixedContext counts", self.counts, groups))]
        named = {"distinct": self.distinct, "common": self.common, "null": self.null}
        given = {role: count for role, count in named.items() if count is not None}
        roles = [group.role for group in groups]
        for role in given:
            if roles.count(role) != 1:
                problem = "has no such group" if role not in roles else f"has {roles.count(role)} such groups"
                raise InvalidInput(
                    f"context=FixedContext({role}={given[role]:g}) but the task {problem}; "
                    f"{_group_advice(role) if role not in roles else 'give counts=(...) in the order of groups'}."
                )
        for group in groups:
            if group.role not in given:
                raise InvalidInput(
                    f"context=FixedContext(...) gives no count for the {group.role} group {group.name!r}; "
                    f"add {group.role}=, or 0 positions explicitly."
                )
        return [(1.0, tuple(given[group.role] for group in groups))]


@dataclasses.dataclass(frozen=True)
class BinomialContext:
    """Each of `length` positions is distinct with probability `gamma` (the paper's mixture weight), else background.

    Attributes:
        length: number of context positions, the query not counted.
        gamma: probability that a position holds a distinct token, in [0, 1].
    """

    length: int
    gamma: float

    def __post_init__(self):
        object.__setattr__(self, "length", _integer("BinomialContext length", self.length, minimum=1))
        gamma = _real("BinomialContext gamma", self.gamma)
        if not 0 <= gamma <= 1:
            raise InvalidInput(f"BinomialContext gamma={gamma!r} is not a probability; give a number in [0, 1].")
        object.__setattr__(self, "gamma", gamma)

    def compositions(self, groups: Sequence[Group]) -> list[tuple[float, tuple[float, ...]]]:
        """The binomial law over (distinct, background) counts, aligned with `groups`."""
        distinct = [i for i, group in enumerate(groups) if group.role == "distinct"]
        background = [i for i, group in enumerate(groups) if group.role != "distinct"]
        if len(distinct) != 1 or len(background) != 1:
            raise InvalidInput(
                f"context=BinomialContext needs one distinct and one background group, the task has {len(distinct)} "
                f"and {len(background)}; use MixtureContext for other tasks."
            )
        law = []
        for hits in range(self.length + 1):
            probability = _binomial_probability(self.length, hits, self.gamma)
            counts = [0.0, 0.0]
            counts[distinct[0]], counts[background[0]] = float(hits), float(self.length - hits)
            law.append((probability, tuple(counts)))
        return law


@dataclasses.dataclass(frozen=True, init=False)
class MixtureContext:
    """A finite list of compositions with probabilities.

    Args:
        compositions: pairs `(probability, counts)` with counts in the order of the task's groups.

    Raises:
        InvalidInput: if the list is empty, a probability lies outside [0, 1], they do not sum to 1, or a count is
            negative or not finite.
    """

    items: tuple[tuple[float, tuple[float, ...]], ...]

    def __init__(self, compositions: Sequence[tuple[float, Sequence[float]]]):
        items = []
        try:
            pairs = [(pair[0], pair[1]) for pair in compositions]
        except (TypeError, IndexError, KeyError) as error:
            raise InvalidInput(
                f"MixtureContext({compositions!r}) must be a list of (probability, counts) pairs, "
                "for instance [(0.3, (8, 10)), (0.7, (12, 5))]."
            ) from error
        if not pairs:
            raise InvalidInput("MixtureContext([]) is empty; give at least one (probability, counts) pair.")
        for index, (probability, counts) in enumerate(pairs):
            probability = _real(f"MixtureContext probability {index}", probability)
            if not 0 <= probability <= 1:
                raise InvalidInput(f"MixtureContext probability {index} is {probability!r}; give a number in [0, 1].")
            listed = _counts(f"MixtureContext counts {index}", counts)
            if probability > 0:
                _not_all_zero(f"MixtureContext composition {index}", listed)
            items.append((probability, listed))
        total = math.fsum(probability for probability, _ in items)
        if not abs(total - 1) <= _PROBABILITY_SLACK:
            raise InvalidInput(f"MixtureContext probabilities sum to {total!r}; make them sum to 1.")
        object.__setattr__(self, "items", tuple(items))

    def __repr__(self) -> str:
        return f"MixtureContext({list(self.items)!r})"

    def compositions(self, groups: Sequence[Group]) -> list[tuple[float, tuple[float, ...]]]:
        """The compositions, aligned with `groups`."""
        return [
            (probability, _aligned(f"MixtureContext counts {index}", counts, groups))
            for index, (probability, counts) in enumerate(self.items)
        ]


Context = FixedContext | BinomialContext | MixtureContext


@dataclasses.dataclass(frozen=True, init=False)
class Task:
    r"""A symmetric attention task.

    The short form names at most one group of each role: `distinct` and `common` give the number of token types,
    `null=True` adds zero-embedding tokens. The long form lists `groups`.

    Args:
        classes: number of equally likely classes $K \ge 2$; class $k$ has its own query (unless shared) and label.
        distinct: token types per class of the distinct group.
        common: token types of the common group.
        null: whether there are null tokens.
        groups: any number of `Group`s, instead of the three arguments above.
        context: how many positions each group takes: `FixedContext`, `BinomialContext` or `MixtureContext`.
        query: `"per-class"` or `"shared"` by all classes.
        attend_query: whether the query position itself is attended (it then counts once in every sequence).
        other_outputs: $R \ge 0$ outputs that are never the label: 0 is the label head, more the vocabulary head.

    Raises:
        InvalidInput: naming the argument, its value and the fix.
    """

    classes: int
    groups: tuple[Group, ...]
    context: Context
    query: Query
    attend_query: bool
    other_outputs: int

    def __init__(
        self,
        classes: int,
        distinct: int | None = None,
        common: int | None = None,
        null: bool = False,
        groups: Sequence[Group] | None = None,
        *,
        context: Context,
        query: Query = "per-class",
        attend_query: bool = False,
        other_outputs: int = 0,
    ):
        set_ = object.__setattr__
        set_(self, "classes", _integer("classes", classes, minimum=2))
        set_(self, "groups", _groups(distinct, common, null, groups))
        if not isinstance(context, (FixedContext, BinomialContext, MixtureContext)):
            raise InvalidInput(f"context={context!r} must be a FixedContext, BinomialContext or MixtureContext.")
        set_(self, "context", context)
        if query not in QUERIES:
            raise InvalidInput(f"query={query!r} is unknown; use one of {', '.join(QUERIES)}.")
        set_(self, "query", query)
        set_(self, "attend_query", _boolean("attend_query", attend_query))
        set_(self, "other_outputs", _integer("other_outputs", other_outputs, minimum=0))
        self.compositions  # noqa: B018  a context that does not fit the groups is refused here, by name

    @property
    def all_groups(self) -> tuple[Group, ...]:
        """The groups, followed by the attended query as a group of its own when there is one."""
        if not self.attend_query:
            return self.groups
        return (*self.groups, Group(QUERY_GROUP, "distinct" if self.query == "per-class" else "common", types=1))

    @property
    def compositions(self) -> tuple[Composition, ...]:
        """The context law: compositions of positive probability, counts aligned with `all_groups`."""
        law = [(p, counts) for p, counts in self.context.compositions(self.groups) if p > 0]
        total = math.fsum(p for p, _ in law)
        query = (1.0,) if self.attend_query else ()
        return tuple(Composition(p / total, (*counts, *query)) for p, counts in law)

    @property
    def structure(self) -> Structure:
        """What decides the form of the equations."""
        query_group = len(self.groups) if self.attend_query else None
        roles: tuple[Role, ...] = tuple(group.role for group in self.all_groups)
        return Structure(roles, self.query, query_group, self.other_outputs > 0)

    def __str__(self) -> str:
        groups = ", ".join(
            f"{group.name} (null)" if group.role == "null" else f"{group.name} ({group.role}, {group.types} types)"
            for group in self.groups
        )
        head = "labels" if self.other_outputs == 0 else f"labels and {self.other_outputs} other outputs"
        attended = "attended" if self.attend_query else "not attended"
        return f"{self.classes} classes; {groups}; {self.context}; query {self.query}, {attended}; head over {head}"

    def to_dict(self) -> dict:
        """The task as plain nested data; `from_dict` reads it back."""
        from flowsim.task_file import task_to_dict

        return task_to_dict(self)

    @staticmethod
    def from_dict(data: Mapping) -> "Task":
        """Builds a task from what `to_dict` gave.

        Raises:
            InvalidInput: naming the key, its value and the fix.
        """
        from flowsim.task_file import task_from_dict

        return task_from_dict(data)

    def to_toml(self, path=None) -> str:
        """The task as TOML text, also written to `path` (atomically) when given."""
        from flowsim.task_file import task_to_toml

        return task_to_toml(self, path)

    @staticmethod
    def from_toml(path) -> "Task":
        """Reads a task from a TOML file.

        Raises:
            FileProblem: if the file is missing or is no TOML.
            InvalidInput: if a key is unknown or a value is not usable.
        """
        from flowsim.task_file import task_from_toml

        return task_from_toml(path)


def _binomial_probability(trials: int, hits: int, chance: float) -> float:
    if chance in (0.0, 1.0):
        return float(hits == trials * chance)
    if trials <= 1000:  # the binomial coefficient still fits into a float
        return math.comb(trials, hits) * chance**hits * (1 - chance) ** (trials - hits)
    log_coefficient = math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
    return math.exp(log_coefficient + hits * math.log(chance) + (trials - hits) * math.log1p(-chance))


def _groups(distinct, common, null, groups) -> tuple[Group, ...]:
    null = _boolean("null", null)
    if groups is not None:
        if distinct is not None or common is not None or null:
            raise InvalidInput("groups= was given together with distinct=, common= or null=; give one form only.")
        listed = tuple(groups) if isinstance(groups, Sequence) and not isinstance(groups, str) else None
        if listed is None or not all(isinstance(group, Group) for group in listed):
            raise InvalidInput(f"groups={groups!r} must be a list of flowsim.Group.")
    else:
        listed = ()
        if distinct is not None:
            listed += (Group("distinct", "distinct", _integer("distinct", distinct, minimum=1)),)
        if common is not None:
            listed += (Group("common", "common", _integer("common", common, minimum=1)),)
        if null:
            listed += (Group("null", "null"),)
    if not any(group.role == "distinct" for group in listed):
        raise InvalidInput(
            "the task has no distinct group, so nothing names the class; give distinct= (types per class)."
        )
    names = [group.name for group in listed] + [QUERY_GROUP]
    for name, same in itertools.groupby(sorted(names)):
        if len(list(same)) > 1:
            raise InvalidInput(f"groups= uses the name {name!r} twice; every group needs its own (query is reserved).")
    return listed


def _group_advice(role: str) -> str:
    return "add null=True to the task" if role == "null" else f"add {role}= (the number of types) to the task"


def _boolean(name: str, value) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name}={value!r} must be True or False.")
    return value


def _real(name: str, value) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidInput(f"{name}={value!r} must be a number.")
    value = float(value)
    if not math.isfinite(value):
        raise InvalidInput(f"{name}={value!r} must be finite.")
    return value


def _integer(name: str, value, *, minimum: int) -> int:
    number = _real(name, value)
    if number != int(number) or number < minimum:
        raise InvalidInput(f"{name}={value!r} must be a whole number, at least {minimum}.")
    return int(number)


def _count(name: str, value) -> float:
    count = _real(name, value)
    if count < 0:
        raise InvalidInput(f"{name}={value!r} is negative; give the number of positions, at least 0.")
    return count


def _counts(name: str, values) -> tuple[float, ...]:
    if isinstance(values, (str, Mapping)) or not hasattr(values, "__iter__"):
        raise InvalidInput(f"{name}={values!r} must be a list of position counts, one for each group.")
    return tuple(_count(f"{name}[{i}]", value) for i, value in enumerate(values))


def _not_all_zero(name: str, counts: Sequence[float]) -> None:
    if not any(count > 0 for count in counts):
        raise InvalidInput(f"{name} has no positions at all; at least one count must be above 0.")


def _aligned(name: str, counts: tuple[float, ...], groups: Sequence[Group]) -> tuple[float, ...]:
    if len(counts) != len(groups):
        listed = ", ".join(group.name for group in groups)
        raise InvalidInput(f"{name}={counts} has {len(counts)} entries, the task has {len(groups)} groups ({listed}).")
    return counts
