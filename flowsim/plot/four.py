"""The growth laws of the four parameterizations side by side."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flowsim.errors import InvalidInput
from flowsim.laws.lane import Lane
from flowsim.laws.predictions import Prediction
from flowsim.plot import style
from flowsim.plot.growth import TRUSTED, Run, log_time_axes, measured_constant, predicted_runs
from flowsim.theory.growth import MARGIN, ODDS, SATURATED
from flowsim.trajectory import Trajectory

_ORDER: tuple[str, ...] = ("CACO", "FACO", "CAFO", "FAFO")
_LAW = {"color": "black", "lw": 0.9, "ls": (0, (4, 3))}
# What the odds do; the margin is log t for all four.
_LEGEND = {
    "CACO": r"CACO: log$^2\,$t",
    "FACO": r"FACO: log$^2\,$t log log t",
    "CAFO": r"CAFO: log t",
    "FAFO": r"FAFO: log t log log t",
}


def four_laws(*trajectories: Trajectory) -> Figure:
    r"""Margin and odds of several parameterizations against $\ln t$ with their laws, and how the ratios tend to 1.

    Args:
        trajectories: one ratio for each parameterization, to a horizon of at least $\ln t \approx 100$; one trajectory
            with the axis `parameterization` will do.

    Returns:
        The figure: above the observables (lines) and the leading terms of their laws (dashed); below the observables
        over those leading terms, where dashed lines are theory with its next terms.

    Raises:
        InvalidInput: if theory predicts no laws for a trajectory, or a parameterization comes twice.
    """
    if not trajectories:
        raise InvalidInput("four_laws was given no trajectory; give at least one.")
    runs = sorted(
        (run for trajectory in trajectories for run in predicted_runs(trajectory)), key=lambda run: _place(run[0])
    )
    names = [lane.parameterization for lane, _, _ in runs]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(
                f"parameterization={name!r} comes {names.count(name)} times; give one ratio of each, "
                "trajectory.lane(ratio=0) picks one."
            )
    colour = dict(zip(_ORDER, style.PALETTE, strict=False))
    with style.style():
        figure, axes = style.panels(2, 2, height=2.4)
        margin, odds = axes[0]
        for column, (observable, values) in enumerate(_OBSERVABLES):
            above, below = axes[:, column]
            for run in runs:
                lane, law = run[0], run[2][observable, SATURATED]
                style.curve(above, lane.log_time, values(lane), color=colour[lane.parameterization], lw=1.8)
                style.curve(above, lane.log_time, _positive(law.constant * law.basis), few="x", **_LAW, zorder=3)
                _converge(below, run, law, colour[lane.parameterization])
            above.set_yscale("log")
            below.axhline(1, color=style.GREY, lw=0.8, zorder=1)
        margin.set_title("margin: log t, four times", loc="left")
        margin.set_ylabel(style.MARGIN)
        odds.set_title("odds: four different laws", loc="left")
        odds.set_ylabel(r"odds $y = \alpha/(1-\alpha)$")
        axes[1, 0].set_title("margin over its law", loc="left")
        axes[1, 0].set_ylabel(r"$w\,/\,l$")
        axes[1, 0].set_ylim(0, 2.2)
        axes[1, 1].set_title("odds over their law", loc="left")
        axes[1, 1].set_ylabel(r"$y\,/\,$law")
        axes[1, 1].set_ylim(0, 2.2)
        for ax in axes[1]:
            ax.set_xlabel(style.LOG_TIME)
        log_time_axes(axes, runs, first=1.0)
        style.letters(list(axes.ravel()))
        entries = [style.key(_LEGEND[name], color=colour[name], lw=1.8) for name in names]
        entries.append(style.key("theory (below: with its next terms)", **_LAW))
        style.legend(figure, entries, per_row=3)
    return figure


_OBSERVABLES: tuple[tuple[str, Callable[[Lane], np.ndarray]], ...] = (
    (MARGIN, lambda lane: _positive(lane.margin)),
    (ODDS, lambda lane: _positive(_odds(lane))),
)


def _place(lane: Lane) -> int:
    return _ORDER.index(lane.parameterization)


def _positive(values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.where(values > 0, values, np.nan)


def _odds(lane: Lane) -> np.ndarray:
    with np.errstate(over="ignore"):
        odds = np.exp(lane.log_odds)
    return np.where(np.isfinite(odds), odds, np.nan)


def _converge(ax: Axes, run: Run, law: Prediction, colour: str) -> None:
    """The measured over the predicted leading term, and theory with its next terms where it is precise."""
    lane, known, _ = run
    style.curve(ax, lane.log_time, measured_constant(lane, known, law), color=colour, lw=1.8)
    with np.errstate(invalid="ignore"):
        predicted = np.where(law.remainder <= TRUSTED, law.predicted / law.scale, np.nan)
    style.curve(ax, lane.log_time, predicted, few="x", **_LAW, zorder=3)
