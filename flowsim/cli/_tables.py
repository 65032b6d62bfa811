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


def lanes(trajectory: "Trajectory") -> Iterator[tuple[str, "Trajectory"]]:
    """Each lane of a trajectory, with its name ("ratio 10")."""
    import numpy as np

    for index in itertools.product(*(range(n) for n in trajectory.lanes)):
        words = []
        for axis, i in zip(trajectory.axes, index, strict=True):
            value = trajectory.coords[axis][i] if axis in trajectory.coords else i
            words.append(f"{axis} {_short(np.asarray(value).item())}")
        yield ", ".join(words), trajectory.lane(**dict(zip(trajectory.axes, index, strict=True)))


def trajectory_table(trajectory: "Trajectory") -> "Table":
    """A table of observables against time, a sample of the times where there are many."""
    import numpy as np

    table = new_table()
    for axis in trajectory.axes:
        table.add_column(axis, justify="right")
    for heading in ("time", "margin", "score gap", "attention", "odds", "loss"):
        table.add_column(heading, justify="right")
    n_lanes = math.prod(trajectory.lanes)
    per_lane = max(2, min(_ROWS_PER_LANE, _MAX_ROWS // n_lanes))
    picked = np.unique(np.linspace(0, trajectory.n_time - 1, per_lane).round().astype(int))
    for name, lane in lanes(trajectory):
        columns = [np.asarray(lane.log_time), lane.margin, lane.score_gap, lane.attention, lane.log_odds, lane.log_loss]
        columns = [np.asarray(column)[picked] for column in columns]
        for row, (log_time, margin, gap, attention, log_odds, log_loss) in enumerate(zip(*columns, strict=True)):
            labels = [word.rpartition(" ")[2] for word in name.split(", ")] if name else []
            table.add_row(
                *(label if row == 0 else "" for label in labels),
                exp_text(log_time),
                f"{margin:.8g}",
                f"{gap:.8g}",
                attention_text(attention, log_odds),
                exp_text(log_odds),
                exp_text(log_loss),
            )
        table.add_section()
    return table


def sweep_table(trajectory: "Trajectory") -> "Table":
    """Ratios downwards, times across: margin and attention, a sample of both where there are many."""
    import numpy as np

    table = new_table()
    table.add_column("ratio", justify="right")
    columns = np.unique(np.linspace(0, trajectory.n_time - 1, _SWEEP_TIMES).round().astype(int))
    for i in columns:
        time = exp_text(float(trajectory.log_time[i]))
        table.add_column(f"margin\nt = {time}", justify="right")
        table.add_column("attention\n", justify="right")
    values = np.asarray(trajectory.coords["ratio"])
    margin, attention = np.asarray(trajectory.margin), np.asarray(trajectory.attention)
    for lane in np.unique(np.linspace(0, values.size - 1, _MAX_ROWS // 2).round().astype(int)):
        cells = ((f"{margin[lane, i]:.6g}", f"{attention[lane, i]:.6f}") for i in columns)
        table.add_row(f"{values[lane]:.4g}", *itertools.chain(*cells))
    return table


def agreement_table(ratios: list[float], rows: "list[Agreement]", asymmetry: Any = None) -> "Table":
    """The largest differences for each ratio, and how far matrices are from the symmetric ones."""
    import numpy as np

    table = new_table()
    headings = ["ratio", "margin", "log odds", "score gap", "attention"]
    for heading in [*headings, *(["asymmetry"] if asymmetry is not None else [])]:
        table.add_column(heading, justify="right")
    for i, (ratio, row) in enumerate(zip(ratios, rows, strict=True)):
        cells = [f"{value:.1e}" for value in row]
        if asymmetry is not None:
            cells.append(f"{np.nanmax(np.asarray(asymmetry)[i]):.1e}")
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
        for kind in ("exact-law", "paper-claim"):
            verdicts = [row.verdict for row in report.rows if row.kind == kind]
            counts += [str(verdicts.count(word)) for word in ("holds", "fails", "undecided")]
        table.add_row(name, f"{last[name]:.4g}", *counts)
    return table


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


def attention_text(attention: float, log_odds: float) -> str:
    """The attention, written as what it lacks to 1 where six digits no longer show that."""
    return f"{attention:.6f}" if not log_odds > _LOG_ODDS_SHOWN else f"1 - {exp_text(-log_odds, 2)}"


def exp_text(logarithm: float, digits: int = 4) -> str:
    r"""$e^x$ in decimal, also where it over- or underflows float64."""
    logarithm = float(logarithm)
    if abs(logarithm) < _LOG_FLOAT or not math.isfinite(logarithm):
        return f"{math.exp(logarithm):.{digits}g}"
    if abs(logarithm) > _LOG_DIGITS:
        return f"exp({logarithm:.{digits}g})"
    decades = logarithm / math.log(10)
    exponent = math.floor(decades)
    return f"{10 ** (decades - exponent):.{digits - 1}f}e{exponent:+d}"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
