"""How well a handful of seeds knows a mean: the studentized bootstrap interval."""

import numpy as np

from flowsim import _validate
from flowsim.errors import InvalidInput

FEWEST = 5
"""With fewer values too many resamples have no spread, and the interval has no end."""
RESAMPLES = 10_000
_SEED = 20_260


def mean_interval(values: np.ndarray, level: float = 0.95, resamples: int = RESAMPLES) -> tuple[float, float]:
    r"""The studentized bootstrap interval of a mean.

    The values are drawn anew with replacement; of each resample the distance of its mean from theirs is measured in the
    resample's own standard error, and the quantiles of that pivot are carried over to the values. (The percentile
    interval would forget that few values underrate their own spread: with 16 of them it covers 92 % where 95 % are
    said.) The resampling is seeded, so that the same values give the same interval.

    Args:
        values: one number for each seed, shape `(seed,)`, at least five.
        level: how often the interval is to cover the true mean, between 0 and 1.
        resamples: how often the values are drawn anew.

    Returns:
        Its ends; both are the mean where all values are equal.

    Raises:
        InvalidInput: if there are fewer than five values, one is not finite, or the level is not between 0 and 1.
    """
    values = np.asarray(values, dtype=np.float64)
    level = _validate.real("level", level, above=0.0)
    if level >= 1:
        raise InvalidInput(f"level={level:g} must be below 1; give 0.95, say.")
    if values.ndim != 1 or values.size < FEWEST:
        raise InvalidInput(f"values has shape {values.shape}; an interval takes at least {FEWEST} of them in a row.")
    if not np.isfinite(values).all():
        raise InvalidInput("values holds a number that is not finite; leave that seed out.")
    n, mean = values.size, float(values.mean())
    spread = float(values.std(ddof=1))
    if spread == 0:
        return mean, mean
    drawn = values[np.random.default_rng(_SEED).integers(n, size=(resamples, n))]
    distance, width = drawn.mean(axis=1) - mean, drawn.std(axis=1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        # A resample of one value over and over has no spread: infinitely many of its standard errors away.
        pivot = np.where(width > 0, distance / width, np.sign(distance) * np.inf)
    low, high = np.quantile(pivot, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return mean - float(high) * spread, mean - float(low) * spread
