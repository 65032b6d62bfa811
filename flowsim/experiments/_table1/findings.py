"""The arrays of `table1` against the paper's table 1."""

from collections.abc import Callable

import numpy as np
import xarray as xr

from flowsim.experiments._experiment import Finding
from flowsim.experiments._seeds import CONFIDENCE, Difference, difference
from flowsim.experiments._table1 import reading
from flowsim.experiments._table1.reading import METRICS, Interval, Metric, Paired

WHERE = "paper, section 7, table 1"
BASELINE = "baseline"
ARMS = {
    BASELINE: "baseline",
    "raised": "higher ratio",
    "raised, decay independent": "higher ratio, decay independent",
}
"""The models of the table as they are printed."""


def findings(dataset: xr.Dataset) -> list[Finding]:
    """For each data set: what was learnt, attention beside uniform attention's, and every metric of the paper's table.

    Args:
        dataset: from `table1`.
    """
    choices = reading.choices_of(dataset)
    values, uniform = reading.measured(dataset, choices), reading.uniform(dataset, choices)
    made = []
    for name in dataset.dataset.values.tolist():
        here, even = values.sel(dataset=name), float(uniform.mrta.sel(dataset=name))
        majority = float(dataset.majority.sel(dataset=name))
        made += [learnt(here, name, majority), beyond_uniform(here, name, even)]
        for arm in dataset.arm.values.tolist():
            if arm != BASELINE:
                factor = float(dataset.multiplier.sel(dataset=name))
                made += [_moved(here, metric, name, arm, factor, majority) for metric in METRICS]
    return made


def learnt(here: xr.Dataset, name: str, majority: float) -> Finding:
    """Whether the models of one data set do better than answering the most frequent label.

    Args:
        here: the metrics of one data set.
        name: of the data set.
        majority: accuracy of always answering the most frequent test label.
    """
    return _above(
        here.accuracy,
        majority,
        f"{name}: the models learn, their accuracy exceeds that of always answering the most frequent label",
        f"the most frequent label is right in {majority:.3f}; accuracy of",
        lambda over: "has learnt" if over.sign > 0 else "has not learnt" if over.mean <= 0 else "",
    )


def beyond_uniform(here: xr.Dataset, name: str, even: float) -> Finding:
    """Whether attention on relevant tokens exceeds what uniform attention has there.

    Args:
        here: the metrics of one data set.
        name: of the data set.
        even: MRTA of uniform attention.
    """
    return _above(
        here.mrta,
        even,
        f"{name}: attention on relevant tokens exceeds that of uniform attention",
        f"uniform attention has MRTA {even:.3f};",
        lambda over: {1: "above it", -1: "below it", 0: ""}[over.sign],
    )


def not_learnt(here: xr.Dataset, majority: float, models: list) -> str:
    """Clauses naming those models that do not clearly beat the most frequent label; empty if all do, or it is unknown.

    Args:
        here: the metrics of one data set.
        majority: accuracy of always answering the most frequent test label.
        models: which models are asked about.
    """
    axis = reading.model_axis(here)
    over = {model: difference(here.accuracy.sel({axis: model}) - majority, counted=True) for model in models}
    lazy = [model for model in models if over[model].mean <= 0]
    unclear = [model for model in models if over[model].mean > 0 and over[model].sign == 0]
    told = ""
    if lazy:
        told += f"; the model has not learnt ({_listed(lazy, axis)}: accuracy not above the most frequent label's)"
    if unclear:
        told += f"; not clear whether the model has learnt ({_listed(unclear, axis)}: accuracy not clearly above it)"
    return told


def shown(found: Interval, digits: int = 3) -> str:
    """A mean with its interval as text; the number of seeds where some are missing."""
    if not found.usable:
        return "-"
    half = "" if found.usable < 2 else f" ± {found.half:.{digits}f}"
    part = "" if found.usable == found.seeds else f" ({found.usable} of {found.seeds} seeds)"
    return f"{found.mean:.{digits}f}{half}{part}"


def apart(found: Paired, digits: int = 3) -> str:
    """A paired difference with what it has to exceed, as text."""
    mean, _, margin = found.difference
    return f"{mean:+.{digits}f} ± {margin:.{digits}f}" if np.isfinite(mean) else "-"


def _moved(here: xr.Dataset, metric: Metric, name: str, arm: str, factor: float, majority: float) -> Finding:
    values = here[metric.name]
    before, after = values.sel(arm=BASELINE), values.sel(arm=arm)
    found = reading.judged(here, metric, BASELINE, arm, majority)
    verb = {1: "raises", -1: "lowers", 0: "does not degrade"}[metric.sign]
    decay = " (weight decay independent of that rate)" if arm != "raised" else ""
    told = f"from {shown(reading.interval(before))} to {shown(reading.interval(after))}, paired {apart(found)}"
    told += f" ({CONFIDENCE:.0%})"
    if metric.sign == 0:
        told += f", where a loss of {reading.NOT_WORSE:g} counts"
    if found.why:
        told += f"; {found.why}"
    return Finding(
        f"{name}: {factor:g} times the query-key rate {verb} {metric.title}{decay}",
        WHERE if metric.stated else "",
        told + not_learnt(here, majority, [BASELINE, arm]),
        found.verdict,
        found.difference.mean,
    )


def _above(values: xr.DataArray, level: float, claim: str, told: str, word: Callable[[Difference], str]) -> Finding:
    """How the models of one data set stand to a level that needs no model."""
    axis = reading.model_axis(values)
    parts, excess, known = [], [], True
    for model in values[axis].values.tolist():
        of_model = values.sel({axis: model})
        over = difference(of_model - level, counted=True)
        excess.append(over.mean)
        said = word(over) if np.isfinite(over.mean) else ""
        known &= bool(of_model.notnull().all()) and bool(said)
        parts.append(f"{_listed([model], axis)} {shown(reading.interval(of_model))} ({said or 'not clear'})")
    return Finding(claim, "", f"{told} {', '.join(parts)}", "not stated there" if known else "undecided", min(excess))


def _listed(models: list, axis: str) -> str:
    return "; ".join(ARMS[model] for model in models) if axis == "arm" else ", ".join(f"x{model:g}" for model in models)
