"""Judging the form of a law where no constant is predicted: no task or no ratio is attached to the run."""

import numpy as np

from flowsim.laws import judge
from flowsim.laws.exact_law import measured
from flowsim.laws.judge import PRECISION, Judgement, Window
from flowsim.laws.lane import Lane
from flowsim.theory.growth import MARGIN, ODDS, SATURATED

DECADES = 1.0
r"""Decades of $\ln t$ needed: constant and unit of time are fitted, so it takes more than with a prediction."""
WIDEST = 1.5
"""The window is the last `WIDEST` decades, where the asymptotic law has had the longest time to settle."""
POINTS = 6
TOLERANCE = 0.05
"""How far a local exponent, or the change of a logarithm's coefficient, may be off."""
SATURATION = 30.0
"""Attention counts as saturated where odds are this large, and this much larger than at the first recorded time."""
LATE = 30.0
r"""From this $\ln t$ on, no start and no unit of time makes a margin grow faster than $\log t$."""


def judge_form(lane: Lane, observable: str, power: int, name: str, unpredicted: str) -> Judgement:
    r"""Whether an observable has the form `constant * l**power`, or `constant * ln(l) + offset` for power 0.

    The unit of time is not known, so $l = \ln t + s$ with a fitted shift $s$. A factor $\log\log t$ of the odds is the
    score gap, so it is divided out as $\ln y$; the odds are besides told apart from the same power without it.

    Args:
        lane: the run.
        observable: `"margin"`, `"odds"` or `"score_gap"`.
        power: the power of $l$.
        name: the law as one says it, `"log^2 t"` or `"log^2 t log log t"`.
        unpredicted: why no constant is predicted.

    Returns:
        The verdict on the form; *fails* only where attention is saturated, since the laws are about that.
    """
    y, log_y = measured(lane, observable, SATURATED)
    if np.isnan(y).all():
        return Judgement("undecided", f"the {observable.replace('_', ' ')} was not recorded")
    inside = _last_decades(lane, y)
    x = lane.log_time[inside]
    span = judge.window(lane.log_time, lane.log_time, inside)
    if span is None or span.decades < DECADES or span.points < POINTS:
        seen = "no" if span is None else f"only {span.decades:.2f}"
        needed = f"{DECADES:g} in {POINTS} times are needed"
        reason = f"{seen} decades of ln t in {int(inside.sum())} times; {needed}; {unpredicted}"
        local = None if span is None else judge.exponent(x, log_y[inside])
        return Judgement("undecided", reason, local, None, span)
    if power:
        return _power_law(lane, x, log_y[inside], power, observable, name, span, unpredicted)
    return _logarithm(lane, x, y[inside], log_y[inside], span, unpredicted)


def _last_decades(lane: Lane, y: np.ndarray) -> np.ndarray:
    usable = ~np.isnan(y) & (lane.log_time > 1)
    if not usable.any():
        return usable
    return usable & (lane.log_time >= lane.log_time[usable][-1] / 10**WIDEST)


def _power_law(
    lane: Lane, x: np.ndarray, log_y: np.ndarray, power: int, observable: str, name: str, span: Window, unpredicted: str
) -> Judgement:
    if not np.isfinite(log_y).all():
        return Judgement("undecided", f"the {observable} is not positive throughout the window", window=span)
    rival = None
    if observable == ODDS:
        if not (log_y > 1).all():
            return Judgement("undecided", "the odds are not above e throughout the window", window=span)
        plain, divided = log_y, log_y - np.log(log_y)
        log_y, rival = (divided, plain) if "log log" in name else (plain, divided)
    shift = _best_shift(x, log_y)
    log_l = np.log(x + shift)
    early, late = _halves(log_l, log_y)
    local = judge.slope(log_l, log_y)
    noise = judge.scatter(log_l, log_y)
    error = 4 * noise / np.sqrt(x.size / 2) / (np.log(10) * span.decades / 2)
    weights = judge.trapezoid(log_l)
    with np.errstate(over="ignore"):  # infinite for what grows faster than any power of l
        constant = float(np.exp(weights @ (log_y - power * log_l)))
    form = f"exponents {early:.3g} and {late:.3g} in the halves of {span.decades:.2f} decades"
    result = (local, constant, span)
    if noise > PRECISION:
        return Judgement("undecided", f"the data scatter by {100 * noise:.2g} %; {unpredicted}", *result)
    if max(abs(early - power), abs(late - power)) <= TOLERANCE and error <= TOLERANCE:
        if rival is not None and _same_power(x, rival, power):
            other = f"log^{power} t" if "log log" in name else f"log^{power} t log log t"
            reason = f"{form}, but not told apart from {other.replace('^1', '')}; {unpredicted}"
            return Judgement("undecided", reason, *result)
        return Judgement("holds", f"{form}; {unpredicted}", *result)
    off = abs(late - power) > TOLERANCE + error
    converging = abs(late - power) < 0.7 * abs(early - power)
    too_fast = observable == MARGIN and x[0] >= LATE and local > power + TOLERANCE
    if off and not converging and (too_fast or _saturated(lane, span)):
        return Judgement("fails", f"{form}, not {power}; {unpredicted}", *result)
    return Judgement("undecided", f"{form}, not (yet) {power}; {unpredicted}", *result)


def _same_power(x: np.ndarray, log_y: np.ndarray, power: int) -> bool:
    """Whether another form has this power as well."""
    log_l = np.log(x + _best_shift(x, log_y))
    return max(abs(part - power) for part in _halves(log_l, log_y)) <= TOLERANCE


def _logarithm(
    lane: Lane, x: np.ndarray, y: np.ndarray, log_y: np.ndarray, span: Window, unpredicted: str
) -> Judgement:
    local = judge.exponent(x, log_y)
    log_l = np.log(x)
    early, late = _halves(log_l, y)
    constant = judge.slope(log_l, y)
    noise = judge.scatter(log_l, y)
    spread = abs(constant) * np.log(10) * span.decades
    form = f"d theta/d ln l is {early:.3g} and {late:.3g} in the halves of {span.decades:.2f} decades"
    result = (local, constant, span)
    if noise > PRECISION * max(spread, 1.0):
        return Judgement("undecided", f"the data scatter by {noise:.2g}; {unpredicted}", *result)
    if constant > 0 and abs(late - early) <= TOLERANCE * constant:
        return Judgement("holds", f"{form}; {unpredicted}", *result)
    if _saturated(lane, span) and abs(late - early) > 4 * TOLERANCE * abs(constant):
        return Judgement("fails", f"{form}, not a constant; {unpredicted}", *result)
    return Judgement("undecided", f"{form}, not (yet) a constant; {unpredicted}", *result)


def _best_shift(x: np.ndarray, log_y: np.ndarray) -> float:
    """The shift s, within half of the first x, that makes ln y straightest in ln(x + s)."""
    bound = x[0] / 2
    shifts = np.linspace(-bound, bound, 201)

    def bend(shift: float) -> float:
        log_l = np.log(x + shift)
        weights = judge.trapezoid(log_l)
        rest = log_y - weights @ log_y - judge.slope(log_l, log_y) * (log_l - weights @ log_l)
        return float(weights @ rest**2)

    for _ in range(4):
        best = int(np.argmin([bend(shift) for shift in shifts]))
        step = shifts[1] - shifts[0]
        shifts = np.clip(np.linspace(shifts[best] - step, shifts[best] + step, 21), -bound, bound)
    return float(shifts[10])


def _halves(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slopes of y against x below and above the middle of the range of x; the halves share a point."""
    middle = int(np.clip(np.searchsorted(x, (x[0] + x[-1]) / 2), 1, x.size - 2))
    return judge.slope(x[: middle + 1], y[: middle + 1]), judge.slope(x[middle:], y[middle:])


def _saturated(lane: Lane, span: Window) -> bool:
    """Whether attention is saturated from the start of the window on, as far as the record shows."""
    known = np.isfinite(lane.log_odds)
    if not known.any():
        return False
    at = lane.log_odds[known & (lane.log_time >= span.log_time_start)]
    first = lane.log_odds[known][0]
    return bool(at.size and at[0] >= np.log(SATURATION) and at[0] - first >= np.log(SATURATION))
