"""One look for all figures: sizes, fonts, colours, labels."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

# Okabe and Ito's colours, told apart with every common colour vision; yellow is left out, it is too light for lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
GREY = "#6b6b6b"
FEW = 12
"""Up to so many points are drawn as markers, not joined."""
_OVERLAID = 5
COLUMN = 3.4
"""Width of a journal's column in inches; panels are about that wide."""

TIME = r"gradient-flow time $t = \mathrm{lr} \times \mathrm{steps}$"
LOG_TIME = r"$\ln t$,  $t = \mathrm{lr} \times \mathrm{steps}$"
MARGIN = r"margin $w$"
SCORE_GAP = r"score gap $\theta$"
ATTENTION = r"attention $\alpha$ on distinct tokens"

_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "mathtext.fontset": "dejavusans",
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.solid_capstyle": "round",
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "savefig.dpi": 220,
    "figure.dpi": 110,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draws in flowsim's style; matplotlib's own settings come back afterwards."""
    with mpl.rc_context(_RC):
        yield


def panels(rows: int, columns: int, *, height: float = 2.6, heights: Sequence[float] | None = None):
    """A figure with a grid of panels, laid out so that nothing overlaps, without pyplot.

    Args:
        rows: number of rows.
        columns: number of columns.
        height: height of a row of relative height 1, in inches.
        heights: relative heights of the rows.

    Returns:
        The figure and an array of axes of shape `(rows, columns)`.
    """
    relative = heights or [1.0] * rows
    figure = Figure(figsize=(COLUMN * columns, height * sum(relative) + 0.7), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw={"height_ratios": relative})
    return figure, axes


def colours(ratios: Sequence[float | None]) -> dict[float | None, str]:
    """One colour for each different ratio, in increasing order; a continuous map when there are many."""
    different = sorted({ratio for ratio in ratios if ratio is not None})
    if len(different) <= len(PALETTE):
        chosen = list(PALETTE[: len(different)])
    else:
        norm, colour_map = _ratio_scale(different)
        chosen = [to_hex(colour_map(norm(ratio))) if ratio > 0 else PALETTE[-1] for ratio in different]
    return {**dict(zip(different, chosen, strict=True)), None: PALETTE[0]}


def _ratio_scale(ratios: Sequence[float]) -> tuple[LogNorm, Colormap]:
    """The continuous colour scale of many ratios, logarithmic; its light end, hard to see on white, is cut off."""
    positive = [ratio for ratio in ratios if ratio > 0]
    cut = LinearSegmentedColormap.from_list("ratios", mpl.colormaps["viridis"](np.linspace(0, 0.9, 256)))
    return LogNorm(min(positive), max(positive)), cut


def ratio_keys(figure: Figure, ratios: Sequence[float], colour: dict[float | None, str]) -> list[Line2D]:
    """Says which colour is which ratio: legend entries while they are few, else a colour bar beside the panels.

    Args:
        figure: gets the colour bar.
        ratios: those drawn.
        colour: of each ratio, from `colours`.

    Returns:
        The legend entries.
    """
    listed = sorted(ratios)
    if len(colour) - 1 > len(PALETTE):  # then `colours` took the continuous scale
        norm, colour_map = _ratio_scale([ratio for ratio in colour if ratio is not None])
        bar = figure.colorbar(ScalarMappable(norm, colour_map), ax=figure.axes, aspect=40, pad=0.01)
        bar.set_label(r"ratio $r$")
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        listed = [ratio for ratio in listed if ratio == 0]
    return [key(ratio_label(ratio), color=colour[ratio]) for ratio in listed]


def curve(ax: Axes, x: np.ndarray, y: np.ndarray, *, few: str = "s", **look) -> None:
    """A line, or markers where the points are so few that straight lines between them would be invented."""
    if np.count_nonzero(np.isfinite(y)) > FEW:
        ax.plot(x, y, **look)
    else:
        ax.plot(x, y, **{**look, "ls": ""}, marker=few, ms=3.5)


def overlaid(n: int) -> tuple[set[int], str]:
    """Which of n lines get a prediction drawn on top, so that many lines stay visible, and the words for it."""
    if n <= len(PALETTE):
        return set(range(n)), ""
    picked = {int(i) for i in np.linspace(0, n - 1, _OVERLAID).round()}
    return picked, f" (theory at {len(picked)} of {n} ratios)"


def ratio_label(ratio: float | None) -> str:
    """The legend entry of a ratio: powers of ten as such."""
    if ratio is None:
        return "ratio unknown"
    mantissa, _, power = f"{ratio:.3g}".partition("e")
    if not power:
        return rf"$r = {mantissa}$"
    return rf"$r = 10^{{{int(power)}}}$" if mantissa == "1" else rf"$r = {mantissa} \times 10^{{{int(power)}}}$"


def key(label: str, **look) -> Line2D:
    """A legend entry."""
    return Line2D([], [], label=label, **look)


def legend(figure: Figure, entries: Sequence[Line2D], per_row: int) -> None:
    """A legend below all panels, off the data."""
    figure.legend(handles=list(entries), loc="outside lower center", ncols=min(len(entries), per_row))


def letters(axes: Sequence[Axes]) -> None:
    """Panel letters (a), (b), ... before the titles."""
    for letter, ax in zip("abcdefgh", axes, strict=False):
        ax.set_title(f"({letter})  {ax.get_title(loc='left')}", loc="left")
