"""`flowsim phase`: which growth law the score gap shows over ratio and time, as data and as a figure."""

import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import flowsim
from flowsim.cli import _parse
from flowsim.cli._console import json_text, show, work, wrapped, write, write_json
from flowsim.cli._options import TIMES, ModelsOptions, OutputOptions, TaskOptions, option
from flowsim.cli.sweep import log_spaced

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

    from flowsim.laws.phase import PhaseDiagram
    from flowsim.task import Task

_RATIOS = "Ratios"
_MIN, _MAX, _COUNT, _LOG_T_MIN, _LOG_T_MAX, _POINTS = "1e-8", "100", "80", "1", "1e6", "120"
_CELLS = ("score_gap_change", "exponent", "coefficient", "early_exponent", "late_coefficient", "law")


def command(
    *,
    task: TaskOptions,
    model: ModelsOptions,
    ratio_min: Annotated[str, option(_RATIOS, "--ratio-min", f"Smallest ratio (default {_MIN}).", "R")] = _MIN,
    ratio_max: Annotated[str, option(_RATIOS, "--ratio-max", f"Largest ratio (default {_MAX}).", "R")] = _MAX,
    ratios: Annotated[
        str, option(_RATIOS, "--ratios", f"How many, evenly spaced in the logarithm (default {_COUNT}).", "N")
    ] = _COUNT,
    log_t_min: Annotated[str, option(TIMES, "--log-t-min", f"First ln t (default {_LOG_T_MIN}).", "L")] = _LOG_T_MIN,
    log_t_max: Annotated[str, option(TIMES, "--log-t-max", f"Last ln t (default {_LOG_T_MAX}).", "L")] = _LOG_T_MAX,
    points: Annotated[
        str, option(TIMES, "--points", f"How many, evenly spaced in the logarithm of ln t (default {_POINTS}).", "N")
    ] = _POINTS,
    output: OutputOptions,
) -> int:
    """Draw which growth law the score gap shows where, with the line on which theory has the regimes meet.

    Example: flowsim phase --parameterization all --out phase
    """
    grid = {
        "ratios": log_spaced(
            _parse.number("--ratio-min", ratio_min, above=0),
            _parse.number("--ratio-max", ratio_max, above=0),
            _parse.whole("--ratios", ratios, minimum=2),
        ),
        "log_times": log_spaced(
            _parse.number("--log-t-min", log_t_min, above=0),
            _parse.number("--log-t-max", log_t_max, above=0),
            _parse.whole("--points", points, minimum=2),
            name="--log-t",
        ),
    }
    bound, starts = task.build(), model.each()
    with output.folder("phase") as folder:
        diagrams = work("solving", lambda: _solve(bound, starts, grid))
        if folder is not None:
            work("writing and drawing", lambda: _save(diagrams, folder))
    if output.json:
        write_json(_plain(diagrams))
        return 0
    write(wrapped(f"task: {bound}"))
    write("\nwhere theory has the regimes of the score gap meet, and the share of (ln r, ln ln t) that shows each law")
    show(_table(diagrams))
    if output.out is not None:
        write(f"\nwrote {output.out}: phase.nc, phase.json, phase_diagram.png, phase_diagram.svg")
    return 0


def _solve(
    task: "Task", starts: dict[str, dict[str, float]], grid: dict[str, list[float]]
) -> "dict[str, PhaseDiagram]":
    return {name: flowsim.phase_diagram(task, name, **grid, **start) for name, start in starts.items()}


def _save(diagrams: "dict[str, PhaseDiagram]", folder: pathlib.Path) -> None:
    _dataset(diagrams).to_netcdf(folder / "phase.nc", engine="h5netcdf")
    (folder / "phase.json").write_text(json_text(_plain(diagrams)) + "\n", encoding="utf-8")
    flowsim.plot.savefig(flowsim.plot.phase_diagram(*diagrams.values()), folder / "phase_diagram")


def _dataset(diagrams: "dict[str, PhaseDiagram]") -> "xr.Dataset":
    """All cells, with the dimensions parameterization, ratio and log_time."""
    import json

    import numpy as np
    import xarray as xr

    each = list(diagrams.values())
    dims = ("parameterization", "ratio", "log_time")
    data: dict[str, Any] = {name: (dims, np.stack([getattr(item, name) for item in each])) for name in _CELLS}
    data["crossing"] = (dims[:2], np.stack([item.crossing for item in each]))
    coords = {"parameterization": list(diagrams), "ratio": each[0].ratios, "log_time": each[0].log_times}
    names = {name: list(item.names) for name, item in diagrams.items()}
    attrs = {
        "task": json.dumps(each[0].task.to_dict()),
        "names_of_law": json.dumps(names),
        "version": flowsim.__version__,
    }
    return xr.Dataset(data, coords=coords, attrs=attrs)


def _plain(diagrams: "dict[str, PhaseDiagram]") -> dict[str, Any]:
    """Grid, laws and crossings as plain data; the cells' numbers are in the NetCDF file."""
    first = next(iter(diagrams.values()))
    return {
        "task": first.task.to_dict(),
        "ratios": first.ratios,
        "log_times": first.log_times,
        "diagrams": {
            name: {"names_of_law": list(item.names), "law": item.law, "crossing": item.crossing}
            for name, item in diagrams.items()
        },
    }


def _table(diagrams: "dict[str, PhaseDiagram]") -> "Table":
    """For each parameterization its two laws, how often they are shown, and the crossing at both ends."""
    import numpy as np

    from flowsim.cli._tables import new_table

    table = new_table()
    table.add_column("")
    first = next(iter(diagrams.values()))
    for heading in ("early law", "share"), ("late law", "share"):
        table.add_column(heading[0])
        table.add_column(heading[1], justify="right")
    for ratio in first.ratios[[0, -1]]:
        table.add_column(f"ln t at ratio {ratio:g}", justify="right")
    for name, item in diagrams.items():
        _, early, late = item.names
        shares = [f"{np.mean(item.law == number):.0%}" for number in (1, 2)]
        table.add_row(name, early, shares[0], late, shares[1], *(f"{at:.4g}" for at in item.crossing[[0, -1]]))
    return table
