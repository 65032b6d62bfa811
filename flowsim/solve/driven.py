r"""The flow under interventions, or modified by finite steps, by adaptive integration with diffrax.

The state is the change of blocks and factors since the start, the clock $s = \ln(1 + t/T_0)$ with $T_0$ a fraction of
the time in which the start begins to move. Explicit steps serve unless the state decays to an equilibrium, where the
clock makes the decay stiff and an implicit method takes over. Every lane is solved with two tolerances; how far the two
solutions are apart is its error.
"""

import functools
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.codegen import CompiledField, Parameters
from flowsim.errors import InvalidInput
from flowsim.solve.interventions import Driven, Interventions, driven_velocity, modified
from flowsim.solve.reduced import Solution, solution_of
from flowsim.status import Status

# Largest ln t at which e^{ln t} times a velocity of order 1 is a float.
LONGEST = 700.0
# Lanes of one compiled batch.
CHUNK = 16
_T0_FRACTION = 0.1
# Tolerances of single steps relative to that of the trajectory; the two solutions are compared.
_LOCAL, _LOCAL_CHECK = 1e-3, 1e-2
_MAX_STEPS = 1 << 18
_TINY = float(np.finfo(np.float64).tiny)


def check_horizon(log_times: np.ndarray, interventions: Interventions | None, order: int) -> None:
    """Refuses times that these velocities cannot reach in float64.

    Raises:
        InvalidInput: naming the last time.
    """
    endless = order == 0 and (interventions is None or interventions.endless)
    if not endless and log_times[-1] > LONGEST:
        raise InvalidInput(
            f"log_times[{len(log_times) - 1}]={log_times[-1]:g} is beyond e^{LONGEST:g}, the longest time with weight "
            "decay, normalization or step=; give earlier times."
        )


def solve_driven(
    field: CompiledField,
    shared: tuple[Parameters, Array, Array, Interventions | None, Any, Any, Any],
    order: int,
    ratio: Float[Array, " lanes"],
) -> Solution:
    """Integrates lanes to the requested times.

    Args:
        field: the compiled field.
        shared: the task's numbers, the state at time 0, log times, interventions, step of the modified flow, tolerance
            and number of steps allowed.
        order: order of the modified flow, 0 for the flow itself.
        ratio: ratio of each lane.

    Returns:
        Observables, status and steps of each lane.
    """
    parameters, state0, log_times, interventions, step, tol, max_steps = shared

    def lane(ratio: Array) -> Solution:
        numbers = parameters._replace(ratio=ratio)
        velocity = modified(driven_velocity(field, numbers, interventions, state0), step, order)
        stiff = interventions is not None and interventions.decays
        # Small changes keep their relative accuracy, except where a normalized velocity jumps from an exact 0.
        relative = not stiff and (interventions is None or interventions.normalize is None)
        solve = functools.partial(solve_path, velocity, state0, log_times, stiff=stiff, relative=relative)
        both = jnp.asarray(tol) * jnp.array([_LOCAL, _LOCAL_CHECK])
        (fine, coarse), n_steps, complete = jax.vmap(lambda tol: solve(tol=tol))(both)
        complete &= n_steps <= max_steps
        return _observe(field, numbers, state0, fine, coarse, tol, n_steps[0], complete[0])

    return jax.vmap(lane)(ratio)


def solve_path(
    velocity: Driven, state0: Array, log_times: Float[Array, " time"], *, tol: Any, stiff: bool, relative: bool
) -> tuple[Float[Array, "time state"], Array, Array]:
    """Integrates one lane.

    Args:
        velocity: as `driven_velocity` returns it.
        state0: the state at time 0.
        log_times: log of the times, increasing.
        tol: tolerance of a step.
        stiff: whether the state decays to an equilibrium.
        relative: whether changes are to be relatively accurate however small they are.

    Returns:
        The change of the state at the times (NaN beyond the last step), the number of steps, and whether all times were
        reached.
    """
    zero = jnp.zeros(())
    speed = jnp.max(jnp.abs(velocity(zero, zero, jnp.zeros_like(state0))))
    log_unit = jax.lax.stop_gradient(jnp.log(_T0_FRACTION) - jnp.log(jnp.where(speed > 0, speed, 1.0)))
    clock = jnp.logaddexp(log_times - log_unit, 0.0)

    def along(s: Any, change: Array, _: Any) -> Array:
        return velocity(log_unit + s, jnp.exp(log_unit) * jnp.expm1(s), change)

    root = optimistix.Newton(rtol=1e-3 * tol, atol=1e-3 * tol)
    controller = diffrax.PIDController(rtol=tol, atol=_TINY if relative else 1e-3 * tol)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(along),
        diffrax.Kvaerno5(root_finder=root) if stiff else diffrax.Dopri8(),
        t0=0.0,
        t1=clock[-1],
        dt0=jnp.minimum(1e-3, clock[-1]),
        y0=jnp.zeros_like(state0),
        saveat=diffrax.SaveAt(ts=clock),
        # dense output is less accurate than the steps themselves, so they end where they are looked at
        stepsize_controller=diffrax.ClipStepSizeController(controller, step_ts=clock),
        max_steps=_MAX_STEPS,
        throw=False,
    )
    assert solution.ys is not None
    reached = jnp.all(jnp.isfinite(solution.ys), axis=-1)
    changes = jnp.where(reached[:, None], solution.ys, jnp.nan)
    done = solution.result == diffrax.RESULTS.successful
    return changes, solution.stats["num_accepted_steps"], done


def _observe(
    field: CompiledField,
    parameters: Parameters,
    state0: Array,
    changes: Float[Array, "time state"],
    coarse: Float[Array, "time state"],
    tol: Any,
    n_steps: Array,
    complete: Array,
) -> Solution:
    pair = field.circuits
    x0 = field.to_reduced(pair.blocks(state0), parameters)

    def see(change: Array):
        dx = field.to_reduced(pair.moved(state0, change), parameters)
        gap = field.observables(dx, parameters).score_gap  # the gap is linear in the blocks
        return field.observables(x0 + dx, parameters), gap, dx, pair.violation(state0, change)

    seen, gap_change, dx, violation = jax.vmap(see)(changes)
    other = jax.vmap(see)(coarse)[2]
    gaps = jnp.asarray([kind == "score" for kind, _ in field.flow.coordinates.keys])
    moved = jax.lax.cummax(jnp.max(jnp.where(gaps, jnp.abs(dx), 0.0), axis=1))[:, None]
    weight = jnp.maximum(1.0, jnp.abs(x0 + dx))
    weight = jnp.where(gaps, jnp.minimum(weight, moved), weight)
    off = jnp.abs(other - dx)
    error = jnp.max(jnp.where(off == 0, 0.0, off / jnp.where(weight > 0, weight, 1.0)))
    finite = jnp.all(jnp.isfinite(dx))
    status = jnp.where(error <= tol, int(Status.OK), int(Status.INACCURATE))
    status = jnp.where(finite, status, int(Status.NOT_FINITE))
    status = jnp.where(complete, status, int(Status.MAX_STEPS))
    return solution_of(field, seen, gap_change, status, n_steps, violation)
