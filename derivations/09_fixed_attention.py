r"""Derivation 9: fixed attention, and the incentive to sharpen it (paper, section 5).

Claim. With attention alpha held fixed and only the output-value circuit trained, the label's lead Delta = alpha w obeys

    collapsed                e^Delta + (K-1) Delta = e^Delta0 + (K-1) Delta0 + eta alpha^2 t/C
                             Delta = ln(K-1) + ln omega(X/(K-1) - ln(K-1)),  X the right-hand side
    factorized, lambda = 0   Ei(Delta) + (K-1) ln Delta = Ei(Delta0) + (K-1) ln Delta0 + 2 eta alpha t/sqrt(C)

with omega the Wright omega function. The loss log(1 + (K-1) e^-Delta) falls with alpha at every time t > 0: sharper
attention always pays. The incentive loss(alpha, t) - loss(alpha + delta, t) is positive, 0 at the start for a zero
start, and tends to 0 again as t grows: an intermediate time, later for weaker attention, is where it pays most.

Assumptions. The label head, one distinct group of C types per class, K classes, gradient flow, alpha in (0, 1].

Run it: every step is asserted, and the formulas that it proves are printed.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false

import mpmath as mp
import sympy as sp

from flowsim.task import Structure
from flowsim.theory import derive
from flowsim.theory.symbols import CLASSES, ERROR

K = CLASSES
C, eta, t = sp.symbols("C eta t", positive=True)
alpha, lead = sp.symbols("alpha Delta", positive=True)
MARGIN_FLOW = derive(Structure(("distinct", "common"), "per-class", None, False)).closed_form
STEP = sp.Rational(1, 200)  # delta = 0.005, the paper's


def main() -> None:
    """All steps in order."""
    lead_flow()
    collapsed()
    explicit_solution()
    factorized()
    loss_falls_with_attention()
    sharpening_incentive()


def error_of(delta: sp.Expr) -> sp.Expr:
    """1 - probability of the label."""
    return (K - 1) / (sp.exp(delta) + K - 1)


def velocity(factorized: bool) -> sp.Expr:
    """The velocity of Delta at fixed attention, alpha dw/dt, from the derived flow."""
    form = MARGIN_FLOW
    assert form is not None
    collapsed = form.margin_velocity.subs({form.types: C, form.attention: alpha, ERROR: error_of(lead)}) * eta
    w = lead / alpha
    # one mode sigma = sqrt(C) w of a balanced factorization moves faster by 2 sigma = 2 sqrt(C) w (derivation 6)
    return sp.simplify(alpha * collapsed * (2 * sp.sqrt(C) * w if factorized else 1))


def lead_flow() -> None:
    r"""Step 1. dDelta/dt = eta alpha^2 q/(C (K-1)), and with factors eta 2 alpha Delta q/(sqrt(C) (K-1))."""
    heading("1", "the lead at fixed attention")
    for factorized_, expected in ((False, eta * alpha**2 / C), (True, 2 * eta * alpha * lead / sp.sqrt(C))):
        found = velocity(factorized_)
        assert sp.simplify(found - expected * error_of(lead) / (K - 1)) == 0
        print(f"  {'factorized' if factorized_ else 'collapsed '}  dDelta/dt = {sp.sstr(found)}")


def collapsed() -> None:
    r"""Step 2. Separated: (e^Delta + K - 1) dDelta = eta alpha^2/C dt, and the left side integrates."""
    heading("2", "collapsed")
    left = sp.exp(lead) + (K - 1) * lead
    assert sp.simplify(sp.diff(left, lead) * velocity(False) - eta * alpha**2 / C) == 0
    print(f"  d/dt ({sp.sstr(left)}) = eta alpha^2/C")


def explicit_solution() -> None:
    r"""Step 3. Delta = ln(K-1) + ln omega(X/(K-1) - ln(K-1)), by the definition omega + ln omega = its argument."""
    heading("3", "the Wright omega function")
    omega = sp.Symbol("omega", positive=True)
    delta = sp.log(K - 1) + sp.log(omega)
    classes = sp.Symbol("k", positive=True)  # K - 1 > 0
    x = (sp.exp(delta) + (K - 1) * delta).subs(K, classes + 1)
    x = sp.expand(sp.simplify(x))
    # X/(K-1) - ln(K-1) is omega + ln omega, so omega = omega(X/(K-1) - ln(K-1))
    assert sp.simplify(sp.expand(x / classes) - sp.log(classes) - omega - sp.log(omega)) == 0
    for k, value in ((2, "0.3"), (4, "7.5"), (50, "1e6")):
        value = mp.mpf(value)
        argument = value / (k - 1) - mp.log(k - 1)
        found = mp.log(k - 1) + mp.log(mp.lambertw(mp.e**argument).real if argument < 500 else _omega(argument))
        assert abs(mp.e**found + (k - 1) * found - value) < mp.mpf(10) ** -30 * value, (k, value)
    print("  Delta = ln(K-1) + ln omega(X/(K-1) - ln(K-1))")


def _omega(argument):
    """The Wright omega function of a large argument."""
    return mp.findroot(lambda y: y + mp.log(y) - argument, argument)


def factorized() -> None:
    r"""Step 4. Separated: (e^Delta + K - 1)/Delta dDelta = 2 eta alpha/sqrt(C) dt; Ei is the integral of e^x/x."""
    heading("4", "factorized, lambda = 0")
    left = sp.Ei(lead) + (K - 1) * sp.log(lead)
    assert sp.simplify(sp.diff(left, lead) * velocity(True) - 2 * eta * alpha / sp.sqrt(C)) == 0
    print(f"  d/dt ({sp.sstr(left)}) = 2 eta alpha/sqrt(C)")


def loss_falls_with_attention() -> None:
    r"""Step 5. From the same margin w0 >= 0 (collapsed; w0 > 0 factorized) the lead grows with alpha at every t > 0.

    With X(Delta) the left side of steps 2 and 4 and dX/dDelta > 0, differentiate X(Delta) = X(alpha w0) + drive with
    respect to alpha: dDelta/dalpha = (X'(alpha w0) w0 + d drive/dalpha)/X'(Delta), every term positive. The loss falls
    with the lead, so it falls with alpha.
    """
    heading("5", "the loss falls with attention")
    w0, k = sp.Symbol("w_0", positive=True), sp.Symbol("k", positive=True)
    loss = sp.log(1 + k * sp.exp(-lead))
    assert sp.simplify(sp.diff(loss, lead)).is_negative
    for left, drive in (
        (sp.exp(lead) + k * lead, eta * alpha**2 * t / C),
        (sp.Ei(lead) + k * sp.log(lead), 2 * eta * alpha * t / sp.sqrt(C)),
    ):
        slope = sp.simplify(sp.diff(left, lead))
        assert slope.is_positive
        assert sp.diff(drive, alpha).is_positive
        numerator = slope.subs(lead, alpha * w0) * w0 + sp.diff(drive, alpha)
        assert sp.simplify(numerator).is_positive
        print(f"  dDelta/dalpha = ({sp.sstr(sp.simplify(numerator))}) / ({sp.sstr(slope)}) > 0,  k = K - 1")


def sharpening_incentive() -> None:
    r"""Step 6. loss(alpha, t) - loss(alpha + delta, t) > 0 for t > 0, delta = 0.005, alpha <= 1 - delta.

    It starts at 0 from a zero start and ends at 0. Both limits: early (collapsed) the loss is
    ln K - eta alpha^2 t (K-1)/(C K^2), so the incentive grows as ((alpha + delta)^2 - alpha^2) t; late the loss is
    (K-1) e^-Delta, with e^Delta = eta alpha^2 t/C, so the incentive falls as 1/t. Weaker attention has its largest
    incentive later.
    """
    heading("6", "the incentive to sharpen")
    early = sp.series(sp.log(1 + (K - 1) * sp.exp(-lead)), lead, 0, 2).removeO().coeff(lead, 1)
    assert sp.simplify(early + (K - 1) / K) == 0
    first = sp.simplify((early * velocity(False)).subs(lead, 0))  # d loss/dt at Delta = 0
    assert sp.simplify(first + eta * alpha**2 * (K - 1) / (C * K**2)) == 0
    late = (K - 1) * C / (eta * alpha**2 * t)
    gain = sp.factor(late - late.subs(alpha, alpha + STEP))
    assert sp.limit(gain * t, t, sp.oo).subs({K: 4, C: 10, eta: 1, alpha: sp.Rational(1, 2)}) > 0
    times = [mp.mpf(10) ** (mp.mpf(i) / 4) for i in range(-8, 33)]
    peaks = []
    for value in (0.1, 0.3, 0.6, 0.9, 0.995):
        incentive = [_loss(value, time) - _loss(value + float(STEP), time) for time in times]
        assert min(incentive) > 0, value
        top = max(range(len(times)), key=incentive.__getitem__)
        assert 0 < top < len(times) - 1
        peaks.append(times[top])
        exact = (_loss(value, times[-1]) - _loss(value + float(STEP), times[-1])) * times[-1]
        expected = sp.limit(gain * t, t, sp.oo).subs({K: 4, C: 10, eta: 1, alpha: sp.Float(value)})
        assert abs(exact / expected - 1) < mp.mpf("0.05")
    assert peaks == sorted(peaks, reverse=True)
    print(f"  late: incentive = {sp.sstr(gain)}")
    print("  K=4, C=10: largest at t = " + ", ".join(mp.nstr(peak, 3) for peak in peaks) + " for rising alpha")


def _loss(attention: float, time, k: int = 4, types: int = 10):
    """Fixed-attention loss of the collapsed circuit from a zero start, at high precision."""
    x = 1 + mp.mpf(attention) ** 2 * time / types
    argument = x / (k - 1) - mp.log(k - 1)
    omega = mp.lambertw(mp.e**argument).real if argument < 500 else _omega(argument)
    return mp.log1p((k - 1) * mp.exp(-(mp.log(k - 1) + mp.log(omega))))


def heading(number: str, title: str) -> None:
    """Prints the heading of a step."""
    print(f"\nStep {number}: {title}")


if __name__ == "__main__":
    mp.mp.dps = 40
    main()
