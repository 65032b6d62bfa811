"""The tables of `table1` and `ratio-dial`, as printed: what was used, the numbers, and how to read them."""

import json
from typing import Any

import numpy as np
import xarray as xr

from flowsim.experiments._experiment import PrintedTable
from flowsim.experiments._seeds import CONFIDENCE
from flowsim.experiments._table1 import reading
from flowsim.experiments._table1.findings import ARMS, BASELINE, apart, not_learnt, shown
from flowsim.experiments._table1.reading import METRICS, Choices

_DIRECTIONS = {1: "up", -1: "down", 0: "not lower"}
_SEEN = {"agrees": "yes", "differs": "no", "undecided": "undecided"}
_OVER_SEEDS = (
    f"mean over seeds ± half the {reading.CONFIDENCE:.0%} interval (Student's t); the split is the same for all seeds: "
    "intervals do not tell what another test set would give"
)


def tables(dataset: xr.Dataset) -> list[PrintedTable]:
    """The paper's table 1, one table for each data set.

    Args:
        dataset: from `table1`.
    """
    choices = reading.choices_of(dataset)
    values = reading.measured(dataset, choices)
    arms = dataset.arm.values.tolist()
    headings = ("metric", *(ARMS[arm] for arm in arms), "difference, paired", "in the paper", "seen?")
    made = []
    for name in dataset.dataset.values.tolist():
        here, rows = values.sel(dataset=name), []
        for metric in METRICS:
            cells = [here[metric.name].sel(arm=arm) for arm in arms]
            found = reading.judged(here, metric, BASELINE, "raised", float(dataset.majority.sel(dataset=name)))
            rows.append(
                (
                    _title(metric.name, choices),
                    *(shown(reading.interval(cell)) for cell in cells),
                    apart(found),
                    _DIRECTIONS[metric.sign] if metric.stated else f"({_DIRECTIONS[metric.sign]})",
                    _SEEN[found.verdict],
                )
            )
        notes = (
            *_unlearnt(here, dataset, name),
            *_too_narrow(dataset.sel(dataset=name), reading.settings_in(dataset)),
            _OVER_SEEDS,
            f"difference, paired: higher ratio minus baseline of the same seed ± half its {CONFIDENCE:.0%} interval, "
            f"by which the last column decides; accuracy: not lower by {reading.NOT_WORSE:g}; in brackets what the "
            "paper's table does not have",
            "MRTA, AC and ACMC are of the test examples with relevant tokens, the other rows of all",
            "beyond chance: AC less that of the same attention with the relevant tokens shifted through the text, the "
            "mean over all shifts; AC and ACMC are seen only if they rise beyond it, ACMC only if the model has learnt",
        )
        made.append(
            PrintedTable(
                f"{name}: baseline and higher ratio", _used(dataset, name, choices), headings, tuple(rows), notes
            )
        )
    return made


def dial_tables(dataset: xr.Dataset) -> list[PrintedTable]:
    """The metrics at each multiplier, one table for each data set.

    Args:
        dataset: from `ratio-dial`.
    """
    choices = reading.choices_of(dataset)
    values = reading.measured(dataset, choices)
    shortened = [metric for metric in METRICS if not metric.name.startswith("aopc")]
    multipliers = dataset.multiplier.values.tolist()
    headings = ("metric", *(f"x{m:g}" for m in multipliers))
    made = []
    for name in dataset.dataset.values.tolist():
        here = values.sel(dataset=name)
        rows = tuple(
            (
                _title(metric.name, choices),
                *(shown(reading.interval(here[metric.name].sel(multiplier=m))) for m in multipliers),
            )
            for metric in shortened
        )
        made.append(
            PrintedTable(
                f"{name}: the ratio as a dial",
                _used(dataset, name, choices),
                headings,
                rows,
                (
                    *_unlearnt(here, dataset, name),
                    *_too_narrow(dataset.sel(dataset=name), reading.settings_in(dataset)),
                    _OVER_SEEDS,
                    _counterpart(dataset.sel(dataset=name)),
                ),
            )
        )
    return made


def _unlearnt(here: xr.Dataset, dataset: xr.Dataset, name: str) -> tuple[str, ...]:
    """A note where models do no better than the most frequent label."""
    models = dataset[reading.model_axis(dataset)].values.tolist()
    told = not_learnt(here, float(dataset.majority.sel(dataset=name)), models)
    return (told.removeprefix("; "),) if told else ()


def _too_narrow(here: xr.Dataset, settings: dict[str, Any]) -> tuple[str, ...]:
    """Notes where a choice or a training came to the end of what was allowed."""
    told = []
    for word, prefix, name in (
        ("base rate", "tuning_base", "base_rate"),
        ("multiplier", "tuning_multiplier", "multiplier"),
    ):
        tried = [rate for rate, _ in _candidates(here, prefix)]
        if len(tried) > 1 and (value := float(here[name])) in (tried[0], tried[-1]):
            end, more = ("smallest", "smaller") if value == tried[0] else ("largest", "larger")
            told.append(f"the {word} {value:g} is the {end} of those tried: a {more} one may be better")
    epochs = here.validation_loss.notnull().sum("epoch")
    waiting = (epochs == settings["max_epochs"]) & (epochs - here.best_epoch < settings["patience"])
    short = int((waiting & reading.usable(here)).sum())
    if short:
        told.append(
            f"{short} of {here.status.size} runs ended with epoch {settings['max_epochs']} while their validation loss "
            "still fell: a larger max_epochs would train them on"
        )
    return tuple(told)


def _counterpart(here: xr.Dataset) -> str:
    """The numbers of the symmetric task that the theory's curves are of."""
    numbers = [float(here[f"theory_{name}"]) for name in ("classes", "distinct", "common", "share", "length")]
    if not (numbers[1] and numbers[2]):
        return "theory: none, as the texts lack words that are relevant in one class alone, or relevant nowhere"
    classes, distinct, common, share, length = numbers
    return (
        f"theory: a symmetric task of {classes:g} classes with {distinct:g} distinct words each and {common:g} common "
        f"ones, {share * length:.3g} of {length:.3g} positions relevant; FAFO flow from a small start"
    )


def _title(name: str, choices: Choices) -> str:
    """The name of a metric with what it depends on."""
    (title,) = (metric.title for metric in METRICS if metric.name == name)
    return f"{title} at {choices.share:.0%}" if name in ("comprehensiveness", "sufficiency") else title


def _used(dataset: xr.Dataset, name: str, choices: Choices) -> tuple[str, ...]:
    """What the numbers of one data set were made with."""
    source: dict[str, Any] = json.loads(dataset.attrs["sources"])[name]
    settings = reading.settings_in(dataset)
    here, even = dataset.sel(dataset=name), reading.uniform(dataset, choices).sel(dataset=name)
    lost = int((~reading.usable(here)).sum())
    runs = f"{here.seed.size} seeds of each model" + (f"; {lost} of {here.status.size} runs diverged" if lost else "")
    end = "; each text ends with an end token" if source["end_token"] else ""
    limits = f"; {source['cut']} texts cut to their last {settings['longest']} tokens" if source["cut"] else ""
    last = "" if source["end_token"] else f", of which {source['last_relevant']:.0%} end with one"
    known = f"; {source['also_training']:.1%} of the test texts also stand in the training part"
    return (
        f"{source['file']}, {source['split']}: {source['train']} training, {source['val']} validation and "
        f"{source['test']} test examples; vocabulary of {source['vocabulary']}{_left_out(source)}{limits}"
        f"{known if source['also_training'] else ''}",
        f"{settings['parameterization']}, {_count(settings['layers'], 'layer')}, {_count(settings['heads'], 'head')}, "
        f"d = {settings['d']}; AdamW, batch {settings['batch']}, at most {_count(settings['max_epochs'], 'epoch')}, "
        f"stopped after {settings['patience']} without a smaller validation loss",
        _rates(here, settings),
        f"{source['attention']}{end}; removal of tokens: {source['removal']}; attention is high from "
        f"{choices.threshold:g}, a prediction confident from probability {choices.confidence:g}; {runs}",
        f"always answering the most frequent test label is right in {float(here.majority):.3f}; uniform attention "
        f"has MRTA {float(even.mrta):.3f} and AC {float(even.ac):.3f} on the {int(even.examples)} test examples with "
        f"relevant tokens{last}",
    )


def _left_out(source: dict[str, Any]) -> str:
    reasons = [f"{count} {reason}" for reason, count in source["left_out"].items() if count]
    told = f"; left out: {', '.join(reasons)}" if reasons else ""
    return told + (f"; {source['skipped']} malformed records skipped" if source["skipped"] else "")


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _rates(here: xr.Dataset, settings: dict[str, Any]) -> str:
    """Base rate and multiplier, and how they were chosen."""
    told = f"base rate {float(here.base_rate):g}"
    factor = here.get("multiplier") if "arm" in here.dims else None
    if factor is not None:
        told += f", query-key multiplier {float(factor):g}"
    told += f", weight decay {settings['weight_decay']:g}"
    if "decay" in settings:
        told += f" ({settings['decay']} {'to' if settings['decay'] == 'coupled' else 'of'} the query-key rate)"
    if settings["preset"] == "paper":
        return f"{told}: the paper's rates"
    tried = [_tried(here, "tuning_base", "base rate")]
    if factor is not None:
        tried.append(_tried(here, "tuning_multiplier", "multiplier"))
    known = "; ".join(text for text in tried if text)
    return f"{told}: chosen by validation loss, never by attention{f' ({known})' if known else ''}"


def _tried(here: xr.Dataset, prefix: str, word: str) -> str:
    """The candidates with their validation losses."""
    pairs = _candidates(here, prefix)
    shown = [f"{rate:g} {f'{loss:.4f}' if np.isfinite(loss) else 'diverged'}" for rate, loss in pairs]
    return f"{word}: {', '.join(shown)}" if shown else ""


def _candidates(here: xr.Dataset, prefix: str) -> list[tuple[float, float]]:
    """Rates or multipliers that were tried, increasing, each with its validation loss."""
    values, losses = here.get("tuning_base_rate" if prefix == "tuning_base" else prefix), here.get(f"{prefix}_loss")
    if values is None or losses is None:
        return []
    pairs = zip(values.values.tolist(), losses.values.tolist(), strict=True)
    return [(value, loss) for value, loss in pairs if np.isfinite(value)]
