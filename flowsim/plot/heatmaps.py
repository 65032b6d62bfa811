"""Attention against prediction: the heat maps, shares over thresholds, and maps of what decides between them."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, TwoSlopeNorm
from matplotlib.figure import Figure

from flowsim.errors import InvalidInput
from flowsim.plot import style

_COLOUR = dict(zip(("CACO", "FACO", "CAFO", "FAFO"), style.PALETTE, strict=False))
_PANELS = (
    ("FAFO", "equal"), ("CACO", "equal"), ("CAFO", "equal"), ("FACO", "equal"),
    ("FAFO", "faster"), ("FAFO", "increasing"), ("CACO", "faster"), ("CACO", "increasing"),
)  # fmt: skip
_PROBABILITY = "probability of the label"
_UNKNOWN = "#d9d9d9"


def dtap_maps(dataset: xr.Dataset) -> Figure:
    """The eight heat maps of attention and prediction, with one dot for the means of each seed.

    Args:
        dataset: from `flowsim.experiments.fig2`.

    Returns:
        The figure: above the four parameterizations, below FAFO and CACO with faster query-key learning, at a fixed and
        at an increasing ratio. Colours are shares of the examples of all seeds, white where there is none.

    Raises:
        InvalidInput: if the dataset lacks the arrays.
    """
    _needs(dataset, "dtap", "attention", "probability")
    with style.style():
        figure, axes = style.panels(2, 4, height=2.3)
        figure.set_size_inches(9.6, 5.4)
        smallest = 1 / dataset.attention.isel(parameterization=0, regime=0).size
        norm = LogNorm(smallest, 1.0)
        for ax, (name, regime) in zip(axes.ravel(), _PANELS, strict=True):
            _heat_map(ax, dataset.sel(parameterization=name, regime=regime), norm)
            ax.set_title(name if regime == "equal" else f"{name}, {_regime(dataset, regime)}")
        for ax in axes[1]:
            ax.set_xlabel(style.ATTENTION)
        for ax in axes[:, 0]:
            ax.set_ylabel(_PROBABILITY)
        style.letters(list(axes.ravel()))
        bar = figure.colorbar(ScalarMappable(norm, "viridis_r"), ax=axes, aspect=40, pad=0.01)
        bar.set_label("share of examples")
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        dot = style.key("means of one seed", marker="o", ms=4, ls="", mfc="white", mec="black", mew=0.6)
        style.legend(figure, [dot], per_row=1)
    return figure


def _heat_map(ax: Axes, panel: xr.Dataset, norm: LogNorm) -> None:
    n = panel.sizes["attention_bin"]
    edges = np.arange(n + 1) / n
    shares = panel.dtap.transpose("probability_bin", "attention_bin").values
    ax.grid(visible=False)
    ax.pcolormesh(edges, edges, np.ma.masked_where(~(shares > 0), shares), cmap="viridis_r", norm=norm, rasterized=True)
    a, p = panel.attention.mean("example"), panel.probability.mean("example")
    ax.plot(a, p, ls="", marker="o", ms=3.2, mfc="white", mec="black", mew=0.5, alpha=0.9, clip_on=False, zorder=4)
    lost = int(a.isnull().sum())
    text = rf"$\bar\alpha = {float(a.mean()):.3f}$" + "\n" + rf"$\pm\,{float(a.std(ddof=1)):.3f}$"
    if lost:
        text += f"\n{lost} of {a.size} seeds diverged"
    ax.text(0.04, 0.05, text, transform=ax.transAxes, fontsize=8, linespacing=1.4)
    ax.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1), aspect="equal")


def confidence_curves(dataset: xr.Dataset) -> Figure:
    """AC and ACMC over thresholds of attention, the mean and the range of the seeds.

    Args:
        dataset: from `flowsim.experiments.fig2`.

    Returns:
        The figure: AC above and ACMC below (of the confident examples; dashed: of all), a column for each regime.

    Raises:
        InvalidInput: if the dataset lacks the arrays.
    """
    _needs(dataset, "ac", "acmc")
    with style.style():
        figure, axes = style.panels(2, 3, height=2.2)
        figure.set_size_inches(9.6, 5.4)
        for column, regime in enumerate(dataset.regime.values.tolist()):
            for name in dataset.parameterization.values.tolist():
                here = dataset.sel(parameterization=name, regime=regime)
                _band(axes[0, column], here.ac, color=_COLOUR[name])
                _band(axes[1, column], here.acmc.sel(denominator="confident"), color=_COLOUR[name])
                axes[1, column].plot(
                    here.threshold, here.acmc.sel(denominator="all").mean("seed"), color=_COLOUR[name], ls="--", lw=1
                )
            axes[0, column].set_title(_regime(dataset, regime))
            axes[1, column].set_title(f"confident: probability at least {dataset.attrs['confidence']:g}")
            axes[1, column].set_xlabel("threshold of attention")
        axes[0, 0].set_ylabel("AC")
        axes[1, 0].set_ylabel("ACMC")
        for ax in axes.ravel():
            ax.set(xlim=(0, 1), ylim=(0, 1.02))
        style.letters(list(axes.ravel()))
        entries = [style.key(name, color=_COLOUR[name]) for name in dataset.parameterization.values.tolist()]
        entries.append(style.key("of the confident examples", color=style.GREY))
        entries.append(style.key("of all examples", color=style.GREY, ls="--", lw=1))
        entries.append(style.key("range of the seeds", color=style.GREY, alpha=0.25, lw=6))
        style.legend(figure, entries, per_row=7)
    return figure


def _band(ax: Axes, array: xr.DataArray, color: str) -> None:
    ax.plot(array.threshold, array.mean("seed"), color=color)
    ax.fill_between(array.threshold, array.min("seed"), array.max("seed"), color=color, alpha=0.18, lw=0)


def ordering_maps(dataset: xr.Dataset) -> Figure:
    """How much more attention CACO and FACO give than FAFO, over learning rate, start and mixture weight.

    Args:
        dataset: from `flowsim.experiments.fig2`.

    Returns:
        The figure: a row for each comparison, a column for each mixture weight. Blue is the paper's ordering, red the
        reverse, grey where one of the two has not learnt the task; a ring marks the heat maps' setting.

    Raises:
        InvalidInput: if the dataset lacks the arrays.
    """
    _needs(dataset, "scan_difference", "scan_learnt")
    weights = dataset.gamma.values.tolist()
    norm = TwoSlopeNorm(0.0, -1.0, 1.0)
    with style.style():
        figure, axes = style.panels(2, len(weights), height=2.1)
        figure.set_size_inches(max(4.0, 2.0 * len(weights) + 1.2), 4.9)
        for row, above in zip(axes, dataset.above.values.tolist(), strict=True):
            for ax, weight in zip(row, weights, strict=True):
                here = dataset.sel(above=above, gamma=weight)
                _ordering_map(ax, here.scan_difference.where(here.scan_learnt == 1), norm)
                if np.isclose(weight, dataset.attrs["gamma"]):
                    _ring(ax, dataset)
                ax.set_title(rf"$\gamma = {weight:g}$: {above} $-$ FAFO", fontsize=8)
        for ax in axes[:, 0]:
            ax.set_ylabel("largest entry at the start")
        for ax in axes[1]:
            ax.set_xlabel("learning rate")
        bar = figure.colorbar(ScalarMappable(norm, "RdBu"), ax=axes, aspect=40, pad=0.02)
        bar.set_label("difference of mean attention")
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        entries = [
            style.key("not learnt by one of them", marker="s", ms=8, ls="", mfc=_UNKNOWN, mec=style.GREY, mew=0.5),
            style.key("setting of the heat maps", marker="o", ms=7, ls="", mfc="none", mec="black", mew=1.2),
        ]
        style.legend(figure, entries, per_row=2)
    return figure


def _ordering_map(ax: Axes, difference: xr.DataArray, norm: TwoSlopeNorm) -> None:
    values = difference.transpose("init", "lr").values
    ax.grid(visible=False)
    ax.set_facecolor(_UNKNOWN)
    ax.pcolormesh(np.ma.masked_invalid(values), cmap="RdBu", norm=norm, edgecolors="white", linewidth=0.5)
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            tone = "white" if abs(value) > 0.6 else "black"
            ax.text(j + 0.5, i + 0.5, f"{value:+.2f}", ha="center", va="center", fontsize=5.5, color=tone)
    ax.set_xticks(np.arange(values.shape[1]) + 0.5, [f"{value:g}" for value in difference.lr.values])
    ax.set_yticks(np.arange(values.shape[0]) + 0.5, [f"{value:g}" for value in difference.init.values])


def _ring(ax: Axes, dataset: xr.Dataset) -> None:
    at = []
    for name in ("lr", "init"):
        hit = np.flatnonzero(np.isclose(dataset[name].values, dataset.attrs[name]))
        if not hit.size:
            return
        at.append(hit[0] + 0.5)
    ax.plot(*at, marker="o", ms=17, mfc="none", mec="black", mew=1.2)


def ratio_dial(dataset: xr.Dataset) -> Figure:
    """Mean attention and probability of the label against the ratio, the mean and the range of the seeds.

    Args:
        dataset: from `flowsim.experiments.fig2`.

    Returns:
        The figure.

    Raises:
        InvalidInput: if the dataset lacks the arrays.
    """
    _needs(dataset, "dial_attention", "dial_probability")
    with style.style():
        figure, axes = style.panels(1, 2, height=2.6)
        for ax, name, label in zip(
            axes[0], ("dial_attention", "dial_probability"), (style.ATTENTION, _PROBABILITY), strict=True
        ):
            for parameterization in dataset.parameterization.values.tolist():
                here = dataset[name].sel(parameterization=parameterization)
                mean = here.mean("scan_seed")
                spread = np.stack([mean - here.min("scan_seed"), here.max("scan_seed") - mean])
                ax.errorbar(
                    here.ratio, mean, yerr=spread, color=_COLOUR[parameterization],
                    marker="o", ms=3.5, lw=1.3, elinewidth=0.8, capsize=2,
                )  # fmt: skip
            ax.axvline(dataset.attrs["ratio"], color=style.GREY, lw=0.8, ls=(0, (4, 3)), zorder=1)
            ax.set(xscale="log", ylim=(0, 1.02), xlabel=r"ratio $\eta_{QK}/\eta_{OV}$", ylabel=label)
            ax.set_title("attention" if name == "dial_attention" else "prediction")
        style.letters(list(axes[0]))
        entries = [style.key(name, color=_COLOUR[name]) for name in dataset.parameterization.values.tolist()]
        entries.append(style.key("range of the seeds", color=style.GREY, marker="|", ms=9, ls=""))
        style.legend(figure, entries, per_row=5)
    return figure


def _regime(dataset: xr.Dataset, regime: str) -> str:
    first, last = dataset.attrs["ratio"], dataset.attrs["faster" if regime == "faster" else "increasing"]
    if regime == "equal":
        return rf"$r = {first:g}$"
    return rf"$r = {last:g}$" if regime == "faster" else rf"$r$ from {first:g} to {last:g}"


def _needs(dataset: xr.Dataset, *names: str) -> None:
    for name in names:
        if name not in getattr(dataset, "data_vars", {}):
            raise InvalidInput(f"dataset lacks {name!r}; give what flowsim.experiments.fig2 returned.")
