"""Random starts against the symmetric reduction: bands over the seeds, and the isotypic parts of the deviation."""

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from flowsim.errors import InvalidInput
from flowsim.plot import style

_BAND = (0.1, 0.9)
_DECADES = 1e-5
_TYPES = {
    "class": ("class", style.PALETTE[0]),
    "pair": ("pairs of classes", style.PALETTE[3]),
    "distinct": ("distinct tokens", style.PALETTE[1]),
    "distinct_label": ("distinct tokens by label", style.PALETTE[5]),
    "common": ("common tokens", style.PALETTE[4]),
    "query_code": ("class in common tokens", style.PALETTE[2]),
}
_VARIANTS = {
    "as drawn": "-",
    "common tokens alike": (0, (1, 1)),
    "distinct tokens alike": (0, (4, 2)),
    "all tokens alike": (0, (4, 1, 1, 1)),
}


def random_starts(dataset: xr.Dataset, scale: float | None = None) -> Figure:
    """How far runs from random starts are from their symmetric reductions; one column for each hidden width.

    Args:
        dataset: from `flowsim.experiments.random_starts`.
        scale: scale of the entries that the parts are drawn for; None for the middle one.

    Returns:
        Medians and bands from the 10 % to the 90 % quantile over the seeds: deviation of attention, of the margin (both
        by scale), then for one scale the norm of each isotypic part, and the deviation of attention of starts in which
        some tokens are alike.

    Raises:
        InvalidInput: if the dataset has no such arrays, or not that scale.
    """
    if not isinstance(dataset, xr.Dataset) or "asymmetry_linear" not in dataset:
        raise InvalidInput("dataset has no asymmetry_linear; give what flowsim.experiments.random_starts returned.")
    scales = dataset.scale.values
    chosen = float(scales[len(scales) // 2]) if scale is None else scale
    if chosen not in scales:
        raise InvalidInput(
            f"scale={scale} is not among {', '.join(f'{value:g}' for value in scales)}; give one of them."
        )
    from flowsim.experiments._random_starts.reading import deviation

    widths = dataset.width.values
    shades = mpl.colormaps["Greys"](np.linspace(0.4, 0.95, len(scales)))  # colours are for the types
    colours = {value: to_hex(shade) for value, shade in zip(scales, shades, strict=True)}
    with style.style():
        figure, axes = style.panels(4, len(widths), height=2.1)
        for column, width in zip(axes.T, widths, strict=True):
            here = dataset.sel(width=width)
            for ax, observable in zip(column[:2], ("attention", "margin"), strict=True):
                apart = deviation(here, observable).sel(variant="as drawn")
                for value, colour in colours.items():
                    _band(ax, apart.sel(scale=value), "seed", colour)
                ax.axhline(dataset.attrs["allowed"], color="black", lw=0.7, ls=":")
            parts = here.sel(scale=chosen)
            for kind, (_, colour) in _TYPES.items():
                if kind in parts.type.values:
                    _band(column[2], parts.asymmetry.sel(type=kind), "seed", colour)
                    linear = parts.asymmetry_linear.sel(type=kind).median("linear_seed")
                    column[2].plot(parts.time, linear, color=colour, lw=1.0, ls=(0, (4, 2)))
            column[2].plot(parts.time, parts["size"].median("seed"), color="black", lw=1.0)
            apart = deviation(parts, "attention")
            for variant, dashes in _VARIANTS.items():
                line = apart.sel(variant=variant).median("seed")
                column[3].plot(parts.time, line, color=colours[chosen], ls=dashes)
            column[0].set_title(f"hidden width {width}")
            column[2].set_title(f"scale {chosen:g}: isotypic parts")
            column[3].set_title(f"scale {chosen:g}: tokens made alike")
            column[-1].set_xlabel(style.TIME)
        labels = ("attention off by", "margin off by", "norm", "attention off by")
        for row, label in zip(axes, labels, strict=True):
            row[0].set_ylabel(label)
            for ax in row:
                ax.set(xscale="log", yscale="log")
                ax.set_xlim(dataset.time.values[0], dataset.time.values[-1])
            low, high = min(ax.get_ylim()[0] for ax in row), max(ax.get_ylim()[1] for ax in row)
            for ax in row:
                ax.set_ylim(max(low, _DECADES * high), high)
        entries = [style.key(f"scale {value:g}", color=colour) for value, colour in colours.items()]
        entries += [style.key(label, color=colour) for label, colour in _TYPES.values()]
        entries += [style.key(variant, color="black", ls=dashes) for variant, dashes in list(_VARIANTS.items())[1:]]
        entries += [style.key("linearized flow", color=style.GREY, lw=1.0, ls=(0, (4, 2)))]
        entries += [style.key("whole matrices", color="black", lw=1.0)]
        style.legend(figure, entries, per_row=min(2 * len(widths), 5))
    return figure


def _band(ax: Axes, lines: xr.DataArray, over: str, colour: str) -> None:
    """Median and band; where some runs have no value yet nothing is drawn."""
    values = lines.where(lines.notnull().all(over))
    low, middle, high = (values.quantile(q, over, skipna=False).values for q in (_BAND[0], 0.5, _BAND[1]))
    ax.fill_between(lines.time.values, np.where(low > 0, low, np.nan), high, color=colour, alpha=0.2, lw=0)
    ax.plot(lines.time.values, middle, color=colour)
