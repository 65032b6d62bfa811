"""Whether runs of several seeds show a difference, or too little to tell."""

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.99
"""Of the two-sided interval of Student's t, so that few seeds must agree the more."""
_FEW = 4
_ROUNDING = 4 * np.finfo(float).eps  # of the difference of two shares


class Difference(NamedTuple):
    """A mean over the seeds; all NaN where there are fewer than two usable ones.

    Attributes:
        mean: the mean.
        error: its standard error.
        margin: what the mean has to exceed; infinite where so few coincide that their spread tells nothing.
    """

    mean: float
    error: float
    margin: float

    @property
    def sign(self) -> int:
        """1 or -1 where the mean is clearly above or below 0, else 0."""
        return int(self.mean > self.margin) - int(self.mean < -self.margin)


def difference(values: Any, *, among: int = 1, counted: bool = False) -> Difference:
    """The mean of paired differences, one for each seed; runs that diverged are NaN and left out.

    Args:
        values: the differences, of any shape.
        among: how many differences are looked at for one that is clear; the margin grows so that all of them together
            mislead no more often than a single one (Bonferroni).
        counted: whether they come of shares of few things: few seeds then coincide by chance, and tell nothing.
    """
    finite = np.asarray(values, dtype=float).ravel()
    finite = finite[np.isfinite(finite)]
    if finite.size < 2:
        return Difference(float("nan"), float("nan"), float("nan"))
    error = float(finite.std(ddof=1) / np.sqrt(finite.size))
    margin = error * float(stats.t.isf((1 - CONFIDENCE) / (2 * among), finite.size - 1))
    alike = counted and finite.size < _FEW and np.ptp(finite) <= _ROUNDING * max(1.0, float(np.abs(finite).max()))
    return Difference(float(finite.mean()), error, float("inf") if alike else margin)


def share(holds: Any, known: Any) -> float:
    """The share of the known entries at which something holds; NaN where nothing is known."""
    there = np.asarray(known, dtype=bool)
    return float(np.mean(np.asarray(holds)[there])) if there.any() else float("nan")
