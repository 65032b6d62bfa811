"""How far two trajectories on the same times differ, by the measure in which flowsim states its accuracy."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from flowsim.trajectory import Trajectory

# The time itself is a float64: rounding it may move an observable by its slope times this many ulps of ln t.
_CLOCK_ULPS = 4


class Agreement(NamedTuple):
    """Largest differences of one lane over all times; NaN times are left out.

    Attributes:
        margin: of the margin, relative to its size where that exceeds 1.
        log_odds: of the log odds, likewise.
        score_gap: of the change of the score gap since time 0, relative to the change (`small_gaps`) or as the margin.
        attention: of the attention.
    """

    margin: float
    log_odds: float
    score_gap: float
    attention: float


def agreement(reference: "Trajectory", other: "Trajectory", *, small_gaps: bool) -> list[Agreement]:
    """Compares each lane of `other` with the same lane of `reference`.

    Args:
        reference: the trajectory that counts as true, with the same lanes and times; it may go on for longer.
        other: the one to measure.
        small_gaps: measure small changes of the score gap against themselves. A solver keeps them; the first finite
            step of a training has no gap yet where the flow has a small one.

    Returns:
        One entry for each lane.
    """
    import numpy as np

    n = other.n_time
    log_time = np.asarray(reference.log_time)[:n]
    if not np.array_equal(log_time, np.asarray(other.log_time)):
        raise AssertionError("trajectories are compared at their own times only")
    kept = np.isfinite(log_time)
    clock = log_time[kept]

    def lanes(trajectory: "Trajectory", name: str) -> Any:
        return np.asarray(getattr(trajectory, name)).reshape(-1, trajectory.n_time)[:, :n][:, kept]

    def worst(name: str, scale: Callable[[Any], Any]) -> list[float]:
        largest = []
        for reached, found in zip(lanes(reference, name), lanes(other, name), strict=True):
            true = np.where(np.isfinite(reached), reached, np.nan)  # a lane that overflowed has nothing to compare with
            slope = np.gradient(true, clock) if clock.size > 1 else np.zeros_like(clock)
            rounding = _CLOCK_ULPS * np.spacing(np.abs(clock)) * np.abs(slope)
            difference = np.maximum(np.abs(found - true) - rounding, 0)
            with np.errstate(divide="ignore"):  # a difference where nothing should have changed counts as infinite
                relative = np.divide(difference, scale(true), out=np.zeros_like(difference), where=difference != 0)
            largest.append(_largest(relative))
        return largest

    def absolute(values: Any) -> Any:
        return np.maximum(1, np.abs(values))

    columns = (
        worst("margin", absolute),
        worst("log_odds", absolute),
        worst("score_gap_change", np.abs if small_gaps else absolute),
        [_largest(row) for row in np.abs(lanes(other, "attention") - lanes(reference, "attention"))],
    )
    return [Agreement(*row) for row in zip(*columns, strict=True)]


def _largest(values: Any) -> float:
    """The largest value that is a number, or NaN when there is none (a lane that diverged at once)."""
    import numpy as np

    numbers = values[~np.isnan(values)]
    return float(numbers.max()) if numbers.size else float("nan")
