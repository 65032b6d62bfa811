r"""Derivation 8: growth laws of all four parameterizations, and what a larger ratio does to attention.

Claim. Attention letter first; l = ln(t/C) for a collapsed output-value circuit, ln(2t/sqrt C) for a factorized one;
c = r C (K-1)/K; F the largest query-key drive; theta' = d theta/d tau_k, which tends to 2 F theta. After saturation

            margin w                                          odds y
    CACO    l + 2/(rho l) + ...            rho = g c          (rho/2) l^2                     log^2 t
    FACO    l + 1/(F c l theta) + ...                         theta' c w^2/2 (1 - 1/theta)    log^2 t log log t
    CAFO    l + ln l + 1/rho + o(1)        rho = g c/(2 rC)   rho l                           log t
    FAFO    l + ln l + rC/(F c theta) + .. rC = sqrt C        theta' c w/(2 rC) (1 - 1/theta) log t log log t

and the score gap is theta = ln(n y/m): log log t in all four, with coefficient 2 for a collapsed output-value circuit
and 1 for a factorized one, plus ln theta (log log log t) for a factorized query-key circuit.

Before saturation CAFO has theta - theta0 = (1-alpha0) rho (w - w0), log t; a factorized query-key circuit has no law in
powers of log t: theta is an exponential of its clock.

Lemma 3: a larger ratio means more attention, at fixed margin, at fixed loss and at fixed time (step 9 says under which
conditions).

Assumptions. Those of derivations 3 and 4 for the task; r > 0, a drive that grows (b0 > 0 or lambda not 0). CACO itself
is derivation 4. Series are formal in the small quantities named at each step; step 8 compares with the orbit and the
time integral at 40 digits, and the difference shrinks at the rate of what is left out.

Run it: every step is asserted, and the formulas that it proves are printed.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportReturnType=false

import mpmath as mp
import sympy as sp

from flowsim.theory import growth
from flowsim.theory.growth import BEFORE, MARGIN, ODDS, SATURATED, SCORE_GAP, cafo, factorized, l

theta, F, c, C, rho, tau = sp.symbols("theta F c C rho tau", positive=True)
e, n, m2, m3 = sp.symbols("e n m2 m3")
LAWS = {
    name: {(law.observable, law.regime): law for law in growth.growth_laws(name)} for name in ("FACO", "CAFO", "FAFO")
}
SINGLE = {growth.tower[0]: 1 / theta, growth.tower[1]: 0, growth.tower[2]: 0}  # one growing exponential


def main() -> None:
    """All steps in order."""
    output_clock()
    orbit_by_parts()
    odds_of_a_factorized_circuit()
    margins_of_a_factorized_circuit()
    collapsed_attention_with_a_factorized_output()
    score_gaps()
    before_saturation()
    against_the_orbit()
    lemma_three()


def output_clock() -> None:
    r"""Step 1. Under full attention e^l is the integral of e^w (collapsed) or e^w/w (factorized).

    The latter since dw = 2 sqrt(C) w dtau_v. So l = w, or by parts l = w - ln w + ln(1 + 1/w + ...), whose leading root
    w_l - ln w_l = l is l + ln l + ln l/l + ...
    """
    heading("1", "the margin under full attention")
    w = sp.Symbol("w", positive=True)
    t_of = sp.Symbol("t", positive=True)
    for scale, clock in ((C, LAWS["FACO"]), (sp.sqrt(C) / 2, LAWS["CAFO"])):
        law = clock[MARGIN, SATURATED]
        found = law.clock.subs({growth.log_time: sp.log(t_of), growth.distinct_types: C})
        assert sp.simplify(sp.expand_log(found - sp.log(t_of / scale), force=True)) == 0
    left = (sp.exp(w) * (1 / w + 1 / w**2)).diff(w)
    assert sp.simplify(left - sp.exp(w) / w + 2 * sp.exp(w) / w**3) == 0
    # w_l by iteration: w - ln w = l
    z, ell = sp.symbols("z L")  # z = 1/l, ell = ln l
    guess = 1 + z * ell + z**2 * ell  # w/l
    defect = guess / z - 1 / z - ell - sp.series(sp.log(guess), z, 0, 2).removeO()
    assert sp.simplify(sp.expand(defect).coeff(z, 0)) == 0
    assert sp.simplify(sp.expand(defect).coeff(z, 1)) == 0
    print("  collapsed: w_l = l;  factorized: w_l - ln w_l = l, w_l = l + ln l + ln l/l + ...")


def orbit_by_parts() -> None:
    r"""Step 2. int y dtau_k = int (y/p) dtheta = (y/p) B with p = theta'; exact up to the next term, for any p(theta).

    B = 1 + n1 + (3 n1^2 - n2) + ..., with n_k the derivative of order k+1 of theta over p^(k+1). One exponential:
    B = 1 + 1/theta + 2/theta^2 + 6/theta^3, the expansion of Ei.
    """
    heading("2", "the orbit by parts")
    p = sp.Function("p")(theta)
    # derivatives with respect to tau_k are p d/dtheta
    second = p * p.diff(theta)
    third = p * second.diff(theta)
    fourth = p * third.diff(theta)
    n1, n2, n3 = second / p**2, third / p**3, fourth / p**4
    series = factorized.parts_series(3).as_expr()
    total = series.subs({e: 1}).subs({n: n1, m2: n2 - n1**2, m3: n3 - n1**3}, simultaneous=True)
    left = sp.exp(theta) / p - (sp.exp(theta) / p * total).diff(theta)
    left = sp.simplify(left / sp.exp(theta))
    # what is left is a fourth derivative of 1/p, the next term under the integral
    assert sp.simplify(left - (1 / p).diff(theta, 4)) == 0
    single = series.subs({e: 1, n: 1 / theta, m2: 0, m3: 0})
    assert sp.expand(single - (1 + 1 / theta + 2 / theta**2 + 6 / theta**3)) == 0
    print(f"  B = {sp.sstr(sp.collect(series, e))} + ...,  m_k = n_k - n_1^k")
    print("  one exponential, p = 2 F theta: B = 1 + 1/theta + 2/theta^2 + 6/theta^3 + ...")


def odds_of_a_factorized_circuit() -> None:
    r"""Step 3. y = p X/B; with the leading odds Y = p X at theta_l, theta = theta_l + delta.

    One exponential: delta = -1/theta_l - 5/(2 theta_l^2) - ..., so y = Y (1 - 1/theta_l + O(1/theta_l^2)).
    """
    heading("3", "the odds of a factorized query-key circuit")
    delta = factorized.gap_series().as_expr().subs({e: 1, n: 1 / theta, m2: 0, m3: 0})
    # put back: theta_l + delta = ln p(theta_l + delta) - ln B(theta_l + delta) + (theta_l - ln p(theta_l))
    z = sp.Symbol("z", positive=True)
    shifted = theta + delta
    parts = 1 + 1 / shifted + 2 / shifted**2 + 6 / shifted**3
    defect = delta - sp.log(shifted / theta) + sp.log(parts)
    defect = sp.series(defect.subs(theta, 1 / z), z, 0, 4).removeO()
    assert sp.simplify(defect) == 0
    for name, power, rate in (("FACO", 2, F * c), ("FAFO", 1, F * c / sp.sqrt(C))):
        law = LAWS[name][ODDS, SATURATED]
        assert law.leading == growth.odds_rate * l**power * growth.loglog
        # Y = p X with X = c w^2/2 or c w/(2 sqrt C), p = 2 F Lambda
        drive = c * growth.margin_l**2 / 2 if power == 2 else c * growth.margin_l / (2 * sp.sqrt(C))
        leading = law.leading.subs({growth.odds_rate: rate, l: growth.margin_l})
        assert sp.simplify(2 * F * growth.loglog * drive - leading) == 0
        corrected = (law.leading + law.correction).subs(SINGLE) / growth.odds_l
        assert sp.simplify(sp.limit((corrected - 1) * theta, theta, sp.oo)) == -1
        print(f"  {name}: y = {sp.sstr(leading)} (1 - 1/theta + ...),  Lambda = theta'/(2 F) -> theta:  {law.name}")


def margins_of_a_factorized_circuit() -> None:
    r"""Step 4. w = w_l + w_l/Y (1 + n_1 + ...) + ...: FACO l + 1/(F c l theta), FAFO l + ln l + sqrt(C)/(F c theta)."""
    heading("4", "the margins of a factorized query-key circuit")
    for name, power in (("FACO", 2), ("FAFO", 1)):
        correction = LAWS[name][MARGIN, SATURATED].correction
        rest = sp.expand((correction - (growth.margin_l - l)).subs(growth.start_share, 1))
        leading = growth.odds_rate * growth.margin_l**power * growth.loglog
        rest = rest.subs(growth.odds_l, leading).subs(growth.tower[0], 1 / growth.loglog)
        first = 1 / (growth.odds_rate * growth.margin_l ** (power - 1) * growth.loglog)
        # at fixed Lambda the other terms vanish against it as 1/w
        assert sp.simplify(sp.limit(rest / first, growth.margin_l, sp.oo) - 1 - 1 / growth.loglog) == 0
        print(f"  {name}: w = w_l + {sp.sstr(first)} (1 + 1/theta + ...) + ...")


def collapsed_attention_with_a_factorized_output() -> None:
    r"""Step 5. CAFO: y + ln y = rho w + kappa, so w/(1+y) -> 1/rho, and l + 1/rho = w - ln w + o(1)."""
    heading("5", "CAFO")
    w, x = sp.symbols("w X", positive=True)
    v, big, small_w, kap, r, s = sp.symbols("v M W kappa r s")
    lag = cafo.lag_series().as_expr()
    # lead Delta = w - w/(1+y) with y = X - ln X + ...: independently to first order in 1/X and 1/w
    share = (((x - kap) / rho) / (1 + x - big)).subs(x, 1 / v)
    share = sp.expand(sp.series(share, v, 0, 2).removeO())
    # ln S = -ln w + 1/X + 1/w: S_0 = 1/(alpha w Delta'), Delta' = alpha (1 + rho w (1-alpha)^2), S_1/S_0 = 1/w
    found = sp.Poly(lag, e).coeff_monomial(e).subs({s: 1 / rho, r: rho})
    assert sp.simplify(sp.expand(share - 1 / rho - v - small_w - found)) == 0
    # the slope used above: d alpha/dw along the orbit
    odds = sp.Function("y", positive=True)(w)
    slope = (odds / (1 + odds) * w).diff(w).subs(odds.diff(w), rho * odds / (1 + odds))
    assert sp.simplify(slope - odds / (1 + odds) * (1 + rho * w / (1 + odds) ** 2)) == 0
    law, odds_law = LAWS["CAFO"][MARGIN, SATURATED], LAWS["CAFO"][ODDS, SATURATED]
    assert (law.constant, odds_law.constant) == (1, growth.rho)
    rest = (law.correction - (growth.margin_l - l)).subs({growth.kappa: 0, growth.rho: 3, growth.imbalance: 0})
    assert sp.limit(rest, growth.margin_l, sp.oo) == 0
    print("  w - ln w = l + 1/rho + (ln X - 1 - kappa)/(rho X) - 1/X - 1/w + ...,  X = rho w + kappa")
    print("  w = l + ln l + 1/rho + o(1),  y = rho w + kappa - ln X + ... = rho l (1 + O(ln l/l))")


def score_gaps() -> None:
    r"""Step 6. theta = ln(n/m) + ln y: log log t in every case; local exponents of the leading terms tend to 0."""
    heading("6", "score gaps")
    for name, coefficient in (("FACO", 2), ("CAFO", 1), ("FAFO", 1)):
        law, odds = LAWS[name][SCORE_GAP, SATURATED], LAWS[name][ODDS, SATURATED]
        assert law.constant == coefficient
        difference = law.leading - (sp.log(odds.leading) - sp.log(growth.base_odds))
        assert sp.simplify(sp.expand_log(difference, force=True)) == 0
        local = sp.simplify(l * sp.diff(law.leading, l) / law.leading)
        assert (
            sp.limit(local.subs({growth.rho: 3, growth.odds_rate: 2, growth.base_odds: 1, growth.loglog: 9}), l, sp.oo)
            == 0
        )
        print(f"  {name}: theta = {sp.sstr(sp.expand_log(law.leading, force=True))} + ...")


def before_saturation() -> None:
    r"""Step 7. While theta - theta0 << 1: d theta = p dtau_k with tau_k = (1-alpha0) (X - X0).

    CAFO: p = g, so theta - theta0 = (1-alpha0) rho (w - w0), and alpha0 w = l + ln l + ... with
    l = ln(2 alpha0 t/sqrt C). FACO, FAFO: theta = theta0 e^(2 F tau_k) for one balanced drive. Its local exponent in l,
    2 F tau_k times the power of w in X, grows without bound: no power of log t.
    """
    heading("7", "before saturation")
    margin, gap = LAWS["CAFO"][MARGIN, BEFORE], LAWS["CAFO"][SCORE_GAP, BEFORE]
    alpha0, beta0 = growth.alpha0, growth.unattended0
    assert margin.constant == 1 / alpha0
    assert sp.simplify(gap.constant - beta0 * growth.rho / alpha0) == 0
    assert sp.simplify(gap.offset + beta0 * growth.rho * growth.margin0) == 0
    # the second order of the score gap: psi + y0 (e^psi - 1) = D with y0 = alpha0/(1-alpha0), D = rho (w - w0)
    order, psi1, psi2 = sp.symbols("epsilon psi_1 psi_2")
    x = growth.margin_l
    w = (x + order * sp.Symbol("d")) / alpha0
    y0 = alpha0 / (1 - alpha0)
    orbit = (1 + y0) * (order * psi1 + order**2 * psi2) + y0 * order**2 * psi1**2 / 2
    orbit = sp.expand(orbit - order * growth.rho * (w - growth.margin0))
    found1 = sp.solve(orbit.coeff(order, 1), psi1)[0]
    found2 = sp.solve(sp.Poly(orbit, order).coeff_monomial(order**2).subs(psi1, found1), psi2)[0]
    d = sp.simplify(alpha0 * margin.correction - (x - l))
    expected = found2.subs(sp.Symbol("d"), d)
    assert gap.correction is not None
    correction = gap.correction - beta0 * growth.rho / alpha0 * (x - l)
    assert sp.simplify((expected - correction).subs(beta0, 1 - alpha0)) == 0
    print(f"  CAFO: theta - theta0 = {sp.sstr(gap.constant)} (l + ln l) + ...: log t")
    for name, power in (("FACO", 2), ("FAFO", 1)):
        assert (SCORE_GAP, BEFORE) not in LAWS[name]
        clock = sp.Symbol("b", positive=True) * l**power
        local = sp.simplify(l * sp.diff(sp.log(sp.exp(2 * F * clock)), l))
        assert sp.limit(local.subs({F: 1, sp.Symbol("b", positive=True): 1}), l, sp.oo) == sp.oo
        print(f"  {name}: local exponent of theta in l is {sp.sstr(local)}, unbounded: no power law")


def against_the_orbit() -> None:
    r"""Step 8. Orbit and time integral at 40 digits, for the shared query with null background (one drive, F^2 = K/C).

    The difference over what is left out stays below 1 while both shrink over many decades.
    """
    heading("8", "against orbit and time integral")
    k, types, base = 4, mp.mpf(10), mp.mpf(5) / 7
    for name in ("FACO", "CAFO", "FAFO"):
        for ratio in (mp.mpf(1), mp.mpf(100)):
            strength, gain, speed = ratio * types * (k - 1) / k, 1 / types, mp.sqrt(k / types)
            flow = _Flow(name, strength, gain, speed, types, base)
            for key in ((MARGIN, SATURATED), (ODDS, SATURATED), (SCORE_GAP, SATURATED)):
                law = LAWS[name][key]
                shares = []
                for w in (mp.mpf(300), mp.mpf(10) ** 4, mp.mpf(10) ** 6):
                    y = flow.odds(w)
                    value = {MARGIN: w, ODDS: y, SCORE_GAP: mp.log(y / base)}[key[0]]
                    numbers = flow.frame(flow.log_clock(w))
                    leading, correction, remainder = (
                        mp.mpf(sp.N(part.subs(numbers), 40)) for part in (law.leading, law.correction, law.remainder)
                    )
                    shares.append((abs(value - leading - correction) / (2 * remainder), remainder / abs(value)))
                assert max(share for share, _ in shares) < 1, (name, key, shares)
                assert shares[-1][1] < shares[0][1]
                text = ", ".join(f"{mp.nstr(share, 2)} of {mp.nstr(left, 1)}" for share, left in shares)
                print(f"  {name} r = {mp.nstr(ratio, 3):5s} {key[0]:9s} {text}")


class _Flow:
    """One parameterization in the plainest terms: balanced starts at 0.01 for factorized circuits, 0 for collapsed."""

    def __init__(self, name, strength, gain, speed, types, base):
        self.name, self.strength, self.gain, self.speed, self.types, self.base = (
            name,
            strength,
            gain,
            speed,
            types,
            base,
        )
        self.start = mp.mpf("0.01") if name[2] == "F" else mp.mpf(0)
        self.gap0 = mp.mpf("0.01")

    def drive(self, w):
        action = (w - self.start) / (2 * mp.sqrt(self.types)) if self.name[2] == "F" else w**2 / 2
        return self.strength * action

    def odds(self, w):
        x = self.drive(w)
        if self.name[0] == "C":
            right = self.gain * x + self.base + mp.log(self.base)
            return _root(lambda u: u + mp.exp(u) - right, mp.log(right))

        # tau + (m/n) int e^theta = x with theta = theta0 e^(2 F tau)
        def orbit(u):
            theta_ = u - mp.log(self.base)
            left = mp.log(theta_ / self.gap0) + self.base * (mp.ei(theta_) - mp.ei(self.gap0))
            return mp.log(left) - mp.log(2 * self.speed * x)

        return _root(orbit, mp.log(2 * self.speed * x) + mp.log(mp.log(x)))

    def log_clock(self, w):
        """The l of a margin, by the time integral over the last 100 units of the lead; the rest is e^-100 of it."""

        def share(at):
            y = self.odds(at)
            return y / (1 + y)

        end = w * share(w)
        marks = [w - 100 * part for part in (1, mp.mpf("0.5"), mp.mpf("0.2"), mp.mpf("0.05"), 0)]

        def rate(at):
            attended = share(at)
            return mp.exp(at * attended - end) / attended / (at if self.name[2] == "F" else 1)

        with mp.workdps(20):
            return end + mp.log(mp.quad(rate, marks, maxdegree=4))

    def frame(self, clock):
        """The symbols of the laws at a clock, by the definitions in `flowsim.theory.growth.law`."""
        shift = mp.mpf(0)
        numbers = {l: clock, growth.imbalance: 0, growth.base_odds: self.base}
        if self.name == "CAFO":
            rate = self.gain * self.strength / (2 * mp.sqrt(self.types))
            shift = 1 / rate
            numbers |= {growth.rho: rate, growth.kappa: self.base + mp.log(self.base) - rate * self.start}
        w = clock + shift
        if self.name[2] == "F":
            w = (
                -mp.lambertw(-mp.exp(-w), -1).real
                if w < 500
                else _root(lambda u: mp.exp(u) - u - clock - shift, mp.log(w))
            )
        numbers[growth.margin_l] = w
        if self.name[0] == "F":
            x = self.drive(w)
            u = _root(lambda u: u - mp.log(u - mp.log(self.base)) - mp.log(2 * self.speed * x), mp.log(x) + 5)
            y, gap = u, mp.log(u) - mp.log(self.base)
            rate = self.speed * self.strength / (mp.sqrt(self.types) if self.name[2] == "F" else 1)
            numbers |= {
                growth.odds_l: y, growth.loglog: gap, growth.odds_rate: rate,
                growth.start_share: w / (w - self.start),
                growth.drive: -mp.log1p(-(mp.log(gap / self.gap0) + 6) / (2 * self.speed * x)),
            }  # fmt: skip
            numbers |= dict(zip(growth.tower, (1 / gap, 0, 0), strict=True))
        return {
            symbol: sp.Float(value, 40) if not isinstance(value, int) else value for symbol, value in numbers.items()
        }


def _root(equation, guess):
    """The exponential of the root in the logarithm, so that the unknown stays positive."""
    return mp.exp(mp.findroot(equation, guess, tol=mp.mpf(10) ** (-2 * mp.mp.dps + 12)))


def lemma_three() -> None:
    r"""Step 9. Lemma 3: d alpha/dr > 0, for all four.

    Assumed: w0 >= 0, r > 0, no circuit frozen (a factorized one with b0 = 0 = lambda). Then theta' > 0, J' > 0.

    Fixed margin. A(tau_k) = c (J(w) - J(w0)) with A' = 1 + y > 0, J' >= 0 and c proportional to r: so
    dtau_k/dr = (J - J0) (c/r)/(1+y) > 0 for w > w0, and alpha rises with theta, theta with tau_k.

    Fixed loss, that is fixed lead Delta = alpha(w, r) w. Both partial derivatives of alpha w are positive, so a larger
    r reaches Delta at a smaller w, and alpha = Delta/w is larger.

    Fixed time. Let r1 < r2 start alike. Attention 2 leads at first (its velocity is r2/r1 times as large). Where they
    would meet again, alpha1 = alpha2 means equal tau_k, theta and theta', hence r1 (J(w1) - J0) = r2 (J(w2) - J0) and
    w2 < w1. (J(w) - J0)/w increases with w, so r2 w2 > r1 w1; and q2 > q1, since the lead alpha w2 is smaller. The
    velocity of theta is theta' r alpha (1-alpha) q w/K, so theta2 grows faster there, and theta1 cannot have caught up:
    alpha2 > alpha1 for all t > 0.
    """
    heading("9", "Lemma 3: more attention at a larger ratio")
    w, w0, nu = sp.symbols("w w_0 nu", positive=True)
    ratio = sp.Symbol("r", positive=True)
    for name, action in (("collapsed", w**2 / 2), ("factorized", sp.sqrt(w**2 + nu**2) / (2 * sp.sqrt(C)))):
        assert sp.diff(action, w).is_positive
        gained = action - action.subs(w, w0)
        # d/dw of (J - J0)/w, times w^2, is increasing in w0, so least at w0 = 0, where it is not negative
        slope = sp.simplify(sp.diff(gained / w, w) * w**2)
        assert sp.diff(slope, w0).is_positive
        least = sp.simplify(slope.subs(w0, 0))
        if name == "collapsed":
            assert sp.simplify(least - w**2 / 2) == 0
        else:
            root = sp.sqrt(w**2 + nu**2)
            gain = nu * w**2 / (root * (root + nu))
            assert gain.is_positive and sp.simplify(least * 2 * sp.sqrt(C) - gain) == 0  # noqa: PT018
        print(f"  {name} output: J' > 0, and (J - J0)/w increases")
    # fixed margin, all four: implicit differentiation of A(tau) = r a with A' = 1 + y
    clock = sp.Function("tau")(ratio)
    orbit = sp.Function("A")
    gained = sp.Symbol("a", positive=True)
    slope = sp.solve(sp.diff(orbit(clock) - ratio * gained, ratio), clock.diff(ratio))[0]
    derivative = orbit(clock).diff(clock)
    assert sp.simplify(slope - gained / derivative) == 0
    print("  fixed margin: dtau_k/dr = (c/r) (J - J0)/(1 + y) > 0")
    # fixed loss: dw/dr = -w alpha_r/(alpha + w alpha_w), dalpha/dr = alpha_r alpha/(alpha + w alpha_w) > 0
    alpha, by_r, by_w = sp.symbols("alpha alpha_r alpha_w", positive=True)
    back = -w * by_r / (alpha + w * by_w)
    total = sp.factor(by_r + by_w * back)
    assert sp.simplify(total - alpha * by_r / (alpha + w * by_w)) == 0
    assert total.is_positive
    print(f"  fixed loss: d alpha/dr = {sp.sstr(total)} > 0")
    print("  fixed time: where attentions would meet, r w and q are larger for the larger ratio: it stays ahead")


def heading(number: str, title: str) -> None:
    """Prints the heading of a step."""
    print(f"\nStep {number}: {title}")


if __name__ == "__main__":
    mp.mp.dps = 40
    main()
