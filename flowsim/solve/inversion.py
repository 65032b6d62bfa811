r"""From the time to the advance along an orbit, and back, with derivatives.

Inside a panel the time is a polynomial of the advance; a guess that is exact for an exponential and Newton's method
invert it. In a gap, where the end of the integral dominates, Newton's method in $\ln t$ is kept in a bracket.

Derivatives follow from the implicit function theorem, so no iteration is differentiated: at fixed $x$ the log time
moves by the time-weighted mean of $\dot\varphi$ along the orbit, and $dx/d\ln t = t e^{-\varphi(x)}$.

Shapes: orbits have fields of shape `(lanes,)`, everything else is `(lanes, times)`. Times are in units of C.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.solve import time_map as tm
from flowsim.solve.orbit import Orbit

_NEWTON_STEPS, _NEWTON_ENOUGH = 60, 1e-7
_BRACKET_STEPS, _BRACKET_ENOUGH = 100, 1e-9

Points = Float[Array, "lanes times"]


@jax.custom_jvp
def advance_at_log_time(orbit: Orbit, log_time: Points) -> Points:
    r"""The advance $x = w - w_0$ at given times.

    Args:
        orbit: the orbits.
        log_time: $\ln (t/C)$; `-inf` gives 0.

    Returns:
        $x$, with relative accuracy also where it is tiny; infinity where the panels do not reach.
    """
    last = jnp.max(log_time, axis=1)
    time_map = tm.build(orbit, last, jnp.zeros_like(last))
    place = tm.find(time_map, log_time, tm.LOG_LEFT)
    left, width, log_left, scale = place.edges()
    near = left + width * _solve_panel(place, jnp.exp(log_time - scale) - jnp.exp(log_left - scale))
    return _with_gaps(time_map, place, near, width, lambda gap: _solve_gap(orbit.spread(), place, log_time, gap))


@advance_at_log_time.defjvp
def _advance_at_log_time_jvp(primals, tangents):
    (orbit, log_time), (orbit_tangent, log_time_tangent) = primals, tangents
    # at time 0 nothing moves: any other time will do, where the mean along the orbit can be differentiated again
    begun = log_time > -jnp.inf
    last = jnp.max(log_time, axis=1, keepdims=True)
    later = jnp.where(begun, log_time, jnp.where(last > -jnp.inf, last, 0.0))
    advance = advance_at_log_time(orbit, later)
    by_orbit = _orbit_tangent(orbit, orbit_tangent, advance, later)
    slope = jnp.exp(later - orbit.spread().log_rate(advance))  # dx/d ln t
    return jnp.where(begun, advance, 0.0), jnp.where(begun, slope * (log_time_tangent - by_orbit), 0.0)


@jax.custom_jvp
def log_time_at_advance(orbit: Orbit, advance: Points) -> Points:
    r"""The time at given advances.

    Args:
        orbit: the orbits.
        advance: $x \ge 0$.

    Returns:
        $\ln (t/C)$, `-inf` at $x = 0$; infinity where the panels do not reach.
    """
    last = jnp.max(advance, axis=1)
    time_map = tm.build(orbit, jnp.full_like(last, -jnp.inf), last)
    place = tm.find(time_map, advance, tm.LEFT)
    left, width, log_left, scale = place.edges()
    xi = (advance - left) / width
    near = scale + jnp.log(jnp.exp(log_left - scale) + xi * place.mean(xi))

    def far(_):
        end = tm.end_of_integral(orbit.spread(), advance, left)
        return jnp.logaddexp(log_left, end.log_integral)

    return _with_gaps(time_map, place, near, width, far)


@log_time_at_advance.defjvp
def _log_time_at_advance_jvp(primals, tangents):
    (orbit, advance), (orbit_tangent, advance_tangent) = primals, tangents
    log_time = log_time_at_advance(orbit, advance)
    by_orbit = _orbit_tangent(orbit, orbit_tangent, advance, log_time)
    slope = jnp.exp(orbit.spread().log_rate(advance) - log_time)
    return log_time, jnp.where(advance > 0, slope, 0.0) * advance_tangent + by_orbit


@jax.custom_jvp
def advance_at_lead(orbit: Orbit, lead: Points) -> Points:
    r"""The advance at which $\Delta = \alpha w$ has a given value, reached from below.

    $\alpha$ depends on $w^2$ only and $|w| \alpha$ rises with $|w|$: Newton's method for $\ln |w|$ in a bracket.

    Args:
        orbit: the orbits.
        lead: $\Delta$, at least that of the start.

    Returns:
        $x = w - w_0$.
    """
    orbit = orbit.spread()
    size = jnp.abs(lead)
    log_size = jnp.log(size)
    lowest = orbit.state(orbit.turn())  # attention is lowest there
    half = orbit.margin_of_change(-orbit.log_odds0)  # where attention is 1/2, should it rise through that
    highest = log_size - lowest.log_attention
    half = jnp.where(jnp.isnan(half) & (orbit.log_odds0 > 0), 0.0, half)
    high = jnp.minimum(highest, jnp.log(jnp.maximum(half, 2 * size)))
    high = jnp.where(jnp.isfinite(high), high, highest)

    def refine(carry):
        count, v, low, high, last, _ = carry
        margin = jnp.exp(v)
        state = orbit.state(margin - orbit.margin0)
        error = log_size - v - state.log_attention
        low, high = jnp.where(error >= 0, v, low), jnp.where(error <= 0, v, high)
        new = v + error / (1 + margin * state.rest * orbit.log_odds_slope(margin - orbit.margin0, state))
        wanted = jnp.abs(new - v)
        new = _safe(new, wanted, _BRACKET_ENOUGH, low, high, last, (low + high) / 2)
        return count + 1, new, low, high, jnp.abs(new - v), wanted

    def go_on(carry):
        count, *_, step = carry
        return (count < _BRACKET_STEPS) & jnp.any((step > _BRACKET_ENOUGH) & (size > 0))

    far = jnp.full_like(high, jnp.inf)
    _, v, *_ = jax.lax.while_loop(go_on, refine, (0, high, log_size, high, far, far))
    return jnp.sign(lead) * jnp.exp(v) - orbit.margin0


@advance_at_lead.defjvp
def _advance_at_lead_jvp(primals, tangents):
    (orbit, lead), (orbit_tangent, lead_tangent) = primals, tangents
    advance = advance_at_lead(orbit, lead)
    _, by_advance = jax.jvp(lambda x: orbit.spread().state(x).lead, (advance,), (jnp.ones_like(advance),))
    _, by_orbit = jax.jvp(lambda o: o.spread().state(advance).lead, (orbit,), (orbit_tangent,))
    return advance, (lead_tangent - by_orbit) / by_advance


def _with_gaps(time_map, place, near, width, far):
    """`near`, replaced in gaps by what `far(mask)` gives, and by infinity beyond panels that do not reach."""
    gap = width == 0
    unreached = gap & (place.panel == time_map.used - 1) & ~time_map.complete[:, None]
    result = jax.lax.cond(jnp.any(gap), lambda: jnp.where(gap, far(gap), near), lambda: near)
    return jnp.where(unreached, jnp.inf, result)


def _solve_panel(place: tm.Place, target: Points) -> Points:
    r"""$\xi$ with $\xi A(\xi)$ equal to the target."""
    total, bend = place.read(tm.TOTAL), place.read(tm.BEND)
    coefficients = place.coefficients()
    share = target / total
    # exact for an exponential; where e^bend overflows, the end or the start of the panel is as good a guess
    exponential = jnp.log1p(share * jnp.expm1(bend)) / bend
    start = jnp.where(jnp.abs(bend) > 0.01, exponential, share)
    start = jnp.where(jnp.isfinite(start), start, jnp.where(bend > 0, 1.0, 0.0))
    solved = place.read(tm.WIDTH) > 0
    from_start = place.read(tm.LEFT) == 0

    def refine(carry):
        count, xi, low, high, last, _ = carry
        mean, mean_slope = tm.mean_and_slope(coefficients, xi)
        missing = target - xi * mean
        low, high = jnp.where(missing >= 0, xi, low), jnp.where(missing <= 0, xi, high)
        step = missing / (mean + xi * mean_slope)
        step = step * jnp.where(jnp.abs(step * bend) < 1, 1 - step * bend / 2, 1.0)  # second order, for an exponential
        new, wanted = xi + step, jnp.abs(step)
        new = _safe(new, wanted, enough_at(xi), low, high, last, (low + high) / 2)
        return count + 1, new, low, high, jnp.abs(new - xi), wanted

    def enough_at(xi):  # in the first panel small times keep all digits
        return _NEWTON_ENOUGH * jnp.where(from_start, xi, 1.0)

    def go_on(carry):
        count, xi, *_, wanted = carry
        return (count < _NEWTON_STEPS) & jnp.any((wanted > enough_at(xi)) & solved)

    zero, far = jnp.zeros_like(start), jnp.full_like(start, jnp.inf)
    begin = (0, jnp.clip(start, 0.0, 1.0), zero, jnp.ones_like(start), far, far)
    # A target beyond the last digit of the panel leaves Newton's method at an end.
    return jnp.clip(jax.lax.while_loop(go_on, refine, begin)[1], 0.0, 1.0)


def _solve_gap(orbit: Orbit, place: tm.Place, log_time: Points, gap) -> Points:
    """Newton's method for the log time between the edges of a gap, of which the right one may be infinite."""
    left, _, log_left, slope = place.edges()
    right = place.read(tm.TOTAL)

    def refine(carry):
        count, x, low, high, last, _ = carry
        end = tm.end_of_integral(orbit, x, left)
        value = jnp.logaddexp(log_left, end.log_integral)
        error = log_time - value
        low, high = jnp.where(error >= 0, x, low), jnp.where(error <= 0, x, high)
        new = x + error * jnp.exp(value - end.log_rate)
        middle = jnp.where(jnp.isinf(high), 2 * low + 1, (low + high) / 2)
        wanted = jnp.abs(new - x)
        new = _safe(new, wanted, _BRACKET_ENOUGH * x, low, high, last, middle)
        return count + 1, new, low, high, jnp.abs(new - x), wanted

    def go_on(carry):
        count, x, *_, wanted = carry
        return (count < _BRACKET_STEPS) & jnp.any(gap & (wanted > _BRACKET_ENOUGH * x))

    guess = left + jnp.minimum((log_time - log_left) / jnp.where(slope > 0, slope, 1.0), (right - left) / 2)
    far = jnp.full_like(left, jnp.inf)
    start = (0, guess, left, right, far, far)
    _, x, *_, wanted = jax.lax.while_loop(go_on, refine, start)
    # Where the orbit is not finite the bracket closes on no root: infinity, which the status tells.
    return jnp.where(wanted <= _BRACKET_ENOUGH * x, x, jnp.inf)


def _safe(new: Points, wanted: Points, enough, low: Points, high: Points, last: Points, middle: Points) -> Points:
    """Newton's proposal `new`, or the middle of the bracket where Newton's method may not converge.

    It may also go to and fro inside the bracket for ever (where attention jumps, from a place with a gentle slope to
    one with a steep slope and back), so a step `wanted` must be at most half as long as the last one, or `enough`.
    """
    shorter = jnp.isinf(high) | (2 * wanted <= last) | (wanted <= enough)
    return jnp.where((new >= low) & (new <= high) & shorter, new, middle)


def _orbit_tangent(orbit: Orbit, tangent: Orbit, advance: Points, log_time: Points) -> Points:
    r"""$\partial \ln t/\partial \text{orbit} \cdot \text{tangent}$ at fixed advance, linear in the tangent.

    The partial derivatives come first, one for each field, so that reverse mode has only their sum to transpose.
    """
    orbit = orbit.with_partials()
    fields, moving = _lane_fields(orbit)
    units = jnp.eye(len(fields))[:, :, None] * jnp.ones_like(fields[0])
    partials = jax.vmap(lambda unit: _log_time_partial(orbit, moving(unit), advance, log_time))(units)
    return jnp.einsum("flt,fl->lt", partials, jnp.stack(_lane_fields(tangent)[0]))


def _lane_fields(orbit: Orbit):
    """The fields of the lanes, and the tangent of the orbit when they move by given ones."""
    fields: list[Array] = []
    orbit.map_lanes(lambda field: fields.append(field) or field)

    def moving(tangents) -> Orbit:
        left = iter(tangents)
        return jax.tree.map(jnp.zeros_like, orbit).map_lanes(lambda _: next(left))

    return fields, moving


def _log_time_partial(orbit: Orbit, tangent: Orbit, advance: Points, log_time: Points) -> Points:
    r"""$\partial \ln t$ at fixed advance, when the orbit moves by a constant tangent."""
    frozen, points = jax.lax.stop_gradient((orbit, advance))
    last = jnp.max(points, axis=1)
    time_map = jax.lax.stop_gradient(tm.build(frozen, jnp.full_like(last, -jnp.inf), last))
    place = tm.find(time_map, points, tm.LEFT)
    foot, _ = frozen.peak_foot()

    def mean_tangent(orbit, tangent, nodes, shares):
        nodes = jnp.where(shares > 0, nodes, 0.0)  # a node that carries nothing may be NaN, and so may its derivative
        _, moved = jax.jvp(lambda o: o.log_rate(nodes), (orbit,), (tangent,))
        return jnp.sum(jnp.where(shares > 0, shares * moved, 0.0), axis=0)

    # in gaps, and up to the foot of a peak: the end of the integral
    left, width, log_left, _ = place.edges()
    gap = width == 0
    # elsewhere any point will do whose integral is not empty: what is dropped must be differentiable in reverse too
    foot = jnp.where(jnp.isfinite(foot) & (foot > 0), foot, 1.0)
    ends = jnp.concatenate([jnp.where(gap, advance, left + jnp.where(gap, 0.0, width)), foot[:, None]], axis=1)
    end = tm.end_of_integral(orbit.spread(), ends, jnp.pad(left, ((0, 0), (0, 1))))
    far = mean_tangent(orbit.spread(), tangent.spread(), end.nodes, end.shares)

    # in panels: what comes from the panels before, and the part of the last one
    before = jnp.take_along_axis(
        _means_at_edges(orbit, tangent, time_map, far[:, -1], mean_tangent), place.panel, axis=1
    )
    nodes = left + (advance - left) * tm.XI[:, None, None]
    shares = (advance - left) * tm.WEIGHTS[:, None, None] * jnp.exp(orbit.spread().log_rate(nodes) - log_time)
    inside = mean_tangent(orbit.spread(), tangent.spread(), nodes, jnp.where(advance > left, shares, 0.0))
    near = jnp.where(advance > 0, jnp.exp(log_left - log_time), 0.0) * before + inside
    return jnp.where(gap, far[:, :-1], near)


def _means_at_edges(orbit, tangent, time_map: tm.TimeMap, at_foot, mean_tangent) -> Float[Array, "lanes panels"]:
    """The tangent of the log time at the left edge of every panel."""
    lanes = at_foot.shape[0]
    edges = time_map.table.reshape(-1, tm.ROWS, lanes)[:, [tm.LEFT, tm.WIDTH, tm.LOG_LEFT]]

    def step(mean, pair):
        (left, width, log_left), (next_left, _, next_log_left) = pair
        panel = (next_left > left) & (width > 0)  # not a rejected attempt, a gap, or a slot that is not in use
        width, log_ratio = jnp.where(panel, width, 1.0), jnp.where(panel, log_left - next_log_left, 0.0)
        nodes = left + width * tm.XI[:, None]
        log_shares = orbit.log_rate(nodes) - jnp.where(panel, next_log_left, jnp.inf)
        moved = jnp.exp(log_ratio) * mean + mean_tangent(
            orbit, tangent, nodes, width * tm.WEIGHTS[:, None] * jnp.exp(log_shares)
        )
        leapt = (next_left > left) & ~panel
        return jnp.where(panel, moved, jnp.where(leapt, at_foot, mean)), mean

    last, means = jax.lax.scan(step, jnp.zeros(lanes), (edges[:-1], edges[1:]))
    return jnp.concatenate([means, last[None]]).T
