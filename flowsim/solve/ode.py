"""`integrate`: the gradient flow of any symmetric task, by numerical integration."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import (
    _jax,
    _validate,
    circuits,
)
from flowsim.codegen import CompiledField, Parameters, compile
from flowsim.errors import InvalidInput
from flowsim.solve.adaptive import solve_adaptive
from flowsim.solve.fixed_grid import BRIEF
from flowsim.solve.initial import start_blocks, start_settings
from flowsim.solve.lanes import compile_lanes, map_lanes
from flowsim.solve.reduced import Solution, n_gaps, observe, solve_reduced
from flowsim.solve.runge_kutta import State
from flowsim.start import Start
from flowsim.status import Status
from flowsim.task import Task
from flowsim.theory import derive
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
    margin0: Any = 0.0,
    score_gap0: Any = 0.0,
    start: Start | None = None,
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
        margin0: margin at the start, for tasks with one distinct and one background group and the label head.
        score_gap0: score gap at the start, likewise.
        start: blocks of the start, for any task, instead of the two arguments before.
        tol: tolerance: relative for the change of the score gap, relative or absolute (whichever is larger) for
            margins.
        max_steps: a lane that needs more steps keeps what it has and says so in its status.

    Returns:
        A trajectory with the lane axis `ratio` (dropped for a scalar) and the status and number of steps of each lane.

    Raises:
        InvalidInput: naming the argument, its value and the fix.
    """
    _jax.require_x64()
    if not isinstance(task, Task):
        raise InvalidInput(f"task={task!r} must be a flowsim.Task.")
    pair = circuits.parameterization(parameterization)
    ratios, scalar = _ratios(ratio)
    grid = _log_times(times, log_times)
    tol = _validate.real("tol", tol, above=0.0)
    max_steps = _validate.whole("max_steps", max_steps, minimum=1, maximum=_validate.MOST_STEPS)
    field = compile(derive(task, pair.name))
    parameters = field.parameters(task, 1.0)
    x0, gap0 = _start(task, field, parameters, margin0, score_gap0, start)

    if _validate.is_traced(ratios, grid, x0):
        batch = tuple(jnp.broadcast_to(x, ratios.shape) for x in x0)
        solution = _differentiable(field, parameters._replace(ratio=ratios), batch, jnp.asarray(grid), tol, max_steps)
    else:
        solution = _solve(field, parameters, ratios, x0, jnp.asarray(grid), tol, max_steps)
    change = solution.score_gap_change
    trajectory = Trajectory(
        log_time=jnp.asarray(grid),
        score_gap=change if not _validate.is_traced(gap0) and gap0 == 0 else gap0 + change,
        **solution._asdict(),
        axes=("ratio",),
        coords={"ratio": ratios},
        task=task,
        parameterization=pair.name,
        method="ode",
        settings={**start_settings(margin0, score_gap0, start), "tol": tol, "max_steps": max_steps},
    )
    return trajectory.squeeze("ratio") if scalar else trajectory


# Compiled as a whole also where the caller only differentiates or maps.
_differentiable = jax.jit(solve_reduced, static_argnums=0)


def _solve(field, parameters, ratios, x0, grid, tol, max_steps) -> Solution:
    """Solves concrete lanes: all on the fixed grid, then adaptively those that it did not resolve."""
    shared = (parameters, x0, grid, tol, max_steps)
    order = np.argsort(ratios, kind="stable")  # lanes of one chunk share a grid, so they had better be alike
    solution = map_lanes(functools.partial(_fixed, field, shared), [ratios[order]])
    if (np.diff(order) < 0).any():
        solution = jax.tree.map(lambda array: array[np.argsort(order)], solution)
    status = np.asarray(solution.status)
    hard = np.flatnonzero((status == Status.INACCURATE) | (status == Status.NOT_FINITE))
    if hard.size:
        better = map_lanes(functools.partial(_adaptive, field, shared), [ratios[hard]], _ADAPTIVE_CHUNK)
        solution = jax.tree.map(lambda old, new: jnp.asarray(old).at[hard].set(new), solution, better)
    return solution


@compile_lanes
def _fixed(field: CompiledField, shared, ratio: Float[Array, " lanes"]) -> Solution:
    parameters, x0, grid, tol, max_steps = shared
    start = tuple(jnp.broadcast_to(x, ratio.shape) for x in x0)
    return solve_reduced(field, parameters._replace(ratio=ratio), start, grid, tol, max_steps, BRIEF)


@compile_lanes
def _adaptive(field: CompiledField, shared, ratio: Float[Array, " lanes"]) -> Solution:
    parameters, x0, grid, tol, max_steps = shared

    def lane(ratio: Float[Array, ""]):
        return solve_adaptive(field, parameters._replace(ratio=ratio), x0, grid, tol, n_gaps(field))

    path = jax.vmap(lane, out_axes=-1)(ratio)
    start = tuple(jnp.broadcast_to(x, ratio.shape) for x in x0)
    return observe(field, parameters._replace(ratio=ratio), start, path, tol, max_steps)


def _start(task: Task, field: CompiledField, parameters: Parameters, margin0, score_gap0, start) -> tuple[State, Any]:
    """The reduced coordinates at time 0, and the score gap there."""
    blocks = start_blocks(task, field.flow, margin0, score_gap0, start)
    if start is None and field.n_reduced == 2:
        gap, margin = (jnp.asarray(value, jnp.float64) for value in (score_gap0, margin0))
        return (gap, margin), score_gap0
    x, gap = _to_reduced(field, blocks, parameters)
    return tuple(x), gap


@functools.partial(jax.jit, static_argnums=0)
def _to_reduced(field: CompiledField, blocks: Float[Array, " blocks"], parameters: Parameters) -> tuple[Array, Array]:
    x = field.to_reduced(blocks, parameters)
    return x, field.observables(x, parameters).score_gap


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
