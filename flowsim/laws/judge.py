"""The verdict on one law: where it can be read, what it measures, and whether that is the law."""

import dataclasses
import math
from typing import Literal, NamedTuple

import numpy as np

from flowsim.laws.predictions import PRECISION

Verdict = Literal["holds", "fails", "undecided"]

DECADES = 0.5
"""Decades of $l$ that a law with a predicted constant must be seen over; there is no free parameter to fit."""
POINTS = 3
"""Fewest recorded times in a window."""


class Window(NamedTuple):
    r"""Where a law is read.

    Attributes:
        log_time_start: $\ln t$ of the first time used.
        log_time_end: $\ln t$ of the last.
        decades: decades of $l$ between them.
        points: how many times were used.
    """

    log_time_start: float
    log_time_end: float
    decades: float
    points: int


@dataclasses.dataclass(frozen=True)
class Judgement:
    r"""A verdict with its numbers; what cannot be measured is None.

    Attributes:
        verdict: `"holds"`, `"fails"` or `"undecided"`.
        reason: one sentence with the numbers.
        exponent: local exponent $d \ln y / d \ln l$ over the window.
        constant: measured constant, the known corrections divided out.
        window: where it was measured.
    """

    verdict: Verdict
    reason: str
    exponent: float | None = None
    constant: float | None = None
    window: Window | None = None


def window(log_time: np.ndarray, l: np.ndarray, inside: np.ndarray) -> Window | None:
    """The window spanned by the points inside, or None if there is none."""
    if not inside.any():
        return None
    at, of = log_time[inside], l[inside]
    return Window(float(at[0]), float(at[-1]), float(math.log10(of[-1] / of[0])), int(inside.sum()))


def trapezoid(x: np.ndarray) -> np.ndarray:
    """Weights of the trapezoidal rule on an increasing grid, summing to 1: they undo how a run was sampled."""
    gaps = np.diff(x)
    weights = np.zeros_like(x)
    weights[:-1] += gaps / 2
    weights[1:] += gaps / 2
    return weights / weights.sum()


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Least-squares slope of y against x, weighted so that the sampling of x does not matter."""
    weights = trapezoid(x)
    centred = x - weights @ x
    return float((weights * centred) @ y / ((weights * centred) @ centred))


def exponent(l: np.ndarray, log_y: np.ndarray) -> float | None:
    r"""Local exponent $d \ln y / d \ln l$, or None where y is not positive (its logarithm NaN)."""
    return slope(np.log(l), log_y) if l.size >= 2 and np.isfinite(log_y).all() else None


def scatter(x: np.ndarray, y: np.ndarray) -> float:
    """Standard deviation of the noise in y: how far each point lies from the line through its neighbours.

    Args:
        x: increasing grid, at least three points.
        y: values.

    Returns:
        The root mean square, scaled so that white noise gives its standard deviation.
    """
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    residual = y[1:-1] - (1 - share) * y[:-2] - share * y[2:]
    return float(np.sqrt(np.mean(residual**2 / (1 + share**2 + (1 - share) ** 2))))


def compare(error: np.ndarray, allowed: np.ndarray, x: np.ndarray) -> tuple[Verdict, str]:
    r"""Judges deviations from a prediction without free parameters.

    Args:
        error: measured minus predicted, in the units of `allowed`, on the window.
        allowed: what theory leaves out and the data may be wrong by, at each point.
        x: the abscissa, $\ln l$.

    Returns:
        The verdict and the clause that says why.
    """
    noise = scatter(x, error)
    weights = trapezoid(x)
    bias, tolerance = float(weights @ error), float(weights @ allowed)
    tolerance += 4 * noise * math.sqrt(weights @ weights)
    worst = float(np.max(np.abs(error) - allowed))
    if abs(bias) > tolerance:
        return "fails", f"off by {_percent(bias)} on average, where {_percent(tolerance)} is allowed"
    if noise > PRECISION:
        return "undecided", f"the data scatter by {_percent(noise)}, more than the {_percent(PRECISION)} needed"
    if worst > 5 * noise:
        return "fails", f"off by up to {_percent(float(np.max(np.abs(error))))} within the window"
    detail = f"within {_percent(float(np.max(np.abs(error))))} of theory everywhere"
    return "holds", detail if noise < PRECISION / 10 else f"{detail}, scatter {_percent(noise)}"


def _percent(value: float) -> str:
    return f"{100 * value:.2g} %"
