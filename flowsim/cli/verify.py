"""`flowsim verify`: which growth law holds where, for a task or for a saved trajectory."""

import pathlib
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

import flowsim
from flowsim import results
from flowsim.cli import _parse
from flowsim.cli._console import COMMAND_LINE, json_text, note, show, work, wrapped, write, write_json
from flowsim.cli._options import (
    ALL,
    TIMES,
    TRAINING,
    ModelsOptions,
    OutputOptions,
    RatioOptions,
    TaskOptions,
    given_options,
    log_time_grid,
    option,
)
from flowsim.errors import InvalidInput

if TYPE_CHECKING:
    from flowsim.cli._main_job import Outcome, Plan
    from flowsim.laws import Report
    from flowsim.laws.report import Row

RATIOS = (1e-6, 0.1, 1.0, 10.0)
# The training's horizon, lr x steps = 20,000, is where attention has saturated for every ratio from 0.1 on.
_LOG_T_MIN, _LOG_T_MAX, _POINTS, _LR, _STEPS, _SEEDS = -2.0, "1e6", "400", "0.2", "100000", "16"


def command(
    *,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE.nc", help="Judge this saved trajectory instead.", show_default=False)
    ] = None,
    task: TaskOptions,
    ratio: RatioOptions,
    model: ModelsOptions,
    log_t_max: Annotated[
        str,
        option(TIMES, "--log-t-max", f"Last ln t of the closed form (default {_LOG_T_MAX}; ODEs end at 1e4).", "L"),
    ] = _LOG_T_MAX,
    points: Annotated[str, option(TIMES, "--points", f"Number of times (default {_POINTS}).", "N")] = _POINTS,
    lr: Annotated[str, option(TRAINING, "--lr", f"Size of the finite steps (default {_LR}).", "LR")] = _LR,
    steps: Annotated[str, option(TRAINING, "--steps", f"Number of finite steps (default {_STEPS}).", "N")] = _STEPS,
    seeds: Annotated[
        str, option(TRAINING, "--seeds", f"Number of runs on sampled batches, 0 for none (default {_SEEDS}).", "N")
    ] = _SEEDS,
    output: OutputOptions,
) -> int:
    """Derive, solve, integrate and train a task, then judge its growth laws.

    Full matrices are trained for CACO; for the others the same finite steps are taken in the factors of the symmetric
    blocks. With --parameterization all the four stand side by side.

    Example: flowsim verify --ratio 1e-6 --ratio 0.1 --ratio 1 --ratio 10 --out results
    """
    if file is not None:
        defaults = {"--log-t-max": (log_t_max, _LOG_T_MAX), "--points": (points, _POINTS)}
        defaults |= {"--lr": (lr, _LR), "--steps": (steps, _STEPS), "--seeds": (seeds, _SEEDS)}
        given = [*given_options(task), *given_options(ratio), *given_options(model)]
        given += [name for name, (value, default) in defaults.items() if value != default]
        if given:
            raise InvalidInput(f"{file} was given together with {given[0]}, which the file decides; leave it away.")
        return _judge_file(file, output)
    from flowsim.cli._main_job import Plan
    from flowsim.laws.bootstrap import FEWEST

    last = _parse.number("--log-t-max", log_t_max, above=_LOG_T_MIN)
    bound, ratios = task.build(), ratio.ratios(*RATIOS)
    log_times = log_time_grid(_LOG_T_MIN, last, _parse.whole("--points", points, minimum=2))
    size, number = _parse.number("--lr", lr, above=0), _parse.whole("--steps", steps, minimum=1)
    runs = _parse.whole("--seeds", seeds, minimum=0)
    if 0 < runs < FEWEST:
        raise InvalidInput(f"--seeds {runs} cannot be used; give 0, or at least {FEWEST} for an interval over them.")
    given = shlex.join(["flowsim", *COMMAND_LINE.get()])
    plans = [
        Plan(bound, name, ratios, start=start, log_times=log_times, lr=size, steps=number, seeds=runs, command=given)
        for name, start in model.each().items()
    ]
    if model.parameterization == ALL:
        return _run_all(plans, output)
    return _run(plans[0], output)


def _run(plan: "Plan", output: OutputOptions) -> int:
    from flowsim.cli import _main_job, _page
    from flowsim.cli._finish import report_lanes

    names: list[str] = []
    missing: list[str] = []
    with output.folder("verify") as folder:
        outcome = _main_job.compute(plan)
        if folder is not None:
            work("writing", lambda: _main_job.save(outcome, plan, folder))
            missing = work("drawing", lambda: _main_job.draw(outcome, folder))
            work("writing the report", lambda: _page.write(outcome, plan, folder))
            names = sorted([*(item.name for item in folder.iterdir()), results.MANIFEST])
    if output.json:
        write_json(_main_job.data(outcome, plan))
    else:
        _print(outcome, plan)
        for sentence in missing:
            write("\n" + wrapped(sentence))
        if names:
            write("\n" + wrapped(f"wrote {output.out}: {', '.join(names)}"))
            write("verdicts.txt gives the reason of every verdict")
    codes = [report_lanes(trajectory, f"{name}: ") for name, trajectory in outcome.trajectories.items()]
    return max(_exit_code(report) for report in outcome.reports.values()) or max(codes)


def _run_all(plans: "list[Plan]", output: OutputOptions) -> int:
    from flowsim.cli import _main_job, _side_by_side
    from flowsim.cli._finish import report_lanes

    missing: list[str] = []
    with output.folder("verify") as folder:
        outcomes = {plan.parameterization: _main_job.compute(plan) for plan in plans}
        if folder is not None:
            missing = work("writing and drawing", lambda: _side_by_side.save(outcomes, plans, folder))
    if output.json:
        write_json(_side_by_side.data(outcomes, plans))
    else:
        _side_by_side.write_tables(outcomes, plans)
        for sentence in missing:
            write("\n" + wrapped(sentence))
        if output.out is not None:
            names = (
                "report.html, four_laws.png, four_laws.svg, verdicts.json, and a folder for each with all its figures"
            )
            write("\n" + wrapped(f"wrote {output.out}: {names}; verdicts.txt there gives the reason of every verdict"))
    codes = [0]
    for name, outcome in outcomes.items():
        codes += [report_lanes(item, f"{name} {key}: ") for key, item in outcome.trajectories.items()]
        codes += [_exit_code(report) for report in outcome.reports.values()]
    return max(codes)


def _print(outcome: "Outcome", plan: "Plan") -> None:
    from flowsim.cli import _main_job, _seeds, _tables
    from flowsim.cli.derive import flow_text

    write(flow_text(plan.task, outcome.flow))
    if outcome.ode_agreement is not None:
        last = float(outcome.trajectories["ode"].log_time[-1])
        write(f"\nODE (diffrax) against the closed form up to ln t = {last:.4g}, largest relative differences")
        violation = outcome.trajectories["ode"].extra.get("imbalance_violation")
        show(_tables.agreement_table(plan.ratios, outcome.ode_agreement, imbalance=violation))
    elif plan.log_times[-1] > _main_job.ODE_LOG_TIME:
        write(
            f"\nODE (diffrax) up to ln t = {float(outcome.trajectories['ode'].log_time[-1]):.4g}; "
            f"only a closed form would go on to the ln t = {plan.log_times[-1]:.4g} asked for"
        )
    write(f"\n{_main_job.steps_words(outcome, plan)}")
    extra = outcome.finite_steps.extra
    columns = {"asymmetry": extra.get("asymmetry"), "imbalance": extra.get("imbalance_violation")}
    show(_tables.agreement_table(plan.ratios, outcome.finite_agreement, **columns))
    write()
    _show_laws(next(iter(outcome.reports.values())))
    if outcome.sampled.slopes:
        write("\n" + wrapped(_seeds.slopes_words(outcome.sampled)))
        show(_seeds.slopes_table(outcome.sampled.slopes))
    if outcome.sampled.budget is not None:
        write(f"\n{outcome.sampled.budget}")
    write("\nlaws of the exact flow and claims of the paper, by trajectory")
    show(_tables.verdict_table(outcome.reports, {k: float(v.log_time[-1]) for k, v in outcome.trajectories.items()}))
    _print_failures(next(iter(outcome.reports.values())))


def _show_laws(report: "Report") -> None:
    table = report.table()
    show(table, dispensable=("decades", "exponent", "ln t"))


def _print_failures(report: "Report") -> None:
    for row in report.rows:
        if row.verdict == "fails":
            write(wrapped(_failure(row)))


def _failure(row: "Row") -> str:
    """One sentence about a law that fails."""
    where = "" if row.ratio is None else f"ratio {row.ratio:g}: "
    return f"{where}{row.kind} {row.observable.replace('_', ' ')} {row.law} fails: {row.reason}."


def _judge_file(file: str, output: OutputOptions) -> int:
    if output.out is not None and pathlib.Path(output.out).resolve() in pathlib.Path(file).resolve().parents:
        raise InvalidInput(
            f"{file} lies in --out {output.out}, which would be replaced; choose another folder for --out."
        )
    with output.folder("verify") as folder:
        report = work("judging", lambda: _judge(file))
        if folder is not None:
            (folder / "verdicts.json").write_text(json_text(report.to_dict(), indent=2) + "\n", encoding="utf-8")
            (folder / "verdicts.txt").write_text(f"{report}\n", encoding="utf-8")
            report.to_html(folder / "report.html")
    if output.json:
        write_json(report.to_dict())
    else:
        _show_laws(report)
        write(f"\n{report.reasons()}")
        if output.out is not None:
            write(f"\nwrote {output.out}: {results.MANIFEST}, report.html, verdicts.json, verdicts.txt")
    return _exit_code(report)


def _judge(file: str) -> "Report":
    return flowsim.verify(flowsim.Trajectory.load(file))


def _exit_code(report: "Report") -> int:
    if report.ok:
        return 0
    note(f"flowsim: {_failure(next(row for row in report.rows if row.kind == 'exact-law' and row.verdict == 'fails'))}")
    return 1
