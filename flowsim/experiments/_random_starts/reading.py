"""What the arrays of `random-starts` say."""

import numpy as np
import xarray as xr

from flowsim.experiments._experiment import Finding

LEARNT = 1.0
"""A margin is compared from the time on at which the reduction has one of 1: relative to one of 0 it says nothing."""
NAMES = {
    "class": "class asymmetry",
    "pair": "asymmetry of pairs of classes",
    "distinct": "asymmetry of distinct tokens",
    "distinct_label": "asymmetry of distinct tokens by other label",
    "common": "asymmetry of common tokens",
    "query_code": "class coded in common tokens",
}
_MOST = 0.5


def deviation(here: xr.Dataset, observable: str) -> xr.DataArray:
    """Relative distance of attention or margin from the reduction; NaN for margins that are not learnt yet.

    Args:
        here: arrays of one scale and width, or of several.
        observable: `"attention"` or `"margin"`.
    """
    expected = here[f"{observable}_reduction"]
    apart = abs(here[observable] / expected - 1)
    return apart.where(expected >= LEARNT) if observable == "margin" else apart


def left(here: xr.Dataset, allowed: float) -> tuple[float, str] | None:
    """When and in what the median run as drawn leaves the reduction; None if it does not.

    Args:
        here: arrays of one scale and width.
        allowed: relative deviation.
    """
    first: list[tuple[float, str]] = []
    for observable in ("attention", "margin"):
        # a seed whose reduction has not learnt yet is not off
        apart = deviation(here, observable).sel(variant="as drawn").fillna(0.0).median("seed")
        off = np.flatnonzero(apart.values > allowed)
        if off.size:
            first.append((float(here.time.values[off[0]]), observable))
    return min(first) if first else None


def findings(dataset: xr.Dataset) -> list[Finding]:
    """The comparison with the paper, which trains from random starts and predicts from scalars."""
    rows = []
    for width in dataset.width.values:
        for scale in dataset.scale.values:
            here = dataset.sel(width=width, scale=scale)
            rows += _leaving(here, int(width), float(scale), dataset.attrs["allowed"])
    return [*rows, _widths(dataset)]


def _leaving(here: xr.Dataset, width: int, scale: float, allowed: float) -> list[Finding]:
    where = f"hidden width {width}, entries of scale {scale:g}"
    when = left(here, allowed)
    last = float(here.time.values[-1])
    claim = f"FAFO from random starts follows its symmetric reduction: {where}"
    if when is None:
        ends = {o: _end(here, o, "as drawn") for o in ("attention", "margin")}
        return [
            Finding(
                claim,
                "",
                f"Within {allowed:.0%} until t={last:g}; at the end the median run is off by {ends['attention']:.1%} "
                f"in attention and {ends['margin']:.1%} in margin.",
                "agrees",
                max(ends.values()),
            )
        ]
    time, observable = when
    ends = {str(variant): _at(here, observable, variant, time) for variant in here.variant.values}
    cause = _cause(ends)
    parts = [kind for kind in here.type.values if kind in _kinds_of(cause)]
    at = here.sel(time=time)
    norms = {kind: float(at.asymmetry.sel(type=kind).median()) for kind in parts}
    kind = max(norms, key=lambda name: norms[name])
    found, linear = (_grown(here, kind, time, name) for name in ("asymmetry", "asymmetry_linear"))
    return [
        Finding(
            claim,
            "",
            f"The median run is off by {allowed:.0%} in {observable} first at t={time:.3g}, and by "
            f"{_end(here, observable, 'as drawn'):.1%} at t={last:g}.",
            "differs",
            time,
        ),
        Finding(
            f"what makes it leave: {where}",
            "",
            f"{cause.capitalize()}: at t={time:.3g} {observable} is off by {ends['as drawn']:.1%}, with common tokens "
            f"alike at the start by {ends['common tokens alike']:.1%}, with distinct tokens of a class alike by "
            f"{ends['distinct tokens alike']:.1%}, with both by {ends['all tokens alike']:.1%} (at t={last:g}: "
            f"{', '.join(f'{_end(here, observable, variant):.1%}' for variant in ends)}). The largest part of it "
            f"is {NAMES[kind]}, of norm {norms[kind]:.2g} beside matrices of norm {float(at['size'].median()):.2g}; it "
            f"has grown by a factor of {found:.3g} since the start, {linear:.3g} in the linearized flow.",
            "not stated there",
            ends["all tokens alike"] / ends["as drawn"],
        ),
    ]


def _cause(ends: dict[str, float]) -> str:
    """Class asymmetry, if it leaves most of the deviation; else the tokens whose averaging removes more of it."""
    if ends["all tokens alike"] > _MOST * ends["as drawn"]:
        return "class asymmetry"
    common, distinct = ends["common tokens alike"], ends["distinct tokens alike"]
    return "asymmetry of common tokens" if common < distinct else "asymmetry of distinct tokens"


def _kinds_of(cause: str) -> tuple[str, ...]:
    return {
        "class asymmetry": ("class", "pair"),
        "asymmetry of common tokens": ("common", "query_code"),
        "asymmetry of distinct tokens": ("distinct", "distinct_label"),
    }[cause]


def _grown(here: xr.Dataset, kind: str, time: float, name: str) -> float:
    line = here[name].sel(type=kind)
    return float((line.sel(time=time) / line.isel(time=0)).median())


def _at(here: xr.Dataset, observable: str, variant: str, time: float) -> float:
    return float(deviation(here, observable).sel(variant=variant, time=time).fillna(0.0).median())


def _end(here: xr.Dataset, observable: str, variant: str) -> float:
    return _at(here, observable, variant, float(here.time.values[-1]))


def _widths(dataset: xr.Dataset) -> Finding:
    """Class asymmetry alone, at the time when it matters most: what a larger width averages out."""
    scale = float(dataset.scale.values[0])
    peaks = []
    for width in dataset.width.values:
        apart = deviation(dataset.sel(width=width, scale=scale), "attention").sel(variant="all tokens alike")
        peaks.append(float(apart.median("seed").max()))
    words = ", ".join(f"{peak:.2%} at width {width}" for peak, width in zip(peaks, dataset.width.values, strict=True))
    return Finding(
        "what class asymmetry alone does at which width",
        "",
        f"Entries of scale {scale:g}, all tokens alike at the start: the median run's attention is off by at most "
        f"{words}.",
        "undecided" if len(peaks) < 2 else "not stated there",
        peaks[-1],
    )
