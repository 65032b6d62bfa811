"""The whole way once: derive, solve in closed form, integrate, train, judge, draw."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowsim.cli import _seeds
from flowsim.cli._agreement import Agreement, agreement
from flowsim.cli._console import json_text, plain, work
from flowsim.cli.derive import flow_data, no_closed_form
from flowsim.errors import InvalidInput

if TYPE_CHECKING:
    from flowsim.cli._seeds import Sampled
    from flowsim.laws import Report
    from flowsim.task import Task
    from flowsim.theory.flow import Flow
    from flowsim.trajectory import Trajectory

# The ODE is integrated so far; the closed form goes on. By then every law that a finite horizon can show has shown.
ODE_LOG_TIME = 1e4


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to compute.

    Attributes:
        task: the task.
        parameterization: which model.
        ratios: learning-rate ratios.
        start: `margin0`, `score_gap0` and the imbalances, those that were given.
        log_times: the grid of the closed form.
        lr: step size of the finite steps.
        steps: number of finite steps.
        seeds: how many runs are trained on sampled batches; 0 for none.
        command: the command line that asked for it.
    """

    task: "Task"
    parameterization: str
    ratios: list[float]
    start: Mapping[str, float]
    log_times: list[float]
    lr: float
    steps: int
    seeds: int
    command: str

    @property
    def points(self) -> int:
        """Number of times to record: as many as the closed form has, whose compiled program then serves the others."""
        return len(self.log_times)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was computed.

    Attributes:
        flow: the derived equations.
        trajectories: by name, in the order of the files: exact (where there is a closed form), ode, and `finite`.
        reports: the verdicts on each.
        ode_agreement: the ODE against the closed form, for each ratio; None without a closed form.
        finite: who took the finite steps: `"training"`, the full matrices, or `"descent"`, the factors of the blocks.
        finite_agreement: the finite steps against the theory at the same times, for each ratio.
        theory: the theory at the times of the finite steps.
        no_closed_form: why there is no closed form, or None.
        sampled: what training on sampled batches shows.
    """

    flow: "Flow"
    trajectories: "dict[str, Trajectory]"
    reports: "dict[str, Report]"
    ode_agreement: list[Agreement] | None
    finite: str
    finite_agreement: list[Agreement]
    theory: "Trajectory"
    no_closed_form: str | None
    sampled: "Sampled"

    @property
    def finite_steps(self) -> "Trajectory":
        """The trajectory of the finite steps."""
        return self.trajectories[self.finite]

    @property
    def main(self) -> "Trajectory":
        """The trajectory with the longest horizon."""
        return next(iter(self.trajectories.values()))


def compute(plan: Plan) -> Outcome:
    """Does the work, step by step.

    Args:
        plan: what to compute.

    Returns:
        Everything, in memory.
    """
    import numpy as np

    import flowsim

    task, name = plan.task, plan.parameterization
    arguments: dict[str, Any] = {"ratio": plan.ratios, **plan.start}
    log_times = np.asarray(plan.log_times)
    short = log_times[log_times <= ODE_LOG_TIME]

    def exact(log_times: Any) -> "Trajectory":
        return flowsim.exact(task, name, log_times=log_times, **arguments)

    def ode(log_times: Any) -> "Trajectory":
        return flowsim.integrate(task, name, log_times=log_times, **arguments)

    flow = work("deriving the equations", lambda: flowsim.derive(task, name))
    # The matrices of collapsed circuits are trained; factors take the same steps in their symmetric blocks.
    finite, take = ("training", flowsim.train) if flow.closes else ("descent", flowsim.descend)

    def steps() -> "Trajectory":
        return take(task, name, lr=plan.lr, steps=plan.steps, points=plan.points, **arguments)

    reason = work("looking for a closed form", lambda: no_closed_form(task, flow))
    theory = ode if reason else exact
    trajectories: dict[str, Trajectory] = {}
    if reason is None:
        trajectories["exact"] = work("solving in closed form", lambda: exact(log_times))
    trajectories["ode"] = work("integrating the ODEs", lambda: ode(short))
    stepped = work(f"taking {plan.steps} finite steps", steps)
    trajectories[finite] = stepped
    at_steps = work("solving at the times of the steps", lambda: theory(np.asarray(stepped.log_time)))
    sampled = _seeds.sample(plan, theory, has_laws=reason is None)
    ode_agreement = None
    if reason is None:
        ode_agreement = agreement(trajectories["exact"], trajectories["ode"], small_gaps=True)
    return Outcome(
        flow=flow,
        trajectories=trajectories,
        reports={key: work("judging", lambda item=item: flowsim.verify(item)) for key, item in trajectories.items()},
        ode_agreement=ode_agreement,
        finite=finite,
        finite_agreement=agreement(at_steps, stepped, small_gaps=False),
        theory=at_steps,
        no_closed_form=reason,
        sampled=sampled,
    )


def steps_words(outcome: Outcome, plan: Plan) -> str:
    """What took the finite steps, and what the columns of their table mean."""
    who, column = {
        "training": ("trained matrices", "asymmetry: distance from the symmetric matrices"),
        "descent": (
            "finite steps in the factors of the blocks (flowsim.descend)",
            "imbalance: change of P^T P - Q Q^T, which the flow conserves",
        ),
    }[outcome.finite]
    return (
        f"{who} against theory up to t = {plan.lr * plan.steps:g}, {plan.steps} steps of {plan.lr:g},\n"
        f"largest differences, in proportion to the step; {column}"
    )


def save(outcome: Outcome, plan: Plan, folder: pathlib.Path) -> None:
    """Writes trajectories, verdicts, equations and the task into a folder."""
    for name, trajectory in outcome.trajectories.items():
        trajectory.save(folder / f"{name}.nc")
    (folder / "verdicts.json").write_text(json_text(data(outcome, plan), indent=2) + "\n", encoding="utf-8")
    listings = (f"{name}.nc\n\n{report}\n" for name, report in outcome.reports.items())
    (folder / "verdicts.txt").write_text("\n".join(listings), encoding="utf-8")
    (folder / "equations.tex").write_text(outcome.flow.latex() + "\n", encoding="utf-8")
    plan.task.to_toml(folder / "task.toml")


def draw(outcome: Outcome, folder: pathlib.Path) -> list[str]:
    """Writes the figures, as PNG and SVG.

    Returns:
        For each figure that this task cannot have, a sentence that says why.
    """
    import flowsim

    plot, trajectories = flowsim.plot, outcome.trajectories
    ode = None if outcome.no_closed_form else trajectories["ode"]
    figures = {
        "theory_vs_simulation": lambda: plot.theory_vs_simulation(outcome.theory, outcome.finite_steps, ode=ode),
        "growth_constants": lambda: plot.growth_constants(outcome.main),
    }
    if outcome.flow.closes:  # the regimes of the others are those of flowsim phase
        figures["score_gap_regimes"] = lambda: plot.score_gap_regimes(outcome.main)
    budget = outcome.sampled.budget
    if budget is not None:
        figures["error_budget"] = lambda: plot.error_budget(budget)
    missing = [] if outcome.sampled.no_budget is None else [outcome.sampled.no_budget]
    for name, make in figures.items():
        try:
            figure = make()
        except InvalidInput as error:
            missing.append(f"no figure {name}: {error}")
        else:
            plot.savefig(figure, folder / name)
    return missing


def data(outcome: Outcome, plan: Plan) -> dict[str, Any]:
    """The outcome as plain data, without the trajectories."""
    import numpy as np

    from flowsim.trajectory_file import versions

    compared = {
        "ode_against_exact": outcome.ode_agreement,
        f"{outcome.finite}_against_theory": outcome.finite_agreement,
    }
    return plain(
        {
            "task": plan.task.to_dict(),
            "parameterization": plan.parameterization,
            "ratios": plan.ratios,
            "start": dict(plan.start),
            "log_t_max": plan.log_times[-1],
            "log_t_max_of_ode": float(np.asarray(outcome.trajectories["ode"].log_time)[-1]),
            outcome.finite: {"lr": plan.lr, "steps": plan.steps},
            "seeds": {
                "seeds": plan.seeds,
                "lr": outcome.sampled.lr,
                "steps": outcome.sampled.steps,
                "batch": outcome.sampled.batch,
            },
            **flow_data(plan.task, outcome.flow),
            "agreement": {
                name: None if rows is None else [row._asdict() for row in rows] for name, rows in compared.items()
            },
            "trained_slopes": [slope.to_dict() for slope in outcome.sampled.slopes],
            "error_budget": _budget_data(outcome),
            "verdicts": {name: report.to_dict() for name, report in outcome.reports.items()},
            "ok": all(report.ok for report in outcome.reports.values()),
            "versions": versions(),
        }
    )


def _budget_data(outcome: Outcome) -> dict[str, Any] | None:
    budget = outcome.sampled.budget
    if budget is None:
        return None
    return {
        "settings": budget.settings,
        "log_time": budget.log_time,
        "parts": budget.parts,
        "total": budget.total,
    }
