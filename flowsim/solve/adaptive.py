r"""Adaptive stepping with diffrax, for the lanes that no fixed grid resolves.

Where attention has left the distinct tokens (a negative margin at the start, a long plateau), nothing moves for an age and
then everything does, within less than one rounding of $\ln t$. Time is no clock for that. The path is therefore followed
along its own length, $d\tau = \sqrt{1 + |dx/ds|^2}\, ds$ with $s = \ln(1 + t/T_0)$ as a further unknown, in which both the
age and the jump are smooth, and is then read off at the requested times.
"""

import functools

from flowsim import _jax  # noqa: F401  float64 first
import diffrax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.codegen import CompiledField, Parameters
from flowsim.solve import fixed_grid
from flowsim.solve.fixed_grid import Path, State

# diffrax keeps every step until the path is read off; more than this is not worth its memory.
MAX_STEPS = 1 << 14
# Tolerances of single steps, relative to the tolerance of the path: errors add up. The two paths are compared.
_LOCAL, _LOCAL_CHECK = 1e-3, 1e-2
# Rounds of a safeguarded Newton iteration that reads the path off at a time.
_READING_ROUNDS = 12
# A velocity below this, in units of the error, is one whose square would underflow.
_VANISHING = 1e-100
_EPS = float(jnp.finfo(jnp.float64).eps)


def solve_adaptive(
    field: CompiledField,
    parameters: Parameters,
    start: State,
    log_times: Float[Array, " time"],
    tol: Float[Array, ""],
    gaps: int,
) -> Path:
    r"""Follows one lane of the collapsed flow adaptively.

    Args:
        field: the compiled field.
        parameters: the numbers of the lane, `ratio` of shape `()`.
        start: its reduced coordinates at time 0.
        log_times: $\ln t$, increasing.
        tol: tolerance of the path.
        gaps: the first `gaps` coordinates are score gaps.

    Returns:
        The path of shape `(time,)`; its error is the distance between two solutions with different tolerances.
    """
    velocity = functools.partial(_reduced, field, parameters)
    log_error = field.observables(jnp.stack(start), parameters).log_error
    unit = fixed_grid.clock_of(velocity, start, log_error).log_unit
    clock = jnp.logaddexp(log_times - unit, 0.0)

    def along(_, y: State) -> State:
        s, x = y[0], tuple(b + c for b, c in zip(start, y[1:], strict=True))
        # dx/ds = e^a F with F of order 1; the larger of e^a and 1 is divided out, so that nothing overflows
        log_pace, pace = _pace(field, parameters, x)
        a = unit + s + log_pace
        down, up = jnp.exp(-jnp.maximum(a, 0.0)), jnp.exp(jnp.minimum(a, 0.0))
        length = jnp.sqrt(down**2 + sum((up * p) ** 2 for p in pace))
        return (down / length, *(up * p / length for p in pace))

    origin = tuple(jnp.zeros_like(x) for x in start)
    follow = jax.vmap(functools.partial(_follow, along, origin, clock))
    paths, slopes, steps, complete = follow(tol * jnp.array([_LOCAL, _LOCAL_CHECK]))
    change = tuple(path[0] for path in paths)
    rounding = jnp.zeros_like(unit)
    for base, c, slope in zip(start[gaps:], change[gaps:], slopes[gaps:], strict=True):
        steepness = jnp.abs(log_times * slope[0]) / jnp.maximum(1.0, jnp.abs(base + c))
        rounding = jnp.max(_EPS * steepness, initial=rounding, where=jnp.isfinite(steepness))
    return Path(change, _distance(start, paths, gaps), steps[0], rounding, complete[0])


def _distance(start: State, paths: tuple[Array, ...], gaps: int) -> Float[Array, ""]:
    """How far two solutions are apart, relative to what each coordinate's tolerance is relative to."""
    distance = jnp.zeros_like(start[0])
    moved = functools.reduce(jnp.maximum, (jnp.abs(path[0]) for path in paths[:gaps]), jnp.zeros_like(paths[0][0]))
    moved = jax.lax.cummax(moved)
    for i, (base, (one, other)) in enumerate(zip(start, paths, strict=True)):
        weight = jnp.maximum(1.0, jnp.abs(base + one))
        weight = jnp.minimum(weight, moved) if i < gaps else weight
        off = jnp.abs(one - other)
        distance = jnp.maximum(distance, jnp.max(jnp.where(off == 0, 0.0, off / weight)))
    return distance


def _pace(field: CompiledField, parameters: Parameters, x: State) -> tuple[Array, State]:
    r"""The velocity as $e^a F$ with $F$ of order 1, also where attention has left the distinct tokens altogether."""
    seen = field.observables(jnp.stack(x), parameters)
    usual = _reduced(field, parameters, -seen.log_error, x)
    log_faint = seen.log_error + seen.log_attentions[field.flow.structure.roles.index("distinct")]
    faint = _reduced(field, parameters, -log_faint, x)
    vanishes = functools.reduce(jnp.logical_and, (jnp.abs(v) < _VANISHING for v in usual))
    pace = tuple(jnp.where(vanishes, b, a) for a, b in zip(usual, faint, strict=True))
    return jnp.where(vanishes, log_faint, seen.log_error), pace


def _follow(along, origin: State, clock: Float[Array, " time"], tol: Float[Array, ""]):
    """Integrates the path until the clock has passed its last reading, and reads it and its slopes off."""
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda tau, y, _: along(tau, y)),
        diffrax.Dopri8(),
        t0=0.0,
        t1=jnp.finfo(jnp.float64).max,
        dt0=1e-3,
        y0=(jnp.zeros_like(clock[0]), *origin),
        saveat=diffrax.SaveAt(t0=True, steps=True),
        stepsize_controller=diffrax.PIDController(rtol=tol, atol=jnp.finfo(jnp.float64).tiny),
        event=diffrax.Event(lambda t, y, args, **_: y[0] >= clock[-1]),
        max_steps=MAX_STEPS,
        throw=False,
    )
    assert solution.ts is not None
    assert solution.ys is not None
    nodes = solution.ys[0]
    taus = solution.ts

    def read(target: Array) -> tuple[State, State]:
        i = jnp.searchsorted(nodes, target, side="right") - 1
        i = jnp.clip(i, 0, nodes.size - 2)
        y, longest = tuple(leaf[i] for leaf in solution.ys), taus[i + 1] - taus[i]
        zero = tuple(jnp.zeros_like(v) for v in y)

        def advance(h: Array) -> State:
            moved, _ = fixed_grid.step(along, y, zero, along(0.0, y), jnp.zeros_like(h), h)
            return tuple(a + b for a, b in zip(y, moved, strict=True))

        def improve(_, carry):
            low, high, h = carry
            there = advance(h)
            over = there[0] > target
            low, high = jnp.where(over, low, h), jnp.where(over, h, high)
            newton = h + (target - there[0]) / along(0.0, there)[0]
            inside = (newton >= low) & (newton <= high)
            return low, high, jnp.where(inside, newton, 0.5 * (low + high))

        high = jnp.where(jnp.isfinite(longest), longest, 0.0)
        guess = jnp.clip((target - y[0]) / along(0.0, y)[0], 0.0, high)
        _, _, h = jax.lax.fori_loop(0, _READING_ROUNDS, improve, (jnp.zeros_like(high), high, guess))
        there = advance(h)
        reached = target <= _farthest(nodes)
        pace = along(0.0, there)
        return tuple(jnp.where(reached, v, jnp.nan) for v in there[1:]), tuple(v / pace[0] for v in pace[1:])

    return *jax.vmap(read)(clock), solution.stats["num_steps"], _farthest(nodes) >= clock[-1]


def _farthest(nodes: Array) -> Array:
    return jnp.max(nodes, initial=-jnp.inf, where=jnp.isfinite(nodes))


def _reduced(field: CompiledField, parameters: Parameters, log_rate: Array, x: State) -> State:
    return field.reduced_components(log_rate, x, parameters)
