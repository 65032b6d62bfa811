"""`flowsim train`: the real matrices, by gradient descent with finite steps."""

from typing import TYPE_CHECKING, Annotated, Any

from flowsim.cli import _parse
from flowsim.cli._finish import finish
from flowsim.cli._options import (
    TRAINING,
    ModelOptions,
    OutputOptions,
    RatioOptions,
    TaskOptions,
    given_options,
    option,
)
from flowsim.cli._training import DataOptions, LongRunOptions, OptimizerOptions
from flowsim.status import Status

if TYPE_CHECKING:
    from flowsim.trajectory import Trajectory

INTERRUPTED = 130
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
    data: DataOptions,
    optimizer: OptimizerOptions,
    long: LongRunOptions,
    output: OutputOptions,
) -> int:
    """Train the full matrices; time is lr x steps. Ctrl-C keeps what is done.

    Example: flowsim train --ratio 5 --lr 0.1 --steps 10000

    Example: flowsim train --parameterization FAFO --init gaussian,0.1 --seeds 8 --population sampled-identities
    --batch 32
    """
    path = output.file((".nc",))
    rates = _parse.different("--lr", _parse.numbers("--lr", lr or [_LR], above=0))
    typed = given_options(model)
    arguments = {
        "ratio": ratio.ratios(1.0),
        # the defaults are those of the circuits
        **{name: value for name, value in model.start().items() if f"--{name.replace('_', '-')}" in typed},
        "lr": rates if len(rates) > 1 else rates[0],
        "steps": _parse.whole("--steps", steps, minimum=1),
        "points": _parse.whole("--points", points, minimum=2),
        **data.arguments(),
        **optimizer.arguments(),
        **long.arguments(),
    }
    # in the main thread, where training itself listens to Ctrl-C and keeps what is done
    trajectory = _train(task.build(), model.parameterization, **arguments)
    code = finish(trajectory, path, as_json=output.json)
    return INTERRUPTED if (trajectory.status == Status.INTERRUPTED).any() else code


def _train(*arguments: Any, **options: Any) -> "Trajectory":
    import flowsim

    return flowsim.train(*arguments, **options)
