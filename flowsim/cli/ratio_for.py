"""`flowsim ratio-for`: inverse design, the ratio that gives a wanted attention."""

import pathlib
from typing import TYPE_CHECKING, Annotated, Any

from flowsim._files import write_text
from flowsim.cli import _parse
from flowsim.cli._console import json_text, show, work, wrapped, write
from flowsim.cli._options import ModelsOptions, OutputOptions, TaskOptions, option
from flowsim.errors import InvalidInput

if TYPE_CHECKING:
    from flowsim.task import Task

_PANEL, _WHERE = "Target", ("margin", "loss", "time")
_Numbers = list[str] | None


def command(
    *,
    task: TaskOptions,
    attention: Annotated[
        _Numbers, option(_PANEL, "--attention", "Attention on the distinct tokens; repeat it or give a,b,c.", "ALPHA")
    ] = None,
    margin: Annotated[_Numbers, option(_PANEL, "--margin", "At this margin; or", "W")] = None,
    loss: Annotated[_Numbers, option(_PANEL, "--loss", "at this loss; or", "LOSS")] = None,
    time: Annotated[_Numbers, option(_PANEL, "--time", "at this time (steps x lr).", "T")] = None,
    model: ModelsOptions,
    output: OutputOptions,
) -> int:
    """Find the learning-rate ratio at which attention reaches a value exactly at a margin, a loss or a time.

    Example: flowsim ratio-for --attention 0.9 --margin 5
    """
    path = output.file((".json",))
    if not attention:
        raise InvalidInput("--attention is missing; give the attention that is wanted, --attention 0.9.")
    wanted = _parse.numbers("--attention", attention, above=0)
    for value in wanted:
        if value >= 1:
            raise InvalidInput(f"--attention {value:g} is too large; give an attention below 1.")
    given = {name: texts for name, texts in zip(_WHERE, (margin, loss, time), strict=True) if texts}
    if len(given) != 1:
        got = " and ".join(f"--{name}" for name in given) or "none of them"
        raise InvalidInput(f"give exactly one of --margin, --loss, --time; got {got}.")
    ((name, texts),) = given.items()
    points = _parse.numbers(f"--{name}", texts, above=0)
    bound, starts = task.build(), model.each()
    found = work("solving", lambda: _solve(bound, starts, wanted, name, points))
    data = {
        "task": bound.to_dict(),
        "targets": [
            {"attention": alpha, name: point, "ratio": {key: grid[i][j] for key, grid in found.items()}}
            for i, alpha in enumerate(wanted)
            for j, point in enumerate(points)
        ],
    }
    _finish(bound, name, data, path, output)
    return 0


def _solve(
    task: "Task", starts: dict[str, dict[str, float]], wanted: list[float], name: str, points: list[float]
) -> dict[str, Any]:
    """For each parameterization the ratios, every attention with every point."""
    import numpy as np

    import flowsim

    target = {"attention": np.asarray(wanted)[:, None], name: np.asarray(points)[None, :]}
    target = {key: np.broadcast_to(value, (len(wanted), len(points))).ravel() for key, value in target.items()}
    return {
        key: np.asarray(flowsim.ratio_for(task, key, **target, **start)).reshape(len(wanted), len(points))
        for key, start in starts.items()
    }


def _finish(task: "Task", name: str, data: dict[str, Any], path: pathlib.Path | None, output: OutputOptions) -> None:
    from flowsim.cli._tables import new_table

    if path is not None:
        write_text(path, json_text(data, indent=2) + "\n")
    if output.json:
        write(json_text(data))
        return
    table = new_table()
    for heading in ("attention", name, *(f"ratio\n{key}" for key in data["targets"][0]["ratio"])):
        table.add_column(heading, justify="right")
    for target in data["targets"]:
        ratios = (f"{float(ratio):.10g}" for ratio in target["ratio"].values())
        table.add_row(f"{target['attention']:.10g}", f"{target[name]:.10g}", *ratios)
    write(wrapped(f"task: {task}"))
    write()
    show(table)
    if path is not None:
        write(f"\nwrote {path}")
