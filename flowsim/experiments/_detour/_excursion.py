r"""Where attention falls below its start, how low it gets, and when it is back.

Everything is read off $x(t) = \ln\frac{\alpha}{1-\alpha}(t) - \ln\frac{\alpha}{1-\alpha}(0)$, for many lanes at once,
on a grid of $\ln t$ and then again between the points of the grid that enclose an event.

- *fall*: the first time with $x < 0$; attention that falls at once has fall 0.
- *back*: the first time after the fall at which $x \ge 0$ again.
- *length*: back - fall; 0 if attention never falls. If it is not back at the end of the grid, the length is that up to
  there, a lower bound, and the outcome is `Outcome.CENSORED`.
- *depth*: the smallest $x$ on the whole grid, 0 if attention never falls.

Falls and returns are enclosed in brackets in which $x$ changes sign; the width of the bracket is the accuracy that is
stated. An event that passes between two points of the first grid is not seen.
"""

import dataclasses
import enum
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int

Read = Callable[[Float[np.ndarray, "lanes points"]], Float[np.ndarray, "lanes points"]]
"""Gives $x$ of each lane at its own $\\ln t$; NaN where NaN is asked."""

POINTS = 12
"""So many times each lane asks for in each round."""
_EVENT = 4
_ROUNDS = 6


class Outcome(enum.IntEnum):
    """How an excursion ended; values are stored in files."""

    NONE = 0
    RETURNED = 1
    CENSORED = 2
    UNSOLVED = 3


@dataclasses.dataclass(frozen=True)
class Excursions:
    r"""Excursions of many lanes.

    Attributes:
        outcome: `Outcome` of each lane.
        log_fall: $\ln$ of the time at which attention falls below its start; $-\infty$ if at once, NaN if never.
        log_back: $\ln$ of the time at which it is back; NaN if it is not.
        length: as above.
        depth: as above, in log odds.
        log_lowest: $\ln$ of the time of the lowest attention; NaN if attention never falls.
        accuracy: width of the bracket of the return in $\ln t$; 0 without one.
        fall_accuracy: the same of the fall.
        depth_accuracy: how far the depth moved when it was last refined.
    """

    outcome: Int[np.ndarray, " lanes"]
    log_fall: Float[np.ndarray, " lanes"]
    log_back: Float[np.ndarray, " lanes"]
    length: Float[np.ndarray, " lanes"]
    depth: Float[np.ndarray, " lanes"]
    log_lowest: Float[np.ndarray, " lanes"]
    accuracy: Float[np.ndarray, " lanes"]
    fall_accuracy: Float[np.ndarray, " lanes"]
    depth_accuracy: Float[np.ndarray, " lanes"]


def find_excursions(
    log_times: Float[np.ndarray, " time"],
    change: Float[np.ndarray, "lanes time"],
    *,
    read: Read | None = None,
    accuracy: float = 0.0,
) -> Excursions:
    r"""Finds the excursion of each lane.

    Args:
        log_times: $\ln t$, increasing, finite.
        change: $x$ there; a lane with a NaN is `Outcome.UNSOLVED`.
        read: gives $x$ between the points; None takes straight lines between them.
        accuracy: brackets are refined until they are narrower than this, for six rounds at most.

    Returns:
        The excursions.
    """
    solved: np.ndarray = np.isfinite(change).all(axis=1)
    change = np.where(solved[:, None], change, 0.0)
    below = change < 0
    fallen = below.any(axis=1)
    first = np.argmax(below, axis=1)
    later = ~below & (np.arange(log_times.size) > first[:, None]) & fallen[:, None]
    returned, back = later.any(axis=1), np.argmax(later, axis=1)

    fall = _Bracket.around(log_times, change, first, fallen & (first > 0), rising=False)
    home = _Bracket.around(log_times, change, back, returned, rising=True)
    low = _Lowest.around(log_times, change, fallen)
    for _ in range(_ROUNDS):
        if read is None or (max(fall.width.max(), home.width.max()) <= accuracy and low.moved.max() <= accuracy):
            break
        times = np.concatenate([fall.ask(), home.ask(), low.ask()], axis=1)
        found = read(times)
        solved &= (np.isfinite(found) | np.isnan(times)).all(axis=1)
        found = np.where(solved[:, None], found, np.nan)
        fall = fall.take(times[:, :_EVENT], found[:, :_EVENT])
        home = home.take(times[:, _EVENT : 2 * _EVENT], found[:, _EVENT : 2 * _EVENT])
        low = low.take(times[:, 2 * _EVENT :], found[:, 2 * _EVENT :])

    outcome = np.where(fallen, np.where(returned, Outcome.RETURNED, Outcome.CENSORED), Outcome.NONE)
    outcome = np.where(solved, outcome, Outcome.UNSOLVED)
    log_fall = np.where(fallen, np.where(first > 0, fall.root, -np.inf), np.nan)
    log_back = np.where(returned, home.root, np.nan)
    end = np.where(returned, log_back, log_times[-1])
    length = np.where(fallen, np.exp(end) - np.exp(np.where(fallen, log_fall, 0.0)), 0.0)
    nothing = ~solved
    return Excursions(
        outcome=outcome,
        log_fall=np.where(nothing, np.nan, log_fall),
        log_back=np.where(nothing, np.nan, log_back),
        length=np.where(nothing, np.nan, length),
        depth=np.where(nothing, np.nan, np.where(fallen, low.value, 0.0)),
        log_lowest=np.where(nothing | ~fallen, np.nan, low.times[:, 1]),
        accuracy=np.where(nothing, np.nan, home.width),
        fall_accuracy=np.where(nothing, np.nan, fall.width),
        depth_accuracy=np.where(nothing, np.nan, low.moved),
    )


@dataclasses.dataclass(frozen=True)
class _Bracket:
    """A sign change of each lane that has one, between `times[:, 0]` and `times[:, 1]`."""

    active: Bool[np.ndarray, " lanes"]
    sign: float
    times: Float[np.ndarray, "lanes 2"]
    values: Float[np.ndarray, "lanes 2"]

    @staticmethod
    def around(log_times, change, index, active, *, rising: bool) -> "_Bracket":
        pair = np.stack([np.maximum(index - 1, 0), np.maximum(index, 1)], axis=1)
        sign = 1.0 if rising else -1.0
        return _Bracket(active, sign, log_times[pair], sign * np.take_along_axis(change, pair, axis=1))

    @property
    def width(self) -> np.ndarray:
        return np.where(self.active, self.times[:, 1] - self.times[:, 0], 0.0)

    @property
    def root(self) -> np.ndarray:
        """Where a straight line between the ends crosses 0."""
        (a, b), (low, high) = self.times.T, self.values.T
        rise = np.where(self.active, high - low, 1.0)
        return a - (b - a) * np.where(self.active, low, 0.0) / rise

    def ask(self) -> np.ndarray:
        """Two times close to the straight line's crossing, and two that cut the bracket in three at least."""
        a, h = self.times[:, 0], self.times[:, 1] - self.times[:, 0]
        near = np.clip((self.root - a) / h, 0.03, 0.97)
        shares = np.stack([near - 0.02, near + 0.02, np.full(h.shape, 1 / 3), np.full(h.shape, 2 / 3)], axis=1)
        return np.where(self.active[:, None], a[:, None] + h[:, None] * shares, np.nan)

    def take(self, times: np.ndarray, found: np.ndarray) -> "_Bracket":
        times = np.where(self.active[:, None], times, self.times[:, :1])
        times = np.concatenate([self.times, times], axis=1)
        values = np.concatenate([self.values, self.sign * np.nan_to_num(found)], axis=1)
        order = np.argsort(times, axis=1)
        times, values = (np.take_along_axis(array, order, axis=1) for array in (times, values))
        at = np.argmax((values[:, :-1] < 0) & (values[:, 1:] >= 0), axis=1)
        pair = np.stack([at, at + 1], axis=1)
        new_times, new_values = (np.take_along_axis(array, pair, axis=1) for array in (times, values))
        keep = ~self.active[:, None]
        return dataclasses.replace(
            self,
            times=np.where(keep, self.times, new_times),
            values=np.where(keep, self.values, new_values),
        )


@dataclasses.dataclass(frozen=True)
class _Lowest:
    """Three times around the lowest value seen, of each lane that has fallen."""

    active: Bool[np.ndarray, " lanes"]
    times: Float[np.ndarray, "lanes 3"]
    values: Float[np.ndarray, "lanes 3"]
    moved: Float[np.ndarray, " lanes"]

    @staticmethod
    def around(log_times, change, active) -> "_Lowest":
        at = np.clip(np.argmin(change, axis=1), 1, log_times.size - 2)
        three = at[:, None] + np.arange(-1, 2)
        values = np.take_along_axis(change, three, axis=1)
        doubt = np.where(active, np.max(values, axis=1) - np.min(values, axis=1), 0.0)
        return _Lowest(active, log_times[three], values, doubt)

    @property
    def value(self) -> np.ndarray:
        return self.values.min(axis=1)

    def ask(self) -> np.ndarray:
        """The vertex of the parabola through the three points, times beside it, and the middle of the wider side."""
        (a, b, c), (p, q, r) = self.times.T, self.values.T
        left, right = b - a, c - b
        down, up = (q - p) / left, (r - q) / right
        bend = (up - down) / (c - a)
        slope = down + bend * left  # of the parabola at b
        curved = bend > 0
        vertex = np.where(curved, b - slope / np.where(curved, 2 * bend, 1.0), b)
        vertex = np.clip(vertex, a + 0.1 * left, c - 0.1 * right)
        aside = 0.05 * np.minimum(left, right)
        middle = np.where(left > right, (a + b) / 2, (b + c) / 2)
        times = np.stack([vertex - aside, vertex, vertex + aside, middle], axis=1)
        return np.where(self.active[:, None], times, np.nan)

    def take(self, times: np.ndarray, found: np.ndarray) -> "_Lowest":
        times = np.where(self.active[:, None], times, self.times[:, :1])
        found = np.where(np.isfinite(found), found, self.values[:, :1])
        times = np.concatenate([self.times, times], axis=1)
        values = np.concatenate([self.values, found], axis=1)
        order = np.argsort(times, axis=1)
        times, values = (np.take_along_axis(array, order, axis=1) for array in (times, values))
        at = np.clip(np.argmin(values, axis=1), 1, times.shape[1] - 2)
        three = at[:, None] + np.arange(-1, 2)
        new_times, new_values = (np.take_along_axis(array, three, axis=1) for array in (times, values))
        keep = ~self.active[:, None]
        new_times, new_values = np.where(keep, self.times, new_times), np.where(keep, self.values, new_values)
        moved = np.where(self.active, self.values.min(axis=1) - new_values.min(axis=1), 0.0)
        return dataclasses.replace(self, times=new_times, values=new_values, moved=moved)
