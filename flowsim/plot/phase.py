"""The phase diagram of the score gap: which growth law it shows over learning-rate ratio and time."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from flowsim.errors import InvalidInput
from flowsim.laws.phase import EARLY, LATE, NEITHER, PhaseDiagram
from flowsim.plot import style

_COLOURS = {NEITHER: "#e8e8e8", EARLY: "#56B4E9", LATE: "#E69F00"}
_CROSSING = {"color": "black", "lw": 1.3, "ls": (0, (5, 2))}


def phase_diagram(*diagrams: PhaseDiagram) -> Figure:
    r"""Which law the score gap shows over (ratio, $\ln t$), one panel for each diagram.

    Args:
        diagrams: from `flowsim.phase_diagram`; times and ratios are drawn on log axes, from $\ln t > 0$ on.

    Returns:
        The figure: coloured cells show a law within 10 % of its local exponent (or coefficient), the dashed line is
        where theory has the regimes meet.

    Raises:
        InvalidInput: if nothing is given, or a diagram has no cells to draw.
    """
    if not diagrams:
        raise InvalidInput("diagrams=() leaves nothing to draw; give at least one flowsim.phase_diagram(...).")
    for diagram in diagrams:
        _check(diagram)
    columns = min(len(diagrams), 2)
    with style.style():
        figure, axes = style.panels(-(-len(diagrams) // columns), columns, height=2.7)
        for ax in axes.ravel()[len(diagrams) :]:
            ax.remove()
        shown = list(axes.ravel()[: len(diagrams)])
        for ax, diagram in zip(shown, diagrams, strict=True):
            _panel(ax, diagram)
        for ax in axes[:, 0]:
            ax.set_ylabel(r"ratio $\eta_{QK}/\eta_{OV}$")
        for ax in shown[-columns:]:
            ax.set_xlabel(style.LOG_TIME)
        if len(shown) > 1:
            style.letters(shown)
        entries = [_patch("before saturation", EARLY), _patch("after saturation", LATE), _patch("neither", NEITHER)]
        entries.append(style.key("theory: the regimes meet", **_CROSSING))
        style.legend(figure, entries, per_row=2 if columns == 1 else 4)
    return figure


def _check(diagram: PhaseDiagram) -> None:
    if not isinstance(diagram, PhaseDiagram):
        raise InvalidInput(f"diagrams has a {type(diagram).__name__}; give what flowsim.phase_diagram returned.")
    if (diagram.log_times > 0).sum() < 2 or diagram.ratios.size < 2:
        raise InvalidInput(
            f"diagrams has one of {diagram.ratios.size} ratios and {diagram.log_times.size} times; give at least 2 "
            "ratios and 2 values of ln t above 0."
        )


def _panel(ax: Axes, diagram: PhaseDiagram) -> None:
    late = diagram.log_times > 0
    times, law = diagram.log_times[late], diagram.law[:, late]
    colours = ListedColormap([_COLOURS[number] for number in (NEITHER, EARLY, LATE)])
    ax.grid(visible=False)
    ax.pcolormesh(
        _edges(times), _edges(diagram.ratios), law, cmap=colours, norm=BoundaryNorm([-0.5, 0.5, 1.5, 2.5], 3),
        rasterized=True,
    )  # fmt: skip
    inside = (diagram.crossing >= times[0]) & (diagram.crossing <= times[-1])
    ax.plot(np.where(inside, diagram.crossing, np.nan), diagram.ratios, **_CROSSING)
    ax.set_xscale("log")
    ax.set_yscale("log")
    for limits, edges in ((ax.set_xlim, _edges(times)), (ax.set_ylim, _edges(diagram.ratios))):
        limits(float(edges[0]), float(edges[-1]))
    ax.set_title(f"{diagram.parameterization}: score gap", loc="left")
    for number in (EARLY, LATE):
        _name(ax, law == number, times, diagram.ratios, _typeset(diagram.names[number]))


def _name(ax: Axes, where: np.ndarray, times: np.ndarray, ratios: np.ndarray, text: str) -> None:
    """Writes a law's name into its region, if that is large enough: at the cell farthest from every other region."""
    if where.mean() < 0.06:
        return
    rows, columns = np.nonzero(where)
    padded = np.pad(where, 1)
    depth = np.zeros(where.shape)
    while padded.any():
        depth += padded[1:-1, 1:-1]
        padded[1:-1, 1:-1] = (
            padded[1:-1, 1:-1] & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
        )
    best = np.argmax(depth[rows, columns])
    ax.text(float(times[columns[best]]), float(ratios[rows[best]]), text, ha="center", va="center", fontsize=8)


def _typeset(name: str) -> str:
    return "$" + name.replace("exp", r"\exp").replace("log", r"\log ").replace(r"\log ^2", r"\log^2") + "$"


def _edges(centres: np.ndarray) -> np.ndarray:
    """Cell edges halfway between the centres on a log axis."""
    logs = np.log(centres)
    middle = (logs[1:] + logs[:-1]) / 2
    return np.exp(np.concatenate([[2 * logs[0] - middle[0]], middle, [2 * logs[-1] - middle[-1]]]))


def _patch(label: str, number: int) -> Line2D:
    return style.key(label, marker="s", ms=8, ls="", mfc=_COLOURS[number], mec=style.GREY, mew=0.5)
