"""The same excursions in training with finite steps: reduced steps over all ratios, full matrices and minibatches."""

import dataclasses

import numpy as np

from flowsim.experiments._detour._excursion import Excursions, find_excursions
from flowsim.experiments._detour._flow import ratios_of
from flowsim.experiments._detour._reversal import Reversals, find_reversals
from flowsim.experiments._detour._settings import DetourSettings
from flowsim.solve.descent import descend
from flowsim.training.train import train
from flowsim.trajectory import Trajectory

POINTS = 300
"""Records of a run."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """Finite-step training of one context.

    Attributes:
        log_times: of the records of reduced steps and of full matrices.
        reduced: change of the log odds over (ratio of the map, record): what training the full batch does, exactly.
        excursions: read off `reduced`; falls and returns are as accurate as the records are close.
        reversals: over the ratio, at each budget up to the training time.
        full: change of the log odds over (trained ratio, record) with full matrices and full batches.
        batch_log_times: of the records of minibatches.
        batches: change of the log odds over (trained ratio, seed, record) with minibatches.
    """

    log_times: np.ndarray
    reduced: np.ndarray
    excursions: Excursions
    reversals: Reversals
    full: np.ndarray
    batch_log_times: np.ndarray
    batches: np.ndarray


def steps_of(settings: DetourSettings, time: float) -> int:
    """Number of steps that a training time takes."""
    return max(1, round(time / settings.lr))


def trained_budgets(settings: DetourSettings) -> tuple[float, ...]:
    """Budgets that the training reaches."""
    return tuple(budget for budget in settings.budgets if budget <= settings.trained_time)


def train_context(settings: DetourSettings, positions: float) -> Trained:
    """Trains one context.

    Args:
        settings: of the experiment.
        positions: how many positions hold distinct tokens.

    Returns:
        What was trained; NaN from where a run has diverged.
    """
    task = settings.task(positions)
    ratios = ratios_of(settings)
    common = {"lr": settings.lr, "points": POINTS}
    steps = steps_of(settings, settings.trained_time)
    reduced = descend(task, "CACO", ratio=ratios, steps=steps, **common)
    change = _change(reduced)
    budgets = trained_budgets(settings)

    def at_budgets(log_ratios: np.ndarray) -> np.ndarray:
        """The last record of a run is exact, so that each budget is a run of its own length."""
        count = log_ratios.shape[1]
        # as many ratios as the map has, so that nothing compiles again
        filled = np.concatenate([log_ratios, np.tile(log_ratios[:, :1], ratios.size - count)], axis=1)
        runs = (
            descend(task, "CACO", ratio=np.exp(row), steps=steps_of(settings, budget), **common)
            for row, budget in zip(filled, budgets, strict=True)
        )
        return np.stack([_change(run)[:count, -1] for run in runs])

    grid = np.log(ratios)
    reversals = find_reversals(
        grid,
        at_budgets(np.tile(grid, (len(budgets), 1))).T,
        answer=at_budgets,
        accuracy=settings.accuracy,
    )
    full = train(task, "CACO", ratio=list(settings.trained_ratios), steps=steps, progress=False, **common)
    batches = train(
        task,
        "CACO",
        ratio=list(settings.trained_ratios),
        steps=steps_of(settings, settings.batch_time),
        seeds=settings.seeds,
        population="sampled-identities",
        batch=settings.batch,
        progress=False,
        **common,
    )
    odds0 = np.log(positions / (settings.length - positions))
    return Trained(
        log_times=np.asarray(reduced.log_time),
        reduced=change,
        excursions=find_excursions(np.asarray(reduced.log_time), change),
        reversals=reversals,
        full=np.asarray(full.log_odds) - odds0,
        batch_log_times=np.asarray(batches.log_time),
        batches=np.asarray(batches.log_odds) - odds0,
    )


def _change(trajectory: Trajectory) -> np.ndarray:
    """The change of the log odds, which is that of the score gap where a context has a single composition."""
    return np.asarray(trajectory.score_gap_change)
