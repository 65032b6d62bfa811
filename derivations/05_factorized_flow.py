r"""Derivation 5: the factorized flow in block factors, and what it conserves.

Claim. Write W_QK = W_K W_Q^T and W_OV = W_O W_V, and let the hidden space carry the symmetry as well: so many copies of
the standard and of the trivial representation of S_K. Gradient flow that starts symmetric stays symmetric, every part
B of a circuit is a product P Q of two small matrices, and with G = (1/d) dL/dB

    dP/dt = -eta G Q^T,    dQ/dt = -eta P^T G,    so    dB/dt = -eta (P P^T G + G Q^T Q),

for every task and every hidden size. Whatever the loss, P^T P - Q Q^T is conserved; for one loss more is.

Assumptions. Those of derivation 1; gradient flow; time is counted in units of eta_OV, r = eta_QK/eta_OV.

Run it: every step is asserted, and the formulas that it proves are printed.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false

import sympy as sp

from flowsim.task import Structure
from flowsim.theory import Mean, derive, reduce
from flowsim.theory.symbols import CLASSES as K

PLAIN = Structure(("distinct", "common"), "per-class", None, False)
STRUCTURES = (
    PLAIN,
    Structure(("distinct", "null"), "shared", None, False),
    Structure(("distinct", "distinct", "common", "null"), "per-class", None, True),
    Structure(("distinct", "common", "distinct"), "per-class", 2, False),
)


def main() -> None:
    """All steps in order."""
    hidden_space()
    chain_rule()
    induced_flow()
    conserved_quantities()
    equations()


def hidden_space() -> None:
    r"""Step 1. Full factors with a symmetric hidden space move as the block factors do.

    K = 3, one distinct type per class, hidden space = standard x C^2 + trivial x C^2. A symmetric gradient acts on the
    standard representation as one number and on the trivial one as another; a product of symmetric matrices is the
    product of these small matrices on each.
    """
    heading("1", "the symmetry of the hidden space")
    third, root = sp.Rational(1, 3), sp.sqrt
    ones = sp.Matrix(3, 1, [1 / root(3)] * 3)
    basis = sp.Matrix([[1 / root(2), 1 / root(6)], [-1 / root(2), 1 / root(6)], [0, -2 / root(6)]])
    assert sp.simplify(basis * basis.T + ones * ones.T - sp.eye(3)) == sp.zeros(3)
    assert sp.simplify(basis.T * basis - sp.eye(2)) == sp.zeros(2)

    def keys(standard: sp.Matrix, trivial: sp.Matrix) -> sp.Matrix:
        """Three tokens x (standard x C^2 + trivial x C^2), from rows of block factors."""
        return sp.Matrix.hstack(sp.kronecker_product(basis, standard), sp.kronecker_product(ones, trivial))

    ps, qs, pt, qt = (sp.Matrix(1, 2, sp.symbols(f"{name}1 {name}2", real=True)) for name in ("p", "q", "P", "Q"))
    g_s, g_t = sp.symbols("G_s G_t", real=True)
    w_k, w_q = keys(ps, pt), keys(qs, qt)
    gradient = g_s * (sp.eye(3) - sp.ones(3) * third) + g_t * sp.ones(3) * third
    product = (ps * qs.T)[0] * basis * basis.T + (pt * qt.T)[0] * ones * ones.T
    assert sp.simplify(w_k * w_q.T - product) == sp.zeros(3)
    # dW_K = -eta (dL/dW) W_Q and dW_Q = -eta (dL/dW)^T W_K are again of this form, with G Q^T and P^T G in the blocks
    assert sp.simplify(gradient * w_q - keys(g_s * qs, g_t * qt)) == sp.zeros(3, 6)
    assert sp.simplify(gradient.T * w_k - keys(g_s * ps, g_t * pt)) == sp.zeros(3, 6)
    print("  dW_K = -eta (dL/dW) W_Q  =>  dP = -eta G Q^T on every representation, and the same for Q")


def chain_rule() -> None:
    r"""Step 2. The factor flow is the gradient of the loss in the factors, in the metric of each representation.

    (1/d) dL/dP, differentiated from the loss written out in the factors, is minus the velocity over eta. Compared at
    rational points, for structures with several groups, a shared query, the vocabulary head, an attended query.
    """
    heading("2", "the gradient in the factors")
    for structure in STRUCTURES:
        flow = derive(structure, "FAFO", hidden=2 if structure == PLAIN else None)
        loss = flow.composition
        definitions = dict(flow.definitions)
        values = dict(flow.block_values)
        places = dict(zip(flow.coordinates.state, flow.coordinates.in_blocks, strict=True))
        read = {symbol: expression.subs(values) for symbol, expression in places.items()}
        fluxes = dict(flow.fluxes.values())
        named = {symbol: definition for symbol, definition in definitions.items() if symbol not in fluxes}
        whole = written(loss.loss, named).xreplace(read)
        numbers = rational_point(whole)
        for part, side in flow.factorized_parts:
            for symbol in side.circuit.state(part):
                velocity = flow.block_velocity[symbol].xreplace(fluxes).replace(Mean, lambda term: term)
                others = {s: number for s, number in numbers.items() if s != symbol}
                slope = sp.diff(whole.xreplace(others), symbol).xreplace({symbol: numbers[symbol]})
                ours = written(velocity, named).xreplace(read).xreplace(numbers)
                difference = ours + (side.rate / part.dimension).xreplace(numbers) * slope
                assert abs(sp.N(difference, 40, chop=True)) < sp.Float("1e-25"), (structure, symbol)
        print(f"  {', '.join(structure.roles)}; {structure.query} query: {len(flow.velocity)} factors")


def induced_flow() -> None:
    r"""Step 3. The blocks move as dB/dt = -eta (P P^T G + G Q^T Q): a preconditioned collapsed flow."""
    heading("3", "what the product does")
    flow = derive(STRUCTURES[2], "FAFO")
    for part, side in flow.factorized_parts:
        rows, columns = part.shape
        state, width = side.circuit.state(part), side.circuit.width(part)
        p, q = sp.Matrix(rows, width, state[: rows * width]), sp.Matrix(width, columns, state[rows * width :])
        pulls = {block.symbol: sp.Symbol(f"G_{block.symbol}") for row in part.blocks for block in row}
        g = sp.Matrix(rows, columns, list(pulls.values()))
        moved = dict(zip(state, side.circuit.velocity(part, pulls, side.rate), strict=True))
        velocity = (p * q).applyfunc(lambda b, moved=moved: sum(sp.diff(b, s) * v for s, v in moved.items()))
        assert (velocity + side.rate * (p * p.T * g + g * q.T * q)).applyfunc(sp.expand) == sp.zeros(rows, columns)
        print(f"  {part.letter}: {rows} x {columns}, hidden size {width}")


def conserved_quantities() -> None:
    r"""Step 4. The laws are found as null spaces; each is asserted with the velocities of the full flow."""
    heading("4", "conserved quantities")
    for structure in STRUCTURES[:3]:
        for name in ("FACO", "FAFO"):
            flow = derive(structure, name)
            quadratic = 0
            for invariant in flow.conserved:
                slopes = {s: sp.diff(invariant.expression, s) for s in flow.block_velocity}
                assert any(slopes.values())
                drift = sum(slope * flow.block_velocity[s] for s, slope in slopes.items())
                assert sp.simplify(sp.expand(drift)) == 0
                quadratic += "whatever the loss" in invariant.meaning
            # P^T P - Q Q^T is symmetric: so many entries for each part that moves
            widths = [side.circuit.width(part) for part, side in flow.factorized_parts]
            assert quadratic == sum(width * (width + 1) // 2 for width in widths)
    for invariant in derive(PLAIN, "FAFO").conserved:
        print(f"    {invariant}")


def equations() -> None:
    """Step 5. The closed systems of the plain task; parts that the loss does not drive are left out."""
    heading("5", "the flows of the plain task")
    assert "ov_trivial" not in {part.name for part, _ in derive(PLAIN, "FAFO").factorized_parts}
    assert {part.name for part, _ in derive(STRUCTURES[2], "FAFO").factorized_parts} >= {"ov_trivial"}
    for name in ("FACO", "CAFO", "FAFO"):
        flow = derive(PLAIN, name)
        assert len(flow.velocity) == {"FACO": 6, "CAFO": 3, "FAFO": 7}[name]
        print("\n".join("  " + line for line in str(flow).splitlines()))
    assert reduce(PLAIN).qk.parts[0].dimension == K - 1


def written(expression: sp.Expr, definitions: dict[sp.Symbol, sp.Expr]) -> sp.Expr:
    """An expression with its named intermediates written out, the last one first."""
    for symbol, definition in reversed(definitions.items()):
        expression = expression.xreplace({symbol: definition})
    return expression


def rational_point(expression: sp.Expr) -> dict[sp.Symbol, sp.Rational]:
    """Different small fractions for all symbols; sizes at least 2."""
    symbols = sorted(expression.free_symbols, key=str)
    sizes = {s for s in symbols if s.is_positive}
    return {s: sp.Integer(2 + i % 3) if s in sizes else sp.Rational(i % 7 - 3, 5) for i, s in enumerate(symbols)} | {
        sp.Symbol("r", nonnegative=True): sp.Rational(3, 2)
    }


def heading(number: str, title: str) -> None:
    """Prints the heading of a step."""
    print(f"\nStep {number}: {title}")


if __name__ == "__main__":
    main()
