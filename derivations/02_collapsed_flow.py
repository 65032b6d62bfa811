r"""Derivation 2: the collapsed flow, its clocks and what it conserves.

Claim. With both circuits collapsed (CACO) the flow closes in score gaps, margins and never-label logits; it is written
with attentions and errors only, and nothing in it cancels when attention saturates. For one distinct and one background
group it is a pair of equations for the margin w and the score gap theta, each explicit on its own clock, with the orbit

    y + ln y = rho (w^2 - w0^2)/2 + y0 + ln y0,        y = alpha/(1 - alpha).

Assumptions. Those of derivation 1; gradient flow; time is counted in units of eta_OV, r = eta_QK/eta_OV. From step 5
on: label head, one distinct and one background group (common or null), one composition (m distinct and n background
positions), query not attended.

Run it: every step is asserted, and the formulas that it proves are printed.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false

import sympy as sp

from flowsim.task import Query, Role, Structure
from flowsim.theory import ClosedForm, Mean, derive, reduce
from flowsim.theory.loss import attended_slopes, attention_of
from flowsim.theory.symbols import CLASSES, ERROR, LEAD, OTHER_OUTPUTS, RATIO

K, R, r = CLASSES, OTHER_OUTPUTS, RATIO
GENERAL = Structure(("distinct", "distinct", "common", "null"), "per-class", None, True)
PLAIN = Structure(("distinct", "common"), "per-class", None, False)
C, D = sp.symbols("C D", positive=True)
ELIGIBLE: dict[tuple[Query, Role], sp.Expr] = {  # query, background: the gain g
    ("per-class", "common"): 1 / C + 1 / D,
    ("per-class", "null"): 1 / C,
    ("shared", "common"): 1 / C + K / D,
    ("shared", "null"): 1 / C,
}


def main() -> None:
    """All steps in order."""
    softmax_without_cancellation()
    fluxes_are_the_derivative()
    mobilities()
    conserved_quantities()
    margin_and_score_gap()
    two_clocks()
    orbit()
    time_along_the_orbit()


def softmax_without_cancellation() -> None:
    r"""Step 1. An attended value moves with a score as dz/du_g = alpha_g sum_h alpha_h (y_g - y_h).

    The textbook form alpha_g (y_g - z) subtracts nearly equal numbers when attention saturates on g; the sum over the
    other groups does not. Both are derivatives of the same softmax, by exact rational arithmetic in x_g = e^{u_g}.
    """
    heading("1", "softmax derivatives that do not cancel")
    groups = reduce(GENERAL).groups
    attention = attention_of(groups)
    values = {g.index: g.rest for g in groups if not g.is_null}
    attended = sp.Add(*(attention[g] * value for g, value in values.items()))
    pairs = attended_slopes(groups, values)
    rational = {g.score: sp.log(sp.Symbol(f"x_{g.tag}", positive=True)) for g in groups if not g.is_null}
    for g in groups:
        if g.is_null:
            continue
        stable = sp.Integer(0)
        for (a, b), difference in pairs.items():
            if g.index in (a, b):
                stable += (1 if g.index == a else -1) * attention[a] * attention[b] * difference
        difference = (sp.diff(attended, g.score) - stable).subs(rational)
        assert sp.cancel(sp.together(difference)) == 0
    first = sp.Add(*(groups[b].attention * difference for (a, b), difference in pairs.items() if a == 0))
    print(f"  dz/du_{groups[0].tag} = {groups[0].attention}*({sp.sstr(first)})")


def fluxes_are_the_derivative() -> None:
    r"""Step 2. The score flux F_gh = -F_hg carries all that the loss gives to scores: dL/du_g = -sum_h F_gh.

    Summed over all groups nothing is left, so a common shift of all scores does nothing, and the flow closes in
    differences of scores. Margins and rest logits are pushed by attention times error.
    """
    heading("2", "score fluxes")
    flow = derive(GENERAL)
    total = sum((flow.slopes[key] for key in flow.slopes if key[0] == "score"), sp.Integer(0))
    null = next(g for g in flow.reduction.groups if g.is_null)
    to_null = sum(
        (flux if h == null.index else -flux) for (g, h), (flux, _) in flow.fluxes.items() if null.index in (g, h)
    )
    assert sp.expand(total + to_null) == 0  # what the scored groups lose, the null group (whose score is fixed) gets
    for flux, definition in flow.fluxes.values():
        print(f"  {flux} = {sp.sstr(definition)}")
    for key, slope in flow.slopes.items():
        name = {"score": "u", "margin": "w", "rest": "v"}[key[0]]
        print(f"  dL/d{name}_{flow.reduction.groups[key[1]].tag} = {sp.sstr(slope)}")


def mobilities() -> None:
    r"""Step 3. Readouts move as dx/dt = -(J M^-1 J^T) dL/dx with constant mobilities, so the flow closes in them."""
    heading("3", "mobilities")
    coordinates = derive(Structure(("distinct", "common"), "per-class", None, True)).coordinates
    shared = derive(Structure(("distinct", "common"), "shared", None, True)).coordinates
    score, common, margin, rest, rest_common = ("score", 0), ("score", 1), ("margin", 0), ("rest", 0), ("rest", 1)
    expected = [
        ("score, distinct", coordinates.mobility(score, score), 1 / (K * C)),
        ("score, common", coordinates.mobility(common, common), 1 / (K * D)),
        ("score, common, shared query", shared.mobility(common, common), 1 / D),
        ("margin", coordinates.mobility(margin, margin), 1 / ((K - 1) * C)),
        ("margin with rest logit", coordinates.mobility(margin, rest), -1 / (K * C)),
        ("rest logit, distinct", coordinates.mobility(rest, rest), (1 / R + 1) / (K * C)),
        ("rest logit, common", coordinates.mobility(rest_common, rest_common), (1 / R + 1 / K) / D),
    ]
    for name, mobility, formula in expected:
        assert sp.simplify(mobility - formula) == 0, name
        print(f"  {name:28s} {sp.sstr(formula)}")
    assert coordinates.mobility(score, common) == 0
    assert shared.mobility(score, score) == coordinates.mobility(score, score)
    print()
    print("\n".join("  " + line for line in str(derive(GENERAL)).splitlines()))


def conserved_quantities() -> None:
    r"""Step 4. The linear conserved quantities are the left null space of the velocity, for any structure."""
    heading("4", "conserved quantities")
    for structure in (PLAIN, GENERAL):
        flow = derive(structure)
        print(f"  {', '.join(structure.roles)}:")
        for invariant in flow.conserved:
            slopes = {b: sp.diff(invariant.expression, b) for b in flow.block_velocity}
            if any(slopes.values()):  # linear in the blocks; the orbit invariant has its own step
                drift = sum(slope * flow.block_velocity[b] for b, slope in slopes.items())
                assert sp.simplify(drift) == 0
                print(f"    {invariant}")


def margin_and_score_gap() -> None:
    r"""Step 5. One distinct and one background group: the flow is a pair of equations."""
    heading("5", "margin and score gap")
    m, n = sp.symbols("m n", positive=True)
    for (query, background), gain in ELIGIBLE.items():
        closed = eligible(query, background)
        alpha, w, theta = closed.attention, closed.margin, closed.score_gap
        assert sp.simplify(closed.odds - m / n * sp.exp(theta)) == 0
        assert sp.simplify(closed.margin_velocity - alpha * ERROR / (C * (K - 1))) == 0
        gap = r * gain / K * alpha * (1 - alpha) * ERROR * w
        assert sp.simplify(closed.score_gap_velocity - gap) == 0
        print(f"  {query} query, {background} background:")
        print(f"    dw/dt     = {sp.sstr(closed.margin_velocity)}")
        print(f"    dtheta/dt = {sp.sstr(closed.score_gap_velocity)}")
    flow = derive(PLAIN)
    assert {type(e.args[0]) for e in flow.equations[-2:]} == {sp.Derivative}
    # with several compositions each right-hand side is their mean
    assert all(velocity.xreplace(dict(flow.fluxes.values())).has(Mean) for velocity in flow.velocity.values())


def two_clocks() -> None:
    r"""Step 6. On its own clock each circuit is explicit: w = w0 + tau_v and theta = theta0 + g tau_k."""
    heading("6", "two clocks")
    for (query, background), gain in ELIGIBLE.items():
        closed = eligible(query, background)
        assert sp.simplify(closed.gain - gain) == 0
        ov_clock, qk_clock = (clock.rhs for clock in closed.clocks)
        alpha, w = closed.attention, closed.margin
        assert sp.simplify(ov_clock - alpha * ERROR / (C * (K - 1))) == 0
        assert sp.simplify(qk_clock - r / K * alpha * (1 - alpha) * ERROR * w) == 0
        assert sp.simplify(closed.margin_velocity / ov_clock) == 1
        assert sp.simplify(closed.score_gap_velocity / qk_clock - closed.gain) == 0
        print(f"  {query:9s} query, {background:6s} background: g = {sp.sstr(closed.gain)}")
    print("  dtau_v = alpha q/(C (K-1)) dt,   dtau_k = r/K alpha (1-alpha) q w dt")


def orbit() -> None:
    r"""Step 7. Time is eliminated by dividing the two equations; the result separates and integrates.

    dtheta/(1 - alpha) = rho w dw, and 1/(1 - alpha) = 1 + y with dy = y dtheta.
    """
    heading("7", "the orbit")
    for query, background in ELIGIBLE:
        closed = eligible(query, background)
        alpha, w, theta, y = closed.attention, closed.margin, closed.score_gap, closed.odds
        slope = sp.cancel(closed.score_gap_velocity / closed.margin_velocity)
        assert sp.simplify(slope - closed.rho * w * (1 - alpha)) == 0
        assert sp.simplify(closed.rho - closed.gain * r * C * (K - 1) / K) == 0
        assert sp.simplify(1 / (1 - alpha).subs(alpha, y / (1 + y)) - (1 + y)) == 0
        # the invariant is y + ln y - rho w^2/2 up to a constant, and it does not move
        difference = closed.invariant - (y + sp.log(y) - closed.rho * w**2 / 2)
        assert sp.simplify(sp.expand_log(sp.diff(difference, theta), force=True)) == 0
        assert sp.diff(difference, w) == 0
        drift = sp.diff(closed.invariant, theta) * closed.score_gap_velocity
        drift += sp.diff(closed.invariant, w) * closed.margin_velocity
        assert sp.simplify(drift.subs(alpha, y / (1 + y))) == 0
        print(f"  {query:9s} query, {background:6s} background: rho = {sp.sstr(closed.rho)}")
    closed = eligible("per-class", "common")
    print(f"  {sp.sstr(closed.orbit.lhs)} = rho*(w**2 - w_0**2)/2 + y_0 + log(y_0)")


def time_along_the_orbit() -> None:
    r"""Step 8. Time is a quadrature over the margin along the orbit."""
    heading("8", "the time map")
    for query, background in ELIGIBLE:
        closed = eligible(query, background)
        time = closed.time_map.rhs
        integrand = time.as_independent(sp.Integral)[0] * next(iter(time.atoms(sp.Integral))).function
        error = (K - 1) / (sp.exp(LEAD) + K - 1)
        inverse = 1 / closed.margin_velocity.subs(ERROR, error).subs(LEAD, closed.attention * closed.margin)
        assert sp.simplify(integrand - inverse) == 0
    print(f"  t = {sp.sstr(eligible('per-class', 'common').time_map.rhs)}")


def eligible(query: Query, background: Role) -> ClosedForm:
    """The closed form of one of the four cases."""
    closed = derive(Structure(("distinct", background), query, None, False)).closed_form
    assert isinstance(closed, ClosedForm)
    return closed


def heading(number: str, title: str) -> None:
    """Prints the heading of a step."""
    print(f"\nStep {number}: {title}")


if __name__ == "__main__":
    main()
