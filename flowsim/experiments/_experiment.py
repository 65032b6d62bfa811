"""What an experiment is: settings, a run, findings, figures; and how its arrays carry their origin."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import xarray as xr
from matplotlib.figure import Figure

from flowsim.errors import InvalidInput
from flowsim.experiments._typed import item_kind
from flowsim.trajectory_file import versions

VERDICTS = ("agrees", "differs", "undecided", "not stated there")

Report = Callable[[str, int, int], None]
"""Is told what is being done, how many parts of it are done, and how many there are."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One comparison with the paper.

    Attributes:
        claim: what is said, in flowsim's words.
        where: where the paper says it; empty for a finding of flowsim's own.
        found: what the arrays show, a sentence with the number.
        verdict: "agrees", "differs", "undecided", or "not stated there".
        value: the number itself, where there is one; one that is not finite becomes None, and a NaN decides nothing:
            comparisons with it are false whatever they ask.
    """

    claim: str
    where: str
    found: str
    verdict: str
    value: float | None = None

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InvalidInput(f"verdict={self.verdict!r} must be one of {', '.join(VERDICTS)}.")
        if self.value is None or math.isfinite(self.value):
            return
        if math.isnan(self.value) and self.verdict in ("agrees", "differs"):
            object.__setattr__(self, "verdict", "undecided")
        object.__setattr__(self, "value", None)


@dataclasses.dataclass(frozen=True)
class PrintedTable:
    """A table of results, every cell as it is printed.

    Attributes:
        title: what it is about.
        used: sentences on what the numbers were made with, printed above it.
        headings: of the columns.
        rows: a text for each column.
        notes: sentences on how to read it, printed below it.
    """

    title: str
    used: tuple[str, ...]
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise InvalidInput(f"row {row!r} has {len(row)} cells; give one for each of {self.headings!r}.")

    def markdown(self) -> str:
        """The table and its sentences in Markdown."""
        lines = [f"## {self.title}", "", *(f"- {text}" for text in self.used), ""]
        lines += [_row(self.headings), _row(["---"] * len(self.headings)), *map(_row, self.rows)]
        return "\n".join([*lines, "", *(f"- {text}" for text in self.notes), ""]).rstrip() + "\n"


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A reproducible experiment.

    Attributes:
        name: its name on the command line.
        summary: one sentence on what it shows.
        settings: the frozen dataclass of its settings; has a classmethod `quick` for a reduced run of seconds.
        run: from settings (and a `Report`, or None) to arrays; everything that findings and figures need.
        findings: from those arrays to the comparison with the paper.
        figures: file names, without ending, and the functions that draw them from the arrays.
        tables: from the arrays to tables, for experiments that have some.
        resumable: whether `run` takes `workspace=`, an existing folder, or None: it keeps in `.npz` files there what it
            has done, and goes on from them.
    """

    name: str
    summary: str
    settings: Any
    run: Callable[..., xr.Dataset]
    findings: Callable[[xr.Dataset], Sequence[Finding]]
    figures: Mapping[str, Callable[[xr.Dataset], Figure]]
    tables: Callable[[xr.Dataset], Sequence[PrintedTable]] | None = None
    resumable: bool = False


def perform(
    experiment: Experiment,
    settings: Any = None,
    report: Report | None = None,
    *,
    workspace: pathlib.Path | None = None,
) -> xr.Dataset:
    """Runs an experiment; the arrays that come of it carry its name, settings and the versions of what computed them.

    Args:
        experiment: what to run.
        settings: of the experiment's own class; None for its defaults.
        report: is told about the progress.
        workspace: an existing folder in which a resumable experiment keeps what it has done, and from which it goes on.

    Returns:
        The arrays.

    Raises:
        InvalidInput: if the settings are of another class or cannot be used, or there is a workspace for an experiment
            that is not resumable.
    """
    if settings is None:
        settings = experiment.settings()
    if not isinstance(settings, experiment.settings):
        raise InvalidInput(f"settings={settings!r} must be a {experiment.settings.__name__}.")
    if workspace is not None and not experiment.resumable:
        raise InvalidInput(f"workspace={str(workspace)!r}: {experiment.name} keeps nothing there; leave it away.")
    kept = {"workspace": workspace} if experiment.resumable else {}
    dataset = experiment.run(settings, report, **kept)
    stamp = {"experiment": experiment.name, **_origin(settings)}
    return dataset.assign_attrs({**dataset.attrs, **stamp})


def settings_of(experiment: Experiment, dataset: xr.Dataset) -> Any:
    """The settings that a dataset was made with."""
    return experiment.settings(**{name: _frozen(item) for name, item in json.loads(dataset.attrs["settings"]).items()})


def up_to_date(experiment: Experiment, settings: Any, dataset: xr.Dataset) -> bool:
    """Whether running the experiment with these settings and these versions would make the same arrays again."""
    wanted = {"experiment": experiment.name, **_origin(settings)}
    return all(dataset.attrs.get(name) == value for name, value in wanted.items())


def changed(settings: Any, texts: Mapping[str, str]) -> Any:
    """Settings with some fields replaced by what a user typed.

    Args:
        settings: what to change.
        texts: field names and their values as text; several values are separated by commas.

    Raises:
        InvalidInput: naming the field, the value and the fix.
    """
    fields = {field.name for field in dataclasses.fields(settings)}
    values = {}
    for name, text in texts.items():
        if name not in fields:
            raise InvalidInput(f"setting {name!r} is unknown; give one of {', '.join(sorted(fields))}.")
        values[name] = _read(name, text, getattr(settings, name))
    return dataclasses.replace(settings, **values)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _origin(settings: Any) -> dict[str, str]:
    return {"settings": json.dumps(dataclasses.asdict(settings)), "versions": json.dumps(versions(), sort_keys=True)}


def _frozen(value: Any) -> Any:
    """Lists of a JSON text as the tuples that they were."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _read(name: str, text: str, present: Any) -> Any:
    """The text as a value of the kind that stands there at present."""
    if isinstance(present, tuple):
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not present or isinstance(present[0], tuple):
            raise InvalidInput(f"setting {name}={text!r} cannot be used; set it in Python.")
        if not parts:
            raise InvalidInput(f"setting {name} is empty; give one value or several, separated by commas.")
        return tuple(_read(name, part, item_kind(present)()) for part in parts)
    try:
        if isinstance(present, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(present, int):
            return int(text)
        if isinstance(present, float):
            return float(text)
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[type(present)]
        raise InvalidInput(f"setting {name}={text!r} cannot be used; give {wanted}.") from None
    return text
