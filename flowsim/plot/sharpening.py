"""Fixed attention: loss curves, and what the output-value circuit gains from sharper attention (paper, section 5)."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullFormatter, ScalarFormatter

from flowsim.errors import InvalidInput
from flowsim.plot import style

_LOOKS = {"factorized": {"ls": "-"}, "collapsed": {"ls": (0, (4, 2))}}
_BANDS = {"factorized": style.PALETTE[1], "collapsed": style.PALETTE[0]}
_MARKERS = 14
_SETTLED = 0.4  # the attention that the paper names
_LOSS = "loss"
_INCENTIVE = r"incentive  $L(\alpha) - L(\alpha + \delta)$"


def fixed_attention_losses(dataset: xr.Dataset) -> Figure:
    r"""Loss curves at fixed attention and the sharpening incentive, as in the paper's figure 3.

    Args:
        dataset: from `flowsim.experiments.fig3`.

    Returns:
        The figure: losses with a factorized and a collapsed output-value circuit (lines: closed form, markers: trained
        matrices), the incentive over epochs at four values of attention, and the range of attention in which it is
        noticeable.

    Raises:
        InvalidInput: if the dataset is of another experiment.
    """
    _check(dataset)
    values = dataset["attention"].values
    colour = dict(zip(values, style.PALETTE * (1 + values.size // len(style.PALETTE)), strict=False))
    per_epoch = float(dataset["time"][0] / dataset["epoch"][0])
    with style.style():
        figure, axes = style.panels(2, 2, height=2.6)
        for ax, output in zip(axes[0], _LOOKS, strict=True):
            for attention in values:
                line = dataset["loss"].sel(output=output, attention=attention)
                ax.plot(dataset["epoch"], line, color=colour[attention])
                trained = dataset["loss_trained"].sel(output=output, attention=attention, refinement=1)
                _marks(ax, dataset["epoch"].values, trained.values, colour[attention])
            ax.set_ylim(-0.03, 1.08 * dataset.attrs["ignorance"])
            ax.set_title(f"{output} output-value circuit")
            ax.set_ylabel(_LOSS)
        left, right = axes[1]
        inner = [value for value in values if 0 < value < 1]
        for output, look in _LOOKS.items():
            for attention in inner:
                line = dataset["incentive"].sel(output=output).interp(attention_fine=attention)
                left.plot(dataset["epoch"], line, color=colour[attention], **look)
                trained = dataset["incentive_trained"].sel(output=output, attention=attention, refinement=1)
                _marks(left, dataset["epoch"].values, trained.values, colour[attention])
            _band(right, dataset, output)
        left.axhline(dataset.attrs["noticeable"], color=style.GREY, lw=0.8, zorder=1)
        left.set_yscale("log")
        left.set_ylim(dataset.attrs["noticeable"] / 50, None)
        left.set_title(rf"incentive to sharpen attention by $\delta = {dataset.attrs['delta']:g}$")
        left.set_ylabel(_INCENTIVE)
        right.axhline(_SETTLED, color=style.GREY, lw=0.8, zorder=1)
        right.set_ylim(0, 1)
        right.set_title(f"attention at which it exceeds {dataset.attrs['noticeable']:g}")
        right.set_ylabel(style.ATTENTION)
        for ax in axes.ravel():
            _epochs(ax, dataset)
        for ax in axes[1]:
            ax.set_xlabel(rf"epochs  (of ${per_epoch:g}$ units of gradient-flow time $t$)")
        style.letters(list(axes.ravel()))
        entries = [style.key(rf"$\alpha = {value:g}$", color=colour[value]) for value in values]
        entries += [style.key(output, color="black", **look) for output, look in _LOOKS.items()]
        entries.append(style.key("trained", color="black", ls="", marker="o", ms=3, mfc="white"))
        style.legend(figure, entries, per_row=5)
    return figure


def fixed_attention_errors(dataset: xr.Dataset) -> Figure:
    """How far the losses of trained matrices are from the closed form, with two sizes of the step.

    Args:
        dataset: from `flowsim.experiments.fig3`.

    Returns:
        The figure: the largest distance over all attentions, for both output-value circuits; half the step, half the
        distance.

    Raises:
        InvalidInput: if the dataset is of another experiment.
    """
    _check(dataset)
    with style.style():
        figure, axes = style.panels(1, 2, height=2.6)
        for ax, what, label in (
            (axes[0, 0], "loss", "distance of the loss"),
            (axes[0, 1], "incentive", "distance of the incentive"),
        ):
            closed = dataset[what]
            if what == "incentive":
                closed = closed.interp(attention_fine=dataset["attention"].values[dataset["attention"].values < 1])
                closed = closed.rename(attention_fine="attention")
            error = abs(dataset[f"{what}_trained"] - closed).max("attention")
            for output, look in _LOOKS.items():
                for refinement, colour in zip(dataset["refinement"].values, style.PALETTE, strict=False):
                    line = error.sel(output=output, refinement=refinement)
                    ax.plot(dataset["epoch"], line.where(line > 0), color=colour, **look)
            ax.set_yscale("log")
            ax.set_title(f"{what}: training against closed form")
            ax.set_ylabel(label + r", largest over $\alpha$")
            ax.set_xlabel("epochs")
            _epochs(ax, dataset)
        style.letters(list(axes[0]))
        rates = dataset.attrs["lr"] / dataset["refinement"].values
        entries = [style.key(f"lr {rate:g}", color=c) for rate, c in zip(rates, style.PALETTE, strict=False)]
        entries += [style.key(output, color="black", **look) for output, look in _LOOKS.items()]
        style.legend(figure, entries, per_row=6)
    return figure


def _check(dataset: xr.Dataset) -> None:
    if not isinstance(dataset, xr.Dataset) or not {"loss_trained", "incentive"} <= set(dataset.variables):
        raise InvalidInput("dataset is not of fixed attention; give what flowsim.experiments.fig3 returned.")


def _band(ax: Axes, dataset: xr.Dataset, output: str) -> None:
    """The range of attention in which the incentive is noticeable, over epochs, and where it is largest."""
    incentive = dataset["incentive"].sel(output=output)
    fine = dataset["attention_fine"]
    there = incentive >= dataset.attrs["noticeable"]
    low, high = fine.where(there).min("attention_fine"), fine.where(there).max("attention_fine")
    ax.fill_between(dataset["epoch"], low, high, color=_BANDS[output], alpha=0.18, lw=0)
    ax.plot(dataset["epoch"], high, color=_BANDS[output], **_LOOKS[output])
    ax.plot(dataset["epoch"], low, color=_BANDS[output], lw=0.7, **_LOOKS[output])


def _marks(ax: Axes, x: np.ndarray, y: np.ndarray, colour: str) -> None:
    """Markers at a few of the epochs, so that the line stays visible."""
    at = np.unique(np.linspace(0, x.size - 1, _MARKERS).round().astype(int))
    ax.add_line(Line2D(x[at], y[at], color=colour, ls="", marker="o", ms=3, mfc="white", mew=0.8))


def _epochs(ax: Axes, dataset: xr.Dataset) -> None:
    ax.set_xscale("log")
    ax.set_xlim(float(dataset["epoch"][0]), float(dataset["epoch"][-1]))
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_locator(FixedLocator([1, 3, 10, 30, 100, 300, 1000, 3000, 10000]))
