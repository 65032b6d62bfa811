"""The reduced flow over the plane: all ratios of one context in each call, contexts one after the other.

The numbers of a context are traced and every call asks for the same number of times, so that nothing compiles again
from one context to the next.
"""

import functools
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from flowsim.experiments._detour._excursion import POINTS, Excursions, find_excursions
from flowsim.experiments._detour._reversal import NODES, Reversals, find_reversals
from flowsim.experiments._detour._settings import DetourSettings
from flowsim.solve.ode import integrate
from flowsim.task import Task

# Attention is followed from this time on; what it does at first the curvature says in closed form.
FIRST = 0.1
_STEP = 0.1

Solve = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From ratios and ln t to the change of the log odds, shape (ratios, times); NaN where it was not solved."""


def ratios_of(settings: DetourSettings) -> Float[np.ndarray, " ratios"]:
    """The grid of ratios."""
    return np.geomspace(settings.ratio_min, settings.ratio_max, settings.ratios)


def log_times_of(settings: DetourSettings) -> Float[np.ndarray, " time"]:
    r"""The first grid of $\ln t$, budgets included, as many times as every later call has too."""
    budgets = np.log(settings.budgets)
    count = times_of(settings)
    even = np.linspace(np.log(FIRST), np.log(settings.horizon), count - budgets.size)
    return padded(np.concatenate([even, budgets]), count)


def times_of(settings: DetourSettings) -> int:
    """Number of times in every call."""
    return settings.ratios * POINTS


def padded(log_times: np.ndarray, count: int) -> np.ndarray:
    r"""Sorted times without repetition, with earlier ones in front until there are `count`."""
    sorted_ = np.unique(log_times)
    missing = count - sorted_.size
    first = sorted_[0] if sorted_.size else np.log(FIRST)
    return np.concatenate([first - _STEP * np.arange(missing, 0, -1), sorted_])


def solver(task: Task, tol: float) -> Solve:
    """The flow of a task with collapsed circuits from zero.

    Args:
        task: with a single composition, so that the log odds change as the score gap does.
        tol: tolerance of the integration. The return of attention is so steep at large ratios that a time within it
            may cost the integrator its digits; a ratio for which it says so is solved to 100 and to 10,000 times `tol`.
    """

    def solve(ratios: np.ndarray, log_times: np.ndarray) -> np.ndarray:
        change = np.full((ratios.size, log_times.size), np.nan)
        for allowed in (tol, 100 * tol, 10_000 * tol):
            trajectory = integrate(task, "CACO", ratio=ratios, log_times=log_times, tol=allowed)
            new = np.isnan(change[:, -1]) & np.asarray(trajectory.ok)
            change[new] = np.asarray(trajectory.score_gap_change)[new]
            if not np.isnan(change[:, -1]).any():
                break
        return change

    return solve


def map_context(settings: DetourSettings, positions: float) -> tuple[np.ndarray, Excursions, Reversals]:
    """Excursions over the ratios and reversals over the budgets of one context.

    Args:
        settings: of the experiment.
        positions: how many positions hold distinct tokens.

    Returns:
        The change of the log odds, shape (ratios, time), on `log_times_of`; the excursions; the reversals.
    """
    solve = solver(settings.task(positions), settings.tol)
    ratios, grid, count = ratios_of(settings), log_times_of(settings), times_of(settings)
    change = solve(ratios, grid)

    def read(times: np.ndarray) -> np.ndarray:
        wanted = padded(times[np.isfinite(times)], count)
        found = solve(ratios, wanted)
        at = np.searchsorted(wanted, np.where(np.isnan(times), wanted[0], times))
        return np.where(np.isnan(times), np.nan, np.take_along_axis(found, at, axis=1))

    excursions = find_excursions(grid, change, read=read, accuracy=settings.accuracy)
    budgets = np.log(settings.budgets)
    at_budgets = change[:, np.searchsorted(grid, budgets)]
    answer = functools.partial(_at_budgets, solve, budgets, count)
    reversals = find_reversals(np.log(ratios), at_budgets, answer=answer, accuracy=settings.accuracy)
    return change, excursions, reversals


def time_courses(settings: DetourSettings, positions: float) -> np.ndarray:
    """The change of the log odds at the trained ratios, shape (trained ratio, time), on `log_times_of`."""
    wanted = np.array(settings.trained_ratios)
    filled = np.concatenate([wanted, np.full(max(settings.ratios - wanted.size, 0), wanted[0])])
    return solver(settings.task(positions), settings.tol)(filled, log_times_of(settings))[: wanted.size]


def _at_budgets(solve: Solve, budgets: np.ndarray, count: int, log_ratios: np.ndarray) -> np.ndarray:
    """Log odds at each budget for its own ratios, in one call."""
    wanted = padded(budgets, count)
    at = np.searchsorted(wanted, budgets)
    found = solve(np.exp(log_ratios.ravel()), wanted)[:, at].reshape(budgets.size, NODES, budgets.size)
    return np.stack([found[i, :, i] for i in range(budgets.size)])
