r"""Where weight decay leads: the state at which decay and gradient balance, $G + \mu B = 0$ in every circuit."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import optimistix
from jaxtyping import Array, Float

from flowsim import _jax, _validate
from flowsim.codegen import CompiledField
from flowsim.errors import InvalidInput
from flowsim.solve.driven import LONGEST, solve_path
from flowsim.solve.initial import begin
from flowsim.solve.interventions import Interventions, driven_velocity
from flowsim.start import Start
from flowsim.task import Task

# The flow is followed for so many of its slowest decay times before Newton's method takes over.
_DECAY_TIMES = 60.0
_RELATIVE = 1e-12


class Equilibrium(NamedTuple):
    r"""The state that a flow with weight decay ends in.

    Attributes:
        margin: $w$ there.
        score_gap: $\theta$ there.
        attention: attention on the first distinct group.
        loss: mean cross-entropy.
        state: blocks of collapsed circuits and factors of factorized ones, in the order of the compiled field.
        residual: largest entry of the velocity there, relative to the largest of its two parts, decay and gradient.
        rate: real part of the slowest eigenvalue of the flow there; negative where the equilibrium is stable.
    """

    margin: float
    score_gap: float
    attention: float
    loss: float
    state: np.ndarray
    residual: float
    rate: float


def equilibrium(
    task: Task,
    parameterization: str = "CACO",
    *,
    weight_decay_qk: float,
    weight_decay_ov: float,
    ratio: float = 1.0,
    margin0: Any = None,
    score_gap0: Any = None,
    imbalance_ov: Any = None,
    imbalance_qk: Any = None,
    start: Start | None = None,
    score_scale: float | str = 1.0,
) -> Equilibrium:
    r"""The equilibrium that a flow with weight decay goes to from a start.

    The flow is followed for many decay times, then Newton's method finds the root of the velocity. Where a root lies
    does not depend on the ratio, since decay is coupled to the learning rate; to which of several roots the flow goes,
    and how fast, does.

    Args:
        task: what is learnt.
        parameterization: which circuits are collapsed and which factorized.
        weight_decay_qk: decay rate of the query-key circuit, above 0: without it attention sharpens for ever.
        weight_decay_ov: decay rate of the output-value circuit, above 0: without it margins grow for ever.
        ratio: $\eta_{QK}/\eta_{OV}$, above 0.
        margin0: margin at the start, as in `integrate`.
        score_gap0: score gap at the start.
        imbalance_ov: imbalance of the output-value factors at the start.
        imbalance_qk: imbalance of the query-key factors at the start.
        start: blocks or factors of the start, instead.
        score_scale: factor of the scores, as in `integrate`.

    Returns:
        The equilibrium.

    Raises:
        InvalidInput: naming the argument, its value and the fix; also if the flow has not come near a root.
    """
    _jax.require_x64()
    if not isinstance(task, Task):
        raise InvalidInput(f"task={_validate.show(task)} must be a flowsim.Task.")
    ratio = _validate.real("ratio", ratio, above=0.0)
    decay = (
        _validate.real("weight_decay_qk", weight_decay_qk, above=0.0),
        _validate.real("weight_decay_ov", weight_decay_ov, above=0.0),
    )
    horizon = np.log(_DECAY_TIMES) - np.log(min(ratio * decay[0], decay[1]))
    if horizon > LONGEST:
        raise InvalidInput(
            f"weight_decay_qk={decay[0]:g} or weight_decay_ov={decay[1]:g} is too small to decay at all."
        )
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
    interventions = Interventions.of(None, *decay, None)
    assert interventions is not None
    interventions = interventions.scaled(begun.scale)
    parameters = begun.parameters._replace(ratio=jnp.asarray(ratio * begun.scale.gain()))
    state, residual, jacobian, seen = _find(begun.field, parameters, begun.state, interventions, jnp.asarray(horizon))
    if not float(residual) < np.sqrt(_RELATIVE):
        raise InvalidInput(
            f"weight_decay_qk={decay[0]:g} and weight_decay_ov={decay[1]:g}: no equilibrium was found near the end of "
            f"the flow (relative velocity {float(residual):.1e}); integrate with them to see what it does."
        )
    n = begun.field.circuits.qk.size
    return Equilibrium(
        margin=float(seen.margin),
        score_gap=float(seen.score_gap),
        attention=float(jax.nn.sigmoid(seen.log_odds)),
        loss=float(jnp.exp(seen.log_loss)),
        state=np.concatenate([np.asarray(state)[:n] / begun.scale.state, np.asarray(state)[n:]]),
        residual=float(residual),
        rate=float(np.max(np.linalg.eigvals(np.asarray(jacobian)).real)),
    )


@eqx.filter_jit
def _find(
    field: CompiledField, parameters: Any, state0: Float[Array, " state"], interventions: Interventions, horizon: Array
):
    zero = jnp.zeros(())
    velocity = driven_velocity(field, parameters, interventions, state0)
    change, _, _ = solve_path(velocity, state0, horizon[None], tol=1e-8, stiff=True, relative=False)

    def root(change: Array, _: Any) -> Array:
        return velocity(zero, zero, change)

    # hidden units can be rotated into each other without any effect, so the Jacobian may be singular
    newton = optimistix.Newton(_RELATIVE, _RELATIVE, linear_solver=lineax.AutoLinearSolver(well_posed=False))
    found = optimistix.root_find(root, newton, change[0], max_steps=64, throw=False).value
    state = state0 + found
    pair = field.circuits
    n = pair.qk.size
    rates = jnp.where(jnp.arange(pair.size) < n, parameters.ratio * interventions.weight_decay_qk, 0.0)
    rates = jnp.where(jnp.arange(pair.size) < n, rates, interventions.weight_decay_ov)
    residual = jnp.max(jnp.abs(root(found, None))) / jnp.max(jnp.abs(rates * state))
    seen = field.observables(field.to_reduced(pair.blocks(state), parameters), parameters)
    return state, residual, jax.jacfwd(root)(found, None), seen
