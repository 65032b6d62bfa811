"""How the commands that make one trajectory end: file, table or JSON, sentences about lanes, exit code."""

import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from flowsim.cli import _tables
from flowsim.cli._console import note, show, wrapped, write, write_json

if TYPE_CHECKING:
    from rich.table import Table

    from flowsim.trajectory import Trajectory


def finish(
    trajectory: "Trajectory",
    path: pathlib.Path | None,
    *,
    as_json: bool,
    table: Callable[["Trajectory"], tuple["Table", str]] = _tables.trajectory_table,
) -> int:
    """Saves, prints and judges a trajectory.

    Args:
        trajectory: what a solver returned.
        path: where to save it (checked before), or None.
        as_json: print JSON instead of a table.
        table: lays the trajectory out, and says which part of it is shown.

    Returns:
        The exit code: 1 if a lane cannot be used.
    """
    if path is not None:
        trajectory.save(path, overwrite=True)  # that it may be replaced was checked before the work began
    if as_json:
        write_json(_tables.trajectory_json(trajectory))
    else:
        if trajectory.task is not None:
            write(wrapped(f"task: {trajectory.task}"))
        write(f"{trajectory.parameterization}, method {trajectory.method}")
        write()
        laid_out, part = table(trajectory)
        show(laid_out)
        if part:
            write(f"\n{part}")
        violation = _tables.violation(trajectory)
        if violation is not None:
            write(f"\nlargest change of P^T P - Q Q^T, in proportion to the factors: {violation:.1e}")
        if path is not None:
            write(f"\nwrote {path}")
    return report_lanes(trajectory)


def report_lanes(trajectory: "Trajectory", what: str = "") -> int:
    """Prints a sentence for each lane with a problem; returns 1 if one cannot be used."""
    code = 0
    for usable, sentence in _tables.lane_problems(trajectory):
        note(f"flowsim: {what}{sentence}")
        code = code if usable else 1
    return code
