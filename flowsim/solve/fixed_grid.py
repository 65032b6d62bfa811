r"""Fixed-grid solution of many lanes at once on a smooth clock, with an error estimate for each lane.

The flow is smooth in $s = \ln(1 + t/T_0)$, where $T_0$ is a fraction of the time in which the start begins to move:
every feature has a width of order 1 there, and the start is at $s = 0$. Eighth-order steps (the tableau of
`diffrax.Dopri8`) on a grid of $s$ that all lanes share are then cheaper and far more exact than adaptive ones, and
lanes in lockstep fill vector registers. Between the grid points the solution is the polynomial of degree 11 through six
of them, values and slopes; at small times it keeps the relative accuracy of a tiny change, because it vanishes at the
start exactly as the change does.

The embedded estimate of every step is added up lane by lane; lanes in which the sum exceeds the tolerance are solved
again on a finer grid. Explicit steps are limited by stability late in the flow, where a perturbation of $x$ decays as
$e^{-s}$: one step for about three units of $\ln t$.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.solve.measure import Measure, largest
from flowsim.solve.runge_kutta import State, Velocity, Weights, hermite, hermite_doubt, step

# T_0 is this fraction of the time in which the start begins to move: the clock is then smooth before, at and after it.
_T0_FRACTION = 0.1
# How far along its way the start is looked at again, to see how its velocity changes.
_FURTHER = 1e-6
# The spacing in s that meets the tolerance 1e-8, and the power of the tolerance with which it changes: the embedded
# estimate is that of a seventh-order step.
_SPACING, _SPACING_TOL, _ESTIMATE_ORDER = 0.12, 1e-8, 7
# The grid is uniform up to this s (of the slowest lane); beyond, features widen with s, and the spacing grows by its
# initial value every so many units of s.
_UNIFORM, _GROWTH = 3.0, 2.0
# Dopri8 damps a perturbation e^{-s} well up to steps of this size, and is unstable beyond 5.1. Steps this long cost
# accuracy while features are narrower than this.
_STABLE, _LATE_GROWTH = 3.0, 300.0
# Grid points of the interpolating polynomial, and where before the second of them it is tested: small changes are
# relative.
_NODES, _EARLY = 6, 1 / 64
# The estimate of a step is the error of a seventh-order step; the eighth-order one that is used is better by far more
# than this factor, unless the grid is too coarse. The estimate between points may miss the worst place by this factor.
_STEPPING_MARGIN, _BETWEEN_MARGIN = 3.0, 3.0
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
BRIEF, LONG = Patience(4, 10.0), Patience(6, 10.0)

_EPS = float(np.finfo(np.float64).eps)


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


def clock_of(velocity: Velocity, start: State, log_error: Float[Array, " lanes"], measure: Measure) -> Clock:
    """Sets the clock by the time in which a coordinate moves by 1 or its velocity changes.

    Args:
        velocity: the flow.
        start: where it starts.
        measure: which velocities count.
        log_error: log of the mean error there, which sets the scale of the velocity however small that is.

    Returns:
        The clock; lanes that are not finite do not count.
    """

    def look(way: State, length: Array) -> tuple[State, tuple[State, State]]:
        speed = velocity(-log_error, tuple(b + length * w for b, w in zip(start, way, strict=True)))
        pace = measure.pace(start, speed)
        fastest = functools.reduce(jnp.maximum, map(jnp.abs, pace))
        way = tuple(jax.lax.stop_gradient(v / jnp.where(fastest > 0, fastest, 1.0)) for v in speed)
        return way, (speed, pace)

    # the velocity at the start and a little further: one loop, one copy of the flow to compile
    _, (speeds, paces) = jax.lax.scan(look, tuple(map(jnp.zeros_like, start)), jnp.array([0.0, _FURTHER]))
    speed = tuple(v[0] for v in speeds)
    fastest = functools.reduce(jnp.maximum, (jnp.abs(v[0]) for v in paces))
    rate = fastest
    for v, further in paces:
        change = jnp.abs(further - v) / _FURTHER * fastest
        # the velocity v changes at the rate change/v; where it starts from 0, its coordinate has moved by 1 at
        # change^{-1/2}
        onset = change / jnp.maximum(jnp.abs(v), jnp.sqrt(change))
        rate = jnp.maximum(rate, jnp.where(change > 0, onset, 0.0))
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
        broken: largest violation of a conservation law of the factors.
        rounding: as in `Path`.
    """

    moved: Float[Array, " lanes"]
    between: Float[Array, " lanes"]
    stepping: Float[Array, " lanes"]
    broken: Float[Array, " lanes"]
    rounding: Float[Array, " lanes"]


class _Carry(NamedTuple):
    """The last `_NODES` grid points, oldest first, and what has added up."""

    s: Float[Array, " nodes"]
    change: Float[Array, "nodes coordinates lanes"]
    slope: Float[Array, "nodes coordinates lanes"]
    n_steps: Int[Array, ""]
    accuracy: Accuracy


def walk(
    velocity: Velocity,
    start: State,
    clock: Clock,
    readings: Float[Array, " time"],
    spacing: Float[Array, ""],
    max_steps: Int[ArrayLike, ""],
    measure: Measure,
) -> Path:
    r"""Steps along a fixed grid and reads the path off at the requested times.

    Args:
        velocity: the flow.
        start: coordinates at time 0.
        clock: the clock.
        readings: requested values of $s$, increasing; the grid ends at the last one.
        spacing: largest step near the start.
        max_steps: no more steps than this.
        measure: how errors count.

    Returns:
        The path.
    """
    end = readings[-1]
    # logits are straight lines late in the flow, on which any step is exact; factors are square roots of them
    late_growth = _LATE_GROWTH if measure.straight else math.inf

    def going(reading: Array, carry: _Carry) -> Array:
        behind = (carry.n_steps < _NODES - 1) | (carry.s[_NODES // 2] < reading)  # not in the middle of the points yet
        return behind & (carry.s[-1] < end) & (carry.n_steps < max_steps)

    def advance(carry: _Carry) -> _Carry:
        s = carry.s[-1]
        late = jnp.maximum(s - clock.spread - _UNIFORM, 0.0)
        accurate = _STABLE * (spacing / _SPACING) * (1.0 + late / late_growth)
        widest = jnp.minimum(spacing * (1.0 + late / _GROWTH), jnp.minimum(accurate, _STABLE))
        parts = jnp.maximum(jnp.ceil((end - s) / widest), _NODES - 1.0 - carry.n_steps)
        h = (end - s) / parts
        taken = step(velocity, start, tuple(carry.change[-1]), tuple(carry.slope[-1]), clock.log_unit + s, h)
        change, slope = jnp.stack(taken.change), jnp.stack(taken.slope)
        s = jnp.where(parts == 1, end, s + h)
        new = _Carry(
            _push(carry.s, s),
            _push(carry.change, change),
            _push(carry.slope, slope),
            carry.n_steps + 1,
            carry.accuracy,
        )
        # how large an error is has no derivative
        judged = jax.lax.stop_gradient((start, taken.error, new))
        return new._replace(accuracy=_judge(measure, *judged, clock.log_unit + s, parts == 1))

    def read(carry: _Carry, reading: Array):
        carry = jax.lax.while_loop(functools.partial(going, reading), advance, carry)
        value = _dot(hermite(carry.s, reading), carry)
        there = (reading <= carry.s[-1]) & (reading > 0)
        return carry, tuple(jnp.where(there, value, jnp.where(reading == 0, 0.0, jnp.nan)))

    zeros = jnp.zeros_like(start[0])
    first = _Carry(
        jnp.zeros(_NODES),
        jnp.zeros((_NODES, len(start), *zeros.shape)),
        jnp.zeros((_NODES, len(start), *zeros.shape)).at[-1].set(jnp.stack(clock.slope)),
        jnp.asarray(0),
        Accuracy(zeros, zeros, zeros, zeros, zeros),
    )
    carry, change = jax.lax.scan(read, first, readings)
    accuracy = carry.accuracy
    steps, complete = (jnp.broadcast_to(value, zeros.shape) for value in (carry.n_steps, ~(carry.s[-1] < end)))
    error = accuracy.stepping / _STEPPING_MARGIN + accuracy.between * _BETWEEN_MARGIN + accuracy.broken
    return Path(change, error, steps, accuracy.rounding, complete)


def _judge(measure: Measure, start: State, error: State, new: _Carry, log_time: Array, last: Array) -> Accuracy:
    """Takes the newest step into account."""
    moved, between, stepping, broken, rounding = new.accuracy
    gaps = measure.gaps
    # The polynomial is tested in the middle of the points, where it will mostly be used, and at both ends of the path.
    s, n = new.s, new.n_steps
    middle = 0.5 * (s[_NODES // 2 - 1] + s[_NODES // 2])
    at = jnp.where(n == _NODES - 1, _EARLY * s[1], jnp.where(last, 0.5 * (s[-2] + s[-1]), middle))
    seen, off = tuple(_dot(hermite(s, at), new)), tuple(_dot(hermite_doubt(s, at), new))

    origin = jnp.stack(measure.position(start))
    change = tuple(new.change[-1])
    end, there = (tuple(map(jnp.add, start, way)) for way in (change, seen))
    dx, seen_dx = (jnp.stack(measure.displaced(start, way)) for way in (change, seen))
    moved = jnp.maximum(moved, jnp.max(jnp.abs(dx[:gaps]), axis=0, initial=0.0))
    error_x, off_x = jnp.stack(measure.displaced(end, error)), jnp.stack(measure.displaced(there, off))
    steps = jnp.where(error_x == 0, 0.0, jnp.abs(error_x / _weights(origin + dx, moved, gaps)))
    stepping = stepping + jnp.sum(steps, axis=0) + sum(measure.relative(end, error))
    points = off_x / _weights(origin + seen_dx, jnp.max(jnp.abs(seen_dx[:gaps]), axis=0, initial=0.0), gaps)
    slope = jnp.stack(measure.tangent(end, tuple(new.slope[-1])))
    steep = slope[gaps:] / jnp.maximum(1.0, jnp.abs(origin[gaps:] + dx[gaps:]))
    worst = jnp.max(jnp.where(off_x == 0, 0.0, jnp.abs(points)), axis=0)
    return Accuracy(
        moved,
        jnp.maximum(between, jnp.where(n < _NODES - 1, 0.0, worst)),
        stepping,
        jnp.maximum(broken, largest(measure.broken(start, change), broken)),
        jnp.maximum(rounding, _EPS * jnp.abs(log_time) * jnp.max(jnp.abs(steep), axis=0, initial=0.0)),
    )


def _weights(x: Array, moved: Array, gaps: int) -> Array:
    """What errors are relative to: of score gaps the change, up to 1, as log odds may pass 0; of logits 1 or more."""
    of_gaps = jnp.broadcast_to(jnp.minimum(1.0, moved), x[:gaps].shape)
    return jnp.concatenate([of_gaps, jnp.maximum(1.0, jnp.abs(x[gaps:]))])


def _push(rows: Array, new: Array) -> Array:
    return jnp.concatenate([rows[1:], new[None]])


def _dot(weights: Weights, carry: _Carry) -> Float[Array, "coordinates lanes"]:
    return jnp.tensordot(weights[0], carry.change, 1) + jnp.tensordot(weights[1], carry.slope, 1)


def solve(
    velocity: Velocity,
    start: State,
    log_error: Float[Array, " lanes"],
    log_times: Float[Array, " time"],
    tol: Float[ArrayLike, ""],
    max_steps: Int[ArrayLike, ""],
    measure: Measure,
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
        measure: how errors count.
        patience: when to give up.

    Returns:
        The last path of each lane that needed it; its `error` says whether it met the tolerance.
    """
    clock = clock_of(velocity, start, log_error, measure)
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
        new = walk(velocity, start, clock, readings, spacing, max_steps, measure)
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
