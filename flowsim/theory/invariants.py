"""Conserved quantities, found from the derived equations and not put in."""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import sympy as sp
from sympy.polys.matrices import DomainMatrix

from flowsim.theory.symbols import CLASSES, OTHER_OUTPUTS, RATIO

if TYPE_CHECKING:
    from flowsim.theory.flow import Flow


@dataclasses.dataclass(frozen=True)
class Invariant:
    """A quantity that stays constant along the flow.

    Attributes:
        expression: in the blocks, or (the orbit invariant) in the reduced coordinates.
        meaning: what it is, in words.
    """

    expression: sp.Expr
    meaning: str

    def __str__(self) -> str:
        return f"{sp.sstr(self.expression)} = const   ({self.meaning})"

    def _repr_latex_(self) -> str:
        return rf"$\displaystyle {sp.latex(self.expression)} = \mathrm{{const}}$"


def conserved_quantities(flow: Flow) -> tuple[Invariant, ...]:
    """All linear conserved quantities of a flow, and the orbit invariant where the flow has a closed form.

    Args:
        flow: the symbolic flow.

    Returns:
        A basis of the linear ones, sums of matrix entries where those span it; then the orbit invariant.
    """
    found = list(linear_invariants(flow))
    if flow.closed_form is not None:
        found.append(
            Invariant(flow.closed_form.invariant, "the orbit: odds + ln odds - rho margin^2/2, up to a constant")
        )
    return tuple(found)


def linear_invariants(flow: Flow) -> tuple[Invariant, ...]:
    r"""All combinations $c^\top B$ of the state with $c^\top \dot B = 0$ identically.

    The velocity is linear in the score fluxes and means of the flow, which are linearly independent functions of the
    state, so the combinations are the left null space of a matrix of constants. Matrix entries and their sums that lie
    in the null space are chosen as its basis as far as they go.

    Args:
        flow: the symbolic flow.

    Returns:
        One invariant for each dimension of the null space.
    """
    state = list(flow.block_velocity)
    null = _left_null_space(_coefficients(flow))
    basis: list[sp.Matrix] = []
    found: list[Invariant] = []

    def independent(vector: sp.Matrix) -> bool:
        return _rank([*basis, vector]) == len(basis) + 1

    for expression, meaning in _candidates(flow):
        vector = sp.Matrix([sp.diff(expression, symbol) for symbol in state])
        if _rank([*null, vector]) == len(null) and independent(vector):
            basis.append(vector)
            found.append(Invariant(_combination(vector, state), meaning))
    for vector in null:
        if independent(vector):
            basis.append(vector)
            found.append(Invariant(_combination(vector, state), "a direction of the state that the loss does not see"))
    return tuple(found)


def _combination(vector: sp.Matrix, state: Sequence[sp.Symbol]) -> sp.Expr:
    return sp.factor_terms(sp.Add(*(sp.factor(c) * symbol for c, symbol in zip(vector, state, strict=True))))


def _coefficients(flow: Flow) -> sp.Matrix:
    """The velocities (rows) as combinations of independent functions of the state (columns)."""
    rows = [flow.linear_terms(velocity) for velocity in flow.block_velocity.values()]
    columns = sorted(set().union(*rows), key=str)
    return sp.Matrix([[row.get(function, sp.Integer(0)) for function in columns] for row in rows])


def _rational(matrix: sp.Matrix) -> sp.Matrix:
    """Square roots of sizes as symbols of their own, so that entries are rational functions."""
    roots = {s: sp.Symbol(f"{s.name}_root", positive=True) ** 2 for s in matrix.free_symbols}
    return matrix.subs(roots)


def _left_null_space(matrix: sp.Matrix) -> list[sp.Matrix]:
    if matrix.cols == 0:
        return [sp.eye(matrix.rows).col(i) for i in range(matrix.rows)]
    field = DomainMatrix.from_Matrix(_rational(matrix.subs(RATIO, 1)).T).to_field()
    squares = {sp.Symbol(f"{s.name}_root", positive=True): sp.sqrt(s) for s in matrix.free_symbols}
    null = field.nullspace().to_Matrix()
    return [null.row(i).T.subs(squares) for i in range(null.rows)]


def _rank(vectors: Sequence[sp.Matrix]) -> int:
    if not vectors:
        return 0
    return DomainMatrix.from_Matrix(_rational(sp.Matrix.hstack(*vectors))).to_field().rank()


def _candidates(flow: Flow) -> list[tuple[sp.Expr, str]]:
    """Sums of matrix entries that a reader would recognize; the null space decides which are conserved."""
    reduction = flow.reduction
    tokens = [g for g in reduction.groups if not g.is_null]
    candidates: list[tuple[sp.Expr, str]] = []
    for g in tokens:
        if g.is_distinct and reduction.query.carries_class:
            unseen = reduction.score(g.index, own_class=False)
            candidates.append((unseen, f"QK: score of another class's token ({g.tag}), which no sequence holds"))
    if len(tokens) == len(reduction.groups):
        total = sp.Add(
            *(
                reduction.score(g.index) / flow.coordinates.mobility(("score", g.index), ("score", g.index))
                for g in tokens
            )
        )
        candidates.append((total, "QK: sum of the scores over tokens and classes, as a common shift does nothing"))
    for g in tokens:
        column = reduction.logit(g.index, "own") + (CLASSES - 1) * reduction.logit(g.index, "other")
        if reduction.rest is not None:
            column += OTHER_OUTPUTS * reduction.logit(g.index, "rest")
        candidates.append((column, f"OV: column sum of a token ({g.tag}) over the outputs"))
    return candidates
