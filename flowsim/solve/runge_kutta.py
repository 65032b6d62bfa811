r"""One high-order step, and the polynomial between steps.

The step is an explicit Runge-Kutta step written as a loop over its stages: as fast as 12 copies of the flow, and four
times faster to compile. Coefficients are those of `diffrax.Dopri8`. The polynomial matches values and slopes at some
grid points.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from flowsim import _jax  # noqa: F401  float64 first

# A state is a tuple of coordinates, each an array over lanes: coordinates stay apart because XLA compiles
# one contiguous loop for each, twice as fast as for a stacked array.
State = tuple[Float[Array, " lanes"], ...]
# velocity(log_rate, coordinates) -> e^{log_rate} dx/dt
Velocity = Callable[[Float[Array, " lanes"], State], State]


class Tableau(NamedTuple):
    """Coefficients of an explicit Runge-Kutta method.

    Attributes:
        stages: lower triangular matrix of stage coefficients.
        nodes: where in the step each stage stands.
        solution: weights of the solution.
        error: weights of the embedded estimate of a step's error.
    """

    stages: Float[ArrayLike, "stages stages"]
    nodes: Float[ArrayLike, " stages"]
    solution: Float[ArrayLike, " stages"]
    error: Float[ArrayLike, " stages"]


@functools.cache
def dopri8() -> Tableau:
    """The tableau of `diffrax.Dopri8`; its last stage is the slope at the end of the step."""
    tableau = diffrax.Dopri8.tableau
    n = tableau.num_stages
    stages = np.zeros((n, n))
    for i, row in enumerate(tableau.a_lower):
        stages[i + 1, : i + 1] = np.asarray(row)
    nodes = np.concatenate([[0.0], np.asarray(tableau.c)])
    return Tableau(stages, nodes, np.asarray(tableau.b_sol), np.asarray(tableau.b_error))


class Step(NamedTuple):
    """What one step gives.

    Attributes:
        change: the change at the end of the step.
        slope: the slope there.
        error: the embedded estimate of the error of the step.
    """

    change: State
    slope: State
    error: State


def step(velocity: Velocity, base: State, change: State, slope: State, log_rate: Array, h: Array) -> Step:
    r"""One Runge-Kutta step of $dx/ds = $ `velocity`$(\ln T_0 + s, x)$.

    Args:
        velocity: the flow.
        base: where the change is counted from.
        change: $x - $ `base` at the beginning of the step.
        slope: $dx/ds$ there.
        log_rate: $\ln T_0 + s$ there.
        h: step in $s$.

    Returns:
        The end of the step.
    """
    stages, nodes, solution, error = map(jnp.asarray, dopri8())
    pick = functools.partial(jax.lax.dynamic_index_in_dim, keepdims=False, allow_negative_indices=False)
    put = functools.partial(jax.lax.dynamic_update_index_in_dim, axis=0, allow_negative_indices=False)

    def stage(i, slopes):
        row = pick(stages, i)
        x = tuple(b + (c + h * (row @ k)) for b, c, k in zip(base, change, slopes, strict=True))
        return tuple(map(functools.partial(put, index=i), slopes, velocity(log_rate + pick(nodes, i) * h, x)))

    n = len(nodes)
    slopes = tuple(jnp.zeros((n, *k.shape)).at[0].set(k) for k in slope)
    slopes = jax.lax.fori_loop(1, n, stage, slopes)
    return Step(
        tuple(c + h * (solution @ k) for c, k in zip(change, slopes, strict=True)),
        tuple(k[-1] for k in slopes),
        tuple(h * (error @ k) for k in slopes),
    )


Weights = tuple[Float[Array, " nodes"], Float[Array, " nodes"]]


def hermite(nodes: Float[Array, " nodes"], at: Float[Array, ""]) -> Weights:
    """The polynomial that matches values and slopes at all nodes, evaluated at one point.

    Args:
        nodes: increasing.
        at: where to evaluate it.

    Returns:
        Weights of the values and of the slopes.
    """
    span, offset, inverse, same = _geometry(nodes, at)
    lagrange = jnp.prod(jnp.where(same, 1.0, offset * inverse), axis=1)
    square = lagrange**2
    return square * (1.0 - 2.0 * jnp.sum(inverse, axis=1) * offset), span * square * offset


def hermite_doubt(nodes: Float[Array, " nodes"], at: Float[Array, ""]) -> Weights:
    """The last term of that polynomial: its difference from the one that ignores the most distant slope.

    It estimates the error, from above, because the terms get smaller while the nodes resolve the function.

    Args:
        nodes: increasing.
        at: where to evaluate it.

    Returns:
        Weights of the values and of the slopes.
    """
    span, offset, inverse, same = _geometry(nodes, at)
    leading = jnp.prod(jnp.where(same, 1.0, inverse), axis=1) ** 2
    term = jnp.prod(offset) ** 2 / jnp.max(jnp.abs(offset))
    return -2.0 * leading * jnp.sum(inverse, axis=1) * term, span * leading * term


def _geometry(nodes: Array, at: Array) -> tuple[Array, Array, Array, Array]:
    """Length of the interval; in its units the point's distances from the nodes, and inverse distances of the nodes."""
    span = nodes[-1] - nodes[0]
    same = jnp.eye(len(nodes), dtype=bool)
    apart = jnp.where(same, 1.0, (nodes[:, None] - nodes[None, :]) / span)
    return span, (at - nodes) / span, jnp.where(same, 0.0, 1.0 / apart), same
