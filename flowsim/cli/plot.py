"""`flowsim plot`: figures from saved trajectories."""

from typing import TYPE_CHECKING, Annotated

import typer

from flowsim.cli import _parse
from flowsim.cli._console import write, write_json
from flowsim.cli._options import OUTPUT, OutputOptions, option
from flowsim.errors import InvalidInput

if TYPE_CHECKING:
    from flowsim.trajectory import Trajectory

KINDS = ("theory-vs-simulation", "growth-constants", "score-gap-regimes", "four-laws")
_MOST = {KINDS[0]: (2, "one trajectory or two"), "four-laws": (4, "up to four trajectories")}
_FINITE_STEPS = ("training", "descent")
_FORMATS = (".png", ".svg", ".pdf")


def command(
    *,
    files: Annotated[list[str], typer.Argument(metavar="FILE.nc", help="Saved trajectories: theory first.")],
    kind: Annotated[str, option(OUTPUT, "--kind", f"Which figure (default {KINDS[0]}).", "|".join(KINDS))] = KINDS[0],
    ratio: Annotated[
        str | None, option(OUTPUT, "--ratio", "Draw this ratio of each file only (four-laws takes one of each).", "R")
    ] = None,
    output: OutputOptions,
) -> int:
    """Draw saved trajectories.

    Example: flowsim plot exact.nc training.nc --kind theory-vs-simulation --out figure.svg
    """
    if kind not in KINDS:
        raise InvalidInput(f"--kind {kind} is unknown; give one of {', '.join(KINDS)}.")
    most, wanted = _MOST.get(kind, (1, "one trajectory"))
    if len(files) > most:
        raise InvalidInput(f"--kind {kind} takes {wanted}, {len(files)} files were given; leave some away.")
    if output.out is None:
        raise InvalidInput("plot needs a file to draw into; give --out figure.png (or .svg, .pdf).")
    path = output.file(_FORMATS)
    assert path is not None
    import flowsim

    trajectories = [flowsim.Trajectory.load(file) for file in files]
    if ratio is not None:
        wanted = _parse.number("--ratio", ratio, minimum=0)
        trajectories = [_only(wanted, *pair) for pair in zip(trajectories, files, strict=True)]
    if kind == KINDS[0] and len(trajectories) == 2:
        first, second = trajectories
        if first.task != second.task:
            raise InvalidInput(f"{files[0]} and {files[1]} are of different tasks; draw runs of one task together.")
        if first.method in _FINITE_STEPS and second.method not in _FINITE_STEPS:
            raise InvalidInput(f"{files[0]} is a {first.method} run; give the theory first: {files[1]} {files[0]}.")
    figure = getattr(flowsim.plot, kind.replace("-", "_"))(*trajectories)
    flowsim.plot.savefig(figure, path, overwrite=True)  # that it may be replaced was checked before
    if output.json:
        write_json({"kind": kind, "files": files, "figure": str(path)})
    else:
        write(f"wrote {path}")
    return 0


def _only(ratio: float, trajectory: "Trajectory", file: str) -> "Trajectory":
    """The lanes of one ratio.

    Raises:
        InvalidInput: if the file does not hold it.
    """
    if "ratio" not in trajectory.axes:
        return trajectory
    held = [float(value) for value in trajectory.coords["ratio"]]
    if ratio not in held:
        raise InvalidInput(f"--ratio {ratio:g} is not in {file}; give one of {', '.join(f'{r:g}' for r in held)}.")
    return trajectory.lane(ratio=held.index(ratio))
