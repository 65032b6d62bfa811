"""What is measured along a trajectory, in the coordinates of the flow."""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import sympy as sp

from flowsim.task import Structure
from flowsim.theory.symbols import Mean

if TYPE_CHECKING:
    from flowsim.theory.flow import Flow


@dataclasses.dataclass(frozen=True)
class ObservableSymbols:
    """Observables as expressions in the coordinates, attentions and errors.

    Attributes:
        margin: own-label minus other-label logit of a token of the first distinct group.
        score_gap: score of the first distinct group minus that of the first background group.
        attention: mean mass on the first distinct group.
        odds: attention/(1 - attention).
        error: mean probability that the head puts on anything but the label.
        loss: mean cross-entropy.
    """

    margin: sp.Expr
    score_gap: sp.Expr
    attention: sp.Expr
    odds: sp.Expr
    error: sp.Expr
    loss: sp.Expr


def first_distinct(structure: Structure) -> int:
    """The group whose margin, score gap and attention are reported: the first distinct one."""
    return structure.roles.index("distinct")


def first_background(structure: Structure, reference: int) -> int:
    """The group that the score gap is measured against: the first common or null one that is not the query.

    Args:
        structure: roles, query and head.
        reference: the reference group of the coordinates, used when there is no background group.

    Returns:
        Its index.
    """
    for index, role in enumerate(structure.roles):
        if role != "distinct" and index != structure.query_group:
            return index
    return reference


def observables(flow: Flow) -> ObservableSymbols:
    """The observables of a flow.

    Args:
        flow: the symbolic flow.

    Returns:
        Expressions; means over compositions are written $E[.]$.
    """
    structure = flow.structure
    groups, gaps = flow.reduction.groups, flow.coordinates.gaps
    distinct = groups[first_distinct(structure)]
    background = first_background(structure, flow.coordinates.reference)
    rest = sp.Add(*(g.attention for g in groups if g.index != distinct.index))
    return ObservableSymbols(
        margin=distinct.margin,
        score_gap=gaps[distinct.index] - gaps[background],
        attention=Mean(distinct.attention),
        odds=Mean(distinct.attention) / Mean(rest),
        error=Mean(sp.Add(*(output.error for output in flow.composition.outputs))),
        loss=Mean(flow.composition.loss),
    )
