"""The arrays against what section 4 of the paper says, and what the scan adds to it."""

import numpy as np
import xarray as xr

from flowsim.experiments._experiment import Finding
from flowsim.experiments._seeds import CONFIDENCE, difference

_WHERE = "paper, section 4"
_HIGH = 0.9  # mean probability of the label from which on predictions are confident
_SUBSTANTIAL = 0.1  # share of examples that is substantial
_SUFFERS = 0.01  # loss of accuracy that counts
_WEAK = 0.5  # attention below which it is weak


def findings(dataset: xr.Dataset) -> list[Finding]:
    """One comparison for each statement of the paper, then where in the scan the ordering holds.

    Args:
        dataset: from `fig2`.
    """
    return [
        _confident(dataset),
        _different(dataset),
        *_corner(dataset),
        _top_left(dataset),
        *(_shifted(dataset, regime) for regime in ("faster", "increasing")),
        *(_resembles(dataset, name, regime) for name in ("FAFO", "CACO") for regime in ("faster", "increasing")),
        *(_accurate(dataset, regime) for regime in ("faster", "increasing")),
        *_ordering(dataset),
        _reversal(dataset),
    ]


def _confident(dataset: xr.Dataset) -> Finding:
    means = {name: float(_of(dataset.probability, name).mean()) for name in _names(dataset)}
    lowest = min(means, key=lambda name: means[name])
    return _finding(
        "all four parameterizations predict with high confidence",
        _WHERE,
        f"mean probability of the label {_listed(means)} ({_HIGH:g} is high)",
        "agrees" if means[lowest] >= _HIGH else "differs",
        means[lowest],
    )


def _different(dataset: xr.Dataset) -> Finding:
    seeds = {name: _of(dataset.attention, name).mean("example") for name in _names(dataset)}
    means = {name: float(values.mean()) for name, values in seeds.items()}
    low, high = min(means, key=lambda name: means[name]), max(means, key=lambda name: means[name])
    apart = difference(seeds[high] - seeds[low])
    return _finding(
        "at equal settings their attention differs substantially",
        _WHERE,
        f"mean attention {_listed(means)}; {high} minus {low} is {apart.mean:.2f} ± {apart.error:.2f} "
        f"({_SUBSTANTIAL:g} is substantial)",
        "differs" if apart.mean <= _SUBSTANTIAL else "agrees" if apart.sign > 0 else "undecided",
        apart.mean,
    )


def _corner(dataset: xr.Dataset) -> list[Finding]:
    edge = dataset.attrs["corner"]
    made = []
    for name in ("CACO", "FACO"):
        inside = (_of(dataset.attention, name) >= edge) & (_of(dataset.probability, name) >= edge)
        share = float(inside.where(_of(dataset.attention, name).notnull()).mean())
        made.append(
            _finding(
                f"{name} is near the top right corner",
                _WHERE,
                f"{share:.1%} of the examples have attention and probability of at least {edge:g} (half of them count)",
                "agrees" if share > 0.5 else "differs",
                share,
            )
        )
    return made


def _top_left(dataset: xr.Dataset) -> Finding:
    shares = {}
    for name in _names(dataset):
        a = _of(dataset.attention, name)
        shares[name] = float(((a < _WEAK) & (_of(dataset.correct, name) == 1)).where(a.notnull()).mean())
    others = max(shares["CACO"], shares["FACO"])
    return _finding(
        "FAFO has substantial mass at the top left: right predictions with weak attention",
        _WHERE,
        f"right with attention below {_WEAK:g}: {_listed(shares, '.1%')} (substantial: {_SUBSTANTIAL:.0%}, and twice "
        "that of CACO and FACO)",
        "agrees" if shares["FAFO"] >= max(_SUBSTANTIAL, 2 * others) else "differs",
        shares["FAFO"],
    )


def _shifted(dataset: xr.Dataset, regime: str) -> Finding:
    changes = {}
    for name in _names(dataset):
        before = _of(dataset.attention, name).mean("example")
        after = _of(dataset.attention, name, regime).mean("example")
        changes[name] = difference(after - before)
    signs = [change.sign for change in changes.values()]
    told = ", ".join(f"{name} {change.mean:+.3f} ± {change.error:.3f}" for name, change in changes.items())
    return _finding(
        f"faster query-key learning ({_words(dataset, regime)}) moves attention to distinct tokens in all four",
        _WHERE,
        f"change of the mean attention: {told} (it counts beyond {CONFIDENCE:.0%} of Student's t)",
        "differs" if min(signs) < 0 else "agrees" if min(signs) > 0 else "undecided",
        min(change.mean for change in changes.values()),
    )


def _resembles(dataset: xr.Dataset, name: str, regime: str) -> Finding:
    target = _flat(_of(dataset.attention, "FACO"))
    before = _distance(_flat(_of(dataset.attention, name)), target)
    after = _distance(_flat(_of(dataset.attention, name, regime)), target)
    return _finding(
        f"with it ({_words(dataset, regime)}) the attention of {name} resembles that of FACO",
        _WHERE,
        f"the distance (Wasserstein) between the distributions of attention goes from {before:.3f} to {after:.3f} "
        "(half counts)",
        "agrees" if after <= before / 2 else "differs" if after >= before else "undecided",
        after,
    )


def _accurate(dataset: xr.Dataset, regime: str) -> Finding:
    changes, kept, lost = {}, True, False
    for name in _names(dataset):
        before, after = (_of(dataset.correct, name, which).mean("example") for which in ("equal", regime))
        change = difference(after - before)
        changes[name] = change.mean
        kept &= change.mean >= -_SUFFERS
        lost |= change.mean < -_SUFFERS - change.margin
    worst = min(changes, key=lambda name: changes[name])
    return _finding(
        f"predictions do not suffer from it ({_words(dataset, regime)})",
        _WHERE,
        f"change of the accuracy: {_listed(changes, '+.2%')} (a loss of more than {_SUFFERS:.0%} counts)",
        "agrees" if kept else "differs" if lost else "undecided",
        changes[worst],
    )


def _ordering(dataset: xr.Dataset) -> list[Finding]:
    made = []
    for above in dataset.above.values.tolist():
        difference = dataset.scan_difference.sel(above=above)
        learnt = dataset.scan_learnt.sel(above=above) == 1
        n, holds = int(learnt.sum()), int(((difference > 0) & learnt).sum())
        told = "nowhere in the scan have both learnt the task"
        if n:
            told = (
                f"at {holds} of {n} points of the scan (rate, start, mixture) where both have learnt; "
                f"{_by_mixture(difference, learnt)}{_most_reversed(difference.where(learnt))}"
            )
        made.append(
            _finding(
                f"where {above} attends more than FAFO",
                "",
                told,
                "not stated there",
                holds / n if n else None,
            )
        )
    return made


def _by_mixture(difference: xr.DataArray, learnt: xr.DataArray) -> str:
    """At how many of the points of each mixture weight the difference is positive."""
    parts = []
    for gamma in difference.gamma.values:
        here = learnt.sel(gamma=gamma)
        parts.append(f"{int(((difference.sel(gamma=gamma) > 0) & here).sum())} of {int(here.sum())} at gamma {gamma:g}")
    return ", ".join(parts)


def _most_reversed(difference: xr.DataArray) -> str:
    """Where the difference is most negative; empty if it is nowhere negative."""
    lowest = float(difference.min())
    if not lowest < 0:
        return ""
    at = np.unravel_index(int(np.nanargmin(difference.values)), difference.shape)
    place = {str(dim): float(difference[dim][k]) for dim, k in zip(difference.dims, at, strict=True)}
    return f"; {lowest:.2f} at gamma {place['gamma']:g}, start {place['init']:g}, rate {place['lr']:g}"


def _reversal(dataset: xr.Dataset) -> Finding:
    """The smallest scanned ratio above the standard one from which on attention is lower than at the standard one."""
    attention = dataset.dial_attention.mean("scan_seed")
    peaks, falls = [], []
    for name in _names(dataset):
        curve = attention.sel(parameterization=name)
        best = float(curve.ratio[int(np.nanargmax(curve.values))]) if curve.notnull().any() else np.nan
        peaks.append(f"{name} {best:g}")
        start = curve.sel(ratio=dataset.attrs["ratio"], method="nearest")
        beyond = curve.where((curve.ratio > start.ratio) & (curve < start), drop=True)
        if beyond.size:
            falls.append(f"{name} falls below its value at {float(start.ratio):g} from {float(beyond.ratio[0]):g} on")
    return _finding(
        "the ratio beyond which faster query-key learning gives less attention",
        "",
        f"largest mean attention at ratio {', '.join(peaks)}" + (f"; {'; '.join(falls)}" if falls else ""),
        "not stated there",
    )


def _finding(claim: str, where: str, found: str, verdict: str, value: float | None = None) -> Finding:
    """A finding; where runs diverged there may be no number, and then nothing is decided."""
    known = value is not None and bool(np.isfinite(value))
    return Finding(claim, where, found, verdict if known or not where else "undecided", value if known else None)


def _names(dataset: xr.Dataset) -> list[str]:
    return [str(name) for name in dataset.parameterization.values]


def _of(array: xr.DataArray, name: str, regime: str = "equal") -> xr.DataArray:
    return array.sel(parameterization=name, regime=regime, drop=True)


def _flat(array: xr.DataArray) -> np.ndarray:
    values = array.values.ravel()
    return values[np.isfinite(values)]


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    """The Wasserstein distance of two samples: the mean difference of their quantiles; NaN if one is empty."""
    if not one.size or not other.size:
        return float("nan")
    levels = (np.arange(1000) + 0.5) / 1000
    return float(np.mean(np.abs(np.quantile(one, levels) - np.quantile(other, levels))))


def _words(dataset: xr.Dataset, regime: str) -> str:
    if regime == "faster":
        return f"ratio {dataset.attrs['faster']:g}"
    return f"ratio increasing from {dataset.attrs['ratio']:g} to {dataset.attrs['increasing']:g}"


def _listed(values: dict[str, float], form: str = ".3f") -> str:
    return ", ".join(f"{name} {value:{form}}" for name, value in values.items())
