"""`integrate`: the gradient flow of any symmetric task, by numerical integration."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _jax, _validate
from flowsim.codegen import CompiledField, Parameters
from flowsim.errors import InvalidInput
from flowsim.solve.adaptive import solve_adaptive
from flowsim.solve.driven import CHUNK as DRIVEN_CHUNK
from flowsim.solve.driven import check_horizon, solve_driven
from flowsim.solve.fixed_grid import BRIEF
from flowsim.solve.initial import Beginning, begin
from flowsim.solve.interventions import Interventions, check_step, gain_of
from flowsim.solve.lanes import asked_for, at_least_a_few, compile_lanes, map_lanes, padded
from flowsim.solve.reduced import Solution, observe, solve_reduced
from flowsim.solve.runge_kutta import State
from flowsim.start import Start
from flowsim.status import Status
from flowsim.task import Task
from flowsim.trajectory import Trajectory

MAX_STEPS = 1_000_000
# Always as many lanes, padded: the adaptive solver takes long to compile and costs little for each lane.
_ADAPTIVE_CHUNK = 16


def integrate(
    task: Task,
    parameterization: str = "CACO",
    *,
    ratio: Any,
    times: Any = None,
    log_times: Any = None,
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
    step: Any = None,
    order: int | None = None,
    tol: float = 1e-8,
    max_steps: int = MAX_STEPS,
) -> Trajectory:
    r"""Integrates the gradient flow of a task over time, for one ratio or many.

    An eighth-order step on a fixed grid of a smooth clock goes to the requested times; lanes whose estimated error
    exceeds the tolerance are solved again on finer grids, and then adaptively with `diffrax.diffeqsolve`. Lanes run in
    batches on all cores. Works under `jit`, `vmap` and `grad`, except for the adaptive stage, which concrete arguments
    need.

    Args:
        task: what is learnt; any task.
        parameterization: which circuits are collapsed and which factorized.
        ratio: $\eta_{QK}/\eta_{OV}$, 0 or more; a number or a list.
        times: gradient-flow times, 0 or more, strictly increasing; or
        log_times: their natural logarithms (`-inf` is time 0). One step covers three units of
            $\ln t$ at least; small ratios end with a status near $\ln t = 6 \cdot 10^4$, where `exact` goes on.
        margin0: margin at the start, for tasks with one distinct and one background group and the label head; by
            default 0 for a collapsed output-value circuit and 0.01 for a factorized one.
        score_gap0: score gap at the start, likewise for the query-key circuit.
        imbalance_ov: imbalance $\lambda = P^\top P - Q Q^\top$ of a factorized output-value circuit at the start, of
            either sign; positive means that $W_O$ is the larger factor. By default 0.
        imbalance_qk: the same of a factorized query-key circuit, $W_K$ against $W_Q$.
        start: blocks or factors of the start, for any task, instead of `margin0` and `score_gap0`.
        score_scale: factor $s$ of the scores, above 0, or `"1/sqrt(d)"` with the dimension of orthonormal embeddings;
            score gaps are those of the scores, blocks, imbalances and decays those of the matrices.
        schedule: how the ratio changes: a `flowsim.schedules` object, or any function from gradient-flow time to a
            factor of `ratio`.
        weight_decay_qk: decay rate $\mu$ of the query-key circuit, $\dot B = -\eta (G + \mu B)$; of both factors, where
            it has some. `flowsim.equilibrium` tells where it leads.
        weight_decay_ov: the same of the output-value circuit.
        normalize: `"qk"`, `"ov"` or `"both"`: the gradient of the circuit's matrices (of both factors together) is
            divided by its Frobenius norm.
        step: a finite learning rate: integrates the modified flow that gradient descent with this step follows.
        order: of the modified flow: 1 (the default with `step`) leaves an error of order `step`$^2$, 2 of order
            `step`$^3$; 0 is the flow itself.
        tol: tolerance: relative for the change of the score gap, relative or absolute (whichever is larger) for
            margins.
        max_steps: a lane that needs more steps keeps what it has and says so in its status.

    Returns:
        A trajectory with the lane axis `ratio` (dropped for a scalar) and the status and number of steps of each lane.
        With a factorized circuit, `extra["imbalance_violation"]` is the change of $P^\top P - Q Q^\top$, which the flow
        conserves, relative to the squared size of the factors: an error that the integration made.

    Raises:
        InvalidInput: naming the argument, its value and the fix.
    """
    _jax.require_x64()
    if not isinstance(task, Task):
        raise InvalidInput(f"task={_validate.show(task)} must be a flowsim.Task.")
    _validate.parameterization(parameterization)
    ratios, scalar = _ratios(ratio)
    grid = _log_times(times, log_times)
    tol = _validate.real("tol", tol, above=0.0)
    max_steps = _validate.whole("max_steps", max_steps, minimum=1, maximum=_validate.MOST_STEPS)
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
    field, parameters = begun.field, begun.parameters
    interventions = Interventions.of(schedule, weight_decay_qk, weight_decay_ov, normalize)
    step, order = check_step(step, order)
    y0, gap0 = _motion(begun)
    effective = ratios * gain_of(begun.scale, interventions)

    if interventions is not None or order:
        solution = _solve_driven(begun, interventions, step, order, effective, grid, tol, max_steps)
    elif _validate.is_traced(effective, grid, y0):
        batch = tuple(jnp.broadcast_to(y, effective.shape) for y in y0)
        solution = _differentiable(
            field, parameters._replace(ratio=effective), batch, jnp.asarray(grid), tol, max_steps
        )
    else:
        solution = _solve(field, parameters, effective, y0, jnp.asarray(grid), tol, max_steps)
    change = solution.score_gap_change
    arrays = solution._asdict()
    violation = arrays.pop("imbalance_violation")
    trajectory = Trajectory(
        log_time=jnp.asarray(grid),
        score_gap=change if not _validate.is_traced(gap0) and gap0 == 0 else gap0 + change,
        **arrays,
        extra={} if violation is None else {"imbalance_violation": violation},
        axes=("ratio",),
        coords={"ratio": ratios},
        task=task,
        parameterization=parameterization,
        method="ode",
        settings={
            **begun.settings,
            **({} if interventions is None else interventions.plain),
            **({"step": None if _validate.is_traced(step) else float(step), "order": order} if order else {}),
            "tol": tol,
            "max_steps": max_steps,
        },
    )
    return trajectory.squeeze("ratio") if scalar else trajectory


# Compiled as a whole also where the caller only differentiates or maps.
_differentiable = jax.jit(solve_reduced, static_argnums=0)


def _solve_driven(begun: Beginning, interventions, step, order, ratios, grid, tol, max_steps) -> Solution:
    """Solves lanes under interventions or with finite steps."""
    interventions = None if interventions is None else interventions.scaled(begun.scale)
    # numbers as arrays, so that new ones do not compile again
    step, tol, max_steps = (jnp.asarray(number, dtype=float) for number in (step, tol, max_steps))
    shared = (begun.parameters, begun.state, jnp.asarray(grid), interventions, step, tol, max_steps)
    if _validate.is_traced(ratios, shared):
        return _driven(begun.field, shared, order, ratios)
    check_horizon(grid, interventions, order)
    solve = functools.partial(_driven, begun.field, shared, order)
    return map_lanes(solve, [ratios], min(padded(len(ratios)), DRIVEN_CHUNK))


_driven = eqx.filter_jit(solve_driven)


def _solve(field, parameters, ratios, y0, grid, tol, max_steps) -> Solution:
    """Solves concrete lanes: all on the fixed grid, then adaptively those that it did not resolve."""
    shared = (parameters, y0, at_least_a_few(np.asarray(grid)), tol, max_steps)
    order = np.argsort(ratios, kind="stable")  # lanes of one chunk share a grid, so they had better be alike
    solution = map_lanes(functools.partial(_fixed, field, shared), [ratios[order]])
    if (np.diff(order) < 0).any():
        solution = jax.tree.map(lambda array: array[np.argsort(order)], solution)
    status = np.asarray(solution.status)
    hard = np.flatnonzero((status == Status.INACCURATE) | (status == Status.NOT_FINITE))
    if hard.size:
        better = map_lanes(functools.partial(_adaptive, field, shared), [ratios[hard]], _ADAPTIVE_CHUNK)
        solution = jax.tree.map(lambda old, new: jnp.asarray(old).at[hard].set(new), solution, better)
    return asked_for(solution, len(grid))


@compile_lanes
def _fixed(field: CompiledField, shared, ratio: Float[Array, " lanes"]) -> Solution:
    parameters, y0, grid, tol, max_steps = shared
    start = tuple(jnp.broadcast_to(x, ratio.shape) for x in y0)
    return solve_reduced(field, parameters._replace(ratio=ratio), start, grid, tol, max_steps, BRIEF)


@compile_lanes
def _adaptive(field: CompiledField, shared, ratio: Float[Array, " lanes"]) -> Solution:
    parameters, y0, grid, tol, max_steps = shared

    def lane(ratio: Float[Array, ""]):
        return solve_adaptive(field, parameters._replace(ratio=ratio), y0, grid, tol)

    path = jax.vmap(lane, out_axes=-1)(ratio)
    start = tuple(jnp.broadcast_to(x, ratio.shape) for x in y0)
    return observe(field, parameters._replace(ratio=ratio), start, path, tol, max_steps)


def _motion(begun: Beginning) -> tuple[State, Any]:
    """What moves, at time 0, and the score gap there."""
    y, gap = _motion_of(begun.field, begun.state, begun.parameters)
    if begun.given:  # what was given as a number is that number, to the last bit
        exact = dict(zip(begun.field.reduced_names, begun.given.values(), strict=True))
        names = begun.field.motion_names
        y = tuple(jnp.asarray(exact.get(name, number), jnp.float64) for name, number in zip(names, y, strict=True))
        gap = begun.given["score_gap"]
    return y, gap


@functools.partial(jax.jit, static_argnums=0)
def _motion_of(field: CompiledField, state: Float[Array, " state"], parameters: Parameters) -> tuple[State, Array]:
    x = field.to_reduced(field.circuits.blocks(state), parameters)
    return field.motion_of(state, parameters), field.observables(x, parameters).score_gap


def _ratios(value) -> tuple[Any, bool]:
    if not _validate.is_traced(value):
        return _validate.ratios(value)
    array = jnp.asarray(value, jnp.float64)
    if array.ndim > 1:
        raise InvalidInput(f"ratio has shape {array.shape}; give a number or a one-dimensional list.")
    return jnp.atleast_1d(array), array.ndim == 0


def _log_times(times, log_times) -> Any:
    if not _validate.is_traced(times, log_times) or (times is None) == (log_times is None):
        return _validate.log_time_grid(times, log_times)[0]
    given = jnp.log(jnp.asarray(times, jnp.float64)) if log_times is None else jnp.asarray(log_times, jnp.float64)
    return jnp.atleast_1d(given)
