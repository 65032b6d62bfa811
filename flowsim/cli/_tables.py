"""Trajectories as tables and as JSON."""

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flowsim.status import Status

if TYPE_CHECKING:
    from rich.table import Table

    from flowsim.cli._agreement import Agreement
    from flowsim.laws import Report
    from flowsim.trajectory import Trajectory

_ROWS_PER_LANE = 10
_MAX_ROWS = 60
_SWEEP_TIMES = 3
_LOG_ODDS_SHOWN = 12.0
_LOG_FLOAT = 690.0  # exp of this is still a float64
_LOG_DIGITS = 1e9  # beyond, the logarithm's own rounding leaves no digits of its exponential


def lanes(trajectory: "Trajectory", picked: Any = None) -> Iterator[tuple[str, "Trajectory"]]:
    """Each lane of a trajectory, or those picked by their number, with its name ("ratio 10")."""
    import numpy as np

    for number in range(math.prod(trajectory.lanes)) if picked is None else picked:
        index = [int(i) for i in np.unravel_index(number, trajectory.lanes)] if trajectory.lanes else []
        words = []
        for axis, i in zip(trajectory.axes, index, strict=True):
            value = trajectory.coords[axis][i] if axis in trajectory.coords else i
            words.append(f"{axis} {_short(np.asarray(value).item())}")
        yield ", ".join(words), trajectory.lane(**dict(zip(trajectory.axes, index, strict=True)))


def trajectory_table(trajectory: "Trajectory") -> tuple["Table", str]:
    """A table of observables against time, a sample of lanes and times where there are many.

    Returns:
        The table, and what part of the trajectory it shows (empty if all of it).
    """
    import numpy as np

    table = new_table()
    for axis in trajectory.axes:
        table.add_column(axis, justify="right")
    for heading in ("time", "margin", "score gap", "attention", "odds", "loss"):
        table.add_column(heading, justify="right")
    n_lanes = math.prod(trajectory.lanes)
    per_lane = max(2, min(_ROWS_PER_LANE, _MAX_ROWS // n_lanes))
    picked, shown = _sample(trajectory.n_time, per_lane), _sample(n_lanes, _MAX_ROWS // 2)
    for name, lane in lanes(trajectory, shown):
        columns = [np.asarray(lane.log_time), lane.margin, lane.score_gap, lane.log_odds, lane.log_loss]
        columns = [np.asarray(column)[picked] for column in columns]
        for row, (log_time, margin, gap, log_odds, log_loss) in enumerate(zip(*columns, strict=True)):
            labels = [word.rpartition(" ")[2] for word in name.split(", ")] if name else []
            table.add_row(
                *(label if row == 0 else "" for label in labels),
                exp_text(log_time),
                f"{margin:.8g}",
                f"{gap:.8g}",
                attention_text(float(log_odds)),
                exp_text(log_odds),
                exp_text(log_loss),
            )
        table.add_section()
    return table, _part(trajectory, picked.size, shown.size)


def sweep_table(trajectory: "Trajectory") -> tuple["Table", str]:
    """Ratios downwards, times across: margin and attention, a sample of both where there are many.

    Returns:
        The table, and what part of the trajectory it shows (empty if all of it).
    """
    import numpy as np

    table = new_table()
    table.add_column("ratio", justify="right")
    columns = _sample(trajectory.n_time, _SWEEP_TIMES)
    for i in columns:
        time = exp_text(float(trajectory.log_time[i]))
        table.add_column(f"margin\nt = {time}", justify="right")
        table.add_column("attention\n", justify="right")
    values = np.asarray(trajectory.coords["ratio"])
    margin, log_odds = np.asarray(trajectory.margin), np.asarray(trajectory.log_odds)
    shown = _sample(values.size, _MAX_ROWS // 2)
    for lane in shown:
        cells = ((f"{margin[lane, i]:.6g}", attention_text(float(log_odds[lane, i]))) for i in columns)
        table.add_row(f"{values[lane]:.4g}", *itertools.chain(*cells))
    return table, _part(trajectory, columns.size, shown.size)


def _sample(n: int, most: int) -> Any:
    """At most so many of the indices below n, evenly spread, first and last among them."""
    import numpy as np

    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))


def _part(trajectory: "Trajectory", times: int, shown: int) -> str:
    """The words for what a table shows of a trajectory, empty if all of it."""
    n_lanes = math.prod(trajectory.lanes)
    what = trajectory.axes[0] if len(trajectory.axes) == 1 else "run"
    parts = [f"{times} of {trajectory.n_time} times"] if times < trajectory.n_time else []
    parts += [f"{shown} of {n_lanes} {what}s"] if shown < n_lanes else []
    return f"{' and '.join(parts)} shown; --out FILE.nc and --json give all" if parts else ""


def agreement_table(ratios: list[float], rows: "list[Agreement]", **worst: Any) -> "Table":
    """The largest differences for each ratio, and the largest value of other arrays of shape `(ratio, time)`."""
    import numpy as np

    table = new_table()
    given = {heading: array for heading, array in worst.items() if array is not None}
    for heading in ("ratio", "margin", "log odds", "score gap", "attention", *given):
        table.add_column(heading, justify="right")
    for i, (ratio, row) in enumerate(zip(ratios, rows, strict=True)):
        cells = [f"{value:.1e}" for value in row]
        cells += [f"{np.nanmax(np.asarray(array)[i], initial=0.0):.1e}" for array in given.values()]
        table.add_row(f"{ratio:g}", *cells)
    return table


def verdict_table(reports: "dict[str, Report]", last: dict[str, float]) -> "Table":
    """How many laws hold, fail or are undecided on each trajectory, and how far it goes."""
    table = new_table()
    table.add_column("")
    for heading in ("ln t to", "laws: hold", "fail", "undecided", "claims: hold", "fail", "undecided"):
        table.add_column(heading, justify="right")
    for name, report in reports.items():
        counts = []
        for claims in (False, True):
            verdicts = [row.verdict for row in report.rows if (row.kind == "paper-claim") == claims]
            counts += [str(verdicts.count(word)) for word in ("holds", "fails", "undecided")]
        table.add_row(name, f"{last[name]:.4g}", *counts)
    return table


def violation(trajectory: "Trajectory") -> float | None:
    """The largest change of what the factors conserve, or None where nothing has factors."""
    import numpy as np

    found = trajectory.extra.get("imbalance_violation")
    return None if found is None else float(np.nanmax(np.asarray(found), initial=0.0))


def new_table() -> "Table":
    """The look that all tables share."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)


def trajectory_json(trajectory: "Trajectory") -> dict[str, Any]:
    """A trajectory as plain data; times and odds beyond float64 become null, their logarithms stay."""
    import numpy as np

    from flowsim.trajectory_file import versions

    arrays = ("log_time", "time", "margin", "score_gap", "log_odds", "attention", "log_error", "log_loss")
    task = trajectory.task
    return {
        "task": None if task is None else task.to_dict(),
        "parameterization": trajectory.parameterization,
        "method": trajectory.method,
        "settings": dict(trajectory.settings),
        "axes": list(trajectory.axes),
        "coords": dict(trajectory.coords),
        **{name: np.asarray(getattr(trajectory, name)) for name in arrays},
        "extra": {name: np.asarray(values) for name, values in trajectory.extra.items()},
        "status": [Status(int(code)).name for code in np.asarray(trajectory.status).reshape(-1)],
        "n_steps": np.asarray(trajectory.n_steps),
        "versions": versions(),
    }


def lane_problems(trajectory: "Trajectory") -> list[tuple[bool, str]]:
    """For each lane that is not plainly OK: whether its numbers may be used, and one sentence."""
    problems = []
    for name, lane in lanes(trajectory):
        status = Status(int(lane.status))
        if status != Status.OK:
            what, _, fix = status.message.partition(";")
            if status == Status.DIVERGED:  # n_steps counts the steps before the one that diverged
                what += f" at step {int(lane.n_steps) + 1}"
            problems.append((status.usable, f"{f'{name}: ' if name else ''}{what};{fix}."))
    return problems


def attention_text(log_odds: float) -> str:
    """The attention with these odds; what it lacks to 1 where six digits no longer show that, six digits if tiny."""
    if log_odds > _LOG_ODDS_SHOWN:
        return f"1 - {exp_text(-log_odds, 2)}"
    if log_odds < -_LOG_ODDS_SHOWN / 2:
        return exp_text(log_odds - math.log1p(math.exp(log_odds)), 6)
    return f"{1 / (1 + math.exp(-log_odds)):.6f}"


def exp_text(logarithm: float, digits: int = 4) -> str:
    r"""$e^x$ in decimal, also where it over- or underflows float64."""
    logarithm = float(logarithm)
    if abs(logarithm) < _LOG_FLOAT or not math.isfinite(logarithm):
        return f"{math.exp(logarithm):.{digits}g}"
    if abs(logarithm) > _LOG_DIGITS:
        return f"exp({logarithm:.{digits}g})"
    decades = logarithm / math.log(10)
    exponent = math.floor(decades)
    mantissa = f"{10 ** (decades - exponent):.{digits - 1}f}"
    if mantissa.startswith("10"):  # rounded up to the next power
        mantissa, exponent = f"{1:.{digits - 1}f}", exponent + 1
    return f"{mantissa}e{exponent:+d}"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
