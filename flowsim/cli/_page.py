"""`report.html`: what the main job computed, as one page."""

import pathlib
import platform
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from flowsim import html
from flowsim._files import write_text
from flowsim.cli import _laws, _main_job, _seeds, _tables
from flowsim.cli.derive import conserved, solution
from flowsim.html.flow import flow_section
from flowsim.html.tables import definition_list
from flowsim.html.verdicts import explanation, verdict_word

if TYPE_CHECKING:
    from rich.table import Table

    from flowsim.cli._main_job import Outcome, Plan

NAME = "report.html"
FIGURES = {
    "theory_vs_simulation": (
        "Margin, score gap and attention over time for each ratio: lines of the theory, markers of the finite steps on "
        "top of them, and below the differences between the two.",
        "Theory (lines) and finite steps (markers); below, their differences, which shrink with the step size.",
    ),
    "growth_constants": (
        "Each observable divided by the leading term of its law, over the logarithm of time; the curves approach the "
        "predicted constants.",
        "Observables over the leading terms of their laws, and the predicted constants.",
    ),
    "score_gap_regimes": (
        "The score gap over the logarithm of time for each ratio, with its law before attention saturates, its law "
        "after, and the crossing between the two.",
        "The two regimes of the score gap; diamonds mark where they meet.",
    ),
    "error_budget": (
        "Distance of trained margin and score gap from theory over time, split into solver error, step size, reduction "
        "and sampling, on logarithmic axes.",
        "The parts of |training - theory|; each is the distance between two runs that differ in one thing only.",
    ),
    "four_laws": (
        "Margin and odds of CACO, FACO, CAFO and FAFO over the logarithm of time with the leading terms of their laws, "
        "and below the ratios of the two.",
        "The four parameterizations side by side, with the leading terms of their laws (dashed).",
    ),
}


def write(outcome: "Outcome", plan: "Plan", folder: pathlib.Path) -> None:
    """Writes the page of one parameterization into the folder that holds its figures."""
    sections = [_verdicts(outcome), *_sections(outcome, plan, folder), _settings([plan], [outcome])]
    title = f"Growth laws of {plan.parameterization}"
    write_text(folder / NAME, html.page(title, _lead([outcome], plan), sections))


def write_all(
    outcomes: "Sequence[Outcome]",
    plans: "Sequence[Plan]",
    tables: "Sequence[tuple[str, Table]]",
    folder: pathlib.Path,
) -> None:
    """Writes the page of several parameterizations.

    Args:
        outcomes: what was computed for each plan.
        plans: the plans.
        tables: titles and tables that compare them.
        folder: holds the common figure, and a folder with the figures of each parameterization.
    """
    overview = "\n".join(html.from_rich(table, escape(f"{title[0].upper()}{title[1:]}.")) for title, table in tables)
    sections = [html.Section("side-by-side", "Side by side", overview + _figures(folder, ("four_laws",)))]
    for outcome, plan in zip(outcomes, plans, strict=True):
        name, prefix = plan.parameterization, f"{plan.parameterization.lower()}-"
        parts = [_verdicts(outcome, prefix), *_sections(outcome, plan, folder / name, prefix)]
        # one level of contents is enough for each of several
        flat = tuple(html.Section(part.anchor, part.title, _body(part)) for part in parts)
        sections.append(html.Section(f"{prefix}all", name, "", flat))
    sections.append(_settings(plans, outcomes))
    names = ", ".join(plan.parameterization for plan in plans)
    write_text(folder / NAME, html.page(f"Growth laws of {names}", _lead(outcomes, plans[0]), sections))


def _body(section: html.Section) -> str:
    parts = (f'<h4 id="{part.anchor}">{escape(part.title)}</h4>\n{part.body}' for part in section.parts)
    return "\n".join([section.body, *parts])


def _lead(outcomes: "Sequence[Outcome]", plan: "Plan") -> str:
    rows = [row for outcome in outcomes for row in next(iter(outcome.reports.values())).rows]
    counts = []
    for claim, what in ((False, "laws of the exact flow"), (True, "claims of the paper")):
        verdicts = [row.verdict for row in rows if (row.kind == "paper-claim") == claim]
        words = ", ".join(f"{verdict_word(word)} {verdicts.count(word)}" for word in ("holds", "fails", "undecided"))
        counts.append(f"<li>{what}: {words}</li>")
    return (
        f"<p>{escape(str(plan.task))}; ratios {', '.join(f'{ratio:g}' for ratio in plan.ratios)}.</p>\n"
        f"<ul>\n{''.join(counts)}\n</ul>"
    )


def _verdicts(outcome: "Outcome", prefix: str = "") -> html.Section:
    slopes = outcome.sampled.slopes
    last = {name: float(trajectory.log_time[-1]) for name, trajectory in outcome.trajectories.items()}
    main = next(iter(outcome.reports))
    body = (
        f"<p>Judged on the trajectory {escape(main)}, which goes up to ln t = {last[main]:.4g}.</p>\n"
        f"{explanation(slopes)}\n{html.from_rich(_tables.verdict_table(outcome.reports, last))}"
    )
    return html.Section(
        f"{prefix}verdicts", "Verdicts", body, html.verdict_sections(outcome.reports[main], slopes, prefix)
    )


def _sections(outcome: "Outcome", plan: "Plan", folder: pathlib.Path, prefix: str = "") -> list[html.Section]:
    """Slopes, figures, agreement, budget and equations of one parameterization."""
    sampled = outcome.sampled
    sections = []
    if sampled.slopes:
        words = f"<p>{escape(_seeds.slopes_words(sampled))}.</p>"
        table = html.from_rich(_seeds.slopes_table(sampled.slopes, exponents=True))
        sections.append(html.Section(f"{prefix}slopes", "Trained slopes", f"{words}\n{table}"))
    names = ("theory_vs_simulation", "growth_constants", "score_gap_regimes")
    sections.append(html.Section(f"{prefix}figures", "Figures", _figures(folder, names)))
    sections.append(html.Section(f"{prefix}agreement", "Agreement", _agreement(outcome, plan)))
    sections.append(html.Section(f"{prefix}budget", "Error budget", _budget(outcome, folder)))
    closed = []
    if outcome.no_closed_form is None:
        laws = [line.equation for line in _laws.growth_lines(outcome.flow)]
        closed = [
            ("Closed form", solution(outcome.flow)),
            ("Growth laws", laws),
            ("Symbols of the laws", _laws.definitions(outcome.flow)),
        ]
    sections.append(
        flow_section(outcome.flow, conserved(plan.task, outcome.flow), closed, outcome.no_closed_form, prefix)
    )
    return sections


def _figures(folder: pathlib.Path, names: Sequence[str]) -> str:
    found = []
    for name in names:
        path = folder / f"{name}.svg"
        if path.exists():  # a task need not have every figure; what it lacks is said where the figures are drawn
            alt, caption = FIGURES[name]
            found.append(html.figure(path, alt, escape(caption)))
    return "\n".join(found)


def _agreement(outcome: "Outcome", plan: "Plan") -> str:
    parts = []
    if outcome.ode_agreement is not None:
        ode = outcome.trajectories["ode"]
        shown = _tables.agreement_table(
            plan.ratios, outcome.ode_agreement, imbalance=ode.extra.get("imbalance_violation")
        )
        caption = "ODE (diffrax) against the closed form, largest relative differences."
        parts.append(html.from_rich(shown, caption))
    extra = outcome.finite_steps.extra
    columns = {"asymmetry": extra.get("asymmetry"), "imbalance": extra.get("imbalance_violation")}
    shown = _tables.agreement_table(plan.ratios, outcome.finite_agreement, **columns)
    words = _main_job.steps_words(outcome, plan)
    parts.append(html.from_rich(shown, escape(f"{words[0].upper()}{words[1:]}.")))
    return "\n".join(parts)


def _budget(outcome: "Outcome", folder: pathlib.Path) -> str:
    import numpy as np

    budget = outcome.sampled.budget
    if budget is None:
        return f"<p>{escape(str(outcome.sampled.no_budget))}</p>"
    settings = budget.settings
    sampled = f", batch {settings['batch']}, {settings['seeds']} seeds" if settings["batch"] else ""
    text = (
        f"<p>Ratio {settings['ratio']:g}, {settings['steps']} steps of {settings['lr']:g}{sampled}. Solver: the "
        "integration against the closed form (or a far tighter integration); step size: finite steps on the blocks "
        "against the flow; reduction: full matrices against blocks; sampling: sampled batches against the whole "
        "population, root mean square over the seeds. No run is farther from theory than the sum.</p>"
    )
    tables = []
    for observable, parts in budget.parts.items():
        rows = []
        for i in sorted({int(i) for i in np.linspace(0, budget.log_time.size - 1, 6)}):
            values = [*budget.at(observable, i).values()]
            rows.append([f"{np.exp(budget.log_time[i]):.5g}", *(f"{value:.2e}" for value in values)])
        headings = ["t", *parts, "total"]
        caption = f"{observable.replace('_', ' ').capitalize()}: distance at gradient-flow time t."
        tables.append(html.table(headings, rows, numbers=[True] * len(headings), caption=caption))
    return "\n".join([text, _figures(folder, ("error_budget",)), *tables])


def _settings(plans: "Sequence[Plan]", outcomes: "Sequence[Outcome]") -> html.Section:
    from flowsim.trajectory_file import versions

    plan, sampled = plans[0], outcomes[0].sampled
    starts = "; ".join(
        f"{each.parameterization}: {', '.join(f'{name} {value:g}' for name, value in each.start.items()) or 'default'}"
        for each in plans
    )
    entries = [
        ("command", f'<pre class="wraps">{escape(plan.command)}</pre>'),
        ("task", escape(str(plan.task))),
        ("ratios", ", ".join(f"{ratio:g}" for ratio in plan.ratios)),
        ("start", escape(starts)),
        ("closed form", f"{plan.points} times up to ln t = {plan.log_times[-1]:g}"),
        ("finite steps", f"{plan.steps} steps of {plan.lr:g}"),
        ("seeds", f"{plan.seeds} of {sampled.steps} steps of {sampled.lr:g}, batches of {sampled.batch}"),
        ("versions", escape(", ".join(f"{name} {version}" for name, version in versions().items()))),
        ("machine", escape(f"{platform.system()} {platform.machine()}, Python {platform.python_version()}")),
    ]
    return html.Section("settings", "Settings", definition_list(entries))
