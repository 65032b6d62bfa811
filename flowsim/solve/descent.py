"""Gradient descent in the reduced blocks: what full-batch training of the full matrices does, exactly."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flowsim import _jax, _validate
from flowsim.codegen import CompiledField, Parameters
from flowsim.errors import InvalidInput
from flowsim.solve.finite import Lanes, Record
from flowsim.solve.initial import begin
from flowsim.solve.interventions import Interventions, driven_velocity, gain_of
from flowsim.solve.stepping import Run, run_steps
from flowsim.solve.stepping import begin as begin_run
from flowsim.start import Start
from flowsim.task import Task
from flowsim.trajectory import Trajectory


class Place(NamedTuple):
    """Where a run is.

    Attributes:
        change: change of blocks and factors since the start.
        step: number of steps taken, as a float.
    """

    change: Float[Array, " state"]
    step: Float[Array, ""]


def descend(
    task: Task,
    parameterization: str = "CACO",
    *,
    ratio,
    lr,
    steps: int,
    points: int = 200,
    margin0: Any = None,
    score_gap0: Any = None,
    imbalance_ov: Any = None,
    imbalance_qk: Any = None,
    start: Start | None = None,
    score_scale: float | str = 1.0,
    schedule: Any = None,
    weight_decay_qk: Any = 0.0,
    weight_decay_ov: Any = 0.0,
    normalize: str | None = None,
) -> Trajectory:
    r"""Takes finite gradient steps in the reduced blocks, or their factors.

    Full-batch gradient descent keeps symmetric matrices symmetric, and on their blocks it is
    $B \leftarrow B - \eta\, G_B$ with the block gradient $G_B = (1/d_\rho)\, \partial L/\partial B$ of the flow: a step
    in place of the derivative, without any approximation. On the factors of a factorized circuit, $B = P Q$, it is
    $P \leftarrow P - \eta\, G_B Q^\top$, $Q \leftarrow Q - \eta\, P^\top G_B$ with the old factors on the right. As the
    learning rate goes to 0 at fixed time the flow is approached with order 1.

    Args:
        task: what is learnt.
        parameterization: which circuits are collapsed and which factorized.
        ratio: $\eta_{QK}/\eta_{OV}$, 0 or more; a number or a list.
        lr: learning rate of the output-value circuit per step, above 0; a number or a list. The query-key circuit has
            `ratio * lr`.
        steps: number of steps; gradient-flow time is `lr` times the step number.
        points: number of steps to record, logarithmically spaced from step 1 to the last.
        margin0: margin at the start, on the line that the collapsed flow takes; by default 0 for a collapsed
            output-value circuit and 0.01 for a factorized one.
        score_gap0: score gap at the start, likewise for the query-key circuit.
        imbalance_ov: imbalance of the factors of the output-value circuit, as in `integrate`.
        imbalance_qk: imbalance of the factors of the query-key circuit.
        start: blocks or factors of the start, instead of `margin0` and `score_gap0`.
        score_scale: factor of the scores, as in `integrate`.
        schedule: how the ratio changes, as in `integrate`; a step has the factor at its beginning.
        weight_decay_qk: decay rate of the query-key circuit in units of its learning rate, as in `integrate`.
        weight_decay_ov: the same of the output-value circuit.
        normalize: circuits whose gradient is divided by its Frobenius norm, as in `integrate`.

    Returns:
        A trajectory with lane axes (ratio, lr) as far as they were lists. A run that diverged has status
        `Status.DIVERGED`, its records are NaN from the divergence on, and `n_steps` is the number of steps before the
        one that diverged. With a factorized circuit, `extra["imbalance_violation"]` is the change of
        $P^\top P - Q Q^\top$, which the flow conserves and steps of size $\eta$ do not, relative to the squared size of
        the factors.

    Raises:
        InvalidInput: naming the argument, its value and the fix.
    """
    _jax.require_x64()
    _validate.parameterization(parameterization)
    if not isinstance(task, Task):
        raise InvalidInput(f"task={_validate.show(task)} must be a flowsim.Task.")
    lanes = Lanes.of(ratio, lr, steps, points)
    begun = begin(
        task,
        parameterization,
        margin0=margin0,
        score_gap0=score_gap0,
        imbalance_ov=imbalance_ov,
        imbalance_qk=imbalance_qk,
        start=start,
        score_scale=score_scale,
    )
    interventions = Interventions.of(schedule, weight_decay_qk, weight_decay_ov, normalize)
    ratios, rates = lanes.rates
    effective = ratios * gain_of(begun.scale, interventions)
    changed = None if interventions is None else interventions.scaled(begun.scale)
    run = _descend(begun.field, begun.parameters, begun.state, changed, effective, rates, lanes.gaps)
    settings = {**begun.settings, **({} if interventions is None else interventions.plain)}
    return lanes.trajectory(run, task, parameterization, "descent", settings)


@eqx.filter_jit
def _descend(
    field: CompiledField,
    parameters: Parameters,
    state0: Float[Array, " state"],
    interventions: Interventions | None,
    ratio: Float[Array, " lanes"],
    lr: Float[Array, " lanes"],
    gaps: Int[Array, " time"],
) -> Run[Place, Record]:
    pair = field.circuits
    blocks0 = pair.blocks(state0)
    x0 = field.to_reduced(blocks0, parameters)
    outputs = parameters.classes + parameters.other_outputs

    # The state is the change since the start, so that a small change of a large score gap is not lost.
    def look(place: Place) -> tuple[Record, Float[Array, ""]]:
        change = place.change
        dx = field.to_reduced(pair.moved(state0, change), parameters)
        seen = field.observables(x0 + dx, parameters)
        moved = field.observables(dx, parameters).score_gap  # the score gap is linear in the blocks
        violation = pair.violation(state0, change)
        extra = {} if violation is None else {"imbalance_violation": violation}
        return Record(score_gap_change=moved, extra=extra, **seen._asdict()), jnp.exp(seen.log_loss)

    def lane(ratio: Float[Array, ""], lr: Float[Array, ""]) -> Run[Place, Record]:
        velocity = driven_velocity(field, parameters._replace(ratio=ratio), interventions, state0, lr)

        def advance(place: Place) -> tuple[Place, Float[Array, ""]]:
            step = velocity(jnp.zeros(()), lr * place.step, place.change)
            return Place(place.change + step, place.step + 1), look(place)[1]

        return run_steps(advance, look, begin_run(Place(jnp.zeros_like(state0), jnp.zeros(())), outputs), gaps)

    return jax.vmap(lane)(ratio, lr)
