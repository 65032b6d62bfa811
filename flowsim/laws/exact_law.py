"""Judging a run against the laws of the exact flow, when theory predicts everything."""

import numpy as np

from flowsim.laws import judge
from flowsim.laws.judge import DECADES, POINTS, Judgement
from flowsim.laws.lane import Lane
from flowsim.laws.predictions import Prediction
from flowsim.theory.growth import BEFORE, ODDS, SATURATED, SCORE_GAP

_HOPELESS = 1e6  # deviations that no statistics is needed for


def measured(lane: Lane, observable: str, regime: str) -> tuple[np.ndarray, np.ndarray]:
    """What a law is about, and its logarithm: margin, odds, score gap, or (before saturation) the score gap's change.

    Args:
        lane: the run.
        observable: `"margin"`, `"odds"` or `"score_gap"`.
        regime: `"saturated"` or `"before saturation"`.

    Returns:
        The observable (odds may overflow to infinity) and its logarithm (NaN where it is not positive).
    """
    if observable == ODDS:
        with np.errstate(over="ignore"):
            return np.exp(lane.log_odds), lane.log_odds
    early_gap = observable == SCORE_GAP and regime == BEFORE
    y = lane.score_gap_change if early_gap else getattr(lane, observable)
    positive = np.where(y > 0, y, np.nan)
    return y, np.log(positive)


def readable(lane: Lane, prediction: Prediction) -> np.ndarray:
    """The points of a run where theory is precise, the law stands out, and the observable was recorded."""
    y, _ = measured(lane, prediction.observable, prediction.regime)
    return ~np.isnan(y) & np.isfinite(lane.log_time) & prediction.precise


def judge_law(lane: Lane, prediction: Prediction, readable_range: tuple[float, float] | None) -> Judgement:
    r"""The verdict on one law of the exact flow.

    Args:
        lane: the run.
        prediction: the law on its times.
        readable_range: the $\ln t$ between which the law could be read with any times, if anywhere.

    Returns:
        *holds* if every point of the window agrees with leading term and corrections up to what theory leaves out,
        *fails* if they disagree by more, *undecided* if there is too little to tell.
    """
    y, log_y = measured(lane, prediction.observable, prediction.regime)
    if np.isnan(y).all():
        return Judgement("undecided", f"the {prediction.observable.replace('_', ' ')} was not recorded")
    inside = readable(lane, prediction)
    span = judge.window(lane.log_time, prediction.l, inside)
    if span is None:
        return Judgement("undecided", _nothing_to_see(lane, prediction, readable_range))
    l, y = prediction.l[inside], y[inside]
    local = judge.exponent(l, log_y[inside])
    if span.points < POINTS:
        reason = f"only {span.points} recorded times{_where(readable_range)}"
        return Judgement("undecided", reason, local, None, span)
    x = np.log(l)
    predicted, scale = prediction.predicted[inside], prediction.scale[inside]
    error = (y - predicted) / scale
    # Solvers promise margin and ln(odds) to a relative error; odds inherit the absolute error of their logarithm.
    size = np.abs(np.log(predicted) if prediction.observable == ODDS else predicted / scale)
    allowed = prediction.remainder[inside] + lane.data_error * np.maximum(1.0, size)
    if span.decades < DECADES:
        reason = f"only {span.decades:.2f} decades of l{_where(readable_range)}; {DECADES:g} are needed"
        return Judgement("undecided", reason, local, _constant(prediction, x, error, allowed), span)
    if not (np.abs(error) < _HOPELESS).all():
        return Judgement("fails", f"off by more than a factor of {_HOPELESS:g}", local, None, span)
    constant = _constant(prediction, x, error, allowed)
    verdict, why = judge.compare(error, allowed, x)
    iterated = prediction.iterated
    if verdict == "holds" and iterated is not None:
        verdict, why = _told_apart(prediction, iterated[inside], error, allowed, x, why)
    reason = (
        f"constant {constant:.6g}, predicted {prediction.constant:.6g}, {why}, over {span.decades:.2f} decades of l"
    )
    return Judgement(verdict, reason, local, constant, span)


def _told_apart(
    prediction: Prediction, iterated: np.ndarray, error: np.ndarray, allowed: np.ndarray, x: np.ndarray, why: str
) -> tuple[judge.Verdict, str]:
    """Holds only if the factor log log t itself is seen: no constant in its place agrees as well."""
    plain = prediction.name.removesuffix(" log log t")
    change = float(iterated.max() - iterated.min())
    seen = float(np.max(allowed)) + 4 * judge.scatter(x, error)
    # The best constant is off by half the change at either end.
    if change / 2 <= 2 * seen:
        return "undecided", f"{why}, but log log t changes by {100 * change:.2g} %: not told apart from {plain}"
    return "holds", f"{why}; log log t changes by {100 * change:.2g} %"


def _constant(prediction: Prediction, x: np.ndarray, error: np.ndarray, allowed: np.ndarray) -> float | None:
    """The measured constant, corrections divided out; points where less is allowed weigh more."""
    if not (np.abs(error) < _HOPELESS).all():
        return None
    if not prediction.power:
        return prediction.constant + judge.slope(x, error)
    weights = judge.trapezoid(x) / allowed**2
    return prediction.constant * (1 + float(weights @ error / weights.sum()))


def _nothing_to_see(lane: Lane, prediction: Prediction, readable_range: tuple[float, float] | None) -> str:
    if readable_range is None:
        if prediction.regime == SATURATED:
            return "theory is nowhere precise enough to read this law, up to ten times the run's last ln t"
        return f"not visible at this ratio: attention saturates before {prediction.name} can be read"
    first, last = readable_range
    finite = lane.log_time[np.isfinite(lane.log_time)]
    if finite.size and finite[-1] < first:
        return f"the law can be read from ln t = {first:.4g} on, the run ends at {finite[-1]:.4g}"
    return f"no recorded time between ln t = {first:.4g} and {last:.4g}, where the law can be read"


def _where(readable_range: tuple[float, float] | None) -> str:
    assert readable_range is not None, "some time lies in the window"
    first, last = readable_range
    return f" of this run lie between ln t = {first:.4g} and {last:.4g}, where the law can be read"
