"""What is learnt: a symmetric attention task (paper, sections 3 and 4).

Plain, hashable dataclasses; no JAX and no SymPy here. A task is a *structure* (roles of the token groups, kind of
query, kind of head), which decides the equations, and *numbers* (classes, types, counts, probabilities), which are
bound at run time.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from flowsim._checks import boolean, one_of, show, whole
from flowsim.context import BinomialContext, Context, FixedContext, Group, MixtureContext, Role
from flowsim.errors import InvalidInput

__all__ = [
    "BinomialContext",
    "Composition",
    "Context",
    "FixedContext",
    "Group",
    "MixtureContext",
    "Query",
    "Role",
    "Structure",
    "Task",
]

Query = Literal["per-class", "shared"]
QUERIES: tuple[Query, ...] = ("per-class", "shared")
QUERY_GROUP = "query"


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
        set_(self, "classes", whole("classes", classes, minimum=2))
        set_(self, "groups", _groups(distinct, common, null, groups))
        if not isinstance(context, (FixedContext, BinomialContext, MixtureContext)):
            raise InvalidInput(f"context={show(context)} must be a FixedContext, BinomialContext or MixtureContext.")
        set_(self, "context", context)
        set_(self, "query", one_of("query", query, QUERIES))
        set_(self, "attend_query", boolean("attend_query", attend_query))
        set_(self, "other_outputs", whole("other_outputs", other_outputs, minimum=0))
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


def _groups(distinct, common, null, groups) -> tuple[Group, ...]:
    null = boolean("null", null)
    if groups is not None:
        if distinct is not None or common is not None or null:
            raise InvalidInput("groups= was given together with distinct=, common= or null=; give one form only.")
        listed = tuple(groups) if isinstance(groups, Sequence) and not isinstance(groups, str) else None
        if listed is None or not all(isinstance(group, Group) for group in listed):
            raise InvalidInput(f"groups={show(groups)} must be a list of flowsim.Group.")
    else:
        listed = ()
        if distinct is not None:
            listed += (Group("distinct", "distinct", whole("distinct", distinct, minimum=1)),)
        if common is not None:
            listed += (Group("common", "common", whole("common", common, minimum=1)),)
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
