r"""Derivation 4: growth laws, from the closed form by asymptotic series.

Claim. With l = ln(t/C) and rho = g r C (K-1)/K, for every ratio r > 0, once attention is saturated:

    margin      w     = l + 2/(rho l) + O(ln l/l^3)                          log t, constant 1
    odds        y     = (rho/2) l^2 (1 + O(ln l/l^2))                        log^2 t, constant rho/2
    score gap   theta = ln(n/m) + ln(rho/2) + 2 ln l + O(ln l/l^2)           log log t

and before, while theta - theta0 << 1, with l = ln(alpha0^2 t/C) and a zero start:

    margin      w     = l/alpha0 + ...                                       log t, constant 1/alpha0
    score gap   theta = rho (1-alpha0)/(2 alpha0^2) l^2 + ...                log^2 t

The two regimes of the score gap meet where rho (w^2 - w0^2)(1 - alpha0) = 2. So log^2 t for "the query-key scalar" is
true of the odds; of the score gap itself only before saturation.

Assumptions. Those of derivation 3, w0 real, r > 0. Series are formal in the small quantities named at each step; step 8
compares them with the closed form at 30 digits, and the difference shrinks at the rate of the first term left out.

Run it: every step is asserted, and the formulas that it proves are printed.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false

import mpmath as mp
import sympy as sp

from flowsim.theory import growth
from flowsim.theory.growth import BEFORE, MARGIN, ODDS, SATURATED, SCORE_GAP, alpha0, kappa, l, margin0, rho

X, M, v = sp.Symbol("X", positive=True), sp.Symbol("M"), sp.Symbol("v")
LAWS = {
    (law.observable, law.regime): law._replace(
        **{
            name: getattr(law, name).subs(growth.unattended0, 1 - alpha0)
            for name in ("constant", "offset", "correction", "remainder")
        }
    )
    for law in growth.growth_laws("CACO")
}
E = rho * l**2 / 2 + kappa


def main() -> None:
    """All steps in order."""
    omega_at_infinity()
    time_at_its_upper_end()
    margin_after_saturation()
    odds_after_saturation()
    score_gap_after_saturation()
    before_saturation()
    where_the_regimes_meet()
    against_the_closed_form()
    the_paper_in_these_terms()


def omega_at_infinity() -> None:
    r"""Step 1. omega(X) = X - M + sum c_k(M)/X^k with M = ln X: put into omega + ln omega = X, order by order."""
    heading("1", "the Wright omega function at infinity")
    order = 4
    coefficients = growth.omega_series(order)
    omega = X - M + sum(c / X ** (k + 1) for k, c in enumerate(coefficients))
    # ln omega = M + ln(omega/X); with v = 1/X the defect of the equation starts beyond the order computed
    ratio = sp.expand((omega / X).subs(X, 1 / v))
    defect = sp.expand(sp.expand((ratio - 1) / v) + M + logarithm(ratio, v, order + 1))
    assert all(sp.expand(defect.coeff(v, k)) == 0 for k in range(order + 1))
    assert sp.expand(defect.coeff(v, order + 1)) != 0 or order == 0
    assert coefficients[:2] == (M, M * (M - 2) / 2)
    print(
        f"  omega = X - M + {' + '.join(f'({c})/X^{k + 1}' for k, c in enumerate(coefficients[:3]))} + ...,  M = ln X"
    )


def time_at_its_upper_end() -> None:
    r"""Step 2. t/C = S e^Delta with ln S = O(ln X/X^2): so l = Delta + ln S, and Delta = w - w/(1+y).

    By parts, with h = 1/alpha: the integral of h e^Delta is e^Delta (h/Delta' - (h/Delta')'/Delta' + ...). The K-1 term
    and the lower end are smaller by e^-l, up to powers of l.
    """
    heading("2", "the time integral at its upper end")
    w = sp.Symbol("w", positive=True)
    h, delta = sp.Function("h")(w), sp.Function("Delta")(w)
    first = h / delta.diff(w)
    second = -first.diff(w) / delta.diff(w)
    left = h * sp.exp(delta) - ((first + second) * sp.exp(delta)).diff(w)
    assert (
        sp.simplify(left + second.diff(w) * sp.exp(delta)) == 0
    )  # what is left is the next term, again under the integral
    # Delta' along the orbit: y' = rho w y/(1+y)
    y = sp.Function("y", positive=True)(w)
    attended = y / (1 + y)
    slope = (attended * w).diff(w).subs(y.diff(w), rho * w * y / (1 + y))
    assert sp.simplify(slope - attended * (1 + rho * w**2 / (1 + y) ** 2)) == 0
    unattended, log_prefactor = (series.as_expr() for series in growth.orbit_series())
    kap, inverse_w = sp.Symbol("kappa"), sp.Symbol("W")
    # 1 - alpha = 1/(1 + y) with y from step 1
    c1, c2 = growth.omega_series(2)
    reciprocal = sp.expand(unattended * (1 + v - v * M + c1 * v**2 + c2 * v**3) / v)
    assert all(sp.expand((reciprocal - 1).coeff(v, k)) == 0 for k in range(3))
    # the leading prefactor again, -2 ln alpha - ln(1 + rho w^2 (1-alpha)^2) with rho w^2 = 2 (X - kappa): no order v
    drive = sp.expand(2 * (1 - kap * v) * sp.expand(unattended**2) / v)
    leading = -2 * logarithm(1 - unattended, v, 2) - logarithm(1 + drive, v, 2)
    leading = sp.expand(leading)
    assert leading.coeff(v, 0) == 0
    assert leading.coeff(v, 1) == 0
    assert sp.expand(leading.coeff(v, 2) - sp.Poly(log_prefactor, v).coeff_monomial(v**2).subs({inverse_w: 0})) == 0
    assert sp.expand(log_prefactor.coeff(v, 0)) == sp.expand(log_prefactor.coeff(v, 1)) == 0
    print(f"  1 - alpha = {sp.collect(unattended, v)} + ...")
    print(f"  ln S = ({sp.collect(log_prefactor.coeff(v, 2), inverse_w)}) v^2 + ...,  v = 1/X, W = 1/w")


def margin_after_saturation() -> None:
    r"""Step 3. l = w - w/(1+y) + ln S is inverted: w = l + l/E + ..., E = rho l^2/2 + kappa.

    The correction is 2/(rho l) as l -> oo, and the next term 8 ln l/(rho^2 l^3).
    """
    heading("3", "the margin after saturation")
    law = LAWS[MARGIN, SATURATED]
    assert law.constant == 1
    assert sp.simplify(law.correction - l / E) == 0
    assert sp.limit(law.correction * rho * l / 2, l, sp.oo) == 1
    size = law.remainder.subs({kappa: 0, rho: 3})
    assert sp.limit(size / (8 * sp.log(l) / (9 * l**3)), l, sp.oo) == 1
    print(f"  w = l + {sp.sstr(law.correction)} + ... = l + 2/(rho l) + O(8 ln l/(rho^2 l^3))")


def odds_after_saturation() -> None:
    r"""Step 4. y = omega(rho w^2/2 + kappa) with the margin of step 3: rho w^2/2 = rho l^2/2 + 2 + ..."""
    heading("4", "the odds after saturation")
    law = LAWS[ODDS, SATURATED]
    assert sp.simplify(law.constant - rho / 2) == 0
    assert sp.simplify(law.correction - (kappa + 2 - sp.log(E))) == 0
    # independently: square the margin's two terms and subtract the logarithm
    margin = l + LAWS[MARGIN, SATURATED].correction
    squared = sp.expand(rho * margin**2 / 2 + kappa - E)
    assert sp.limit(squared.subs({rho: 3, kappa: 5}), l, sp.oo) == 2
    assert sp.limit(
        (law.correction / law.leading * l**2 / sp.log(l)).subs({rho: 3, kappa: 5}), l, sp.oo
    ) == sp.Rational(-4, 3)
    print(f"  y = rho l^2/2 + {sp.sstr(law.correction)} + ... = (rho/2) l^2 (1 - 4 ln l/(rho l^2) + ...)")


def score_gap_after_saturation() -> None:
    r"""Step 5. theta = ln(n/m) + ln y, and ln y = ln(rho/2) + 2 ln l + O(ln l/l^2): log log t, exponent 0."""
    heading("5", "the score gap after saturation")
    law, odds = LAWS[SCORE_GAP, SATURATED], LAWS[ODDS, SATURATED]
    assert law.constant == 2
    assert sp.simplify(law.leading - (2 * sp.log(l) + sp.log(rho / 2) - sp.log(growth.base_odds))) == 0
    # ln y of step 4, to first order in 1/E
    first = sp.log(E) + (odds.correction - kappa) / E
    assert sp.simplify(sp.expand_log(first - sp.log(growth.base_odds) - law.leading - law.correction, force=True)) == 0
    local = sp.simplify(l * sp.diff(law.leading, l) / law.leading)
    assert sp.limit(local.subs({rho: 3, growth.base_odds: 1}), l, sp.oo) == 0
    print(f"  theta = {sp.sstr(law.leading)} + ...;  local exponent {sp.sstr(local)} -> 0")


def before_saturation() -> None:
    r"""Step 6. Orbit and time map as series in rho around the frozen gate; psi = theta - theta0."""
    heading("6", "before saturation")
    margin, gap = LAWS[MARGIN, BEFORE], LAWS[SCORE_GAP, BEFORE]
    assert sp.simplify(margin.leading - l / alpha0) == 0
    constant = rho * (1 - alpha0) / (2 * alpha0**2)
    assert sp.simplify(gap.constant - constant) == 0
    assert sp.simplify(gap.offset + (1 - alpha0) * rho * margin0**2 / 2) == 0
    # independently: psi + y0 (e^psi - 1) = rho (w^2 - w0^2)/2 to second order, with the margin's first two terms
    psi1, psi2, order = sp.symbols("psi_1 psi_2 epsilon")
    y0 = alpha0 / (1 - alpha0)
    w = (l + order * alpha0 * margin.correction) / alpha0
    drive = rho * (w**2 - margin0**2) / 2
    orbit = order * psi1 + order**2 * psi2 + y0 * (order * psi1 + order**2 * (psi2 + psi1**2 / 2)) - order * drive
    orbit = sp.expand(orbit)
    found1 = sp.solve(orbit.coeff(order, 1), psi1)[0]
    found2 = sp.solve(sp.Poly(orbit, order).coeff_monomial(order**2).subs(psi1, found1), psi2)[0]
    assert sp.simplify(found1 - gap.leading) == 0
    assert sp.simplify(found2 - gap.correction) == 0
    # and the margin's correction: l = Delta + ln(alpha0^2 S) to first order, S by parts to all orders (a polynomial)
    x = sp.Symbol("x", positive=True)  # alpha0 w
    psi = (1 - alpha0) * rho * (x**2 / alpha0**2 - margin0**2) / 2
    shift = (1 - alpha0) * psi  # alpha = alpha0 (1 + shift)
    # h e^Delta = (1 - shift + x shift) e^x to first order; its integral, divided by e^x, is (1 + excess)
    excess = (x - 1) * shift
    integral, sign = sp.S.Zero, 1
    term = excess
    while term != 0:
        integral += sign * term
        term, sign = sp.diff(term, x), -sign
    assert sp.simplify(sp.expand(sp.diff(integral * sp.exp(x), x) - excess * sp.exp(x))) == 0
    assert sp.simplify((-integral / alpha0).subs(x, l) - margin.correction) == 0
    leading = sp.limit(gap.correction.subs(margin0, 0) / gap.leading.subs(margin0, 0) ** 2, l, sp.oo)
    assert sp.simplify(leading - (3 * alpha0 - 4) / 2) == 0
    print(f"  w = l/alpha0 + {sp.sstr(margin.correction)} + ...")
    print(f"  theta - theta0 = psi + ({sp.sstr(leading)}) psi^2 + ...,  psi = {sp.sstr(gap.leading)},  l >> 1")


def where_the_regimes_meet() -> None:
    r"""Step 7. The law before saturation reaches 1 at rho (w^2 - w0^2)(1 - alpha0) = 2."""
    heading("7", "where the regimes meet")
    w = growth.crossing_margin().subs(growth.unattended0, 1 - alpha0)
    assert sp.simplify(rho * (w**2 - margin0**2) * (1 - alpha0) - 2) == 0
    numbers = {alpha0: sp.Rational(32, 63), margin0: 0}
    for ratio, expected in (("1e-4", 165), ("1e-6", 1646)):
        value = sp.N(w.subs(numbers | {rho: sp.Rational("1.5") * sp.Rational(ratio)}))
        assert abs(value - expected) < 0.5
        print(f"  K=4, C=D=10, m=32, n=31, zero start, r = {ratio}: w = {sp.N(value, 5)}")
    print(f"  w = {sp.sstr(w)}")


def against_the_closed_form() -> None:
    r"""Step 8. The closed form minus leading term and correction, over the first term left out, stays below 1.

    The same difference shrinks as that term does, over many decades: the series are right, not merely close.
    """
    heading("8", "against the closed form")
    symbols = (l, rho, kappa, alpha0, margin0, growth.base_odds)
    for rate, w0, gap0 in ((mp.mpf("7.5"), 0, 0), (mp.mpf("1.5e-6"), 0, 0), (mp.mpf("0.15"), 3, mp.mpf("0.7"))):
        base = mp.mpf(32) / 31
        y0 = base * mp.exp(gap0)
        kap, a0 = y0 + mp.log(y0) - rate * w0**2 / 2, y0 / (1 + y0)
        crossing = mp.sqrt(w0**2 + 2 / (rate * (1 - a0)))
        for (observable, regime), law in LAWS.items():
            if regime == BEFORE and crossing < 100:
                continue  # attention saturates before l is large
            margins = [crossing * 10**k for k in (1, 2, 4)] if regime == SATURATED else [mp.mpf(90), mp.mpf(180)]
            expressions = (law.leading, law.correction, law.remainder)
            leading, correction, remainder = (sp.lambdify(symbols, e, "mpmath") for e in expressions)
            shares = []
            for w in margins:
                w = max(w, mp.mpf(90))  # e^-l is far below what is compared
                y = odds(w, rate, kap)
                value = {MARGIN: w, ODDS: y, SCORE_GAP: mp.log(y / y0) + (gap0 if regime == SATURATED else 0)}[
                    observable
                ]
                clock = log_time(w, rate, kap) + (2 * mp.log(a0) if regime == BEFORE else 0)
                at = (clock, rate, kap, a0, mp.mpf(w0), base)
                shares.append(abs(value - leading(*at) - correction(*at)) / remainder(*at))
            assert max(shares) < 1, (observable, regime, rate, shares)
            shown = ", ".join(mp.nstr(share, 2) for share in shares)
            print(f"  rho = {mp.nstr(rate, 3):8s} {observable:9s} {regime:17s} difference/first term left out: {shown}")


def odds(w, rate, kap):
    """The Wright omega function of the orbit, by Newton's method on ln y."""
    x = rate * w**2 / 2 + kap
    u = mp.log(x) if x > 2 else min(x, mp.mpf(0))
    for _ in range(100):
        step = (x - u - mp.exp(u)) / (1 + mp.exp(u))
        u += step
        if abs(step) < mp.mpf(10) ** (5 - mp.mp.dps):
            break
    return mp.exp(u)


def log_time(w, rate, kap):
    """Log of the integral of e^Delta/alpha over the last 90 units of Delta; the rest is below e^-90 of it."""

    def attention(at):
        y = odds(at, rate, kap)
        return y / (1 + y)

    end = w * attention(w)
    reach = min(w, 90 / attention(w))
    marks = [
        w - reach * part
        for part in (1, mp.mpf("0.5"), mp.mpf("0.2"), mp.mpf("0.08"), mp.mpf("0.03"), mp.mpf("0.01"), 0)
    ]
    return end + mp.log(mp.quad(lambda s: mp.exp(s * attention(s) - end) / attention(s), marks, maxdegree=5))


def the_paper_in_these_terms() -> None:
    r"""Step 9. Local exponents d ln(observable)/d ln l of the leading terms, which is what a verdict measures."""
    heading("9", "local exponents")
    for (observable, regime), law in LAWS.items():
        leading = law.leading.subs(margin0, 0)
        local = sp.simplify(l * sp.diff(leading, l) / leading)
        assert local == law.power if law.power else sp.limit(local.subs({rho: 3, growth.base_odds: 1}), l, sp.oo) == 0
        print(f"  {observable:9s} {regime:17s} {law.name:9s} exponent {law.power}")


def logarithm(series: sp.Expr, variable: sp.Symbol, order: int) -> sp.Expr:
    """ln(1 + ...) as a polynomial up to the given order."""
    rest = sp.expand(series - 1)
    power, total = sp.S.One, sp.S.Zero
    for k in range(1, order + 1):
        power = sp.expand(power * rest)
        power = sum(power.coeff(variable, j) * variable**j for j in range(order + 1))
        total += sp.Rational((-1) ** (k + 1), k) * power
    return sp.expand(total)


def heading(number: str, title: str) -> None:
    """Prints the heading of a step."""
    print(f"\nStep {number}: {title}")


if __name__ == "__main__":
    mp.mp.dps = 30
    main()
