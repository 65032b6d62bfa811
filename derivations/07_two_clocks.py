r"""Derivation 7: two clocks, the closed form of all four parameterizations.

Claim. With one distinct and one background group every circuit is explicit on a clock of its own,

    OV clock  dtau_v = alpha q/(C (K-1)) dt      collapsed: w = w0 + tau_v      factorized: sqrt(C) w = b(tau_v)
    QK clock  dtau_k = r/K alpha (1-alpha) q w dt   collapsed: theta = theta0 + g tau_k   factorized: a sum of b(tau_k)

where b(tau) = b0 cosh(2 F tau) + h sinh(2 F tau) is the component of a part B = P Q along its fixed drive F u, and
h = (|u^T P|^2 + |Q|^2)/2 at the start. Time is eliminated by dividing the clocks; what is left separates:

    tau_k + (m/n) int_0^tau_k e^theta = c int_0^tau_v w,   c = r C (K-1)/K,
    t = C int_0^tau_v (e^{alpha w} + K - 1)/alpha.

Assumptions. Those of derivation 2 from its step 5 on: label head, one distinct and one background group, one
composition, query not attended; any hidden size, any start of the factors.

Run it: every step is asserted, and the formulas that it proves are printed.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false

from typing import cast

import sympy as sp

from flowsim.task import Query, Role, Structure
from flowsim.theory import Flow, TwoClocks, derive
from flowsim.theory.closed_form import bind_single
from flowsim.theory.symbols import CLASSES as K
from flowsim.theory.symbols import ERROR, RATIO
from flowsim.theory.two_clocks import TAU_K, TAU_V

CASES: tuple[tuple[Query, Role], ...] = (
    ("per-class", "common"),
    ("per-class", "null"),
    ("shared", "common"),
    ("shared", "null"),
)
C, D = sp.symbols("C D", positive=True)


def main() -> None:
    """All steps in order."""
    fixed_drives()
    linear_on_the_clock()
    the_flow_is_recovered()
    start_on_the_line()
    imbalance()
    orbit()
    explicit_orbits()
    time_along_the_orbit()


def fixed_drives() -> None:
    r"""Step 1. Each part is pulled along one direction; only the strength of the pull depends on the state."""
    heading("1", "fixed drives")
    expected = {
        ("per-class", "common"): {"s": [1 / sp.sqrt(C)], "t": [1 / sp.sqrt(C), -sp.sqrt(K / D)]},
        ("per-class", "null"): {"s": [1 / sp.sqrt(C)], "t": [1 / sp.sqrt(C)]},
        ("shared", "common"): {"t": [sp.sqrt(K / C), -K / sp.sqrt(D)]},
        ("shared", "null"): {"t": [sp.sqrt(K / C)]},
    }
    for case in CASES:
        flow, closed = solved(case, "FAFO")
        clocks = {TAU_V: closed.clocks[0].rhs, TAU_K: closed.clocks[1].rhs}
        for part in closed.parts:
            drive = sp.Matrix(expected[case].get(part.letter, [sp.sqrt(C)]))
            assert sp.simplify(part.drive * part.direction - drive) == sp.zeros(*drive.shape)
            assert sp.simplify(sum(x**2 for x in part.direction)) == 1
            # minus the gradient of the part is the pace of its clock times the drive
            blocks = next(p for p, _ in flow.factorized_parts if p.name == part.name).blocks
            rate = sp.Integer(1) if part.clock == TAU_V else RATIO
            for (block,), pull in zip(blocks, drive, strict=True):
                force = -rate * bind_single(flow, flow.gradient[block.symbol])
                assert sp.simplify(force - clocks[part.clock] * pull) == 0
            print(f"  {case[0]:9s} query, {case[1]:6s} background: {part.letter} is driven by {list(drive)}")


def linear_on_the_clock() -> None:
    r"""Step 2. On the clock b' = 2 F h and h' = 2 F b, so b = b0 cosh(2 F tau) + h0 sinh(2 F tau), for any hidden size.

    Both follow from the velocities of the factors of the full flow, divided by the pace of the clock. What is
    orthogonal to u never enters theta: theta moves by weight x b alone.
    """
    heading("2", "components along the drive")
    for case in CASES:
        for hidden in (1, 2):
            flow, closed = solved(case, "FAFO", hidden)
            paces = {TAU_V: closed.clocks[0].rhs, TAU_K: closed.clocks[1].rhs}
            for part in closed.parts:
                for moving, other in ((part.component, part.energy), (part.energy, part.component)):
                    rate = along(flow, moving) / paces[part.clock]
                    assert sp.simplify(rate - 2 * part.drive * other) == 0
    b0, h, drive, tau = sp.symbols("b_0 h F tau", real=True)
    b = b0 * sp.cosh(2 * drive * tau) + h * sp.sinh(2 * drive * tau)
    assert sp.simplify(sp.diff(b, tau, 2) - 4 * drive**2 * b) == 0
    assert (b.subs(tau, 0), sp.simplify(sp.diff(b, tau).subs(tau, 0))) == (b0, 2 * drive * h)
    print("  b(tau) = b_0*cosh(2*F*tau) + h*sinh(2*F*tau),   h = (|u^T P|^2 + |Q|^2)/2")


def the_flow_is_recovered() -> None:
    r"""Step 3. Differentiating w(tau_v) and theta(tau_k) gives back dw/dt and dtheta/dt of the factor flow."""
    heading("3", "the clocks solve the flow")
    for case in CASES:
        for name in ("FACO", "CAFO", "FAFO"):
            flow, closed = solved(case, name)
            read = dict(zip(flow.coordinates.state, flow.coordinates.in_blocks, strict=True))
            form = closed.collapsed
            pairs = (
                (form.margin, closed.margin_on_clock, TAU_V, closed.clocks[0].rhs),
                (form.score_gap, closed.score_gap_on_clock, TAU_K, closed.clocks[1].rhs),
            )
            for coordinate, solution, clock, pace in pairs:
                # at tau = 0, which is any time: the start is arbitrary
                slope = sp.diff(solution, clock).subs(clock, 0) * pace
                for part in closed.parts:
                    slope = slope.subs(dict(zip(part.start, (part.component, part.energy), strict=True)))
                moved = along(flow, read[coordinate].xreplace(dict(flow.block_values)))
                assert sp.simplify(moved - slope) == 0, (case, name, coordinate)
        print(f"  {case[0]:9s} query, {case[1]:6s} background: dw/dt and dtheta/dt agree for FACO, CAFO, FAFO")


def start_on_the_line() -> None:
    r"""Step 4. From the line that the collapsed flow takes, b0 = F tau0 with theta0 = g tau0.

    Per class theta = ((K-1) s/sqrt(C) + F b_t)/K; for a shared query theta = F b/K.
    """
    heading("4", "the start on the line of the collapsed flow")
    tau0 = sp.Symbol("tau_0", real=True)
    for case in CASES:
        flow, closed = solved(case, "FAFO")
        gain = closed.collapsed.gain
        theta0 = closed.collapsed.score_gap
        recovered = flow.coordinates.recover({theta0: gain * tau0, closed.collapsed.margin: sp.Integer(0)})
        total = sp.Integer(0)
        for part in closed.parts:
            if part.clock != TAU_K:
                continue
            blocks = [b.symbol for p, _ in flow.factorized_parts if p.name == part.name for (b,) in p.blocks]
            line = sp.Matrix([recovered[b] for b in blocks])
            assert sp.simplify(line - part.drive * tau0 * part.direction) == sp.zeros(*line.shape)
            share = (K - 1) / K if part.letter == "s" else 1 / K
            assert sp.simplify(part.weight - share * part.drive) == 0
            total += part.weight * part.drive
        assert sp.simplify(total - gain) == 0
        print(f"  {case[0]:9s} query, {case[1]:6s} background: theta = {sp.sstr(closed.score_gap_on_clock)}")


def imbalance() -> None:
    r"""Step 5. For width 1, h^2 = b^2 + lambda^2/4 with lambda = (u^T P)^2 - Q^2: db/dtau = F sqrt(lambda^2 + 4 b^2).

    The split of b with a given lambda >= 0 is P = sqrt(lambda/2 + sqrt(lambda^2/4 + b^2)), Q = b/P.
    """
    heading("5", "the imbalance")
    p, q, b = sp.symbols("P Q b", real=True)
    weight = sp.Symbol("lambda", positive=True)
    assert sp.expand(((p**2 + q**2) / 2) ** 2 - (p * q) ** 2 - (p**2 - q**2) ** 2 / 4) == 0
    larger = sp.sqrt(weight / 2 + sp.sqrt(weight**2 / 4 + b**2))
    assert sp.simplify(larger**2 - (b / larger) ** 2 - weight) == 0
    print("  h^2 = b^2 + lambda^2/4,   db/dtau = F*sqrt(lambda^2 + 4*b^2)")


def orbit() -> None:
    r"""Step 6. dtau_k/dtau_v = c (1 - alpha) w, and 1/(1 - alpha) = 1 + (m/n) e^theta: each side has one clock."""
    heading("6", "the orbit")
    for case in CASES:
        for name in ("FACO", "CAFO", "FAFO"):
            _, closed = solved(case, name)
            form = closed.collapsed
            ov, qk = (clock.rhs for clock in closed.clocks)
            assert sp.simplify(qk / ov - closed.ratio * (1 - form.attention) * form.margin) == 0
            assert sp.simplify(closed.ratio - RATIO * C * (K - 1) / K) == 0
            left, right = closed.orbit.args
            odds = form.odds.subs(form.score_gap, closed.score_gap_on_clock)
            assert sp.simplify(sp.diff(left, TAU_K) - (1 + odds)) == 0
            assert sp.simplify(sp.diff(right, TAU_V) - closed.ratio * closed.margin_on_clock) == 0
            assert left.subs(TAU_K, 0).doit() == 0
            assert sp.simplify(right.subs(TAU_V, 0)) == 0
    print("  tau_k + (m/n)*int_0^tau_k exp(theta) = c*int_0^tau_v w,   c = r*C*(K - 1)/K")


def explicit_orbits() -> None:
    r"""Step 7. Where a side is elementary: collapsed w gives (w^2 - w0^2)/2, factorized a root; collapsed theta y.

    CAFO: y + ln y = (g c/(4 C)) (sqrt(lambda^2 + 4 C w^2) - sqrt(lambda^2 + 4 C w0^2)) + y0 + ln y0.
    """
    heading("7", "the output-value side of the orbit in closed form")
    w, w0, theta = sp.symbols("w w_0 theta", real=True)
    weight = sp.Symbol("lambda", nonnegative=True)
    # dw/dtau_v = sqrt(lambda^2 + 4 C w^2): step 5 for b = sqrt(C) w with F = sqrt(C)
    pace = sp.sqrt(weight**2 + 4 * C * w**2)
    assert sp.simplify(sp.diff(pace / (4 * C), w) - w / pace) == 0
    _, closed = solved(CASES[0], "CAFO")
    b0, h = closed.parts[0].start
    way = closed.orbit.rhs / closed.ratio
    at = {b0: sp.sqrt(C) * w0, h: sp.sqrt(C * w0**2 + weight**2 / 4), sp.Symbol("w_0", real=True): w0}
    end = closed.margin_on_clock.subs(at)
    explicit = (sp.sqrt(weight**2 + 4 * C * end**2) - sp.sqrt(weight**2 + 4 * C * w0**2)) / (4 * C)
    for number in (sp.Rational(1, 7), sp.Rational(3, 5)):
        point = {TAU_V: number, w0: sp.Rational(2, 3), weight: sp.Rational(1, 2), C: 3}
        assert abs(sp.N((way.subs(at) - explicit).subs(point), 30)) < sp.Float("1e-25")
    y = closed.collapsed.odds.subs(closed.collapsed.score_gap, theta)
    gate = sp.integrate((1 + y) / closed.collapsed.gain, theta)
    assert sp.simplify(sp.diff(gate * closed.collapsed.gain - (y + theta), theta)) == 0
    print("  CAFO: y + ln y = g*c/(4*C)*(sqrt(lambda^2 + 4*C*w^2) - sqrt(lambda^2 + 4*C*w_0^2)) + y_0 + ln y_0")


def time_along_the_orbit() -> None:
    r"""Step 8. Time is a quadrature over the output-value clock."""
    heading("8", "the time map")
    for name in ("FACO", "CAFO", "FAFO"):
        _, closed = solved(CASES[0], name)
        form, time = closed.collapsed, closed.time_map.rhs
        integral = time.atoms(sp.Integral).pop()
        rate = time.as_independent(sp.Integral)[0] * integral.function
        error = (K - 1) / (sp.exp(form.attention * form.margin) + K - 1)
        assert integral.limits[0][0] == TAU_V
        assert sp.simplify(rate * closed.clocks[0].rhs.subs(ERROR, error) - 1) == 0
    print(f"  t = {sp.sstr(time)}")


def solved(case: tuple[Query, Role], name: str, hidden: int = 1) -> tuple[Flow, TwoClocks]:
    """The flow of one of the four cases and its closed form."""
    flow = derive(Structure(("distinct", case[1]), case[0], None, False), name, hidden=hidden)
    return flow, cast(TwoClocks, flow.closed_form)


def along(flow: Flow, expression: sp.Expr) -> sp.Expr:
    """The time derivative of an expression in the state, for a single composition."""
    velocity = flow.block_velocity
    moved = sp.Add(*(sp.diff(expression, s) * velocity[s] for s in expression.free_symbols & velocity.keys()))
    return bind_single(flow, moved)


def heading(number: str, title: str) -> None:
    """Prints the heading of a step."""
    print(f"\nStep {number}: {title}")


if __name__ == "__main__":
    main()
