"""The detour through common tokens: maps of its depth and length, reversal curves, time courses."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from flowsim.plot import style

_CENSORED, _UNSOLVED = 2, 3
_REVERSES, _LESS = 1, 2
_GAMMA = r"$\gamma$ = attention at the start"
_RATIO = r"ratio $\eta_{QK}/\eta_{OV}$"
_CRITICAL: dict[str, Any] = {"color": "black", "lw": 1.0, "ls": (0, (5, 2))}
_TRAINED: dict[str, Any] = {"ls": "", "marker": "x", "ms": 6, "mew": 1.4}
_BUDGETS = ("#000000", "#0072B2", "#009E73", "#CC79A7", "#6b6b6b")
_RATIOS = ("#56B4E9", "#E69F00", "#D55E00", "#CC79A7", "#0072B2", "#009E73", "#000000")


def detour_map(dataset: Any) -> Figure:
    r"""Depth and length of the detour over ($\gamma$, ratio), where a larger ratio reverses its effect, time courses.

    Args:
        dataset: what `flowsim.experiments.detour` returned.

    Returns:
        The figure. Hatched cells have not returned by the horizon, crossed ones were not solved; lines in (a) and (c)
        are the ratio with the most attention at each training time, beyond which a larger ratio gives less.
    """
    with style.style():
        figure, axes = style.panels(2, 2, height=3.0)
        (depth, length), (reversal, course) = axes
        _map(figure, depth, dataset, -dataset.depth.values / np.log(10), "Oranges", None, "decades of odds lost")
        depth.set_title("how far attention falls", loc="left")
        away = np.where(dataset.length.values > 0, dataset.length.values, np.nan)
        norm = LogNorm(np.nanmin(away), np.nanmax(away)) if np.isfinite(away).any() else None
        _map(figure, length, dataset, away, "Blues", norm, "time until it is back")
        length.set_title("how long it stays away", loc="left")
        entries = _reversal(reversal, dataset)
        for i in range(dataset.budget.size):
            depth.plot(dataset.gamma.values, _curve(dataset, i), color=_colour(_BUDGETS, i), lw=1.1)
        for ax in (depth, length, reversal):
            ax.axvline(dataset.attrs["critical_gamma"], **_CRITICAL)
            ax.set_xlim(*_gamma_edges(dataset)[[0, -1]])
            ax.set_ylim(*_ratio_edges(dataset)[[0, -1]])
        entries += _course(course, dataset)
        style.letters([depth, length, reversal, course])
        handles: list[Any] = [
            style.key("closed form: no detour beyond", **_CRITICAL),
            Patch(facecolor="none", edgecolor=style.GREY, hatch="////", lw=0, label="not back at the horizon"),
            *entries,
        ]
        if (dataset.outcome.values == _UNSOLVED).any():
            unsolved = Patch(facecolor="none", edgecolor=style.GREY, hatch="xxxx", lw=0, label="not solved")
            handles.insert(2, unsolved)
        style.legend(figure, handles, per_row=3)
    return figure


def _map(figure: Figure, ax: Axes, dataset: Any, values: np.ndarray, colours: str, norm: Any, label: str) -> None:
    ax.grid(visible=False)
    ax.set_facecolor("#f4f4f4")
    x, y = _gamma_edges(dataset), _ratio_edges(dataset)
    mesh = ax.pcolormesh(x, y, values.T, cmap=colours, norm=norm, rasterized=True)
    bar = figure.colorbar(mesh, ax=ax, aspect=25, pad=0.02)
    bar.set_label(label)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    for outcome, hatch in ((_CENSORED, "////"), (_UNSOLVED, "xxxx")):
        for i, j in zip(*np.nonzero(dataset.outcome.values == outcome), strict=True):
            width, height = float(x[i + 1] - x[i]), float(y[j + 1] - y[j])
            corner = (float(x[i]), float(y[j]))
            ax.add_patch(Rectangle(corner, width, height, fill=False, hatch=hatch, lw=0, ec=style.GREY))
    ax.set_yscale("log")
    ax.set_xlabel(_GAMMA)
    ax.set_ylabel(_RATIO)


def _curve(dataset: Any, i: int) -> np.ndarray:
    """The ratio with the most attention at budget i; the smallest ratio where none gains, NaN where all do."""
    kind, where = dataset.reversal_kind.values[:, i], np.exp(dataset.reversal_log_ratio.values[:, i])
    return np.where(kind == _REVERSES, where, np.where(kind == _LESS, dataset.ratio.values[0], np.nan))


def _reversal(ax: Axes, dataset: Any) -> list[Any]:
    entries = []
    for i, budget in enumerate(dataset.budget.values):
        curve, colour = _curve(dataset, i), _colour(_BUDGETS, i)
        ax.plot(dataset.gamma.values, curve, color=colour, marker="o", ms=2.5)
        ax.fill_between(dataset.gamma.values, curve, dataset.ratio.values[-1], color=colour, alpha=0.05, lw=0)
        entries.append(style.key(rf"most attention at $t = {budget:g}$", color=colour, marker="o", ms=2.5))
    for j, budget in enumerate(dataset.trained_budget.values):
        i = int(np.argmin(np.abs(dataset.budget.values - budget)))
        where = np.exp(dataset.trained_reversal_log_ratio.values[:, j])
        ax.plot(dataset.trained_gamma.values, where, color=_colour(_BUDGETS, i), zorder=4, **_TRAINED)
    entries.append(style.key("the same in training", color="black", **_TRAINED))
    ax.set_yscale("log")
    ax.set_xlabel(_GAMMA)
    ax.set_ylabel(_RATIO)
    ax.set_title("above: larger ratio, less attention", loc="left")
    return entries


def _course(ax: Axes, dataset: Any) -> list[Any]:
    """Attention over time at the first trained context: the flow, full matrices, minibatches."""
    gamma = float(dataset.trained_gamma.values[0])
    start = np.log(gamma / (1 - gamma))
    times = [np.exp(dataset[name].values) for name in ("log_time", "record_log_time", "batch_log_time")]
    entries = []
    for i, ratio in enumerate(dataset.trained_ratio.values):
        colour = _colour(_RATIOS, i)
        ax.plot(times[0], _attention(start + dataset.flow_change.values[0, i]), color=colour, lw=3.6, alpha=0.3)
        ax.plot(times[1], _attention(start + dataset.full_change.values[0, i]), color=colour, lw=1.0)
        for run in dataset.batch_change.values[0, i]:
            ax.plot(times[2], _attention(start + run), color=colour, lw=0.7, ls=":")
        entries.append(style.key(style.ratio_label(float(ratio)), color=colour))
    ax.axhline(gamma, color=style.GREY, lw=0.7)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(top=1.3)
    ax.set_xlim(1.0, max(times[0][-1], times[1][-1]))
    ax.set_xlabel(style.TIME)
    ax.set_ylabel(style.ATTENTION)
    ax.set_title(rf"time courses at $\gamma = {gamma:.3f}$", loc="left")
    entries.append(style.key("flow (wide), full batch (thin)", color=style.GREY, lw=2.0))
    entries.append(style.key("minibatches", color=style.GREY, lw=0.8, ls=":"))
    return entries


def _colour(palette: tuple[str, ...], i: int) -> str:
    return palette[i % len(palette)]


def _attention(log_odds: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -log_odds))


def _gamma_edges(dataset: Any) -> np.ndarray:
    edges = _edges(dataset.gamma.values)
    return np.concatenate([[max(edges[0], 0.0)], edges[1:]])


def _ratio_edges(dataset: Any) -> np.ndarray:
    return np.exp(_edges(np.log(dataset.ratio.values)))


def _edges(centres: np.ndarray) -> np.ndarray:
    """Cell edges halfway between the centres."""
    middle = (centres[1:] + centres[:-1]) / 2
    return np.concatenate([[2 * centres[0] - middle[0]], middle, [2 * centres[-1] - middle[-1]]])
