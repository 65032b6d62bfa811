r"""Beyond which ratio a larger ratio gives less attention when training stops at a given time.

At a fixed time $T$ the attention is a function of the ratio. Where $d\alpha/d\ln r$ changes from positive to negative,
a larger ratio begins to pay back in less attention; of several such places the last one on the grid of ratios counts.
Log odds and attention rise and fall together, so that the sign is that of the log odds.

The place is enclosed by three neighbours of the grid with the largest value in the middle, and found as the zero of the
derivative of the polynomial through the log odds at the Chebyshev points between the outer two, solved anew; how far
the polynomial through every second of these points has its zero elsewhere is the accuracy that is stated.
"""

import dataclasses
import enum
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int
from numpy.polynomial import chebyshev

Answer = Callable[[Float[np.ndarray, "budgets nodes"]], Float[np.ndarray, "budgets nodes"]]
"""Gives the log odds at each budget for its own values of $\\ln r$."""

NODES = 7
_ROUNDS = 4
_SHRINK = 4.0


class Kind(enum.IntEnum):
    """What a larger ratio does within the grid of ratios; values are stored in files."""

    MORE = 0
    REVERSES = 1
    LESS = 2
    UNSOLVED = 3


@dataclasses.dataclass(frozen=True)
class Reversals:
    r"""Reversals at each budget.

    Attributes:
        kind: `Kind.MORE` if attention still rises with the ratio at the end of the grid, `Kind.LESS` if it falls at the
            end and has not risen before, `Kind.REVERSES` if it falls at the end from the place given.
        log_ratio: $\ln r$ of the last maximum; NaN unless it reverses.
        peak: log odds there, relative to those at the start.
        accuracy: of `log_ratio`.
        changes: number of sign changes on the grid.
    """

    kind: Int[np.ndarray, " budgets"]
    log_ratio: Float[np.ndarray, " budgets"]
    peak: Float[np.ndarray, " budgets"]
    accuracy: Float[np.ndarray, " budgets"]
    changes: Int[np.ndarray, " budgets"]


def find_reversals(
    log_ratios: Float[np.ndarray, " ratios"],
    change: Float[np.ndarray, "ratios budgets"],
    *,
    answer: Answer,
    accuracy: float,
) -> Reversals:
    r"""Finds the last maximum over the ratio at each budget.

    Args:
        log_ratios: $\ln r$, increasing.
        change: log odds relative to the start at each budget; a budget with a NaN is `Kind.UNSOLVED`.
        answer: solves anew between the ratios of the grid.
        accuracy: in $\ln r$, to be reached in four rounds at most.

    Returns:
        The reversals.
    """
    solved = np.isfinite(change).all(axis=0)
    up = np.diff(np.where(solved, change, 0.0), axis=0) > 0
    peaks = up[:-1] & ~up[1:]  # at the grid's ratio 1, 2, ...
    found = peaks.any(axis=0) & ~up[-1] & solved
    at = peaks.shape[0] - np.argmax(peaks[::-1], axis=0)
    kind = np.where(up[-1], Kind.MORE, np.where(found, Kind.REVERSES, Kind.LESS))
    at = np.where(found, at, 1)
    low, high = log_ratios[at - 1], log_ratios[np.minimum(at + 1, log_ratios.size - 1)]
    middle, half = (low + high) / 2, (high - low) / 2
    where = peak = doubt = np.full(found.shape, np.nan)
    points = np.cos(np.pi * np.arange(NODES) / (NODES - 1))
    for _ in range(_ROUNDS if found.any() else 0):
        values = answer(middle[:, None] + half[:, None] * points)
        fine, height = _summit(points, values)
        coarse, _ = _summit(points[::2], values[:, ::2])
        doubt, where, peak = half * np.abs(fine - coarse), middle + half * fine, height
        todo = found & ~(doubt <= accuracy)
        if not todo.any():
            break
        narrow = np.clip(2 * np.abs(fine - coarse), 1e-3, 1 / _SHRINK)
        middle, half = np.where(todo, where, middle), np.where(todo, half * narrow, half)
    found &= np.isfinite(where)
    kind = np.where(solved & ~((kind == Kind.REVERSES) & ~found), kind, Kind.UNSOLVED)
    return Reversals(
        kind=kind,
        log_ratio=np.where(found, where, np.nan),
        peak=np.where(found, peak, np.nan),
        accuracy=np.where(found, doubt, np.nan),
        changes=np.where(solved, (up[1:] != up[:-1]).sum(axis=0), 0),
    )


def _summit(points: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where, in [-1, 1], the polynomial through the values is largest, and its value there."""
    best, height = np.full(len(values), np.nan), np.full(len(values), np.nan)
    for i, row in enumerate(values):  # one row for each budget, of which there are few
        if not np.isfinite(row).all():
            continue
        polynomial = chebyshev.chebfit(points, row, len(points) - 1)
        roots = chebyshev.chebroots(chebyshev.chebder(polynomial))
        inside = roots[(np.abs(np.imag(roots)) < 1e-9) & (np.abs(np.real(roots)) <= 1)].real
        candidates = np.concatenate([inside, [-1.0, 1.0]])
        heights = chebyshev.chebval(candidates, polynomial)
        best[i], height[i] = candidates[np.argmax(heights)], heights.max()
    return best, height
