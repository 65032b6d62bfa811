r"""Adaptive stepping with diffrax, for the lanes that no fixed grid resolves.

Where attention has left the distinct tokens (a negative margin at the start, a long plateau), nothing moves for an age
and then everything does, within less than one rounding of $\ln t$. Time is no clock for that. The path is therefore
followed along its own length, $d\tau = \sqrt{1 + |dx/ds|^2}\, ds$ with $s = \ln(1 + t/T_0)$ as a further unknown, in
which both the age and the jump are smooth, and is then read off at the requested times.
"""

import functools

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.codegen import CompiledField, Parameters
from flowsim.solve import fixed_grid
from flowsim.solve.fixed_grid import Path
from flowsim.solve.measure import Measure, largest, measure_of
from flowsim.solve.runge_kutta import State, step

# diffrax keeps every step until the path is read off; more than this is not worth its memory.
MAX_STEPS = 1 << 14
# Tolerances of single steps, relative to the tolerance of the path: errors add up. The two paths are compared.
_LOCAL, _LOCAL_CHECK = 1e-3, 1e-2
# Rounds at most of a safeguarded secant iteration that reads the path off at a time; four or five do.
_READING_ROUNDS = 20
_EPS, _TINY, _FAR = (float(getattr(np.finfo(np.float64), name)) for name in ("eps", "tiny", "max"))


def solve_adaptive(
    field: CompiledField,
    parameters: Parameters,
    start: State,
    log_times: Float[Array, " time"],
    tol: Float[ArrayLike, ""],
) -> Path:
    r"""Follows one lane of the flow adaptively.

    Args:
        field: the compiled field.
        parameters: the numbers of the lane, `ratio` of shape `()`.
        start: its motion at time 0.
        log_times: $\ln t$, increasing.
        tol: tolerance of the path.

    Returns:
        The path of shape `(time,)`; its error is the distance between two solutions with different tolerances.
    """
    velocity = functools.partial(_velocity, field, parameters)
    measure = measure_of(field, parameters)
    log_error = field.observables(jnp.stack(measure.position(start)), parameters).log_error
    unit = fixed_grid.clock_of(velocity, start, log_error, measure).log_unit
    clock = jnp.logaddexp(log_times - unit, 0.0)

    def along(_, y: State) -> State:
        s, x = y[0], tuple(b + c for b, c in zip(start, y[1:], strict=True))
        # dx/ds = e^a F with F of order 1; the larger of e^a and 1 is divided out, so that nothing overflows
        log_pace, pace = _pace(field, parameters, measure, x)
        a = unit + s + log_pace
        down, up = jnp.exp(-jnp.maximum(a, 0.0)), jnp.exp(jnp.minimum(a, 0.0))
        length = jnp.sqrt(down**2 + sum((up * p) ** 2 for p in pace))
        return (down / length, *(up * p / length for p in pace))

    origin = tuple(jnp.zeros_like(x) for x in start)
    follow = jax.vmap(functools.partial(_follow, along, origin, clock))
    paths, slopes, steps, complete = follow(jnp.array([_LOCAL, _LOCAL_CHECK]) * jnp.asarray(tol))
    change, other = (tuple(path[i] for path in paths) for i in (0, 1))
    end, gaps = tuple(map(jnp.add, start, change)), measure.gaps
    rounding = jnp.zeros_like(unit)
    slope = measure.tangent(end, tuple(slope[0] for slope in slopes))
    for x, v in zip(measure.position(end)[gaps:], slope[gaps:], strict=True):
        steepness = jnp.abs(log_times * v) / jnp.maximum(1.0, jnp.abs(x))
        rounding = jnp.max(_EPS * steepness, initial=rounding, where=jnp.isfinite(steepness))
    return Path(change, _distance(measure, start, change, other), steps[0], rounding, complete[0])


def _distance(measure: Measure, start: State, change: State, other: State) -> Float[Array, ""]:
    """How far two solutions are apart, relative to what each coordinate's tolerance is relative to."""
    distance = jnp.zeros_like(start[0])
    end = tuple(map(jnp.add, start, change))
    moved = largest([jnp.abs(x) for x in measure.displaced(start, change)[: measure.gaps]], change[0])
    moved = jax.lax.cummax(moved)
    apart = measure.displaced(end, tuple(map(jnp.subtract, other, change)))
    for i, (x, off) in enumerate(zip(measure.position(end), apart, strict=True)):
        weight = jnp.maximum(1.0, jnp.abs(x))
        weight = jnp.minimum(weight, moved) if i < measure.gaps else weight
        distance = jnp.maximum(distance, jnp.max(jnp.where(off == 0, 0.0, jnp.abs(off) / weight)))
    for broken in measure.broken(start, change):
        distance = jnp.maximum(distance, jnp.max(broken))
    return distance


def _pace(field: CompiledField, parameters: Parameters, measure: Measure, y: State) -> tuple[Array, State]:
    r"""The velocity as $e^a F$ with $F$ of order 1, also where attention has left all tokens that teach anything."""
    seen = field.observables(jnp.stack(measure.position(y)), parameters)
    structure = field.flow.structure
    teaching = ("distinct", "common") if structure.vocabulary_head else ("distinct",)
    attentions = [seen.log_attentions[i] for i, role in enumerate(structure.roles) if role in teaching]
    log_pace = seen.log_error + functools.reduce(jnp.maximum, attentions)
    return log_pace, _velocity(field, parameters, -log_pace, y)


def _follow(along, origin: State, clock: Float[Array, " time"], tol: Float[Array, ""]):
    """Integrates the path until the clock has passed its last reading, and reads it and its slopes off."""
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda tau, y, _: along(tau, y)),
        diffrax.Dopri8(),
        t0=0.0,
        t1=_FAR,
        dt0=1e-3,
        y0=(jnp.zeros_like(clock[0]), *origin),
        saveat=diffrax.SaveAt(t0=True, steps=True),
        stepsize_controller=diffrax.PIDController(rtol=tol, atol=_TINY),
        event=diffrax.Event(lambda *state, **_: state[1][0] >= clock[-1]),
        max_steps=MAX_STEPS,
        throw=False,
    )
    taus, path = solution.ts, solution.ys
    assert taus is not None
    assert path is not None
    nodes = path[0]

    def read(target: Array) -> tuple[State, State]:
        i = jnp.clip(jnp.searchsorted(nodes, target, side="right") - 1, 0, nodes.size - 2)
        y = tuple(leaf[i] for leaf in path)
        pace, zero = along(0.0, y), tuple(jnp.zeros_like(v) for v in y)
        advance = functools.partial(step, along, y, zero, pace, jnp.zeros_like(target))

        def improve(carry):
            low, high, h, old_h, old_off, _, rounds = carry
            off = y[0] + advance(h).change[0] - target
            low, high = jnp.where(off > 0, low, h), jnp.where(off > 0, h, high)
            secant = h - off * (h - old_h) / (off - old_off)
            inside = (secant >= low) & (secant <= high)
            new = jnp.where(inside, secant, 0.5 * (low + high))
            new = jnp.where(off == 0, h, new)  # where the path is read at a node, at time 0 for one
            return low, high, new, h, off, jnp.abs(off) > 2 * _EPS * target, rounds + 1

        longest = jnp.where(jnp.isfinite(taus[i + 1]), taus[i + 1] - taus[i], 0.0)
        guess = jnp.clip((target - y[0]) / pace[0], 0.0, longest)
        none = jnp.zeros_like(longest)
        _, _, h, *_ = jax.lax.while_loop(
            lambda carry: carry[5] & (carry[6] < _READING_ROUNDS),
            improve,
            (none, longest, guess, none, y[0] - target, jnp.asarray(True), 0),
        )
        there = advance(h)
        reached = target <= _farthest(nodes)
        change = tuple(jnp.where(reached, a + b, jnp.nan) for a, b in zip(y[1:], there.change[1:], strict=True))
        return change, tuple(v / there.slope[0] for v in there.slope[1:])

    return *jax.vmap(read)(clock), solution.stats["num_steps"], _farthest(nodes) >= clock[-1]


def _farthest(nodes: Array) -> Array:
    return jnp.max(nodes, initial=-jnp.inf, where=jnp.isfinite(nodes))


def _velocity(field: CompiledField, parameters: Parameters, log_rate: Array, y: State) -> State:
    return field.motion(log_rate, y, parameters)
