"""`flowsim sweep`: attention and margin over many learning-rate ratios."""

import math
from typing import Annotated

from flowsim.cli import _parse
from flowsim.cli._console import work
from flowsim.cli._finish import finish
from flowsim.cli._options import GridOptions, ModelOptions, OutputOptions, TaskOptions, given_options, option
from flowsim.cli._tables import sweep_table
from flowsim.cli.integrate import method_option, solver_for
from flowsim.errors import InvalidInput

_MIN, _MAX, _COUNT, _RATIOS = "0.01", "100", "25", "Ratios"


def command(
    *,
    task: TaskOptions,
    ratio_min: Annotated[str, option(_RATIOS, "--ratio-min", f"Smallest ratio (default {_MIN}).", "R")] = _MIN,
    ratio_max: Annotated[str, option(_RATIOS, "--ratio-max", f"Largest ratio (default {_MAX}).", "R")] = _MAX,
    ratios: Annotated[
        str, option(_RATIOS, "--ratios", f"How many, evenly spaced in the logarithm (default {_COUNT}).", "N")
    ] = _COUNT,
    model: ModelOptions,
    method: Annotated[str, method_option("exact")] = "exact",
    grid: GridOptions,
    output: OutputOptions,
) -> int:
    """Solve for many learning-rate ratios at once, at t = 100, 10^4 and 10^6 unless times are given.

    Example: flowsim sweep --ratio-min 0.01 --ratio-max 100 --ratios 9 --time 100 --time 10000
    """
    solve = solver_for(method)
    path = output.file((".nc",))
    arguments = {
        "ratio": log_spaced(
            _parse.number("--ratio-min", ratio_min, above=0),
            _parse.number("--ratio-max", ratio_max, above=0),
            _parse.whole("--ratios", ratios, minimum=2),
        ),
        **model.start(),
        **(grid.build() if given_options(grid) else {"times": [1e2, 1e4, 1e6]}),
    }
    bound = task.build()
    trajectory = work("sweeping", lambda: solve(bound, model.parameterization, **arguments))
    return finish(trajectory, path, as_json=output.json, table=sweep_table)


def log_spaced(low: float, high: float, count: int, name: str = "--ratio") -> list[float]:
    """Numbers evenly spaced in the logarithm, the ends exact.

    Raises:
        InvalidInput: if the ends are out of order.
    """
    if not low < high:
        raise InvalidInput(f"{name}-min {low:g} is not below {name}-max {high:g}; exchange them.")
    step = math.log(high / low) / (count - 1)
    return [low, *(low * math.exp(step * i) for i in range(1, count - 1)), high]
