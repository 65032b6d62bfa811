r"""Fixed-grid solution of many lanes at once on a smooth clock, with an error estimate for each lane.

The flow is smooth in $s = \ln(1 + t/T_0)$, where $T_0$ is a fraction of the time in which the start begins to move: every
feature has a width of order 1 there, and the start is at $s = 0$. Eighth-order steps (the tableau of `diffrax.Dopri8`)
on a grid of $s$ that all lanes share are then cheaper and far more exact than adaptive ones, and lanes in lockstep fill vector
registers. Between the grid points the solution is the polynomial of degree 11 through six of them, values and slopes; at
small times it keeps the relative accuracy of a tiny change, because it vanishes at the start exactly as the change does.

The embedded estimate of every step is added up lane by lane; lanes in which the sum exceeds the tolerance are solved again
on a finer grid. Explicit steps are limited by stability late in the flow, where a perturbation of $x$ decays as $e^{-s}$: one
step for about three units of $\ln t$.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from flowsim import _jax  # noqa: F401  float64 first
import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

# A state is a tuple of coordinates, each an array over lanes: coordinates stay apart because XLA compiles
# one contiguous loop for each, twice as fast as for a stacked array.
State = tuple[Float[Array, " lanes"], ...]
# velocity(log_rate, coordinates) -> e^{log_rate} dx/dt
Velocity = Callable[[Float[Array, " lanes"], State], State]

# T_0 is this fraction of the time in which the start begins to move: the clock is then smooth before, at and after it.
_T0_FRACTION = 0.1
# The spacing in s that meets the tolerance 1e-8, and the power of the tolerance with which it changes: the embedded estimate
# is that of a seventh-order step.
_SPACING, _SPACING_TOL, _ESTIMATE_ORDER = 0.12, 1e-8, 7
# The grid is uniform up to this s (of the slowest lane); beyond, features widen with s, and the spacing grows by its
# initial value every so many units of s.
_UNIFORM, _GROWTH = 3.0, 2.0
# Dopri8 damps a perturbation e^{-s} well up to steps of this size, and is unstable beyond 5.1. Steps this long cost accuracy
# while features are narrower than this.
_STABLE, _LATE_GROWTH = 3.0, 300.0
# Grid points of the interpolating polynomial, and where before the second of them it is tested: small changes are relative.
_NODES, _EARLY = 6, 1 / 64
# The estimate of a step is the error of a seventh-order step; over all tasks tried the eighth-order one that is used was
# better by at least this factor, usually by far more.
_STEPPING_MARGIN = 3.0
# Lanes are solved again on a grid finer by at least this factor.
_FINER_LEAST = 1.25


class Patience(NamedTuple):
    """When to give up on a lane: its features are too narrow for any uniform grid.

    Attributes:
        rounds: how often a batch is solved at most.
        finer: by how much finer than the one before a grid may have to be.
    """

    rounds: int
    finer: float


# An adaptive solver will take what is left, or nothing will.
BRIEF, LONG = Patience(3, 4.0), Patience(6, 6.0)

_EPS = float(np.finfo(np.float64).eps)


class Tableau(NamedTuple):
    """Coefficients of an explicit Runge-Kutta method.

    Attributes:
        stages: lower triangular matrix of stage coefficients.
        nodes: where in the step each stage stands.
        solution: weights of the solution.
        error: weights of the embedded estimate of a step's error.
    """

    stages: np.ndarray
    nodes: np.ndarray
    solution: np.ndarray
    error: np.ndarray


@functools.cache
def dopri8() -> Tableau:
    """The tableau of `diffrax.Dopri8` without its last stage, the slope at the new point, which the next step starts with."""
    tableau = diffrax.Dopri8.tableau
    n = tableau.num_stages - 1
    stages = np.zeros((n, n))
    for i, row in enumerate(tableau.a_lower[: n - 1]):
        stages[i + 1, : i + 1] = np.asarray(row)
    nodes = np.concatenate([[0.0], np.asarray(tableau.c)[: n - 1]])
    return Tableau(stages, nodes, np.asarray(tableau.b_sol)[:n], np.asarray(tableau.b_error)[:n])


def step(
    velocity: Velocity, base: State, change: State, slope: State, log_rate: Array, h: Array
) -> tuple[State, State]:
    r"""One Runge-Kutta step of $dx/ds = $ `velocity`$(\ln T_0 + s, x)$.

    Args:
        velocity: the flow.
        base: where the change is counted from.
        change: $x - $ `base` at the beginning of the step.
        slope: $dx/ds$ there.
        log_rate: $\ln T_0 + s$ there.
        h: step in $s$.

    Returns:
        The change at the end of the step, and the embedded estimate of the step's error.
    """
    tableau = Tableau(*map(jnp.asarray, dopri8()))
    pick = functools.partial(jax.lax.dynamic_index_in_dim, keepdims=False, allow_negative_indices=False)
    put = functools.partial(jax.lax.dynamic_update_index_in_dim, axis=0, allow_negative_indices=False)

    def stage(i, slopes):
        row = pick(tableau.stages, i)
        x = tuple(b + (c + h * (row @ k)) for b, c, k in zip(base, change, slopes, strict=True))
        return tuple(map(functools.partial(put, index=i), slopes, velocity(log_rate + pick(tableau.nodes, i) * h, x)))

    # A loop over stages, not 12 copies of the flow: the same speed, a quarter of the time to compile.
    n = len(tableau.nodes)
    slopes = tuple(jnp.zeros((n, *k.shape)).at[0].set(k) for k in slope)
    slopes = jax.lax.fori_loop(1, n, stage, slopes)
    new = tuple(c + h * (tableau.solution @ k) for c, k in zip(change, slopes, strict=True))
    return new, tuple(h * (tableau.error @ k) for k in slopes)


class Clock(NamedTuple):
    r"""The smooth clock of a batch of lanes.

    Attributes:
        log_unit: $\ln T_0$ of the fastest lane.
        spread: how much later, in $s$, the slowest lane begins to move.
        slope: $dx/ds$ of every lane at $s = 0$.
    """

    log_unit: Float[Array, ""]
    spread: Float[Array, ""]
    slope: State


def clock_of(velocity: Velocity, start: State, log_error: Float[Array, " lanes"]) -> Clock:
    """Sets the clock by the time in which a coordinate moves by 1 or its velocity changes.

    Args:
        velocity: the flow.
        start: where it starts.
        log_error: log of the mean error there, which sets the scale of the velocity however small that is.

    Returns:
        The clock; lanes that are not finite do not count.
    """
    speed, change = jax.jvp(lambda *x: velocity(-log_error, x), start, velocity(-log_error, start))
    rate = jnp.zeros_like(log_error)
    for v, a in zip(map(jnp.abs, speed), map(jnp.abs, change), strict=True):
        # the velocity v changes at the rate a/v itself; where it starts from 0, the coordinate has moved by 1 at a^{-1/2}
        onset = jnp.where(a > 0, a / jnp.maximum(v, jnp.sqrt(a)), 0.0)
        rate = jnp.maximum(rate, jnp.maximum(v, onset))
    moves = jnp.isfinite(rate) & (rate > 0)  # where nothing ever moves, any clock will do
    log_units = jax.lax.stop_gradient(-log_error - jnp.log(jnp.where(moves, rate, 1.0)))
    earliest = jnp.min(log_units, initial=jnp.inf, where=moves)
    latest = jnp.max(log_units, initial=-jnp.inf, where=moves)
    any_moves = jnp.any(moves)
    log_unit = jnp.where(any_moves, earliest, 0.0) + jnp.log(_T0_FRACTION)
    spread = jnp.where(any_moves, latest - earliest, 0.0)
    return Clock(log_unit, spread, tuple(v * jnp.exp(log_unit + log_error) for v in speed))


class Path(NamedTuple):
    """A solved path.

    Attributes:
        change: $x - x_0$ at the requested times, one array for each coordinate; NaN beyond the last step.
        error: estimated error, relative to what each coordinate's tolerance is relative to.
        n_steps: steps taken.
        rounding: by how much one rounding of the log of time moves a logit, relative to its tolerance's weight; the
            largest along the path.
        complete: whether the last requested time was reached within the steps allowed.
    """

    change: tuple[Float[Array, "time lanes"], ...]
    error: Float[Array, " lanes"]
    n_steps: Int[Array, " lanes"]
    rounding: Float[Array, " lanes"]
    complete: Bool[Array, " lanes"]


class Accuracy(NamedTuple):
    """What is known of the accuracy of a path so far, for each lane.

    Attributes:
        moved: the largest change of a score gap.
        between: largest estimated error of the polynomial between grid points.
        stepping: sum of the estimated errors of all steps.
        rounding: as in `Path`.
    """

    moved: Float[Array, " lanes"]
    between: Float[Array, " lanes"]
    stepping: Float[Array, " lanes"]
    rounding: Float[Array, " lanes"]


class _Carry(NamedTuple):
    """The last `_NODES` grid points, oldest first, and what has added up."""

    s: Float[Array, " nodes"]
    change: tuple[Float[Array, "nodes lanes"], ...]
    slope: tuple[Float[Array, "nodes lanes"], ...]
    n_steps: Int[Array, ""]
    accuracy: Accuracy


def walk(
    velocity: Velocity,
    start: State,
    clock: Clock,
    readings: Float[Array, " time"],
    spacing: Float[Array, ""],
    max_steps: Int[Array, ""],
    gaps: int,
) -> Path:
    r"""Steps along a fixed grid and reads the path off at the requested times.

    Args:
        velocity: the flow.
        start: coordinates at time 0.
        clock: the clock.
        readings: requested values of $s$, increasing; the grid ends at the last one.
        spacing: largest step near the start.
        max_steps: no more steps than this.
        gaps: the first `gaps` coordinates are score gaps, whose error counts relative to their change.

    Returns:
        The path.
    """
    end = readings[-1]

    def going(reading: Array, carry: _Carry) -> Array:
        behind = (carry.n_steps < _NODES - 1) | (carry.s[_NODES // 2] < reading)  # not in the middle of the points yet
        return behind & (carry.s[-1] < end) & (carry.n_steps < max_steps)

    def advance(carry: _Carry) -> _Carry:
        s = carry.s[-1]
        change, slope = (tuple(a[-1] for a in rows) for rows in (carry.change, carry.slope))
        late = jnp.maximum(s - clock.spread - _UNIFORM, 0.0)
        accurate = _STABLE * (spacing / _SPACING) * (1.0 + late / _LATE_GROWTH)
        widest = jnp.minimum(spacing * (1.0 + late / _GROWTH), jnp.minimum(accurate, _STABLE))
        parts = jnp.maximum(jnp.ceil((end - s) / widest), _NODES - 1.0 - carry.n_steps)
        h = (end - s) / parts
        change, error = step(velocity, start, change, slope, clock.log_unit + s, h)
        s = jnp.where(parts == 1, end, s + h)
        x = tuple(b + c for b, c in zip(start, change, strict=True))
        slope = velocity(clock.log_unit + s, x)
        new = _Carry(
            _push(carry.s, s),
            tuple(map(_push, carry.change, change)),
            tuple(map(_push, carry.slope, slope)),
            carry.n_steps + 1,
            carry.accuracy,
        )
        # how large an error is has no derivative
        accuracy = _judge(*jax.lax.stop_gradient((start, error, new)), gaps, clock.log_unit + s, parts == 1)
        return new._replace(accuracy=accuracy)

    def read(carry: _Carry, reading: Array):
        carry = jax.lax.while_loop(functools.partial(going, reading), advance, carry)
        weights = _hermite(carry.s, reading)
        there = (reading <= carry.s[-1]) & (reading > 0)
        outside = jnp.where(reading == 0, 0.0, jnp.nan)
        values = (_dot(weights, c, f) for c, f in zip(carry.change, carry.slope, strict=True))
        return carry, tuple(jnp.where(there, v, outside) for v in values)

    zeros = jnp.zeros_like(start[0])
    first = _Carry(
        jnp.zeros(_NODES),
        tuple(jnp.zeros((_NODES, *x.shape)) for x in start),
        tuple(jnp.zeros((_NODES, *v.shape)).at[-1].set(v) for v in clock.slope),
        jnp.asarray(0),
        Accuracy(zeros, zeros, zeros, zeros),
    )
    carry, change = jax.lax.scan(read, first, readings)
    accuracy = carry.accuracy
    steps, complete = (jnp.broadcast_to(value, zeros.shape) for value in (carry.n_steps, ~(carry.s[-1] < end)))
    error = accuracy.stepping / _STEPPING_MARGIN + accuracy.between
    return Path(change, error, steps, accuracy.rounding, complete)


def _judge(
    start: State, error: State, new: _Carry, gaps: int, log_time: Array, last: Array
) -> Accuracy:
    """Takes the newest step into account."""
    moved, between, stepping, rounding = new.accuracy
    change, slope = (tuple(a[-1] for a in rows) for rows in (new.change, new.slope))
    # The polynomial is tested in the middle of the points, where it will mostly be used, and at both ends of the path.
    s, n = new.s, new.n_steps
    middle = 0.5 * (s[_NODES // 2 - 1] + s[_NODES // 2])
    at = jnp.where(n == _NODES - 1, _EARLY * s[1], jnp.where(last, 0.5 * (s[-2] + s[-1]), middle))
    weights, doubt = _hermite(s, at), _hermite_doubt(s, at)
    seen = [_dot(weights, c, f) for c, f in zip(new.change, new.slope, strict=True)]
    off = [_dot(doubt, c, f) for c, f in zip(new.change, new.slope, strict=True)]

    moved = functools.reduce(jnp.maximum, map(jnp.abs, change[:gaps]), moved)
    there = functools.reduce(jnp.maximum, map(jnp.abs, seen[:gaps]), jnp.zeros_like(moved))
    for i, base in enumerate(start):
        size, size_there = (jnp.maximum(1.0, jnp.abs(base + c)) for c in (change[i], seen[i]))
        if i < gaps:
            size, size_there = jnp.minimum(size, moved), jnp.minimum(size_there, there)
        else:
            rounding = jnp.maximum(rounding, _EPS * jnp.abs(log_time) * jnp.abs(slope[i]) / size)
        stepping = stepping + _ratio(error[i], size)
        between = jnp.maximum(between, jnp.where(n < _NODES - 1, 0.0, _ratio(off[i], size_there)))
    return Accuracy(moved, between, stepping, rounding)


def _ratio(error: Array, weight: Array) -> Array:
    return jnp.where(error == 0, 0.0, jnp.abs(error) / weight)


def _push(rows: Array, new: Array) -> Array:
    return jnp.concatenate([rows[1:], new[None]])


def _dot(weights: tuple[Array, Array], values: Array, slopes: Array) -> Array:
    return weights[0] @ values + weights[1] @ slopes


def _hermite(nodes: Float[Array, " nodes"], at: Array) -> tuple[Float[Array, " nodes"], Float[Array, " nodes"]]:
    """Weights of values and slopes at the nodes in the polynomial that matches all of them."""
    same = jnp.eye(len(nodes), dtype=bool)
    apart = jnp.where(same, 1.0, nodes[:, None] - nodes[None, :])
    offset = at - nodes
    lagrange = jnp.prod(jnp.where(same, 1.0, offset / apart), axis=1)
    tilt = jnp.sum(jnp.where(same, 0.0, 1.0 / apart), axis=1)
    square = lagrange**2
    return square * (1.0 - 2.0 * tilt * offset), square * offset


def _hermite_doubt(nodes: Float[Array, " nodes"], at: Array) -> tuple[Float[Array, " nodes"], Float[Array, " nodes"]]:
    """Weights of the last term of the polynomial: its difference from the one that ignores the most distant slope."""
    same = jnp.eye(len(nodes), dtype=bool)
    inverse = jnp.where(same, 0.0, 1.0 / jnp.where(same, 1.0, nodes[:, None] - nodes[None, :]))
    leading = jnp.prod(jnp.where(same, 1.0, inverse), axis=1) ** 2
    offset = at - nodes
    term = jnp.prod(offset) ** 2 / jnp.max(jnp.abs(offset))
    return -2.0 * leading * jnp.sum(inverse, axis=1) * term, leading * term


def solve(
    velocity: Velocity,
    start: State,
    log_error: Float[Array, " lanes"],
    log_times: Float[Array, " time"],
    tol: Float[Array, ""],
    max_steps: Int[Array, ""],
    gaps: int,
    patience: Patience,
) -> Path:
    r"""Solves all lanes, and again on a finer grid while a lane's estimated error exceeds the tolerance.

    Args:
        velocity: the flow.
        start: coordinates at time 0.
        log_error: log of the mean error at the start.
        log_times: $\ln t$, increasing; the first may be $-\infty$.
        tol: bound on the estimated error.
        max_steps: the number of steps that no solution exceeds.
        gaps: as in `walk`.
        patience: when to give up.

    Returns:
        The last path of each lane that needed it; its `error` says whether it met the tolerance.
    """
    clock = clock_of(velocity, start, log_error)
    readings = jnp.logaddexp(log_times - clock.log_unit, 0.0)
    sound = functools.reduce(jnp.logical_and, map(jnp.isfinite, clock.slope))

    def finer(path: Path) -> Float[Array, " lanes"]:
        """By how much the grid has to be finer, by the order of the estimate; 0 for lanes that are done."""
        factor = (2 * path.error / tol) ** (1 / _ESTIMATE_ORDER)
        factor = jnp.where(jnp.isfinite(factor), jnp.maximum(factor, _FINER_LEAST), patience.finer)
        return jnp.where(sound & ~(path.error <= tol) & path.complete, factor, 0.0)

    def hopeful(path: Path) -> Bool[Array, " lanes"]:
        return (finer(path) > 0) & (finer(path) <= patience.finer)

    def again(carry):
        path, spacing, rounds = carry
        todo = hopeful(path)
        spacing = spacing / jnp.max(finer(path), initial=0.0, where=todo)
        new = walk(velocity, start, clock, readings, spacing, max_steps, gaps)
        return jax.tree.map(lambda new, old: jnp.where(todo, new, old), new, path), spacing, rounds + 1

    nothing = jnp.full(log_error.shape, jnp.nan)
    blank = Path(
        tuple(jnp.full((log_times.size, *nothing.shape), jnp.nan) for _ in start),
        nothing,  # no estimate yet, so that every lane is hopeful
        jnp.zeros(nothing.shape, dtype=int),
        nothing,
        jnp.full(nothing.shape, True),
    )
    spacing = patience.finer * _SPACING * (tol / _SPACING_TOL) ** (1 / _ESTIMATE_ORDER)
    path, _, _ = jax.lax.while_loop(
        lambda carry: jnp.any(hopeful(carry[0])) & (carry[2] < patience.rounds), again, (blank, spacing, 0)
    )
    return path
