"""The symbols of one structure: sizes, counts, coordinates and intermediates, named as a paper would name them."""

import dataclasses
import functools
from collections.abc import Sequence

import sympy as sp

from flowsim.task import Structure

TIME = sp.Symbol("t", nonnegative=True)
CLASSES = sp.Symbol("K", positive=True)
RATIO = sp.Symbol("r", nonnegative=True)
OTHER_OUTPUTS = sp.Symbol("R", positive=True)

# Logits relative to the label's own: of another label (minus the sign) and of an output that is never the label.
LEAD = sp.Symbol("Delta", real=True)
REST_LEAD = sp.Symbol("Gamma", real=True)
# Probability that the head puts on all the other labels, and on all outputs that are never the label.
ERROR = sp.Symbol("q", positive=True)
REST_ERROR = sp.Symbol("q_R", positive=True)


class Mean(sp.Function):
    r"""The mean over compositions, $\mathbb{E}[\cdot]$: a probability-weighted sum that stays one expression.

    Its argument is a product of intermediates of one composition (attentions and errors); everything that does not
    depend on the composition stands outside.
    """

    nargs = 1

    def _sympystr(self, printer) -> str:
        return f"E[{printer._print(self.args[0])}]"

    def _latex(self, printer, exp=None) -> str:
        body = rf"\mathbb{{E}}\left[{printer._print(self.args[0])}\right]"
        return body if exp is None else rf"{body}^{{{exp}}}"


@dataclasses.dataclass(frozen=True)
class GroupSymbols:
    r"""The symbols of one token group.

    Attributes:
        index: position in `Task.all_groups`.
        role: `"distinct"`, `"common"` or `"null"`.
        tag: subscript: `d`, `c`, `0` or `q` (the attended query), numbered when there are several of a role.
        types: number of token types (the number 1 for the query and for null groups).
        count: positions in a composition (the number 1 for the query); formulas hold at 0 too, as limits.
        attention: attention mass $\alpha$ on the group.
        score: score $u$ of one of its tokens in a sequence that can hold it.
        gap: score relative to the reference group, $\theta$.
        margin: own-label minus other-label logit of one of its tokens, $w$.
        rest: never-label minus own-label logit of one of its tokens, $v$.
    """

    index: int
    role: str
    tag: str
    types: sp.Expr
    count: sp.Expr
    attention: sp.Symbol
    score: sp.Symbol
    gap: sp.Symbol
    margin: sp.Symbol
    rest: sp.Symbol

    @property
    def is_distinct(self) -> bool:
        """Whether every class has its own tokens."""
        return self.role == "distinct"

    @property
    def is_null(self) -> bool:
        """Whether the tokens have zero embedding: score 0, no value, no parameters."""
        return self.role == "null"


@functools.cache
def group_symbols(structure: Structure) -> tuple[GroupSymbols, ...]:
    r"""The symbols of all groups of a structure, aligned with its roles.

    Args:
        structure: roles, query and head.

    Returns:
        One entry for each group. With a single distinct group the distinct symbols carry no subscript, so that the
        simplest task reads $\alpha, \theta, w$.
    """
    roles = structure.roles
    query = structure.query_group
    ordinary = {role: [i for i, r in enumerate(roles) if r == role and i != query] for role in set(roles)}
    background = [i for i, r in enumerate(roles) if r != "distinct" and i != query]
    letters = {"distinct": "d", "common": "c", "null": "0"}
    lone_distinct = roles.count("distinct") == 1 and query is None and not structure.vocabulary_head

    groups = []
    for index, role in enumerate(roles):
        if index == query:
            tag, types, count = "q", sp.Integer(1), sp.Integer(1)
        else:
            tag = letters[role] + _number(index, ordinary[role])
            name = "C" if role == "distinct" else "D"
            types = sp.Integer(1) if role == "null" else _positive(name + _subscript(index, ordinary[role]))
            same = ordinary[role] if role == "distinct" else background
            letter = "m" if role == "distinct" else "n"
            count = _positive(letter + _subscript(index, same))
        suffix = "" if lone_distinct and role == "distinct" else f"_{tag}"
        groups.append(
            GroupSymbols(
                index=index,
                role=role,
                tag=tag,
                types=types,
                count=count,
                attention=_positive(f"alpha{suffix}"),
                score=_real(f"u{suffix}"),
                gap=_real(f"theta{suffix}"),
                margin=_real(f"w{suffix}"),
                rest=_real(f"v{suffix}"),
            )
        )
    return tuple(groups)


def _number(index: int, among: Sequence[int]) -> str:
    return "" if len(among) == 1 else str(among.index(index) + 1)


def _subscript(index: int, among: Sequence[int]) -> str:
    number = _number(index, among)
    return f"_{number}" if number else ""


def _positive(name: str) -> sp.Symbol:
    return sp.Symbol(name, positive=True)


def _real(name: str) -> sp.Symbol:
    return sp.Symbol(name, real=True)
