"""Theory against simulation: margin, score gap and attention over time."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flowsim.errors import InvalidInput
from flowsim.laws.lane import Lane, lanes
from flowsim.plot import style
from flowsim.trajectory import Trajectory

_METHODS = {"exact": "closed form", "ode": "ODE", "descent": "finite steps", "training": "training", "given": "data"}
_ROOM = 0.015  # beside the data, as a share of the axis
_LEAST_AXIS = 3.0  # in ln t: the labels of less than a decade run into each other
_MARKERS = 14  # for each lane, however densely it was recorded
_INTEGRATED = {"color": "black", "ls": "", "marker": ".", "ms": 2.2}  # points: its own times may be far apart


def theory_vs_simulation(
    theory: Trajectory, simulation: Trajectory | None = None, *, ode: Trajectory | None = None
) -> Figure:
    """Margin, score gap and attention over time: lines for theory, markers for a simulation.

    Where the simulation was recorded at the theory's own times, a strip below each panel shows the difference.

    Args:
        theory: drawn as lines, usually the closed form.
        simulation: drawn as markers, usually training; may have other ratios, several step sizes and seeds.
        ode: drawn as dashed lines.

    Returns:
        The figure.

    Raises:
        InvalidInput: if an argument is no trajectory or theory has no positive time.
    """
    for name, value in (("theory", theory), ("simulation", simulation), ("ode", ode)):
        if not isinstance(value, Trajectory) and not (value is None and name != "theory"):
            raise InvalidInput(f"{name}={type(value).__name__} cannot be drawn; give a flowsim.Trajectory.")
    drawn = list(lanes(theory))
    simulated = [] if simulation is None else list(lanes(simulation))
    integrated = [] if ode is None else list(lanes(ode))
    low, high = _limits(simulated or drawn, drawn)
    colour = style.colours([lane.ratio for lane in (*drawn, *simulated, *integrated)])
    residuals = [(lane, match) for lane in simulated if (match := _same_times(lane, drawn)) is not None]
    with style.style():
        heights = [1.0, 0.42] if residuals else [1.0]
        figure, axes = style.panels(len(heights), 3, heights=heights)
        for column, (title, label, value) in enumerate(_PANELS):
            top = axes[0, column]
            for lane in drawn:
                inside = _within(lane, low, high)
                style.curve(top, _time(lane, inside), value(lane)[inside], color=colour[lane.ratio], lw=1.6)
            for lane in integrated:
                inside = _within(lane, low, high)
                top.plot(_time(lane, inside), value(lane)[inside], **_INTEGRATED, zorder=2.5)
            for lane in simulated:
                at = _spread(lane, low, high)
                top.plot(_time(lane, at), value(lane)[at], ls="", marker="o", ms=3.6, mfc="white", mew=1.0,
                         color=colour[lane.ratio], zorder=3)  # fmt: skip
            _value_axis(top, title, label, [value(lane)[_within(lane, low, high)] for lane in drawn])
            if residuals:
                _residual_strip(axes[1, column], residuals, value, colour, (low, high), label)
        for ax in axes[-1]:
            ax.set_xlabel(style.TIME)
        room = max(_ROOM * (high - low), (_LEAST_AXIS - (high - low)) / 2)  # the markers at both ends are not to be cut
        for ax in axes.ravel():
            ax.set_xlim(np.exp(low - room), np.exp(high + room))
            ax.set_xscale("log")  # last: it would autoscale, which fails for a single time
        for ax in axes[:-1].ravel():
            ax.tick_params(labelbottom=False)
        style.letters(list(axes[0]))
        entries = style.ratio_keys(figure, list(_ratios(drawn, simulated)), colour)
        sparse = max(int(_within(lane, low, high).sum()) for lane in drawn) <= style.FEW
        look = {"ls": "", "marker": "s", "ms": 3.5} if sparse else {"lw": 1.6}
        entries.append(style.key(f"theory ({_METHODS[theory.method]})", color=style.GREY, **look))
        if ode is not None:
            entries.append(style.key(_METHODS[ode.method], **_INTEGRATED))
        if simulation is not None:
            entries.append(
                style.key(_METHODS[simulation.method], color=style.GREY, ls="", marker="o", ms=3.6, mfc="white")
            )
        style.legend(figure, entries, per_row=8)
    return figure


_PANELS: tuple[tuple[str, str, Callable[[Lane], np.ndarray]], ...] = (
    ("output-value circuit", style.MARGIN, lambda lane: lane.margin),
    ("query-key circuit", style.SCORE_GAP, lambda lane: lane.score_gap),
    ("attention", style.ATTENTION, lambda lane: lane.attention),
)


def _limits(first: list[Lane], theory: list[Lane]) -> tuple[float, float]:
    """The range of ln t: the simulation's where it lies within theory's."""
    finite = [
        np.concatenate([lane.log_time[np.isfinite(lane.log_time)] for lane in group]) for group in (first, theory)
    ]
    if not all(times.size for times in finite):
        raise InvalidInput("theory holds no time above 0; there is nothing to draw.")
    low, high = float(finite[0].min()), float(finite[0].max())
    # Powers of e beyond float64 have no place on an axis of t, nor have the ticks that matplotlib tries beyond it.
    return max(low, -540.0), min(high, 540.0)


def _within(lane: Lane, low: float, high: float) -> np.ndarray:
    return np.isfinite(lane.log_time) & (lane.log_time >= low - 1e-9) & (lane.log_time <= high + 1e-9)


def _time(lane: Lane, inside: np.ndarray) -> np.ndarray:
    return np.exp(lane.log_time[inside])


def _spread(lane: Lane, low: float, high: float) -> np.ndarray:
    """A few recorded times, evenly spread over the axis, so that markers stay apart."""
    candidates = np.flatnonzero(_within(lane, low, high))
    if candidates.size == 0:
        return candidates
    targets = np.linspace(low, high, _MARKERS)
    nearest = np.abs(lane.log_time[candidates][:, None] - targets).argmin(axis=0)
    return candidates[np.unique(nearest)]


def _same_times(lane: Lane, theory: list[Lane]) -> Lane | None:
    """The theory at the lane's ratio, if it was evaluated at the lane's times."""
    for other in theory:
        same = other.ratio == lane.ratio and other.log_time.shape == lane.log_time.shape
        if same and np.allclose(other.log_time, lane.log_time, rtol=0, atol=1e-9):
            return other
    return None


def _value_axis(ax: Axes, title: str, label: str, values: list[np.ndarray]) -> None:
    ax.set_title(title, loc="left")
    ax.set_ylabel(label)
    together = np.concatenate(values)
    together = together[np.isfinite(together)]
    if label == style.ATTENTION:
        ax.set_ylim(max(0.0, min(together, default=0.0) - 0.04), 1.02)
    elif label == style.SCORE_GAP and together.size and (together > 0).all() and together.max() > 1e3 * together.min():
        ax.set_yscale("log")


def _residual_strip(ax: Axes, pairs, value, colour, limits: tuple[float, float], label: str) -> None:
    for lane, theory in pairs:
        inside = _within(lane, *limits)
        difference = np.abs(value(lane) - value(theory))[inside]
        ax.plot(_time(lane, inside), np.where(difference > 0, difference, np.nan), color=colour[lane.ratio], lw=1.1)
    ax.set_yscale("log")
    symbol = label.split("$")[1]
    ax.set_ylabel(rf"$|{symbol} - {symbol}_{{\mathrm{{theory}}}}|$")


def _ratios(*groups: list[Lane]) -> set[float]:
    return {lane.ratio for group in groups for lane in group if lane.ratio is not None}
