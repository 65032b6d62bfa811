"""Transformers on real texts: attention against prediction, metrics side by side, validation losses, and the dial."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flowsim import metrics
from flowsim.errors import InvalidInput
from flowsim.plot import style
from flowsim.status import Status

_ARMS = {
    "baseline": ("baseline", style.PALETTE[0]),
    "raised": ("higher ratio", style.PALETTE[1]),
    "raised, decay independent": ("higher ratio, decay independent", style.PALETTE[2]),
}
# lines over others are dashed, marks over others smaller: the two higher ratios may coincide
_LOOKS = {"baseline": ("-", 4.0), "raised": ("-", 6.5), "raised, decay independent": ((0, (3, 3)), 4.0)}
_ATTENTION = "attention on relevant tokens"
_DASHED = (0, (4, 3))
_THEORY = {
    "theory_attention": ("theory at equal loss", "-"),
    "theory_attention_equal_time": ("theory at equal time", (0, (1, 1.5))),
}
_PANELS = {
    "accuracy": "accuracy",
    "mrta": "MRTA",
    "ac": "AC",
    "acmc_confident": "ACMC, confident",
    "comprehensiveness": "comprehensiveness",
    "sufficiency": "sufficiency",
}


def relevance_maps(dataset: xr.Dataset) -> Figure:
    """Heat maps of attention on relevant tokens and probability of the right label, baseline beside higher ratio.

    Args:
        dataset: from `flowsim.experiments.table1`.

    Returns:
        The figure: a row for each data set, of the test examples with relevant tokens. Colours are shares of the
        examples of all seeds, white where there is none; the dashed line is the mean of uniform attention.

    Raises:
        InvalidInput: if the dataset lacks the arrays.
    """
    from flowsim.experiments._table1 import reading  # the experiment draws with this module

    _needs(dataset, "table1", "arm", "attention", "probability", "uniform")
    names, arms = dataset.dataset.values.tolist(), ("baseline", "raised")
    bins = reading.settings_in(dataset)["bins"]
    found = {(name, arm): _shares(dataset.sel(dataset=name, arm=arm), bins) for name in names for arm in arms}
    largest = max(float(shares.max()) for shares in found.values())
    least = min((float(shares[shares > 0].min()) for shares in found.values() if shares.any()), default=0.1)
    norm = LogNorm(0.8 * least, 1.2 * max(largest, least))
    with style.style():
        figure, axes = style.panels(len(names), 2, height=2.8)
        figure.set_size_inches(6.4, 2.8 * len(names) + 0.6)
        for row, name in zip(axes, names, strict=True):
            for ax, arm in zip(row, arms, strict=True):
                _heat_map(ax, dataset.sel(dataset=name, arm=arm), found[name, arm], norm)
                ax.set_title(f"{name}: {_ARMS[arm][0]}")
            row[0].set_ylabel("probability of the right label")
        for ax in axes[-1]:
            ax.set_xlabel(_ATTENTION)
        style.letters(list(axes.ravel()))
        bar = figure.colorbar(ScalarMappable(norm, "viridis_r"), ax=axes, aspect=40, pad=0.01)
        bar.set_label("share of examples")
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        dot = style.key("means of one seed", marker="o", ms=4, ls="", mfc="white", mec="black", mew=0.6)
        even = style.key("mean of uniform attention", color=style.GREY, lw=1, ls=_DASHED)
        style.legend(figure, [dot, even], per_row=2)
    return figure


def _known(panel: xr.Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Attention and probability of each seed and example, and where both are there."""
    a, p = (panel[name].transpose("seed", "example").values for name in ("attention", "probability"))
    return a, p, np.isfinite(a) & np.isfinite(p)


def _shares(panel: xr.Dataset, bins: int) -> np.ndarray:
    """The heat map over all seeds, bins of probability first; all 0 where no run is usable."""
    a, p, known = _known(panel)
    return metrics.dtap(a[known], p[known], bins=bins).T if known.any() else np.zeros((bins, bins))


def _heat_map(ax: Axes, panel: xr.Dataset, shares: np.ndarray, norm: LogNorm) -> None:
    edges = np.arange(len(shares) + 1) / len(shares)
    ax.grid(visible=False)
    ax.pcolormesh(edges, edges, np.ma.masked_where(shares == 0, shares), cmap="viridis_r", norm=norm, rasterized=True)
    runs = [
        (one[here].mean(), other[here].mean()) for one, other, here in zip(*_known(panel), strict=True) if here.any()
    ]
    for at in runs:
        ax.plot(*at, ls="", marker="o", ms=3.2, mfc="white", mec="black", mew=0.5, clip_on=False, zorder=4)
    ax.axvline(float(panel.uniform.mean()), color=style.GREY, lw=1, ls=_DASHED, zorder=2)
    ax.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1), aspect="equal")
    _lost(ax, panel.status, "seeds")


def _lost(ax: Axes, status: xr.DataArray, word: str) -> None:
    """Says in a corner how many runs have diverged, where some have."""
    lost = int((status != int(Status.OK)).sum())
    if lost:
        text = f"{lost} of {status.size} {word} diverged"
        told = ax.text(0.97, 0.04, text, ha="right", fontsize=7.5, zorder=6, transform=ax.transAxes)
        told.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5})


def _possible(ax: Axes, least: float = 0.0) -> None:
    """Shows no values that cannot be; the interval of few seeds may reach beyond them."""
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, 1.04 * least - 0.02), min(high, 1.02))


def paired_metrics(dataset: xr.Dataset) -> Figure:
    """The metrics of the paper's table 1: a dot for each seed, joined over the models, beside mean and interval.

    Args:
        dataset: from `flowsim.experiments.table1`.

    Returns:
        The figure: a row for each data set, a column for each metric. Grey bars at AC and ACMC are what the same
        attention has by chance, on relevant tokens that are shifted through the text.

    Raises:
        InvalidInput: if the dataset lacks the arrays.
    """
    from flowsim.experiments._table1 import reading  # the experiment draws with this module

    _needs(dataset, "table1", "arm", "attention", "probability", "uniform", "comprehensiveness", "high_by_chance")
    choices = reading.choices_of(dataset)
    values, even = reading.measured(dataset, choices), reading.uniform(dataset, choices)
    names, arms = dataset.dataset.values.tolist(), dataset.arm.values.tolist()
    level = {"accuracy": dataset.majority, "mrta": even.mrta}
    # what attention as sharp as that would have on relevant tokens that were elsewhere in the text
    chance = {metric: values[metric] - values[f"{metric}_beyond"] for metric in ("ac", "acmc_confident")}
    with style.style():
        figure, axes = style.panels(len(names), len(_PANELS), height=2.2)
        figure.set_size_inches(1.75 * len(_PANELS), 2.2 * len(names) + 0.8)
        for row, name in zip(axes, names, strict=True):
            for ax, (metric, title) in zip(row, _PANELS.items(), strict=True):
                if metric in level:
                    ax.axhline(float(level[metric].sel(dataset=name)), color=style.GREY, lw=1, ls=_DASHED, zorder=1)
                _dots(ax, values[metric].sel(dataset=name), arms)
                if metric in chance:
                    for k, arm in enumerate(arms):
                        mean = float(chance[metric].sel(dataset=name, arm=arm).mean())
                        ax.plot([k - 0.3, k + 0.3], [mean] * 2, color=style.GREY, lw=2, solid_capstyle="butt")
                _possible(ax, -1.0 if metric in ("comprehensiveness", "sufficiency") else 0.0)
                ax.set_title(title)
            _lost(row[0], dataset.status.sel(dataset=name), "runs")
            row[0].set_ylabel(name)
        figure.align_ylabels(axes[:, 0])
        entries = [style.key(_ARMS[arm][0], color=_ARMS[arm][1], marker="o", ms=4, ls="") for arm in arms]
        entries.append(style.key("one seed", color=style.GREY, lw=0.6))
        entries.append(style.key(f"mean, {reading.CONFIDENCE:.0%} interval", color="black", marker="D", ms=3.5, lw=1))
        entries.append(style.key("most frequent label, uniform attention", color=style.GREY, lw=1, ls=_DASHED))
        entries.append(style.key("chance at this sharpness", color=style.GREY, lw=2))
        style.legend(figure, entries, per_row=4)
    return figure


def _dots(ax: Axes, values: xr.DataArray, arms: list[str]) -> None:
    """One metric of one data set: arms beside each other, seeds joined."""
    lines = values.transpose("arm", "seed").values
    x = np.arange(len(arms), dtype=float)
    ax.plot(x, lines, color=style.GREY, lw=0.6, alpha=0.6, zorder=2)
    for k, arm in enumerate(arms):
        ax.plot(
            np.full(lines.shape[1], x[k]), lines[k], ls="", marker="o", ms=3.5, mew=0, color=_ARMS[arm][1], alpha=0.8
        )
        _mean(ax, x[k] + 0.22, lines[k])
    ax.set(xlim=(-0.4, len(arms) - 0.4), xticks=[])
    ax.margins(y=0.12)
    ax.yaxis.set_major_locator(MaxNLocator(5))


def _mean(ax: Axes, x: float, values: np.ndarray, color: str = "black") -> None:
    """The mean over seeds with its interval; nothing where no run is usable."""
    from flowsim.experiments._table1 import reading

    found = reading.interval(values)
    if found.usable:
        half = [[found.half]] * 2 if found.usable > 1 else None
        ax.errorbar([x], [found.mean], yerr=half, color=color, marker="D", ms=3.5, lw=1, capsize=2, zorder=5)


def validation_losses(dataset: xr.Dataset) -> Figure:
    """Validation loss against epochs, one line for each run, with the epoch whose parameters were kept.

    Args:
        dataset: from `flowsim.experiments.table1`.

    Returns:
        The figure: a panel for each data set.

    Raises:
        InvalidInput: if the dataset lacks the arrays.
    """
    _needs(dataset, "table1", "arm", "validation_loss", "best_epoch")
    names, arms = dataset.dataset.values.tolist(), dataset.arm.values.tolist()
    with style.style():
        figure, axes = style.panels(1, len(names), height=2.8)
        for ax, name in zip(axes[0], names, strict=True):
            for arm in arms:
                here = dataset.sel(dataset=name, arm=arm)
                color, (line, size) = _ARMS[arm][1], _LOOKS[arm]
                for seed in dataset.seed.values:
                    run = here.sel(seed=seed)
                    ax.plot(dataset.epoch, run.validation_loss, color=color, ls=line, lw=1, alpha=0.8)
                    kept = run.validation_loss.where(dataset.epoch == run.best_epoch)
                    ax.plot(dataset.epoch, kept, ls="", marker="o", ms=size, mfc="white", mec=color, mew=1.1, zorder=4)
            _lost(ax, dataset.status.sel(dataset=name), "runs")
            ax.set_title(name)
            ax.set_xlabel("epoch")
            trained = dataset.epoch.where(dataset.validation_loss.sel(dataset=name).notnull())
            ax.set_xlim(0.5, max(1.0, float(np.nan_to_num(trained.max()))) + 0.5)
            ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
        axes[0, 0].set_ylabel("validation loss")
        style.letters(list(axes[0]))
        entries = [style.key(_ARMS[arm][0], color=_ARMS[arm][1], ls=_LOOKS[arm][0]) for arm in arms]
        entries.append(
            style.key("epoch that was kept", color=style.GREY, marker="o", ms=4, mfc="white", mew=1.1, ls="")
        )
        style.legend(figure, entries, per_row=4 if len(names) > 1 else 2)
    return figure


def multiplier_dial(dataset: xr.Dataset) -> Figure:
    """Attention on relevant tokens and accuracy against the query-key multiplier, beside the theory of one layer.

    Args:
        dataset: from `flowsim.experiments.ratio_dial`.

    Returns:
        The figure: a column for each data set; dots are seeds, diamonds means with their intervals.

    Raises:
        InvalidInput: if the dataset lacks the arrays.
    """
    from flowsim.experiments._table1 import reading

    _needs(dataset, "ratio_dial", "multiplier", "attention", "theory_attention", "theory_attention_equal_time")
    choices = reading.choices_of(dataset)
    values, even = reading.measured(dataset, choices), reading.uniform(dataset, choices)
    names = dataset.dataset.values.tolist()
    with style.style():
        figure, axes = style.panels(2, len(names), height=2.4, heights=[1.25, 1.0])
        for (above, below), name in zip(axes.T, names, strict=True):
            here = dataset.sel(dataset=name)
            for curve, (_, line) in _THEORY.items():
                above.plot(here.theory_multiplier, here[curve], color="black", lw=1.2, ls=line)
            above.axhline(float(even.mrta.sel(dataset=name)), color=style.GREY, lw=1, ls=_DASHED, zorder=1)
            below.axhline(float(here.majority), color=style.GREY, lw=1, ls=_DASHED, zorder=1)
            _against_multiplier(above, values.mrta.sel(dataset=name), style.PALETTE[1])
            _against_multiplier(below, values.accuracy.sel(dataset=name), style.PALETTE[0])
            _lost(above, here.status, "runs")
            _possible(below)
            above.set_title(f"{name}: attention")
            above.set_ylim(0, 1)
            below.set_title(f"{name}: accuracy")
            below.set_xlabel("query-key multiplier")
        axes[0, 0].set_ylabel(_ATTENTION)
        axes[1, 0].set_ylabel("accuracy")
        style.letters(list(axes.ravel()))
        entries = [
            style.key("attention, one seed", color=style.PALETTE[1], marker="o", ms=3.5, ls=""),
            style.key("accuracy, one seed", color=style.PALETTE[0], marker="o", ms=3.5, ls=""),
            style.key(f"mean, {reading.CONFIDENCE:.0%} interval", color=style.GREY, marker="D", ms=3.5, lw=1),
            *(
                style.key(title, color="black", lw=1.2, ls=line)
                for curve, (title, line) in _THEORY.items()
                if dataset[curve].notnull().any()
            ),
            style.key("uniform attention, most frequent label", color=style.GREY, lw=1, ls=_DASHED),
        ]
        if len(names) == 1:
            figure.set_figheight(figure.get_figheight() + 0.6)  # for a legend of one column, since two are too wide
        style.legend(figure, entries, per_row=3 if len(names) > 1 else 1)
    return figure


def _against_multiplier(ax: Axes, values: xr.DataArray, color: str) -> None:
    lines = values.transpose("multiplier", "seed").values
    x = values.multiplier.values
    ax.plot(0.9 * x, lines, ls="", marker="o", ms=3, mew=0, color=color, alpha=0.55)  # beside the mean, on a log axis
    known = np.isfinite(lines).any(axis=1)
    means = np.array([row[np.isfinite(row)].mean() for row in lines[known]])
    ax.plot(x[known], means, color=color, lw=1)
    for at, row in zip(x, lines, strict=True):
        _mean(ax, float(at), row, color)
    ax.set_xscale("log")
    ax.set_xlim(x.min() / 1.5, x.max() * 1.5)  # of all that was tried, also where every run diverged
    ax.margins(y=0.15)


def _needs(dataset: xr.Dataset, experiment: str, axis: str, *names: str) -> None:
    for name in names:
        if name not in getattr(dataset, "data_vars", {}) or axis not in dataset.dims:
            raise InvalidInput(
                f"dataset lacks {name!r} by {axis}; give what flowsim.experiments.{experiment} returned."
            )
