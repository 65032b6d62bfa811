"""Gradient descent in the reduced blocks: what full-batch training of the full matrices does, exactly."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flowsim import _jax
from flowsim.codegen import CompiledField, Parameters, compile
from flowsim.solve.finite import Lanes, Record, collapsed_only
from flowsim.solve.initial import start_blocks, start_settings
from flowsim.solve.stepping import Run, begin, run_steps
from flowsim.start import Start
from flowsim.task import Task
from flowsim.theory import derive
from flowsim.trajectory import Trajectory


def descend(
    task: Task,
    parameterization: str = "CACO",
    *,
    ratio,
    lr,
    steps: int,
    points: int = 200,
    margin0: Any = 0.0,
    score_gap0: Any = 0.0,
    start: Start | None = None,
) -> Trajectory:
    r"""Takes finite gradient steps in the reduced blocks.

    Full-batch gradient descent keeps symmetric matrices symmetric, and on their blocks it is
    $B \leftarrow B - \eta\, G_B$ with the block gradient $G_B = (1/d_\rho)\, \partial L/\partial B$ of the flow: a step
    in place of the derivative, without any approximation. As the learning rate goes to 0 at fixed time the flow is
    approached with order 1.

    Args:
        task: what is learnt.
        parameterization: `"CACO"`.
        ratio: $\eta_{QK}/\eta_{OV}$, 0 or more; a number or a list.
        lr: learning rate of the output-value circuit per step, above 0; a number or a list. The query-key circuit has
            `ratio * lr`.
        steps: number of steps; gradient-flow time is `lr` times the step number.
        points: number of steps to record, logarithmically spaced from step 1 to the last.
        margin0: margin at the start, on the line that the collapsed flow takes.
        score_gap0: score gap at the start, likewise.
        start: blocks of the start, instead of the two arguments before.

    Returns:
        A trajectory with lane axes (ratio, lr) as far as they were lists. A run that diverged has status
        `Status.DIVERGED`, its records are NaN from the divergence on, and `n_steps` is the number of steps before the
        one that diverged.

    Raises:
        InvalidInput: naming the argument, its value and the fix.
    """
    _jax.require_x64()
    collapsed_only(parameterization, "descend")
    flow = derive(task, parameterization)
    lanes = Lanes.of(ratio, lr, steps, points)
    blocks = start_blocks(task, flow, margin0, score_gap0, start)
    field = compile(flow)
    run = _descend(field, field.parameters(task, 1.0), blocks, *lanes.rates, lanes.gaps)
    return lanes.trajectory(run, task, parameterization, "descent", start_settings(margin0, score_gap0, start))


@functools.partial(jax.jit, static_argnums=0)
def _descend(
    field: CompiledField,
    parameters: Parameters,
    blocks0: Float[Array, " blocks"],
    ratio: Float[Array, " lanes"],
    lr: Float[Array, " lanes"],
    gaps: Int[Array, " time"],
) -> Run[Array, Record]:
    x0 = field.to_reduced(blocks0, parameters)
    outputs = parameters.classes + parameters.other_outputs

    # The state is the change of the blocks since the start, so that a small change of a large score gap is not lost.
    def look(change: Array) -> tuple[Record, Float[Array, ""]]:
        dx = field.to_reduced(change, parameters)
        seen = field.observables(x0 + dx, parameters)
        moved = field.observables(dx, parameters).score_gap  # the score gap is linear in the state
        return Record(score_gap_change=moved, extra={}, **seen._asdict()), jnp.exp(seen.log_loss)

    def lane(ratio: Float[Array, ""], lr: Float[Array, ""]) -> Run[Array, Record]:
        rates = lr * jnp.where(jnp.asarray(field.is_qk), ratio, 1.0)

        def advance(change: Array) -> tuple[Array, Float[Array, ""]]:
            return change - rates * field.gradient(blocks0 + change, 0.0, parameters), look(change)[1]

        return run_steps(advance, look, begin(jnp.zeros_like(blocks0), outputs), gaps)

    return jax.vmap(lane)(ratio, lr)
