"""Token groups, and how many positions of a sequence each of them takes (paper, section 3).

A context is a law over *compositions*: one fixed composition, a binomial mixture of distinct and background tokens, or
any finite list.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from flowsim._checks import listing, real, show, whole
from flowsim.errors import InvalidInput

Role = Literal["distinct", "common", "null"]
ROLES: tuple[Role, ...] = ("distinct", "common", "null")
# The probabilities of a mixture are typed in by hand: accept what decimal rounding leaves, then renormalize.
_PROBABILITY_SLACK = 1e-9
# A binomial context has a composition for each number of hits, and each is a term of every mean.
_LONGEST = 10**6


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
            raise InvalidInput(f"Group name={show(self.name)} must be a non-empty string.")
        if not isinstance(self.role, str) or self.role not in ROLES:
            raise InvalidInput(f"Group {self.name!r} has role={show(self.role)}; use one of {', '.join(ROLES)}.")
        types = 1 if self.role == "null" else whole(f"Group {self.name!r} types", self.types, minimum=1)
        object.__setattr__(self, "types", types)


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
            raise InvalidInput(f"FixedContext got counts={show(counts)} and {', '.join(given)}=; give one form only.")
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
        object.__setattr__(self, "length", whole("BinomialContext length", self.length, minimum=1, maximum=_LONGEST))
        gamma = real("BinomialContext gamma", self.gamma)
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
        wanted = "(probability, counts) pairs, for instance [(0.3, (8, 10)), (0.7, (12, 5))]"
        try:
            pairs = [(pair[0], pair[1]) for pair in listing("MixtureContext compositions", compositions, wanted)]
        except (TypeError, IndexError, KeyError) as error:
            raise InvalidInput(
                f"MixtureContext compositions={show(compositions)} must be a list of {wanted}."
            ) from error
        if not pairs:
            raise InvalidInput("MixtureContext([]) is empty; give at least one (probability, counts) pair.")
        for index, (probability, counts) in enumerate(pairs):
            probability = real(f"MixtureContext probability {index}", probability)
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


def _binomial_probability(trials: int, hits: int, chance: float) -> float:
    if chance in (0.0, 1.0):
        return float(hits == trials * chance)
    if trials <= 1000:  # the binomial coefficient still fits into a float
        return math.comb(trials, hits) * chance**hits * (1 - chance) ** (trials - hits)
    log_coefficient = math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
    return math.exp(log_coefficient + hits * math.log(chance) + (trials - hits) * math.log1p(-chance))


def _group_advice(role: str) -> str:
    return "add null=True to the task" if role == "null" else f"add {role}= (the number of types) to the task"


def _count(name: str, value) -> float:
    count = real(name, value)
    if count < 0:
        raise InvalidInput(f"{name}={show(value)} is negative; give the number of positions, at least 0.")
    return count


def _counts(name: str, values) -> tuple[float, ...]:
    listed = listing(name, values, "position counts, one for each group")
    return tuple(_count(f"{name}[{i}]", value) for i, value in enumerate(listed))


def _not_all_zero(name: str, counts: Sequence[float]) -> None:
    if not any(count > 0 for count in counts):
        raise InvalidInput(f"{name} has no positions at all; at least one count must be above 0.")


def _aligned(name: str, counts: tuple[float, ...], groups: Sequence[Group]) -> tuple[float, ...]:
    if len(counts) != len(groups):
        listed = ", ".join(group.name for group in groups)
        raise InvalidInput(f"{name}={counts} has {len(counts)} entries, the task has {len(groups)} groups ({listed}).")
    return counts
