"""Conserved quantities, found from the derived equations and not put in."""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import sympy as sp
from sympy.polys.matrices import DomainMatrix

from flowsim.theory.closed_form import ClosedForm
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
    """Linear conserved quantities of a flow, quadratic ones of its factors, and the orbit where it has a closed form.

    Args:
        flow: the symbolic flow.

    Returns:
        A basis of the linear ones, sums of matrix entries where those span it; then the quadratic ones; then the orbit
        invariant.
    """
    found = [*linear_invariants(flow), *quadratic_invariants(flow)]
    if isinstance(flow.closed_form, ClosedForm):
        found.append(
            Invariant(flow.closed_form.invariant, "the orbit: odds + ln odds - rho margin^2/2, up to a constant")
        )
    return tuple(found)


def linear_invariants(flow: Flow) -> tuple[Invariant, ...]:
    r"""All combinations $c^\top B$ of the state with $c^\top \dot B = 0$ identically.

    The velocity is linear in the score fluxes and means of the flow, times a factor where a circuit is factorized.
    These are linearly independent functions of the state, so the combinations are the left null space of a matrix of
    constants. Matrix entries and their sums that lie in the null space are chosen as its basis as far as they go.

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
        if expression.free_symbols & (flow.block_values.keys() - flow.block_velocity.keys()):
            continue  # blocks of a factorized circuit are not linear in its state
        vector = sp.Matrix([sp.diff(expression, symbol) for symbol in state])
        if _rank([*null, vector]) == len(null) and independent(vector):
            basis.append(vector)
            found.append(Invariant(_combination(vector, state), meaning))
    for vector in null:
        if independent(vector):
            basis.append(vector)
            expression = _combination(_leading_one(vector), state)
            found.append(Invariant(expression, "a direction of the state that the loss does not see"))
    return tuple(found)


def quadratic_invariants(flow: Flow) -> tuple[Invariant, ...]:
    r"""All quadratic combinations of the factors of a part that no loss changes, whatever its gradient.

    With the entries of the gradient $G$ on a part as independent symbols, the velocities of the monomials of its
    factors are combinations of (entry of $G$) x (monomial) with numbers for coefficients; the combinations of
    monomials that stay constant are the left null space of those numbers.

    Args:
        flow: the symbolic flow.

    Returns:
        One invariant for each dimension of the null space, part by part; none for parts that the loss does not drive.
    """
    found = []
    for part, side in flow.factorized_parts:
        state = side.circuit.state(part)
        pulls = {block.symbol: sp.Symbol(f"G_{block.symbol}") for row in part.blocks for block in row}
        velocity = dict(zip(state, side.circuit.velocity(part, pulls, sp.Integer(1)), strict=True))
        monomials = [a * b for i, a in enumerate(state) for b in state[i:]]
        unknowns = (*state, *pulls.values())
        rows = []
        for monomial in monomials:
            rate = sp.Add(*(sp.diff(monomial, symbol) * velocity[symbol] for symbol in monomial.free_symbols))
            rows.append(dict(sp.Poly(rate, *unknowns).terms()))
        columns = sorted(set().union(*rows))
        matrix = sp.Matrix([[row.get(column, 0) for column in columns] for row in rows])
        for vector in _left_null_space(matrix):
            expression = _combination(_leading_one(vector), monomials)
            # a law between one matrix and the other is about both products, one within each about their difference
            mixed = any(len({str(s)[0] for s in m.free_symbols}) > 1 for m in expression.as_coefficients_dict())
            law = "exchange between its hidden units" if mixed else "an entry of P^T P - Q Q^T"
            found.append(Invariant(expression, f"factors of {part.letter}, whatever the loss: {law}"))
    return tuple(found)


def _leading_one(vector: sp.Matrix) -> sp.Matrix:
    """The vector scaled so that its first entry is 1 (or, where that is 0, the first that is not)."""
    first = next(c for c in vector if c != 0)
    return vector.applyfunc(lambda c: sp.powdenest(sp.cancel(c / first), force=True))


def _combination(vector: sp.Matrix, state: Sequence[sp.Symbol]) -> sp.Expr:
    return sp.factor_terms(sp.Add(*(sp.factor(c) * symbol for c, symbol in zip(vector, state, strict=True))))


def _coefficients(flow: Flow) -> sp.Matrix:
    """The velocities (rows) as combinations of independent functions of the state (columns)."""
    factors = sorted(flow.block_velocity.keys() - flow.block_values.keys(), key=str)
    rows = []
    for velocity in flow.block_velocity.values():
        row = {}
        for mover, coefficient in flow.linear_terms(velocity).items():
            if not factors:
                row[mover] = coefficient
                continue
            for powers, constant in sp.Poly(coefficient, *factors).terms():
                row[mover * sp.Mul(*(f**n for f, n in zip(factors, powers, strict=True)))] = constant
        rows.append(row)
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
