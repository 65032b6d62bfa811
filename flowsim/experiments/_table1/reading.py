"""What the arrays of `table1` and `ratio-dial` say: one number for each metric, data set, model and seed."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from scipy import stats

from flowsim import metrics
from flowsim.erasure import SHARES
from flowsim.errors import InvalidInput
from flowsim.experiments._seeds import Difference, difference
from flowsim.status import Status

CONFIDENCE = 0.95
"""Of the two-sided interval of Student's t around a mean over seeds."""
NOT_WORSE = 0.02
"""A loss of accuracy below this counts as comparable."""


class Metric(NamedTuple):
    """A row of the table.

    Attributes:
        name: of the array.
        title: as printed.
        sign: which way a higher query-key learning rate moves it according to the paper; 0: it does not degrade.
        beyond: the part of it that sharpness alone does not give, which must move too; empty where there is none.
        stated: whether the paper's table has it; the others tell what its numbers owe to sharpness.
        of_right_answers: whether it counts right answers, which a model that has not learnt gives by luck.
    """

    name: str
    title: str
    sign: int
    beyond: str = ""
    stated: bool = True
    of_right_answers: bool = False


METRICS = (
    Metric("accuracy", "accuracy", 0),
    Metric("mrta", "MRTA", 1),
    Metric("largest", "largest attention", 1, stated=False),
    Metric("ac", "AC", 1, "ac_beyond"),
    Metric("ac_beyond", "AC beyond chance", 1, stated=False),
    Metric("acmc_confident", "ACMC of confident", 1, "acmc_confident_beyond", of_right_answers=True),
    Metric("acmc_all", "ACMC of all", 1, "acmc_all_beyond", of_right_answers=True),
    Metric("comprehensiveness", "comprehensiveness", 1),
    Metric("sufficiency", "sufficiency", -1),
    Metric("aopc_comprehensiveness", "comprehensiveness, AOPC", 1),
    Metric("aopc_sufficiency", "sufficiency, AOPC", -1),
)


class Choices(NamedTuple):
    """What the metrics depend on.

    Attributes:
        threshold: attention on relevant tokens from which on it is high.
        confidence: probability of the right label from which on a prediction is confident.
        share: of the tokens that make the explanation, where there is a single one.
    """

    threshold: float
    confidence: float
    share: float


class Interval(NamedTuple):
    """A mean over seeds.

    Attributes:
        mean: NaN without any usable seed.
        half: half the width of its interval; NaN with fewer than two.
        usable: the number of seeds that it is of.
        seeds: the number of seeds.
    """

    mean: float
    half: float
    usable: int
    seeds: int


class Paired(NamedTuple):
    """Two models compared seed by seed.

    Attributes:
        difference: of the seeds that are usable in both.
        verdict: "agrees", "differs" or "undecided".
        why: why it is undecided; empty if it is not.
    """

    difference: Difference
    verdict: str
    why: str


def settings_in(dataset: xr.Dataset) -> dict[str, Any]:
    """The settings that the arrays were made with, as plain values."""
    return json.loads(dataset.attrs["settings"])


def choices_of(dataset: xr.Dataset) -> Choices:
    """What the metrics depend on, from the settings that the arrays carry."""
    settings = settings_in(dataset)
    return Choices(settings["threshold"], settings["confidence"], settings["share"])


def model_axis(dataset: xr.Dataset | xr.DataArray) -> str:
    """The dimension that tells the models of a data set apart: `arm` of the table, `multiplier` of the dial."""
    return "arm" if "arm" in dataset.dims else "multiplier"


def usable(dataset: xr.Dataset) -> xr.DataArray:
    """Which runs did not diverge; dimensions (dataset, model, seed)."""
    return dataset.status == int(Status.OK)


def measured(dataset: xr.Dataset, choices: Choices) -> xr.Dataset:
    """Every metric of every run; NaN for runs that diverged, and where a metric is of no example.

    Accuracy, the largest attention on a token, which tells how sharp it is whether it is right or not,
    comprehensiveness and sufficiency are means over the test examples, the others over those of them in which
    somebody marked relevant tokens. AOPC is over ERASER's shares; a single share that is another is no part of it.
    Sharp attention is high on relevant tokens in some texts wherever it falls, so that AC and ACMC grow with sharpness
    alone: what is `beyond` leaves off what the same attention has on tokens that are shifted through the text.

    Args:
        dataset: arrays of `table1` or of `ratio-dial`.
        choices: thresholds and the single share.

    Returns:
        The metrics by the names in `METRICS` and in their `beyond`, each with dimensions (dataset, model, seed).

    Raises:
        InvalidInput: if the share is not among those that were tried.
    """
    shares = dataset.share.values
    near = int(np.argmin(np.abs(shares - choices.share)))
    if not np.isclose(shares[near], choices.share):
        raise InvalidInput(f"share={choices.share:g} was not tried; give one of {', '.join(f'{s:g}' for s in shares)}.")
    marked = dataset.uniform.notnull()
    present = dataset.correct.notnull().any([model_axis(dataset), "seed"])
    a, p, tau = dataset.attention, dataset.probability, choices.threshold

    def confident(denominator: str) -> Callable[..., Any]:
        def one(attention: np.ndarray, probability: np.ndarray) -> Any:
            return metrics.attention_model_confidence(
                attention, probability, tau, confidence=choices.confidence, denominator=denominator
            )

        return one

    def excess(attention: np.ndarray, chance: np.ndarray) -> float:
        return float(np.mean((attention >= tau) - chance))

    def sure_excess(attention: np.ndarray, chance: np.ndarray, probability: np.ndarray) -> float:
        sure = probability >= choices.confidence
        return excess(attention[sure], chance[sure]) if sure.any() else float("nan")

    def whole_excess(attention: np.ndarray, chance: np.ndarray, probability: np.ndarray) -> float:
        return float(np.mean(((attention >= tau) - chance) * (probability >= choices.confidence)))

    chance = dataset.high_by_chance
    found = {
        "accuracy": _each(np.mean, present, dataset.correct),
        "mrta": _each(np.mean, marked, a),
        "largest": _each(np.mean, present, dataset.largest),
        "ac": _each(lambda attention: metrics.attention_confidence(attention, tau), marked, a),
        "acmc_confident": _each(confident("confident"), marked, a, p),
        "acmc_all": _each(confident("all"), marked, a, p),
        "ac_beyond": _each(excess, marked, a, chance),
        "acmc_confident_beyond": _each(sure_excess, marked, a, chance, p),
        "acmc_all_beyond": _each(whole_excess, marked, a, chance, p),
    }
    for name in ("comprehensiveness", "sufficiency"):
        found[name] = _each(np.mean, present, dataset[name].isel(share=near, drop=True))
        curve = dataset[name].isel(share=np.isin(shares, SHARES))
        found[f"aopc_{name}"] = _each(np.mean, present, curve.mean("share", skipna=False))
    return xr.Dataset({name: values.where(usable(dataset)) for name, values in found.items()})


def uniform(dataset: xr.Dataset, choices: Choices) -> xr.Dataset:
    """MRTA and AC of uniform attention, and the number of examples that they are of; dimension `dataset`."""
    marked = dataset.uniform.notnull()
    return xr.Dataset(
        {
            "mrta": _each(np.mean, marked, dataset.uniform),
            "ac": _each(lambda a: metrics.attention_confidence(a, choices.threshold), marked, dataset.uniform),
            "examples": marked.sum("example"),
        }
    )


def interval(values: Any) -> Interval:
    """The mean over seeds with its interval of Student's t; runs that are NaN are left out.

    Args:
        values: one for each seed.
    """
    given = np.asarray(values, dtype=float).ravel()
    finite = given[np.isfinite(given)]
    if not finite.size:
        return Interval(float("nan"), float("nan"), 0, given.size)
    half = float("nan")
    if finite.size > 1:
        error = finite.std(ddof=1) / np.sqrt(finite.size)
        half = float(error * stats.t.ppf((1 + CONFIDENCE) / 2, finite.size - 1))
    return Interval(float(finite.mean()), half, finite.size, given.size)


def compared(before: xr.DataArray, after: xr.DataArray, sign: int, lowest: float | None = None) -> Paired:
    """Whether a metric moved as the paper says, seed by seed.

    Args:
        before: the metric of the baseline, one value for each seed, NaN for runs that diverged.
        after: that of the same seeds with a higher query-key learning rate.
        sign: 1 if it should increase, -1 if it should decrease, 0 if it should not decrease by `NOT_WORSE`.
        lowest: with `sign=0`: what needs no model; where the baseline does not clearly exceed it nothing can be lost.
    """
    both = np.stack([np.asarray(before, dtype=float), np.asarray(after, dtype=float)])
    apart = difference(both[1] - both[0], counted=True)
    missing = int(np.count_nonzero(~np.isfinite(both).all(axis=0)))
    if missing:
        return Paired(apart, "undecided", f"{missing} of {both.shape[1]} seeds diverged or have no such examples")
    if not np.isfinite(apart.mean):
        return Paired(apart, "undecided", "one seed tells nothing about the next")
    if np.isinf(apart.margin):
        return Paired(apart, "undecided", "the few seeds change by the same, so that their spread tells nothing")
    if sign == 0:
        kept, lost = apart.mean - apart.margin > -NOT_WORSE, apart.mean + apart.margin < -NOT_WORSE
        if kept and lowest is not None and difference(both[0] - lowest, counted=True).sign <= 0:
            return Paired(apart, "undecided", "the baseline has nothing to lose: it has not clearly learnt")
        if not kept and not lost:
            return Paired(apart, "undecided", f"the interval includes a loss of {NOT_WORSE:g}")
        return Paired(apart, "agrees" if kept else "differs", "")
    if apart.sign == 0:
        return Paired(apart, "undecided", "the interval includes 0")
    return Paired(apart, "agrees" if apart.sign == sign else "differs", "")


def judged(here: xr.Dataset, metric: Metric, before: Any, after: Any, majority: float) -> Paired:
    """Whether a metric moved as the paper says, for a reason that the paper gives.

    Args:
        here: the metrics of one data set.
        metric: which of them.
        before: the model of the baseline: an arm or a multiplier.
        after: the one with a higher query-key learning rate.
        majority: accuracy of always answering the most frequent test label.
    """
    axis = model_axis(here)

    def apart(name: str, sign: int, lowest: float | None = None) -> Paired:
        return compared(here[name].sel({axis: before}), here[name].sel({axis: after}), sign, lowest)

    found = apart(metric.name, metric.sign, majority)
    if found.verdict == "undecided":
        return found
    if metric.of_right_answers and difference(here.accuracy.sel({axis: after}) - majority, counted=True).sign <= 0:
        return found._replace(verdict="undecided", why="right answers may be luck: the model has not clearly learnt")
    if metric.beyond and (rest := apart(metric.beyond, metric.sign)).verdict != found.verdict:
        return found._replace(
            verdict="undecided",
            why=f"sharpness alone may do that: what is beyond chance changes by {rest.difference.mean:+.3f} ± "
            f"{rest.difference.margin:.3f}",
        )
    return found


def _each(function: Callable[..., Any], chosen: xr.DataArray, *arrays: xr.DataArray) -> xr.DataArray:
    """A function of the chosen examples of each run; NaN where there is none, or a number is missing.

    Args:
        function: from arrays with one entry for each example to a number.
        chosen: which examples, dimensions (dataset, example).
        arrays: of examples, with any further dimensions.
    """

    def one(here: np.ndarray, *values: np.ndarray) -> float:
        picked = [value[here] for value in values]
        if not here.any() or any(np.isnan(value).any() for value in picked):
            return float("nan")
        return float(function(*picked))

    dims = [["example"]] * (1 + len(arrays))
    return xr.apply_ufunc(one, chosen, *arrays, input_core_dims=dims, vectorize=True, output_dtypes=[float])
