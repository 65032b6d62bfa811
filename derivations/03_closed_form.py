r"""Derivation 3: the closed form, inverse design, and what the ratio does to attention (Lemma 3).

Claim. With one distinct and one background group the collapsed flow is solved by

    y = omega(X),   X = rho (w^2 - w0^2)/2 + y0 + ln y0,   t = C * integral from w0 to w of (e^Delta + K - 1)/alpha dw,

where alpha = y/(1+y), Delta = alpha w and omega is the Wright omega function, omega + ln omega = X. The ratio that
reaches given odds at a given margin is explicit. And for w0 >= 0 attention grows with the ratio: at fixed margin, at
fixed loss and at fixed time, for every time after the start.

Assumptions. Those of derivation 2 from its step 5 on: label head, one distinct and one background group, one
composition, query not attended, gradient flow, both circuits collapsed. Lemma 3 besides: w0 >= 0 (a zero start
included), r > 0.

Run it: every step is asserted, and the formulas that it proves are printed.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false

from typing import cast

import mpmath as mp
import sympy as sp

from flowsim.task import Structure
from flowsim.theory import ClosedForm, derive
from flowsim.theory.symbols import CLASSES as K
from flowsim.theory.symbols import ERROR, RATIO

FORM = cast(ClosedForm, derive(Structure(("distinct", "common"), "per-class", None, False)).closed_form)
C = FORM.types
W, THETA, ALPHA = FORM.margin, FORM.score_gap, FORM.attention
X, Y0, RHO = sp.Symbol("X", real=True), sp.Symbol("y_0", positive=True), sp.Symbol("rho", positive=True)
W0 = sp.Symbol("w_0", nonnegative=True)  # Lemma 3 needs w0 >= 0; the closed form itself does not


def main() -> None:
    """All steps in order."""
    omega_function()
    the_flow_is_recovered()
    the_start()
    no_cancellation()
    frozen_gate()
    inverse_design()
    reference_numbers()
    lemma3_fixed_margin()
    lemma3_fixed_loss()
    lemma3_fixed_time()
    lemma3_in_numbers()


def omega_function() -> None:
    r"""Step 1. omega(X) = W(e^X) solves omega + ln omega = X, with derivative omega/(1 + omega) > 0."""
    heading("1", "the Wright omega function")
    omega = sp.LambertW(sp.exp(X))
    # W e^W = e^X defines W; its logarithm is the equation of omega
    for number in (-5, 0, 3, 200):
        value = omega.subs(X, number)
        assert abs(sp.N(value + sp.log(value) - number, 30)) < sp.Float("1e-25")
    slope = sp.diff(omega, X)
    assert sp.simplify(slope - omega / (1 + omega)) == 0
    y = sp.Symbol("y", positive=True)
    assert sp.simplify(sp.diff(y + sp.log(y), y) - (1 + y) / y) == 0  # the inverse function's derivative, once more
    print("  omega + ln omega = X,   d omega/dX = omega/(1 + omega)")


def the_flow_is_recovered() -> None:
    r"""Step 2. Differentiating orbit and time map gives back dw/dt and dtheta/dt, exactly as derived from the loss."""
    heading("2", "the closed form solves the flow")
    odds = sp.LambertW(sp.exp(RHO * (W**2 - W0**2) / 2 + Y0 + sp.log(Y0)))
    y = sp.Symbol("y", positive=True)
    attention = y / (1 + y)
    # time map: dt/dw is its integrand
    time = FORM.time_map.rhs
    rate = time.as_independent(sp.Integral)[0] * next(iter(time.atoms(sp.Integral))).function
    rate = rate.subs(ALPHA, attention)
    error = ((K - 1) / (sp.exp(ALPHA * W) + K - 1)).subs(ALPHA, attention)
    margin_velocity = FORM.margin_velocity.subs({ERROR: error, ALPHA: attention})
    assert sp.simplify(1 / rate - margin_velocity) == 0
    # orbit: y changes with w as omega does; theta = ln y + constant, so dtheta/dt = (dy/dw)/y dw/dt
    odds_slope = sp.diff(odds, W).subs(odds, y)
    assert sp.simplify(odds_slope - RHO * W * y / (1 + y)) == 0
    gap_velocity = (odds_slope / y / rate).subs(RHO, FORM.rho)
    derived = FORM.score_gap_velocity.subs({ERROR: error, ALPHA: attention})
    assert sp.simplify(gap_velocity - derived) == 0
    print(f"  dw/dt     = {sp.sstr(FORM.margin_velocity)}")
    print(f"  dtheta/dt = {sp.sstr(FORM.score_gap_velocity)}")


def the_start() -> None:
    r"""Step 3. At w = w0 the orbit is at y0 and the time is 0; the flow is smooth, so this is the only solution."""
    heading("3", "the start")
    y = sp.Symbol("y", positive=True)
    # y + ln y rises strictly, so y0 is the only root of y + ln y = y0 + ln y0.
    assert sp.diff(y + sp.log(y), y).is_positive
    at_start = FORM.orbit.subs(W, sp.Symbol("w_0", real=True))
    assert sp.simplify(at_start.rhs - Y0 - sp.log(Y0)) == 0
    assert sp.simplify(FORM.odds_of_margin.subs(W, sp.Symbol("w_0", real=True)) - sp.LambertW(Y0 * sp.exp(Y0))) == 0
    assert FORM.time_map.rhs.subs(sp.Symbol("w_t", real=True), sp.Symbol("w_0", real=True)).doit() == 0
    print("  w = w0:  y = W(y0 e^y0) = y0,  t = 0")


def no_cancellation() -> None:
    r"""Step 4. What numerics uses: no differences of nearly equal numbers, time in logarithms."""
    heading("4", "forms that do not cancel")
    y = sp.Symbol("y", positive=True)
    w = sp.Symbol("w", real=True)
    alpha = y / (1 + y)
    assert sp.simplify(alpha * w - (w - w / (1 + y))) == 0
    assert sp.simplify(1 - alpha - 1 / (1 + y)) == 0
    # the rate of time, t' = C e^{ln t'}, as a sum of exponentials of things that never overflow
    log_rate = sp.log(sp.exp(alpha * w) + K - 1) - sp.log(alpha)
    assert sp.simplify(sp.exp(log_rate) - (sp.exp(alpha * w) + K - 1) / alpha) == 0
    print("  alpha w = w - w/(1+y),   1 - alpha = 1/(1+y),   ln dt/dw = ln C + logaddexp(alpha w, ln(K-1)) - ln alpha")


def frozen_gate() -> None:
    r"""Step 5. Ratio 0: attention keeps its start, and the time map becomes elementary (fixed attention)."""
    heading("5", "ratio 0")
    alpha = sp.Symbol("alpha", positive=True)
    primitive = (sp.exp(alpha * W) + (K - 1) * alpha * W) / alpha**2
    assert sp.simplify(sp.diff(primitive, W) - (sp.exp(alpha * W) + K - 1) / alpha) == 0
    assert FORM.rho.subs(RATIO, 0) == 0
    print("  e^Delta + (K-1) Delta = e^Delta0 + (K-1) Delta0 + alpha^2 t/C,   Delta = alpha w")


def inverse_design() -> None:
    r"""Step 6. The ratio that reaches odds y at margin w is explicit."""
    heading("6", "inverse design")
    y, y0, w0 = sp.Symbol("y", positive=True), Y0, sp.Symbol("w_0", real=True)
    target = FORM.rho_of_target
    assert sp.simplify(target * (W**2 - w0**2) / 2 - (y + sp.log(y) - y0 - sp.log(y0))) == 0
    per_ratio = sp.cancel(FORM.rho / RATIO)
    assert RATIO not in per_ratio.free_symbols
    ratio = sp.factor(target / per_ratio)
    # put back into the orbit it gives the odds that were asked for
    back = FORM.orbit.rhs.subs(RATIO, ratio)
    assert sp.simplify(back - y - sp.log(y)) == 0
    numbers = {K: 4, C: 10, sp.Symbol("D", positive=True): 10, w0: 0, y0: sp.Rational(32, 31), W: 10, y: 99}
    print(f"  rho = {sp.sstr(target)},   r = rho/({sp.sstr(per_ratio)})")
    print(f"  attention 0.99 at margin 10 (K=4, C=D=10, m=32, n=31, zero start): r = {sp.N(ratio.subs(numbers), 8)}")


def reference_numbers() -> None:
    r"""Step 7. The numbers of one task (K=4, C=D=10, m=32, n=31, r=5, zero start), at 30 digits."""
    heading("7", "numbers")
    run = Run(ratio=5)
    expected = {  # an independent integration, good to about nine digits
        1: ("0.012688786376", "0.00029707070", "1.0325647637"),
        100: ("1.402729931", "1.849467859", "6.561482426"),
        1000: ("4.487338403", "4.248992957", "72.29403742"),
    }
    for t, row in expected.items():
        w = run.margin_at(t)
        y = run.odds(w)
        for value, text in zip((w, mp.log(y * run.n / run.m), y), row, strict=True):
            assert abs(value / mp.mpf(text) - 1) < mp.mpf("1e-8"), (t, value, text)
        gap = mp.log(y * run.n / run.m)
        print(f"  t = {t:5d}:  w = {mp.nstr(w, 12)}, theta = {mp.nstr(gap, 12)}, y = {mp.nstr(y, 12)}")


def lemma3_fixed_margin() -> None:
    r"""Step 8. Lemma 3 at fixed margin: dy/drho = y/(1+y) (w^2 - w0^2)/2, positive once |w| > |w0|."""
    heading("8", "attention grows with the ratio, at fixed margin")
    odds = sp.LambertW(sp.exp(RHO * (W**2 - W0**2) / 2 + Y0 + sp.log(Y0)))
    y = sp.Symbol("y", positive=True)
    slope = sp.diff(odds, RHO).subs(odds, y)
    assert sp.simplify(slope - y / (1 + y) * (W**2 - W0**2) / 2) == 0
    gained = sp.Symbol("p", positive=True)  # w^2 - w0^2 after the start, when w0 >= 0
    assert slope.subs(W, sp.sqrt(W0**2 + gained)).is_positive
    assert sp.factor(sp.diff(y / (1 + y), y)).is_positive  # attention rises with odds
    print("  dy/drho | w = y/(1+y) (w^2 - w0^2)/2 > 0   for |w| > |w0|")


def lemma3_fixed_loss() -> None:
    r"""Step 9. Lemma 3 at fixed loss, that is at fixed Delta = alpha w (equal performance).

    With w = Delta (1 + 1/y) the orbit reads F(y, rho) = 0; F rises in y and falls in rho.
    """
    heading("9", "attention grows with the ratio, at fixed loss")
    y, delta = sp.symbols("y Delta", positive=True)
    w = delta * (1 + 1 / y)
    orbit = y + sp.log(y) - Y0 - sp.log(Y0) - RHO * (w**2 - W0**2) / 2
    assert sp.simplify(w - delta / (y / (1 + y))) == 0
    rises, falls = sp.expand(sp.diff(orbit, y)), sp.diff(orbit, RHO)
    assert rises.is_positive  # a sum of positive terms
    assert sp.simplify(falls + (w**2 - W0**2) / 2) == 0  # negative after the start, where w > w0 >= 0
    # and it is after the start that a lower loss is met: for w0 >= 0 attention and margin, so Delta, rise with time
    loss = sp.log(1 + (K - 1) * sp.exp(-delta))
    assert (
        sp.simplify(sp.diff(loss, delta) + (K - 1) / (sp.exp(delta) + K - 1)) == 0
    )  # -q: loss and Delta are one to one
    slope = sp.simplify(-falls / rises)
    print(f"  dy/drho | loss = {sp.sstr(sp.factor(slope))} > 0")


def lemma3_fixed_time() -> None:
    r"""Step 10. Lemma 3 at fixed time: the time to reach any attention falls with the ratio.

    Along the orbit, use y, not w: w^2 = w0^2 + 2 P/rho with P = y + ln y - y0 - ln y0, and rho w dw = (1 + 1/y) dy:

        t(y, rho) = C * integral from y0 to y of f dy,   f = (e^Delta + K - 1)/alpha * (1 + 1/y)/(rho w).

    At fixed y both w and 1/(rho w) fall when rho rises, so f falls at every y and t(y, rho) falls. Since t rises with
    y, y rises with rho at fixed t.
    """
    heading("10", "attention grows with the ratio, at fixed time")
    y, p = sp.symbols("y P", positive=True)
    k = sp.Symbol("k", positive=True)  # K - 1
    margin = sp.sqrt(W0**2 + 2 * p / RHO)
    assert sp.simplify(sp.diff(margin, RHO) + p / (RHO**2 * margin)) == 0
    assert sp.diff(margin, RHO).is_negative
    pace = RHO * margin
    assert sp.simplify(sp.diff(pace, RHO) - (W0**2 + p / RHO) / margin) == 0
    assert sp.simplify(sp.diff(pace, RHO) * margin).is_positive
    alpha = y / (1 + y)
    w, falls, slows = sp.symbols("w falls slows", positive=True)  # w, -dw/drho, d(rho w)/drho
    e = sp.exp(alpha * w)
    f = (e + k) / alpha * (1 + 1 / y) / (RHO * w)
    df = sp.diff((e + k) / alpha * (1 + 1 / y), w) * (-falls) / (RHO * w)
    df += (e + k) / alpha * (1 + 1 / y) * (-slows / (RHO * w) ** 2)
    assert f.is_positive
    assert all(term.is_negative for term in sp.Add.make_args(df))
    direct = sp.diff(f.subs(w, margin), RHO)
    parts = df.subs({falls: p / (RHO**2 * margin), slows: (W0**2 + p / RHO) / margin}).subs(w, margin)
    assert sp.simplify(direct - parts) == 0
    print("  f(y, rho) falls in rho at every y, so t(y, rho) falls in rho and y(t, rho) rises:  dalpha/dr | t > 0")
    # A second proof that stays in w: the difference of the two sides starts at 0 and rises.
    _second_proof()


def _second_proof() -> None:
    r"""At fixed time dalpha/drho has the sign of G = t_w alpha_rho/alpha_w - t_rho; G(w0) = 0 and G' > 0."""
    w, w0, k = sp.symbols("w w_0 k", positive=True)
    y = sp.Function("y", positive=True)(w)
    alpha = y / (1 + y)
    drive = (w**2 - w0**2) / 2
    y_w = RHO * w * y / (1 + y)  # orbit
    delta = alpha * w
    rate = (sp.exp(delta) + k) / alpha  # dt/dw over C
    # dt/drho at fixed w: the integral of d rate/d alpha * dalpha/drho over w
    a = sp.Symbol("a", positive=True)
    by_alpha = sp.diff((sp.exp(a * w) + k) / a, a).subs(a, alpha)
    by_rho = by_alpha * alpha * (1 - alpha) ** 2 * drive
    front = drive / (RHO * w)  # alpha_rho / alpha_w
    g_slope = sp.diff(front * rate, w).subs(sp.Derivative(y, w), y_w) - by_rho
    expected = (1 + w0**2 / w**2) / (2 * RHO) * rate + front * sp.exp(delta)
    assert sp.simplify(g_slope - expected) == 0
    print("  G' = (1 + w0^2/w^2)/(2 rho) (e^Delta + K - 1)/alpha + (w^2 - w0^2)/(2 rho w) e^Delta > 0")


def lemma3_in_numbers() -> None:
    r"""Step 11. The three derivatives on a grid, by central differences at 20 digits; and where the lemma ends.

    For w0 < 0 the score gap falls first, faster for a larger ratio: at fixed early time dalpha/dr < 0.
    """
    heading("11", "Lemma 3 in numbers")
    mp.mp.dps, step = 20, mp.mpf("1e-3")
    smallest = {"margin": mp.inf, "loss": mp.inf, "time": mp.inf}
    for ratio in ("1e-4", "1", "1e3"):
        for start in ((0, 0), (2, 1), (0, -2)):
            runs = [Run(mp.mpf(ratio) * (1 + s * step), *start) for s in (-1, 0, 1)]
            for gain in ("1", "30"):
                w = runs[1].w0 + mp.mpf(gain)
                t, lead = runs[1].time(w), runs[1].lead(w)
                at = {
                    "margin": [run.attention(w) for run in runs],
                    "loss": [run.attention(run.margin_with_lead(lead, w)) for run in runs],
                    "time": [run.attention(run.margin_at(t, w)) for run in runs],
                }
                for name, (less, _, more) in at.items():
                    elasticity = (more - less) / (2 * step) / (1 - runs[1].attention(w))
                    assert elasticity > 0, (name, ratio, start, gain)
                    smallest[name] = min(smallest[name], elasticity)
    for name, value in smallest.items():
        print(f"  fixed {name:6s}: smallest d alpha/d ln r /(1 - alpha) on the grid = {mp.nstr(value, 4)}")
    early = [Run(mp.mpf(5) * (1 + s * step), -1, 0) for s in (-1, 1)]
    less, more = (run.attention(run.margin_at(1)) for run in early)
    assert more < less
    print(f"  but with w0 = -1, at t = 1: d alpha/d ln r = {mp.nstr((more - less) / (2 * step), 4)} < 0")


class Run:
    """The closed form at 30 digits, for K = 4, C = D = 10, m = 32, n = 31."""

    K, C, m, n = 4, 10, 32, 31

    def __init__(self, ratio, margin0=0, score_gap0=0):
        numbers = {K: self.K, C: self.C, sp.Symbol("D", positive=True): 10, RATIO: 1}
        self.rho = mp.mpf(ratio) * mp.mpf(sp.Rational(FORM.rho.subs(numbers)).p) / sp.Rational(FORM.rho.subs(numbers)).q
        self.w0 = mp.mpf(margin0)
        self.y0 = mp.mpf(self.m) / self.n * mp.exp(score_gap0)

    def odds(self, w):
        """The orbit, solved by Newton's method on ln y."""
        x = self.rho * (w**2 - self.w0**2) / 2 + self.y0 + mp.log(self.y0)
        u = mp.log(x) if x > 2 else min(x, mp.mpf(0))
        while True:
            step = (x - u - mp.exp(u)) / (1 + mp.exp(u))
            u += step
            if abs(step) < mp.mpf(10) ** (-mp.mp.dps + 4) * max(1, abs(u)):
                return mp.exp(u)

    def attention(self, w):
        """At margin w."""
        y = self.odds(w)
        return y / (1 + y)

    def lead(self, w):
        """Delta = alpha w."""
        return self.attention(w) * w

    def rate(self, w):
        """The integrand of the time map, dt/dw."""
        return self.C * (mp.exp(self.lead(w)) + self.K - 1) / self.attention(w)

    def time(self, w):
        """The time map, by Gauss-Legendre quadrature on pieces that resolve the start, the crossing and the end."""
        marks = {self.w0, w}
        for k in range(-2, 4):
            scale = 5 ** mp.mpf(k) / mp.sqrt(self.rho)
            marks |= {m for m in (self.w0 + scale, w - 5 ** mp.mpf(k)) if self.w0 < m < w}
        return mp.quad(self.rate, sorted(marks), method="gauss-legendre", maxdegree=4)

    def margin_at(self, t, guess=None):
        """The margin at time t, by Newton's method on ln t."""
        w = self.w0 + mp.mpf("0.01") if guess is None else guess
        while True:
            now = self.time(w)
            step = (mp.log(t) - mp.log(now)) * now / self.rate(w)
            w += max(step, -(w - self.w0) / 2)
            if abs(step) < mp.mpf(10) ** -14 * (w - self.w0):
                return w

    def margin_with_lead(self, lead, guess):
        """The margin where Delta, and so the loss, has a given value."""
        return mp.findroot(lambda w: self.lead(w) - lead, guess)


def heading(number: str, title: str) -> None:
    """Prints the heading of a step."""
    print(f"\nStep {number}: {title}")


if __name__ == "__main__":
    mp.mp.dps = 30
    main()
