"""What `verify` trains on sampled batches: slopes over many seeds, and the budget of training's errors."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowsim.cli._console import work
from flowsim.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from flowsim.budget import ErrorBudget
    from flowsim.cli._main_job import Plan
    from flowsim.laws import TrainedSlope
    from flowsim.laws.slopes import Estimate
    from flowsim.trajectory import Trajectory

# Sizes at which the main job stays a matter of a minute: a seed more costs as much as a ratio more.
STEPS = 3000
BATCH = 32
BUDGET_SEEDS = 8
HELD_OUT = 64  # sequences that attention is recorded on, 16 times fewer than by default


@dataclasses.dataclass(frozen=True)
class Sampled:
    """What the seeds showed.

    Attributes:
        lr: step size.
        steps: number of steps.
        batch: sequences of a step.
        slopes: of each law, with their intervals; empty where no law is derived or no seed was asked for.
        budget: the parts of |training - theory| at one ratio, or None.
        no_budget: why there is no budget, or None.
    """

    lr: float
    steps: int
    batch: int
    slopes: "tuple[TrainedSlope, ...]"
    budget: "ErrorBudget | None"
    no_budget: str | None


def sample(plan: "Plan", theory: "Callable[[Any], Trajectory]", *, has_laws: bool) -> Sampled:
    """Trains the seeds of a plan and splits the distance of training from theory into its parts.

    Args:
        plan: what to compute; with 0 seeds the budget has no sampling.
        theory: solves the flow at given log times.
        has_laws: whether growth laws are derived for the task.
    """
    import numpy as np

    import flowsim

    task, name = plan.task, plan.parameterization
    steps = min(plan.steps, STEPS)
    run: dict[str, Any] = {"lr": plan.lr, "steps": steps, **plan.start}
    slopes: tuple[TrainedSlope, ...] = ()
    if plan.seeds and has_laws:
        sampled = {
            "population": "sampled-identities",
            "batch": BATCH,
            "test": HELD_OUT,
            "seeds": plan.seeds,
            "progress": False,
        }

        def train() -> "Trajectory":
            return flowsim.train(task, name, ratio=plan.ratios, points=plan.points, **run, **sampled)

        trained = work(f"training {plan.seeds} seeds on batches of {BATCH}", train)
        flow = work("solving at the times of the seeds", lambda: theory(np.asarray(trained.log_time)))
        slopes = work("measuring slopes", lambda: flowsim.trained_slopes(trained, flow))
    ratio = plan.ratios[nearest_to_one(plan.ratios)]
    sizes: dict[str, Any] = {"batch": BATCH if plan.seeds else None, "seeds": min(max(plan.seeds, 1), BUDGET_SEEDS)}
    budget, reason = None, None
    try:
        budget = work(
            "measuring the error budget",
            lambda: flowsim.error_budget(task, name, ratio=ratio, **run, **sizes),
        )
    except InvalidInput as error:
        reason = f"no error budget: {error}"
    return Sampled(plan.lr, steps, BATCH, slopes, budget, reason)


def nearest_to_one(ratios: Sequence[float]) -> int:
    """The number of the ratio that is nearest to 1 in the logarithm; that is the one drawn."""
    return min(range(len(ratios)), key=lambda i: abs(math.log(ratios[i])) if ratios[i] > 0 else math.inf)


def slopes_table(slopes: "Sequence[TrainedSlope]", *, exponents: bool = False) -> "Table":
    """The slopes of the seeds beside those of the flow and of the law.

    Args:
        slopes: what was measured.
        exponents: with d ln y/d ln l too, which makes it wide.
    """
    from flowsim.cli import _tables

    table = _tables.new_table()
    for heading in ("ratio", "observable", "law"):
        table.add_column(heading, justify="right" if heading == "ratio" else "left")
    columns = ("slope", "flow", "from flow", "law")
    for heading in ("ln t", *columns, *(("exponent", *columns[1:]) if exponents else ())):
        table.add_column(heading, justify="right")
    ratio = None
    for slope in slopes:
        if ratio not in (None, slope.ratio):
            table.add_section()
        early = "" if slope.regime == "saturated" else ", early"
        window = f"{slope.window.log_time_start:.3g}..{slope.window.log_time_end:.3g}"
        table.add_row(
            f"{slope.ratio:g}" if slope.ratio != ratio else "",
            slope.observable.replace("_", " "),
            f"{slope.law}{early}",
            f"{window}{'' if slope.readable else ' *'}",
            *_cells(slope.slope),
            *(_cells(slope.exponent) if exponents else ()),
        )
        ratio = slope.ratio
    return table


def slopes_words(found: Sampled) -> str:
    """What the slopes are, in words."""
    first = found.slopes[0]
    seeds = max(slope.seeds for slope in found.slopes)
    lost = sum({slope.ratio: slope.left_out for slope in found.slopes}.values())
    words = (
        f"trained slopes: mean over {seeds} seeds [{100 * first.level:g} % studentized bootstrap interval], trained on "
        f"batches of {found.batch} for {found.steps} steps of {found.lr:g}; slope of the observable against the law's "
        "function of time; * the law cannot be read so early: its window is the last decade of time, and the flow's "
        "own slope is the one to compare with; from flow: how far the mean is from it, the step size included"
    )
    return words + (f"; {lost} diverged runs were left out" if lost else "")


def _cells(estimate: "Estimate | None") -> tuple[str, str, str, str]:
    if estimate is None:
        return "-", "-", "-", "-"
    law = f"{estimate.law:.4g}"
    if not estimate.flow:
        return str(estimate), "-", "-", law
    return str(estimate), f"{estimate.flow:.4g}", f"{100 * (estimate.mean / estimate.flow - 1):+.2g} %", law
