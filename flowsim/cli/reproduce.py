"""`flowsim reproduce`: the paper's results, and what it left open."""

import contextlib
import dataclasses
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowsim.cli._console import plain_text, show, work, wrapped, write, write_json
from flowsim.cli._corpora_options import CorporaOptions
from flowsim.cli._options import OUTPUT, OutputOptions, option
from flowsim.cli._workspace import workspace
from flowsim.errors import FileProblem, InvalidInput

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

    from flowsim.experiments import Experiment, Finding
    from flowsim.experiments._experiment import PrintedTable, Report

_ALL = "all"
_SETTINGS = "Settings"


def command(
    *,
    what: Annotated[str, typer.Argument(metavar="WHAT", help="Which result; give `?` to see which there are.")],
    quick: Annotated[bool, option(_SETTINGS, "--quick", "A reduced run of seconds.")] = False,
    assignments: Annotated[
        list[str] | None,
        option(
            _SETTINGS,
            "--set",
            "Change a setting; repeat it. Values of a list: a,b,c. A wrong name lists them all.",
            "FIELD=VALUE",
        ),
    ] = None,
    corpora: CorporaOptions,
    source: Annotated[
        str | None, option(OUTPUT, "--from", "Draw and judge again from saved arrays; nothing is computed.", "NAME.nc")
    ] = None,
    output: OutputOptions,
) -> int:
    """Reproduce a result of the paper, or one beyond it: arrays, findings and figures.

    With `all` each synthetic result gets its folder in --out, and a result that is there already, made with the same
    settings and versions, is not computed again: an interrupted run goes on where it stopped. A result on real texts
    keeps what it has done beside --out, and the same command goes on from there.

    Example: flowsim reproduce fig2 --out fig2

    Example: flowsim reproduce all --quick --out results

    Example: flowsim reproduce table1 --data texts --out table1
    """
    from flowsim import experiments

    known = (*experiments.names(), _ALL)
    if what not in known:
        raise InvalidInput(f"reproduce {what} is unknown; give one of {', '.join(known)}.")
    if what == _ALL:
        single = [*(["--set"] if assignments else []), *(["--from"] if source else []), *corpora.texts]
        if single:
            raise InvalidInput(f"{single[0]} is for one result; name it instead of all.")
        return _every(quick, output)
    experiment = experiments.experiment(what)
    settings = _settings(experiment, quick, assignments, corpora)
    resumable = experiment.resumable and output.out is not None and source is None
    kept = workspace(experiment, settings, str(output.out)) if resumable else contextlib.nullcontext()
    with kept as place, output.folder("reproduce") as folder:
        if source is None:
            dataset, seconds = _performed(experiment, settings, place)
        else:
            given = [*(["--quick"] if quick else []), *(["--set"] if assignments else []), *corpora.texts]
            if given:
                raise InvalidInput(f"{given[0]} changes nothing of --from {source}; leave it away.")
            dataset, seconds = _read(experiment, source), None
        written = _saved(experiment, dataset, folder)
    _print(experiment, dataset, written, output, seconds)
    return 0


def _every(quick: bool, output: OutputOptions) -> int:
    """Runs those that belong to `all`; what is done already stays."""
    from flowsim import experiments
    from flowsim.experiments._files import summary

    if output.out is None:
        raise InvalidInput("reproduce all needs a folder for its results; give --out DIR.")
    home = pathlib.Path(output.out)
    if not home.parent.is_dir():
        raise FileProblem(f"--out {home}: the folder {str(home.parent)!r} does not exist; create it first.")
    if home.exists() and not home.is_dir():
        raise FileProblem(f"--out {home} is a file; give the name of a folder.")
    home.mkdir(exist_ok=True)
    collected = {}
    for name in experiments.ALL:
        experiment = experiments.experiment(name)
        settings = _settings(experiment, quick, None, CorporaOptions())
        inner = OutputOptions(out=str(home / name), overwrite=output.overwrite, json=output.json)
        dataset = None if output.overwrite else _kept(experiment, settings, home / name)
        seconds, written = None, None
        if dataset is None:
            with inner.folder("reproduce") as folder:
                dataset, seconds = _performed(experiment, settings)
                written = _saved(experiment, dataset, folder)
        collected[name] = summary(experiment, dataset)
        if not output.json:
            _print(experiment, dataset, written, inner, seconds)
            write()
    if output.json:
        write_json(collected)
    return 0


def _settings(experiment: "Experiment", quick: bool, texts: Sequence[str] | None, corpora: CorporaOptions) -> Any:
    from flowsim.experiments._experiment import changed

    settings = experiment.settings.quick() if quick else experiment.settings()
    pairs = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InvalidInput(f"--set {text} has no value; give FIELD=VALUE.")
        if name.strip() in pairs:
            raise InvalidInput(f"--set {name.strip()} is given twice; give it once.")
        pairs[name.strip()] = value.strip()
    fields = {field.name for field in dataclasses.fields(settings)}
    return changed(settings, corpora.settings(experiment.name, fields, pairs))


def _performed(
    experiment: "Experiment", settings: Any, place: pathlib.Path | None = None
) -> "tuple[xr.Dataset, float]":
    from flowsim.experiments import perform

    begin = time.perf_counter()
    with _progress(experiment.name) as report:
        dataset = work(None, lambda: perform(experiment, settings, report, workspace=place))
    return dataset, time.perf_counter() - begin


def _read(experiment: "Experiment", source: str) -> "xr.Dataset":
    from flowsim.experiments._files import load

    found, dataset = load(source)
    if found.name != experiment.name:
        raise InvalidInput(f"--from {source} holds {found.name}; give that name instead of {experiment.name}.")
    return dataset


def _kept(experiment: "Experiment", settings: Any, folder: pathlib.Path) -> "xr.Dataset | None":
    """The arrays of an earlier run with the same settings and versions, if it was finished."""
    from flowsim import results
    from flowsim.experiments._experiment import up_to_date
    from flowsim.experiments._files import load

    path = folder / f"{experiment.name}.nc"
    if results.made_by_flowsim(folder) is None or not path.is_file():
        return None
    found, dataset = load(path)
    return dataset if up_to_date(found, settings, dataset) else None


def _saved(experiment: "Experiment", dataset: "xr.Dataset", folder: pathlib.Path | None) -> list[str] | None:
    from flowsim.experiments._files import save

    return None if folder is None else work("writing and drawing", lambda: save(experiment, dataset, folder))


def _print(
    experiment: "Experiment",
    dataset: "xr.Dataset",
    written: list[str] | None,
    output: OutputOptions,
    seconds: float | None,
) -> None:
    from flowsim.experiments._files import summary

    if output.json:
        write_json(summary(experiment, dataset))
        return
    took = "" if seconds is None else f" ({seconds:.0f} s)"
    write(wrapped(f"{experiment.name}: {experiment.summary}{took}"))
    write()
    for table in experiment.tables(dataset) if experiment.tables is not None else ():
        _write_table(table)
    show(_table(experiment.findings(dataset)))
    if written is not None:
        write(wrapped(f"wrote {output.out}: {', '.join(written)}"))
    elif output.out is not None:
        write(f"{output.out} has it already, with these settings and versions")


def _write_table(printed: "PrintedTable") -> None:
    from flowsim.cli._tables import new_table

    write(printed.title)
    for text in printed.used:
        write(wrapped(f"- {text}"))
    write()
    table = new_table()
    for heading in printed.headings:
        table.add_column(heading, overflow="fold")
    for row in printed.rows:
        table.add_row(*row)
    show(table)
    for text in printed.notes:
        write(wrapped(f"- {text}"))
    write()


def _table(findings: "Sequence[Finding]") -> "Table":
    from flowsim.cli._tables import new_table

    table = new_table()
    for heading, ratio in (("claim", 4), ("paper", 1), ("found", 5), ("verdict", 1)):
        table.add_column(heading, overflow="fold", ratio=ratio)
    for row in findings:
        table.add_row(row.claim, row.where.removeprefix("paper, ") or "-", row.found, row.verdict)
    return table


@contextlib.contextmanager
def _progress(name: str) -> "Iterator[Report | None]":
    """On a terminal a bar with the time left on standard error; elsewhere nothing."""
    if not sys.stderr.isatty() or plain_text():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        line = bar.add_task(name, total=None)

        def report(text: str, done: int, total: int) -> None:
            bar.update(line, description=f"{name}: {text}", completed=done, total=total)

        yield report
