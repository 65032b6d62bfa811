"""Perturbations of the symmetric trajectory: which isotypic types grow, and how large a random start may be."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flowsim.errors import InvalidInput
from flowsim.plot import style

_TYPES = {
    "class": ("class", style.PALETTE[0]),
    "distinct": ("distinct tokens", style.PALETTE[1]),
    "query_code": ("class coded in common tokens", style.PALETTE[2]),
    "pair": ("pairs of classes", style.PALETTE[3]),
    "pair_cyclic": ("pairs, cyclic", style.PALETTE[4]),
    "hidden_qk": ("hidden units (QK)", style.PALETTE[5]),
    "hidden_ov+class": ("hidden units (OV, class)", style.GREY),
}
_SPAN = 5
_DASHED = (0, (4, 2))


def transverse_stability(dataset: xr.Dataset) -> Figure:
    """Growth of perturbations by type, trained slopes beside predicted ones, and the random start that is tolerated.

    Args:
        dataset: from `flowsim.experiments.stability`.

    Returns:
        One panel of growth for each parameterization, the slopes in training against the linearized flow's, and the
        random start at which the reduction is off, over time.

    Raises:
        InvalidInput: if the dataset has no such arrays.
    """
    if not isinstance(dataset, xr.Dataset) or "log_growth" not in dataset:
        raise InvalidInput("dataset has no log_growth; give what flowsim.experiments.stability returned.")
    names = [str(name) for name in dataset.parameterization.values]
    rows = -(-len(names) // 2) + 1
    with style.style():
        figure, axes = style.panels(rows, 2, height=2.5)
        flat = list(axes.ravel())
        grown, (slopes, starts) = flat[: len(names)], flat[-2:]
        for ax in flat[len(names) : -2]:
            ax.remove()
        for ax, name in zip(grown, names, strict=True):
            _growth(ax, dataset.sel(parameterization=name, ratio=dataset.attrs["check_ratio"]), name)
        for ax in axes[:-1, 0]:
            ax.set_ylabel("growth of a perturbation")
        _slopes(slopes, dataset, names)
        _tolerated(starts, dataset, names)
        style.letters([*grown, slopes, starts])
        entries = [style.key(label, color=colour) for label, colour in _TYPES.values()]
        entries += [
            style.key("symmetric parameters", color="black", ls=":"),
            style.key("random token identities", color="black", ls=_DASHED, lw=1.0),
        ]
        style.legend(figure, entries, per_row=3)
    return figure


def _growth(ax: Axes, here: xr.Dataset, name: str) -> None:
    time = here.time.values
    for kind, (_, colour) in _TYPES.items():
        if kind not in here.type.values:
            continue
        lines = here.log_growth.sel(type=kind)
        if lines.isnull().all():
            continue
        ax.plot(time, np.exp(lines.sel(population="mean-counts")), color=colour)
        ax.plot(time, np.exp(lines.sel(population="sampled-identities")), color=colour, ls=_DASHED, lw=1.0)
    base = here.base_growth.sel(population="mean-counts").values
    if np.isfinite(base).all():
        ax.plot(time, np.exp(base), color="black", ls=":")
    ax.set(xscale="log", yscale="log", xlabel=style.TIME)
    ax.set_xlim(time[0], time[-1])
    ax.set_title(f"{name}, $r = {float(here.ratio):g}$")


def _slopes(ax: Axes, dataset: xr.Dataset, names: list[str]) -> None:
    log_time = np.log(dataset.check_time.values)

    def slope(lines: np.ndarray) -> np.ndarray:
        return (lines[..., _SPAN:] - lines[..., :-_SPAN]) / (log_time[_SPAN:] - log_time[:-_SPAN])

    for kind, (_, colour) in _TYPES.items():
        if kind not in dataset.type.values:
            continue
        predicted = slope(dataset.predicted.sel(type=kind).values)
        trained = slope(dataset.trained.sel(type=kind, run="given").values)
        ax.plot(predicted.ravel(), trained.ravel(), ls="", marker="o", ms=2.5, color=colour, alpha=0.7, mew=0)
    low, high = ax.get_xlim()
    ends = np.array([low, high])
    ax.plot(ends, ends, color="black", lw=0.8, zorder=0)
    ax.set(xlabel=r"predicted slope $d\ln|\delta|/d\ln t$", ylabel="slope in training")
    ax.set_title(f"training, {', '.join(names)}")


def _tolerated(ax: Axes, dataset: xr.Dataset, names: list[str]) -> None:
    from flowsim.experiments._stability.noisy_starts import tolerated

    allowed, time, scales = dataset.attrs["allowed"], dataset.run_time.values, dataset.scale.values
    for name, marker in zip(names, "osD^", strict=False):
        for observable, filled in (("attention", True), ("margin", False)):
            deviation = dataset[f"deviation_{observable}"].sel(parameterization=name).values
            line = tolerated(scales, deviation, allowed)
            shown = np.where(np.isfinite(line) & (line > 0), line, np.nan)
            ax.plot(
                time, shown, color="black", lw=0.8, marker=marker, ms=3.5, mew=0.7, markevery=6,
                mfc="black" if filled else "white", label=f"{name}, {observable}",
            )  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel=style.TIME, ylabel="random start tolerated")
    ax.set_title(f"attention or margin off by {allowed:.0%}, $r = {dataset.attrs['tolerance_ratio']:g}$")
    ax.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))
