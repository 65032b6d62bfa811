"""The arrays of `ratio-dial`: whether the multiplier turns attention up, at what price, and as theory has it or not."""

import numpy as np
import xarray as xr
from scipy import stats

from flowsim.experiments._experiment import Finding
from flowsim.experiments._seeds import CONFIDENCE, Difference, difference
from flowsim.experiments._table1 import reading
from flowsim.experiments._table1.findings import apart, beyond_uniform, learnt, not_learnt, shown

_WHERE = "paper, section 7"
_TREND = {1: "rises", -1: "falls", 0: "neither clearly rises nor falls"}


def dial_findings(dataset: xr.Dataset) -> list[Finding]:
    """For each data set: what was learnt, the trend of attention, accuracy, and the theory's trend beside it.

    Args:
        dataset: from `ratio-dial`.
    """
    choices = reading.choices_of(dataset)
    values, uniform = reading.measured(dataset, choices), reading.uniform(dataset, choices)
    made = []
    for name in dataset.dataset.values.tolist():
        here, majority = values.sel(dataset=name), float(dataset.majority.sel(dataset=name))
        made += [
            learnt(here, name, majority),
            beyond_uniform(here, name, float(uniform.mrta.sel(dataset=name))),
            _monotone(here, name, majority),
            _holds(here, name, majority),
            *_beside_theory(dataset.sel(dataset=name), here, name, majority),
        ]
    return made


def slopes(attention: xr.DataArray) -> np.ndarray:
    """Change of attention per decade of the multiplier, the least-squares line of each seed; NaN where a run is.

    Args:
        attention: dimensions (multiplier, seed).
    """
    decades = np.log10(attention.multiplier.values)
    centred = decades - decades.mean()
    return centred @ attention.transpose("multiplier", "seed").values / (centred @ centred)


def reference(multipliers: np.ndarray) -> int:
    """Position of the multiplier that stands for the baseline: 1, or the smallest one where that is missing."""
    same = np.flatnonzero(np.isclose(multipliers, 1.0))
    return int(same[0]) if same.size else 0


def _trend(values: xr.DataArray) -> tuple[Difference, str]:
    """The slope over seeds, and why nothing can be told from it (empty if something can)."""
    found = difference(slopes(values)) if values.multiplier.size > 1 else difference([])
    lost = int(values.isnull().any("multiplier").sum())
    if values.multiplier.size < 2:
        return found, "one multiplier has no trend"
    if lost:
        return found, f"{lost} of {values.seed.size} seeds diverged at a multiplier or have no such examples"
    if not np.isfinite(found.mean):
        return found, "one seed tells nothing about the next"
    return found, ""


def _monotone(here: xr.Dataset, name: str, majority: float) -> Finding:
    values = here.mrta
    trend, why = _trend(values)
    multipliers = values.multiplier.values
    count = len(multipliers) - 1
    steps = [difference(values.isel(multiplier=i + 1) - values.isel(multiplier=i), among=count) for i in range(count)]
    falls = [f"from x{multipliers[i]:g} to x{multipliers[i + 1]:g}" for i, step in enumerate(steps) if step.sign < 0]
    ends = ", ".join(f"x{m:g} {shown(reading.interval(values.sel(multiplier=m)))}" for m in multipliers)
    told = f"MRTA {ends}; {_per_decade(trend)}{_ranks(values)}"
    if why:
        verdict = "undecided"
        told += f"; {why}"
    else:
        verdict = "agrees" if trend.sign > 0 else "differs" if trend.sign < 0 else "undecided"
        if falls:
            verdict = "differs"
            told += f"; it falls {' and '.join(falls)}"
        else:
            told += "; no step clearly falls" if trend.sign else "; the interval includes 0"
    return Finding(
        f"{name}: attention on relevant tokens increases with the query-key multiplier",
        _WHERE,
        told + not_learnt(here, majority, multipliers.tolist()),
        verdict,
        trend.mean,
    )


def _per_decade(trend: Difference) -> str:
    if not np.isfinite(trend.mean):
        return "no trend known"
    return f"{trend.mean:+.4f} ± {trend.margin:.4f} per decade ({CONFIDENCE:.0%})"


def _ranks(values: xr.DataArray) -> str:
    """Spearman's rank correlation of attention and multiplier, the mean over the seeds that have all and vary."""
    lines = values.transpose("seed", "multiplier").values
    whole = [line for line in lines if np.isfinite(line).all() and np.ptp(line) > 0]
    if not whole:
        return ""
    orders = np.array([stats.rankdata(line) for line in (values.multiplier.values, *whole)])
    return f", rank correlation {np.corrcoef(orders)[0, 1:].mean():+.2f}"


def _holds(here: xr.Dataset, name: str, majority: float) -> Finding:
    """Accuracy at each higher multiplier against that of the baseline, which must have learnt to have some to lose."""
    values = here.accuracy
    multipliers = values.multiplier.values
    base = reference(multipliers)
    found = [
        (m, reading.compared(values.isel(multiplier=base), values.sel(multiplier=m), 0, majority))
        for m in multipliers[base + 1 :]
    ]
    claim = f"{name}: accuracy does not degrade as the query-key multiplier increases"
    if not found:
        return Finding(claim, _WHERE, "there is no multiplier above the baseline's", "undecided")
    told = ", ".join(f"x{m:g} {apart(each)}{f' ({each.why})' if each.why else ''}" for m, each in found)
    verdicts = {each.verdict for _, each in found}
    return Finding(
        claim,
        _WHERE,
        f"accuracy {shown(reading.interval(values.isel(multiplier=base)))} at x{multipliers[base]:g}, and beside it "
        f"{told}; a loss of {reading.NOT_WORSE:g} counts{not_learnt(here, majority, multipliers.tolist())}",
        "differs" if "differs" in verdicts else "undecided" if "undecided" in verdicts else "agrees",
        min(each.difference.mean for _, each in found),
    )


def _beside_theory(dataset: xr.Dataset, here: xr.Dataset, name: str, majority: float) -> list[Finding]:
    trend, why = _trend(here.mrta)
    first, last = float(here.multiplier.min()), float(here.multiplier.max())
    made = []
    for variable, words in (
        ("theory_attention", "at equal training loss"),
        ("theory_attention_equal_time", "at equal time"),
    ):
        curve = dataset[variable].sortby("theory_multiplier")
        inside = curve.sel(theory_multiplier=slice(first * (1 - 1e-9), last * (1 + 1e-9))).dropna("theory_multiplier")
        change = float(inside[-1] - inside[0]) if inside.size > 1 else float("nan")
        told = f"theory: from {float(inside[0]):.3f} to {float(inside[-1]):.3f}" if inside.size else "theory: not known"
        told += f" ({words}); measured: {_per_decade(trend)}"
        told += f"; {why}" if why else f", it {_TREND[trend.sign]}"
        known = not why and trend.sign != 0 and np.isfinite(change) and change != 0
        same = np.sign(change) == trend.sign
        made.append(
            Finding(
                f"{name}: attention moves with the multiplier as in the flow of a one-layer model, {words}",
                "",
                told + not_learnt(here, majority, here.multiplier.values.tolist()),
                "undecided" if not known else "agrees" if same else "differs",
                change,
            )
        )
    return made
