"""The four parameterizations side by side: `flowsim verify --parameterization all`."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowsim.cli import _main_job, _page, _tables
from flowsim.cli._agreement import Agreement
from flowsim.cli._console import json_text, show, wrapped, write
from flowsim.cli._seeds import nearest_to_one
from flowsim.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from flowsim.cli._main_job import Outcome, Plan
    from flowsim.trajectory import Trajectory

Outcomes = Mapping[str, "Outcome"]


def write_tables(outcomes: Outcomes, plans: "Sequence[Plan]") -> None:
    """Prints where each run stands, how far solvers and finite steps agree, and the verdicts."""
    write(wrapped(f"task: {plans[0].task}"))
    for title, table in _tables_of(outcomes, plans[0]):
        write(f"\n{wrapped(title)}")
        show(table)


def _tables_of(outcomes: Outcomes, plan: "Plan") -> "list[tuple[str, Table]]":
    """Titles and tables that compare the parameterizations."""
    found = [(f"all four at t = {plan.lr * plan.steps:g}, by theory", _places(outcomes, plan))]
    compared = {name: outcome.ode_agreement for name, outcome in outcomes.items() if outcome.ode_agreement is not None}
    if compared:
        odes = {name: outcomes[name].trajectories["ode"] for name in compared}
        found.append(
            (
                "ODE (diffrax) against the closed form, largest relative differences over all ratios",
                _agreements(compared, odes),
            )
        )
    finite = {name: outcome.finite_agreement for name, outcome in outcomes.items()}
    steps = {name: outcome.finite_steps for name, outcome in outcomes.items()}
    found += [
        (
            f"{plan.steps} finite steps of {plan.lr:g} against theory, largest differences, in proportion to the step; "
            "of the full matrices for CACO (flowsim.train), of the factors of the blocks for the others "
            "(flowsim.descend)",
            _agreements(finite, steps),
        ),
        (
            "laws of the exact flow after saturation, and the paper's claims; constant measured / predicted",
            _verdicts(outcomes, plan.ratios),
        ),
    ]
    return found


def data(outcomes: Outcomes, plans: "Sequence[Plan]") -> dict[str, Any]:
    """All outcomes as plain data, by parameterization."""
    found = {plan.parameterization: _main_job.data(outcomes[plan.parameterization], plan) for plan in plans}
    return {"parameterizations": found, "ok": all(item["ok"] for item in found.values())}


def save(outcomes: Outcomes, plans: "Sequence[Plan]", folder: pathlib.Path) -> list[str]:
    """Writes a folder for each parameterization, and what is about all of them.

    Returns:
        For each figure that this task cannot have, a sentence that says why.
    """
    import flowsim

    missing = []
    for plan in plans:
        own = folder / plan.parameterization
        own.mkdir()
        outcome = outcomes[plan.parameterization]
        _main_job.save(outcome, plan, own)
        missing += [f"{plan.parameterization}: {sentence}" for sentence in _main_job.draw(outcome, own)]
    (folder / "verdicts.json").write_text(json_text(data(outcomes, plans), indent=2) + "\n", encoding="utf-8")
    number = nearest_to_one(plans[0].ratios)
    try:
        figure = flowsim.plot.four_laws(*(outcome.main.lane(ratio=number) for outcome in outcomes.values()))
    except InvalidInput as error:
        missing.append(f"no figure four_laws: {error}")
    else:
        flowsim.plot.savefig(figure, folder / "four_laws")
    _page.write_all(list(outcomes.values()), plans, _tables_of(outcomes, plans[0]), folder)
    return missing


def _places(outcomes: Outcomes, plan: "Plan") -> "Table":
    """Margin and attention of each parameterization at the end of the finite steps."""
    import numpy as np

    table = _tables.new_table()
    table.add_column("ratio", justify="right")
    for name in outcomes:
        table.add_column(f"margin\n{name}", justify="right")
        table.add_column("attention\n", justify="right")
    for i, ratio in enumerate(plan.ratios):
        cells = []
        for outcome in outcomes.values():
            margin, log_odds = (np.asarray(getattr(outcome.theory, name))[i, -1] for name in ("margin", "log_odds"))
            cells += [f"{margin:.6g}", _tables.attention_text(float(log_odds))]
        table.add_row(f"{ratio:g}", *cells)
    return table


def _agreements(compared: "Mapping[str, Sequence[Agreement]]", trajectories: "Mapping[str, Trajectory]") -> "Table":
    """The largest differences over all ratios, one row for each parameterization."""
    table = _tables.new_table()
    table.add_column("")
    for heading in ("margin", "log odds", "score gap", "attention", "P^T P - Q Q^T"):
        table.add_column(heading, justify="right")
    for name, rows in compared.items():
        violation = _tables.violation(trajectories[name])
        worst = (max(column) for column in zip(*rows, strict=True))
        table.add_row(name, *(f"{value:.1e}" for value in worst), "-" if violation is None else f"{violation:.1e}")
    return table


def _verdicts(outcomes: Outcomes, ratios: Sequence[float]) -> "Table":
    """The verdicts on the longest trajectory, a column for each ratio."""
    from flowsim.theory.growth import SATURATED

    table = _tables.new_table()
    for heading in ("", "observable", "law", *(f"ratio {ratio:g}" for ratio in ratios)):
        table.add_column(heading)
    for name, outcome in outcomes.items():
        cells: dict[tuple[str, str, str], list[str]] = {}
        for row in next(iter(outcome.reports.values())).rows:
            if row.regime == SATURATED:
                key = (row.kind, row.observable.replace("_", " "), row.law)
                cells.setdefault(key, []).append(f"{row.verdict}{_constants(row.constant, row.predicted_constant)}")
        first = name
        for (kind, observable, law), texts in cells.items():
            claim = " (claim)" if kind == "paper-claim" else ""
            table.add_row(first, observable, f"{law}{claim}", *texts)
            first = ""
        table.add_section()
    return table


def _constants(measured: float | None, predicted: float | None) -> str:
    return "" if measured is None or not predicted else f" {measured / predicted:.4f}"
