r"""The flow of any parameterization: a pure, differentiable function from numbers to observables.

Everything here works under `jit`, `vmap`, `grad` and `jvp`. How many steps a solution takes is decided while solving,
and such a loop JAX differentiates forwards only. The derivative is therefore computed forwards, in one direction for
each number that is differentiated, and applied as the linear map that it is, which serves both modes.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from flowsim import _jax  # noqa: F401  float64 first
from flowsim._observe import Observables
from flowsim.codegen import CompiledField, Parameters
from flowsim.solve import fixed_grid
from flowsim.solve.fixed_grid import Path
from flowsim.solve.measure import largest, measure_of
from flowsim.solve.runge_kutta import State, Velocity
from flowsim.status import Status

# Axes of the lanes: only the ratio differs from one to the next.
_LANES: Any = Parameters(None, None, None, None, None, 0)  # pyright: ignore[reportArgumentType]


class Solution(NamedTuple):
    """Observables of a batch of lanes; the fields are those of `Trajectory`, the score gap itself excepted.

    Those by group are None unless there are more groups than one distinct and one background; the violation of the
    conservation laws of factors, relative to their squared size, is None without factors.
    """

    margin: Float[Array, "lanes time"]
    score_gap_change: Float[Array, "lanes time"]
    log_odds: Float[Array, "lanes time"]
    log_error: Float[Array, "lanes time"]
    log_loss: Float[Array, "lanes time"]
    status: Int[Array, " lanes"]
    n_steps: Int[Array, " lanes"]
    margins: Float[Array, "lanes time distinct"] | None
    scores: Float[Array, "lanes time groups"] | None
    log_attentions: Float[Array, "lanes time groups"] | None
    imbalance_violation: Float[Array, "lanes time"] | None


def solve_reduced(
    field: CompiledField,
    parameters: Parameters,
    start: State,
    log_times: Float[Array, " time"],
    tol: Float[ArrayLike, ""],
    max_steps: Int[ArrayLike, ""],
    patience: fixed_grid.Patience = fixed_grid.LONG,
) -> Solution:
    r"""Integrates lanes of the flow to the requested times.

    Args:
        field: the compiled field.
        parameters: the task's numbers, `ratio` of shape `(lanes,)`.
        start: the motion at time 0, each coordinate of shape `(lanes,)`.
        log_times: $\ln t$, strictly increasing; the first may be $-\infty$.
        tol: bounds the sum of the estimated errors of all steps.
        max_steps: no lane takes more steps.
        patience: how fine a grid is tried before a lane is called inaccurate.

    Returns:
        Observables, status and step count of each lane. A ratio that cannot be used gives NaN and a status.
    """
    ratio = parameters.ratio
    parameters = parameters._replace(ratio=jnp.where(jnp.isfinite(ratio) & (ratio >= 0), ratio, jnp.nan))
    path = _solve_path(field, parameters, start, log_times, tol, max_steps, patience)
    return observe(field, parameters, start, path, tol, max_steps)


def velocity_of(field: CompiledField, parameters: Parameters) -> Velocity:
    """The flow of all lanes of a batch; the rate may be shared."""

    def velocity(log_rate: Array, x: State) -> State:
        shared = None if jnp.ndim(log_rate) == 0 else 0
        return jax.vmap(field.motion, in_axes=(shared, 0, _LANES))(log_rate, x, parameters)

    return velocity


@eqx.filter_custom_jvp
def _solve_path(field, parameters, start, log_times, tol, max_steps, patience) -> Path:
    return _forward(field, parameters, start, log_times, tol, max_steps, patience)


@_solve_path.def_jvp
def _(primals, tangents):
    field, parameters, start, log_times, tol, max_steps, patience = primals
    _, d_parameters, d_start, d_log_times, *_ = tangents
    path = _solve_path(*primals)
    change = [jnp.zeros_like(c) for c in path.change]

    numbers, structure = jax.tree.flatten((parameters, start))
    moves = jax.tree.leaves((d_parameters, d_start), is_leaf=lambda leaf: leaf is None)
    shared = len(Parameters._fields) - 1  # the numbers before the ratio are those of all lanes
    directions = []  # (number, entry or None for all lanes at once, how far to go)
    for i, move in enumerate(moves):
        if move is not None and i >= shared:
            directions.append((i, ..., move))
        elif move is not None:
            directions += [(i, entry, move[entry]) for entry in np.ndindex(move.shape)]
    if directions:
        basis = [jnp.zeros((len(directions), *number.shape)) for number in numbers]
        for k, (i, entry, _) in enumerate(directions):
            basis[i] = basis[i].at[k].set(jnp.zeros_like(numbers[i]).at[entry].set(1.0))

        def solve(numbers):
            parameters, start = jax.tree.unflatten(structure, numbers)
            return _forward(field, parameters, start, log_times, tol, max_steps, patience).change

        jacobian = jax.vmap(lambda direction: jax.jvp(solve, (numbers,), (direction,))[1])(basis)
        change = [sum(j * d[2] for j, d in zip(per, directions, strict=True)) for per in jacobian]
    if d_log_times is not None:
        x = tuple(b + c for b, c in zip(start, path.change, strict=True))
        slope = jax.vmap(velocity_of(field, parameters))(jnp.broadcast_to(log_times[:, None], x[0].shape), x)
        change = [c + s * d_log_times[:, None] for c, s in zip(change, slope, strict=True)]
    return path, path._replace(change=tuple(change), **dict.fromkeys(Path._fields[1:]))  # None: no derivative


def _forward(field, parameters, start, log_times, tol, max_steps, patience) -> Path:
    log_error = jax.vmap(lambda x, p: field.observables(jnp.stack(x), p).log_error, in_axes=(0, _LANES))
    measure, velocity = measure_of(field, parameters), velocity_of(field, parameters)
    errors = log_error(measure.position(start), parameters)
    return fixed_grid.solve(velocity, start, errors, log_times, tol, max_steps, measure, patience)


def observe(
    field: CompiledField,
    parameters: Parameters,
    start: State,
    path: Path,
    tol: Float[ArrayLike, ""],
    max_steps: Int[ArrayLike, ""],
) -> Solution:
    """Observables and status of a path; arguments as in `solve_reduced`.

    Args:
        field: the compiled field.
        parameters: the task's numbers.
        start: the motion at time 0.
        path: the path.
        tol: the tolerance that it was to meet.
        max_steps: the number of steps that no lane was to exceed.

    Returns:
        The solution.
    """
    measure = measure_of(field, parameters)
    moved = measure.displaced(start, path.change)
    x = tuple(map(jnp.add, measure.position(start), moved))
    broken = measure.broken(start, path.change)

    def see(x: State, moved: State):
        seen = field.observables(jnp.stack(x), parameters)
        # The gap is linear in the state, so that of the change is its own change, free of cancellation.
        return seen, field.observables(jnp.stack(moved), parameters).score_gap

    seen, gap_change = jax.vmap(jax.vmap(see))(x, moved)
    seen, gap_change = jax.tree.map(lambda array: jnp.swapaxes(array, 0, 1), (seen, gap_change))
    finite = functools.reduce(jnp.logical_and, (jnp.all(jnp.isfinite(c), axis=0) for c in path.change))
    status = jnp.where(4 * path.rounding > tol, int(Status.ILL_CONDITIONED), int(Status.OK))
    status = jnp.where(path.error <= tol, status, int(Status.INACCURATE))
    status = jnp.where(finite, status, int(Status.NOT_FINITE))
    status = jnp.where(path.complete & (path.n_steps <= max_steps), status, int(Status.MAX_STEPS))
    violation = largest(broken, broken[0]).T if broken else None
    return solution_of(field, seen, gap_change, status, path.n_steps, violation)


def solution_of(
    field: CompiledField, seen: Observables, gap_change: Array, status: Array, n_steps: Array, violation: Array | None
) -> Solution:
    """The solution from what was seen; by group only where margin, score gap and log odds do not say it all."""
    grouped = len(field.flow.structure.roles) > 2
    return Solution(
        margin=seen.margin,
        score_gap_change=gap_change,
        log_odds=seen.log_odds,
        log_error=seen.log_error,
        log_loss=seen.log_loss,
        status=status,
        n_steps=n_steps,
        margins=seen.margins if grouped else None,
        scores=seen.scores if grouped else None,
        log_attentions=seen.log_attentions if grouped else None,
        imbalance_violation=violation,
    )
