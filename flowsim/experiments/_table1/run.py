"""From settings to the arrays of `table1` and `ratio-dial`."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from flowsim.experiments._experiment import Report
from flowsim.experiments._table1.data import Prepared, prepared, relevant_tokens
from flowsim.experiments._table1.runs import Chosen, Trainer, majority, origin, outcome, shares_of
from flowsim.experiments._table1.settings import DialSettings, Table1Settings, TextSettings
from flowsim.experiments._table1.theory import trend
from flowsim.status import Status
from flowsim.text_training import Fitted, Run

ARMS = ("baseline", "raised", "raised, decay independent")
"""One rate for everything; a higher one of the query-key circuits, with decay coupled to it or independent of it."""
_LONG_NAMES = {
    "probability": "probability of the label",
    "correct": "whether the label is the most probable class",
    "attention": "attention of the last position on relevant tokens",
    "largest": "largest attention of the last position on a token",
    "high_by_chance": "share of the shifts of the relevant tokens at which attention on them is high",
    "uniform": "uniform attention on relevant tokens",
    "comprehensiveness": "comprehensiveness",
    "sufficiency": "sufficiency",
    "training_loss": "training loss",
    "validation_loss": "validation loss",
    "validation_accuracy": "validation accuracy",
    "best_epoch": "epoch of the least validation loss",
    "base_rate": "learning rate of everything but the query-key circuits",
    "multiplier": "multiplier of the query-key learning rate",
    "theory_multiplier": "ratio of the learning rates",
    "theory_attention": "attention on relevant tokens in the gradient flow, at equal training loss",
    "theory_attention_equal_time": "attention on relevant tokens in the gradient flow, at equal time",
}


def table1(
    settings: Table1Settings, report: Report | None = None, *, workspace: pathlib.Path | None = None
) -> xr.Dataset:
    """Trains a baseline and higher query-key learning rates on real texts, and reads the test texts with them.

    Args:
        settings: what to train; `data` names the folder of the texts.
        report: is told about the progress.
        workspace: an existing folder for what an interrupted run has done; the same call goes on from it.

    Returns:
        The arrays, one entry for each data set, kind of run, seed and test text.

    Raises:
        InvalidInput: if a setting cannot be used.
        FileProblem: if a file is missing or malformed, or the folder holds another run.
    """
    parts = []
    for data in prepared(settings):
        trainer = Trainer(data, settings, workspace, report)
        chosen = trainer.choose(settings.multipliers)
        arms = [
            ("baseline", chosen.base_rate, 1.0, "coupled"),
            ("raised", chosen.base_rate, chosen.multiplier, "coupled"),
            ("raised, decay independent", chosen.base_rate, chosen.multiplier, "independent"),
        ]
        runs = [Run(lr, ratio, seed, decay) for _, lr, ratio, decay in arms for seed in range(settings.seeds)]
        fitted = trainer.train("training", runs)
        part = _arrays(data, fitted, settings, {"arm": [arm[0] for arm in arms]}, report)
        tuning = _tuning(chosen, settings.base_rates, settings.multipliers)
        parts.append(part.assign(tuning).assign(multiplier=chosen.multiplier))
    return _joined(parts, settings)


def ratio_dial(
    settings: DialSettings, report: Report | None = None, *, workspace: pathlib.Path | None = None
) -> xr.Dataset:
    """Attention and performance on real texts against the multiplier of the query-key learning rate.

    Beside them stands what the gradient flow of a one-layer model does with the same ratios, see `trend`.

    Args:
        settings: what to train; `data` names the folder of the texts.
        report: is told about the progress.
        workspace: an existing folder for what an interrupted run has done; the same call goes on from it.

    Returns:
        The arrays, one entry for each data set, multiplier, seed and test text, and the theory's curves.

    Raises:
        InvalidInput: if a setting cannot be used.
        FileProblem: if a file is missing or malformed, or the folder holds another run.
    """
    parts = []
    for data in prepared(settings):
        trainer = Trainer(data, settings, workspace, report)
        chosen = trainer.choose(())
        seeds = range(settings.seeds)
        runs = [Run(chosen.base_rate, ratio, seed, settings.decay) for ratio in settings.multipliers for seed in seeds]
        fitted = trainer.train("training", runs)
        part = _arrays(data, fitted, settings, {"multiplier": list(settings.multipliers)}, report)
        part = part.assign(_tuning(chosen, settings.base_rates, ()))
        parts.append(part.merge(trend(data, settings.multipliers, reached_loss(part.sel(multiplier=1.0)))))
    return _joined(parts, settings)


def reached_loss(baseline: xr.Dataset) -> float:
    """Training loss at the best epoch, the mean over the runs that did not diverge; NaN if all did.

    Args:
        baseline: `training_loss`, `best_epoch` and `status` over the seeds.
    """
    usable = np.flatnonzero(baseline["status"].values == int(Status.OK))
    best = baseline["best_epoch"].values[usable].astype(int) - 1
    return float(baseline["training_loss"].values[usable, best].mean()) if usable.size else float("nan")


def _arrays(
    data: Prepared, fitted: Fitted, settings: TextSettings, kinds: Mapping[str, Sequence[Any]], report: Report | None
) -> xr.Dataset:
    """What some runs, kind by kind and seed by seed, have learnt and make of the test texts."""
    ((axis, values),) = kinds.items()

    def tell(done: int) -> None:
        if report is not None:
            report(f"{data.name}, reading the test texts", done, len(fitted.status))

    found = outcome(data, fitted, settings, tell)
    shape = (len(values), settings.seeds)
    lanes, text = (axis, "seed"), (axis, "seed", "example")

    def grid(array: Any) -> np.ndarray:
        return np.reshape(array, (*shape, *np.shape(array)[1:]))

    masks = [relevant_tokens(example) for example in data.examples[2]]
    variables: dict[str, Any] = {
        "probability": (text, grid(found.probability)),
        "correct": (text, grid(found.correct)),
        "attention": (text, grid(found.attention)),
        "largest": (text, grid(found.largest)),
        "high_by_chance": (text, grid(found.high_by_chance)),
        "uniform": ("example", np.array([np.nan if mask is None else mask.mean() for mask in masks])),
        "comprehensiveness": ((*text, "share"), grid(found.comprehensiveness)),
        "sufficiency": ((*text, "share"), grid(found.sufficiency)),
        "best_epoch": (lanes, grid(fitted.best_epoch)),
        "status": (lanes, grid(fitted.status)),
        "majority": majority(data),
    }
    for name in ("training_loss", "validation_loss", "validation_accuracy"):
        variables[name] = ((*lanes, "epoch"), grid(getattr(fitted, name)))
    coords = {
        axis: list(values),
        "seed": np.arange(settings.seeds),
        "example": np.arange(len(masks)),
        "share": list(shares_of(settings)),
        "epoch": 1 + np.arange(fitted.training_loss.shape[1]),
    }
    attrs = {"origin": json.dumps(origin(data, settings)), "dataset": data.name}
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def _tuning(chosen: Chosen, rates: Sequence[float], multipliers: Sequence[float]) -> dict[str, Any]:
    """The rates, and what they were chosen from."""
    found: dict[str, Any] = {"base_rate": chosen.base_rate}
    if chosen.base_losses.size:
        found["tuning_base_rate"] = ("candidate", list(rates))
        found["tuning_base_loss"] = ("candidate", chosen.base_losses)
    if chosen.multiplier_losses.size:
        found["tuning_multiplier"] = ("factor", list(multipliers))
        found["tuning_multiplier_loss"] = ("factor", chosen.multiplier_losses)
    return found


def _joined(parts: Sequence[xr.Dataset], settings: TextSettings) -> xr.Dataset:
    """All data sets along one axis; the shorter ones are filled up with NaN."""
    names = [part.attrs["dataset"] for part in parts]
    sources = {name: json.loads(part.attrs["origin"]) for name, part in zip(names, parts, strict=True)}
    axis = xr.DataArray(names, dims="dataset", name="dataset")
    whole = xr.concat([part.drop_attrs() for part in parts], dim=axis, join="outer", fill_value=np.nan)
    for name, text in _LONG_NAMES.items():
        if name in whole.variables:
            whole[name].attrs["long_name"] = text
    return whole.assign_attrs(sources=json.dumps(sources), weight_decay=settings.weight_decay)
