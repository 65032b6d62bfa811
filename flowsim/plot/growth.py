"""Growth laws as figures: constants converging, and the score gap's two regimes."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flowsim.errors import InvalidInput
from flowsim.laws.lane import Lane, lanes
from flowsim.laws.numbers import Numbers, numbers
from flowsim.laws.predictions import Prediction, predictions
from flowsim.plot import style
from flowsim.theory.growth import BEFORE, MARGIN, ODDS, SATURATED, SCORE_GAP
from flowsim.trajectory import Trajectory

Laws = dict[tuple[str, str], Prediction]
Run = tuple[Lane, Numbers, Laws]
_THEORY = {"color": "black", "lw": 0.8, "ls": (0, (4, 3))}
_EARLY = {"color": "black", "lw": 0.8, "ls": (0, (5, 2))}
_LATE = {"color": "black", "lw": 1.0, "ls": (0, (1, 1.5))}
_CROSSING = {"marker": "D", "ms": 5, "mfc": "white", "mew": 1.3, "ls": ""}
_ROUNDING = 1e-15  # distances from 1 below this are float64's
_ROOM = 1.1  # the last time is not to stand on the frame
# Titles and axis labels of the odds.
_ODDS = {
    "CACO": (r"odds: log$^2\,$t with constant $\rho/2$", r"$y\,/\,(\rho\, l^2/2)$"),
    "FACO": (r"odds: log$^2\,$t log log t, constant $F c$", r"$y\,/\,(F c\, l^2 \Lambda)$"),
    "CAFO": (r"odds: log t with constant $\rho$", r"$y\,/\,(\rho\, l)$"),
    "FAFO": (r"odds: log t log log t, constant $F c/\sqrt{C}$", r"$y\,/\,(F c\, l\, \Lambda/\sqrt{C})$"),
}
_CLOCK = {"C": r"$l = \ln(t/C)$", "F": r"$l = \ln(2t/\sqrt{C})$"}
TRUSTED = 0.05  # corrections are drawn where theory leaves out less than this


def growth_constants(trajectory: Trajectory) -> Figure:
    r"""Margin over $l$ and odds over their law against $\ln t$: both tend to 1, at the predicted rate.

    The law of the odds is $(\rho/2) l^2$ for CACO, $\rho\, l$ for CAFO, and has a factor $\log\log t$ for a factorized
    query-key circuit.

    Args:
        trajectory: of a task with predicted laws and one parameterization, to a horizon of at least
            $\ln t \approx 100$ to see them.

    Returns:
        The figure: measured constants above, their distance from 1 below; dashed lines are theory with its first
        correction.

    Raises:
        InvalidInput: if theory predicts no constants for this trajectory, or it has several parameterizations.
    """
    runs = predicted_runs(trajectory)
    names = sorted({lane.parameterization for lane, _, _ in runs})
    if len(names) > 1:
        raise InvalidInput(f"growth laws of {', '.join(names)} cannot share a figure; give one parameterization.")
    law_of_odds, odds_over_law = _ODDS[names[0]]
    colour = style.colours([lane.ratio for lane, _, _ in runs])
    overlaid, words = style.overlaid(len(runs))
    with style.style():
        figure, axes = style.panels(2, 2, height=2.3)
        for column, (observable, title, symbol) in enumerate(
            (
                (MARGIN, "margin: log t with constant 1", r"$w\,/\,l$"),
                (ODDS, law_of_odds, odds_over_law),
            )
        ):
            above, below = axes[:, column]
            least = 0.1
            for number, (lane, known, laws) in enumerate(runs):
                law = laws[observable, SATURATED]
                measured = measured_constant(lane, known, law)
                predicted = np.where(law.remainder <= TRUSTED, law.predicted / law.scale, np.nan)
                for ax, shown, theory in (
                    (above, measured, predicted),
                    (below, np.abs(measured - 1), np.abs(predicted - 1)),
                ):
                    style.curve(ax, lane.log_time, shown, color=colour[lane.ratio])
                    if number in overlaid:
                        style.curve(ax, lane.log_time, theory, few="x", **_THEORY, zorder=3)
                least = np.nanmin(np.abs(predicted - 1), initial=least)
            above.axhline(1, color=style.GREY, lw=0.8, zorder=1)
            if observable == MARGIN:
                above.set_ylim(0, 2.2)  # the constant is 1/alpha0 before saturation, 2 for balanced counts
            else:
                above.set_yscale("log")
            above.set_title(title, loc="left")
            above.set_ylabel(symbol)
            below.set_yscale("log")
            below.set_ylim(bottom=max(least / 3, _ROUNDING))
            below.set_title("distance from 1", loc="left")
            below.set_ylabel("|" + symbol + r"$\;-\;1$|")
            below.set_xlabel(style.LOG_TIME + f"   ({_CLOCK[names[0][2]]})")
        log_time_axes(axes, runs, first=1.0)
        style.letters(list(axes.ravel()))
        entries = style.ratio_keys(figure, list(_ratios(runs)), colour)
        entries.append(style.key(f"theory: leading term and first correction{words.replace('theory ', '')}", **_THEORY))
        style.legend(figure, entries, per_row=6)
    return figure


def measured_constant(lane: Lane, known: Numbers, law: Prediction) -> np.ndarray:
    """Margin or odds over their law, for l > 1; a factor log log t is taken where it is defined."""
    l = lane.log_time - known.output.log_unit
    l = np.where(l > 1, l, np.nan)
    if law.observable == MARGIN:
        return lane.margin / l
    with np.errstate(over="ignore", invalid="ignore"):
        basis = law.power * np.log(l) if law.iterated is None else np.log(law.basis)
        return np.exp(lane.log_odds - np.log(law.constant) - basis)


def score_gap_regimes(trajectory: Trajectory) -> Figure:
    r"""The two regimes of the score gap: log^2 t before attention saturates, log log t after.

    Args:
        trajectory: of a task with predicted laws; small ratios (1e-4 and below) show the first regime.

    Returns:
        The figure: the score gap against $\ln t$ with both laws and the crossing, and its local exponent.

    Raises:
        InvalidInput: if theory predicts no laws for this trajectory, its ratios are all 0, or it is not CACO.
    """
    runs = predicted_runs(trajectory)
    for lane, _, _ in runs:
        if lane.parameterization != "CACO":
            raise InvalidInput(
                f"parameterization={lane.parameterization!r} has other regimes than log^2 t and log log t; draw "
                "flowsim.plot.phase_diagram instead."
            )
    colour = style.colours([lane.ratio for lane, _, _ in runs])
    shown = np.concatenate([_gap(lane)[lane.log_time >= _FIRST_LOG_TIME] for lane, _, _ in runs])
    if not np.isfinite(shown).any():
        raise InvalidInput(f"the score gap cannot be drawn: none is above its start after ln t = {_FIRST_LOG_TIME:g}.")
    overlaid, words = style.overlaid(len(runs))
    with style.style():
        figure, axes = style.panels(1, 2, height=3.1)
        left, right = axes[0]
        for number, (lane, known, laws) in enumerate(runs):
            _regimes(left, lane, known, laws, colour[lane.ratio], number in overlaid)
            _local_exponent(right, lane, known, laws, colour[lane.ratio], number in overlaid)
        left.set_yscale("log")
        left.set_title("the score gap and its two laws", loc="left")
        left.set_ylabel(r"score gap  $\theta - \theta_0$")
        right.axhline(2, **_EARLY, zorder=1)
        right.set_ylim(0, 2.4)
        right.set_title("its local exponent", loc="left")
        right.set_ylabel(r"$d\,\ln(\theta - \theta_0)\,/\,d\,\ln l_0$")
        left.set_xlabel(style.LOG_TIME)
        right.set_xlabel(r"$l_0 = \ln(\alpha_0^2\, t/C)$")
        log_time_axes(axes, runs, first=_FIRST_LOG_TIME)
        left.set_ylim(np.nanmin(shown) / 2, np.nanmax(shown) * 2)
        style.letters([left, right])
        entries = style.ratio_keys(figure, list(_ratios(runs)), colour)
        entries.append(style.key(r"log$^2\,$t law (before saturation)", **_EARLY))
        entries.append(style.key("log log t law (after)", **_LATE))
        entries.append(style.key(f"crossing{words}", mec=style.GREY, **_CROSSING))
        style.legend(figure, entries, per_row=4)
    return figure


_FIRST_LOG_TIME = 2.0
_FIRST_L = 4.0  # the law before saturation is drawn from here on


def _gap(lane: Lane) -> np.ndarray:
    return np.where(lane.score_gap_change > 0, lane.score_gap_change, np.nan)


def _regimes(ax: Axes, lane: Lane, known: Numbers, laws: Laws, colour: str, overlaid: bool) -> None:
    early, late = laws[SCORE_GAP, BEFORE], laws[SCORE_GAP, SATURATED]
    style.curve(ax, lane.log_time, _gap(lane), color=colour, lw=1.8)
    if not overlaid:
        return
    before = early.constant * early.basis
    with np.errstate(invalid="ignore"):  # before t = C there is no logarithm of l
        after = _late_gap(lane, known, late)
        # Each law is drawn a little beyond its own side of the crossing, so that both are seen to leave the curve.
        visible = (before < 10) & (early.l > _FIRST_L)
        if np.any(visible & (before < 0.3)):
            style.curve(ax, lane.log_time, np.where(visible, before, np.nan), few="_", **_EARLY, zorder=3)
        style.curve(ax, lane.log_time, np.where(after > 0.3, after, np.nan), few="x", **_LATE, zorder=3)
    at = _crossing(lane, known)
    if at is not None:
        ax.plot(*at, mec=colour, zorder=4, **_CROSSING)


def _late_gap(lane: Lane, known: Numbers, late: Prediction) -> np.ndarray:
    """Score gap change by the law after saturation, its leading terms only; NaN while l is small."""
    with np.errstate(invalid="ignore"):
        l = lane.log_time - np.log(known.distinct_types)
        return late.constant * np.log(np.where(l > 2, l, np.nan)) + np.log(known.rho / 2) - known.log_odds0


def _local_exponent(ax: Axes, lane: Lane, known: Numbers, laws: Laws, colour: str, overlaid: bool) -> None:
    l = laws[SCORE_GAP, BEFORE].l
    usable = np.isfinite(l) & (l > 2) & (lane.score_gap_change > 0)
    if usable.sum() < 3:
        return
    local = np.gradient(np.log(lane.score_gap_change[usable]), np.log(l[usable]))
    log_time = lane.log_time[usable]
    style.curve(ax, l[usable], local, color=colour)
    if not overlaid:
        return
    late = laws[SCORE_GAP, SATURATED]
    after = _late_gap(lane, known, late)
    with np.errstate(invalid="ignore", divide="ignore"):
        # d ln(theta)/d ln(l0) of theta = 2 ln l + offset; l and l0 differ by a constant.
        predicted = late.constant / after * l / (lane.log_time - np.log(known.distinct_types))
        style.curve(ax, l, np.where(after > 1, predicted, np.nan), few="x", **_LATE, zorder=3)
    at = _crossing(lane, known)
    if at is not None and log_time[0] <= at[0] <= log_time[-1]:
        ax.plot(
            np.interp(at[0], log_time, l[usable]),
            np.interp(np.log(at[0]), np.log(log_time), local),
            mec=colour,
            zorder=4,
            **_CROSSING,
        )


def _crossing(lane: Lane, known: Numbers) -> tuple[float, float] | None:
    """Log time and score gap change where the run passes the crossing margin, read off the run itself."""
    usable = np.isfinite(lane.log_time) & np.isfinite(lane.margin) & (lane.log_time > 0)
    margin, log_time, gap = lane.margin[usable], lane.log_time[usable], lane.score_gap_change[usable]
    if (
        margin.size <= style.FEW
        or not margin[0] <= known.crossing_margin <= margin[-1]
        or not (np.diff(margin) > 0).all()
    ):
        return None
    log_at = np.interp(np.log(known.crossing_margin), np.log(margin), np.log(log_time))
    return float(np.exp(log_at)), float(np.exp(np.interp(log_at, np.log(log_time), np.log(gap))))


def predicted_runs(trajectory: Trajectory) -> list[Run]:
    """The lanes of a trajectory for which theory predicts laws, with their numbers and laws.

    Args:
        trajectory: of a task with predicted laws.

    Raises:
        InvalidInput: if it is none, or theory predicts nothing for it.
    """
    if not isinstance(trajectory, Trajectory):
        raise InvalidInput(f"trajectory={type(trajectory).__name__} cannot be drawn; give a flowsim.Trajectory.")
    runs = []
    for lane in lanes(trajectory):
        known = numbers(lane)
        if not isinstance(known, Numbers):
            raise InvalidInput(f"growth laws cannot be drawn: {known.reason}.")
        if known.rho > 0 and lane.status.usable:
            runs.append((lane, known, {(law.observable, law.regime): law for law in predictions(lane, known)}))
    if not runs:
        raise InvalidInput("growth laws cannot be drawn: no lane has a ratio above 0 and a usable status.")
    return runs


def log_time_axes(axes: np.ndarray, runs: Sequence[Run], first: float) -> None:
    r"""Log axes of $\ln t$ from `first` to the end of the runs.

    Raises:
        InvalidInput: if the runs end before.
    """
    last = max(float(lane.log_time[-1]) for lane, _, _ in runs)
    if last <= first:
        raise InvalidInput(f"growth laws cannot be drawn: the run ends at ln t = {last:.4g}; go beyond {first:g}.")
    for ax in axes.ravel():
        ax.set_xscale("log")
        ax.set_xlim(first, last * _ROOM)


def _ratios(runs) -> set[float]:
    return {lane.ratio for lane, _, _ in runs}
