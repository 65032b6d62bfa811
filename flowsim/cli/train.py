"""`flowsim train`: the real matrices, by gradient descent with finite steps."""

from typing import TYPE_CHECKING, Annotated, Any

from flowsim.cli import _parse
from flowsim.cli._console import work
from flowsim.cli._finish import finish
from flowsim.cli._options import TRAINING, ModelOptions, OutputOptions, RatioOptions, TaskOptions, option

if TYPE_CHECKING:
    from flowsim.trajectory import Trajectory

_LR, _STEPS, _POINTS = "0.1", "10000", "200"


def command(
    *,
    task: TaskOptions,
    ratio: RatioOptions,
    model: ModelOptions,
    lr: Annotated[
        list[str] | None, option(TRAINING, "--lr", f"Step size; repeat it or give a,b,c (default {_LR}).", "LR")
    ] = None,
    steps: Annotated[str, option(TRAINING, "--steps", f"Number of steps (default {_STEPS}).", "N")] = _STEPS,
    points: Annotated[str, option(TRAINING, "--points", f"Recorded times (default {_POINTS}).", "N")] = _POINTS,
    output: OutputOptions,
) -> int:
    """Train the full matrices on the population loss; time is lr x steps.

    Example: flowsim train --ratio 5 --lr 0.1 --steps 10000
    """
    path = output.file((".nc",))
    rates = _parse.different("--lr", _parse.numbers("--lr", lr or [_LR], above=0))
    arguments = {
        "ratio": ratio.ratios(1.0),
        **model.start(),
        "lr": rates if len(rates) > 1 else rates[0],
        "steps": _parse.whole("--steps", steps, minimum=1),
        "points": _parse.whole("--points", points, minimum=2),
    }
    bound = task.build()
    trajectory = work("training", lambda: _train(bound, model.parameterization, **arguments))
    return finish(trajectory, path, as_json=output.json)


def _train(*arguments: Any, **options: Any) -> "Trajectory":
    import flowsim

    return flowsim.train(*arguments, **options)
