r"""Four ways to say how far along an orbit a point lies: by time, by margin, by loss and by attention.

Each gives the log time and the advance of its points, and how strongly the advance depends on rounding them.
Shapes: orbits have fields of shape `(lanes,)`, points are `(lanes, times)`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.solve.inversion import advance_at_lead, advance_at_log_time, log_time_at_advance
from flowsim.solve.orbit import Orbit, State
from flowsim.status import Status

# What the closed form keeps; a lane in which rounding its points by 4 ulp moves more than that says so.
ACCURACY = 1e-11
_FOUR_ULP = 4 * 2.0**-52
# Below it the loss log(1 + x) and the error x/(1 + x) are x to all digits, where x itself may underflow.
_TINY = -40.0

Points = Float[Array, "lanes times"]


class Observed(NamedTuple):
    """The arrays of a `Trajectory`: shape `(lanes, times)`, the status `(lanes,)`."""

    log_time: Points
    margin: Points
    score_gap: Points
    score_gap_change: Points
    log_odds: Points
    log_error: Points
    log_loss: Points
    status: Int[Array, " lanes"]


class Progress(NamedTuple):
    """One way to index an orbit.

    Attributes:
        locate: from the orbit, ln C and the points to the log time and the advance, NaN where a point is not reached.
        noise: how uncertain the points are: 4 ulp, and for times what rounding the orbit's constants does to them.
        slope: the derivative of the advance with respect to the points.
    """

    locate: Callable[[Orbit, Any, Points], tuple[Points, Points]]
    noise: Callable[[Orbit, Points], Points]
    slope: Callable[[Orbit, Points, State, Any, Observed], Points]


def observe(index: str, orbit: Orbit, log_types, score_gap0, points: Points) -> Observed:
    """All observables at given points of the orbits.

    Args:
        index: a key of `INDICES`.
        orbit: the orbits.
        log_types: ln C, the unit of time.
        score_gap0: the score gap at the start.
        points: where to look.

    Returns:
        The observables and the status of each lane.
    """
    progress = INDICES[index]
    log_time, advance = progress.locate(orbit, log_types, points)
    orbit = orbit.spread()
    state = orbit.state(advance)
    logit = orbit.log_wrong - state.lead
    rest = jnp.log1p(jnp.exp(-jnp.abs(logit)))
    tiny = logit < _TINY
    observed = Observed(
        log_time=log_time,
        margin=state.margin,
        score_gap=score_gap0 + state.change,
        score_gap_change=state.change,
        log_odds=state.log_odds,
        log_error=jnp.minimum(logit, 0.0) - rest,
        log_loss=jnp.where(tiny, logit, jnp.log(jnp.where(tiny, 1.0, jnp.maximum(logit, 0.0) + rest))),
        status=jnp.zeros(log_time.shape[0], dtype=int),
    )
    moved = progress.noise(orbit, points) * progress.slope(orbit, advance, state, log_types, observed)
    return observed._replace(status=jax.lax.stop_gradient(_status(orbit, state, advance, moved)))


def _status(orbit: Orbit, state: State, advance: Points, moved: Points) -> Int[Array, " lanes"]:
    by_margin = moved / jnp.maximum(1.0, jnp.abs(state.margin))
    of_odds = jnp.abs(orbit.log_odds_slope(advance, state)) * moved + _orbit_noise(orbit) * state.rest
    by_odds = of_odds / jnp.maximum(1.0, jnp.abs(state.log_odds))
    loose = jnp.maximum(by_margin, by_odds) > ACCURACY
    finite = jnp.isfinite(state.margin) & jnp.isfinite(state.log_odds)
    usable = jnp.isfinite(orbit.strength * orbit.margin0 * orbit.log_odds0) & (orbit.strength >= 0)
    of_points = jnp.where(loose, int(Status.ILL_CONDITIONED), int(Status.OK))
    of_points = jnp.where(finite, of_points, int(Status.NOT_FINITE))
    of_points = jnp.where(jnp.isnan(advance) & usable, int(Status.UNREACHABLE), of_points)
    return jnp.max(of_points, axis=1)  # the worse, the larger its number


def _orbit_noise(orbit: Orbit) -> Float[Array, "lanes 1"]:
    r"""4 ulp of $y_0$ and of the drive, should they nearly cancel: on the way from a negative start, where D < 0."""
    odds0 = jnp.exp(orbit.log_odds0)
    cancels = (orbit.margin0 < 0) & jnp.isfinite(odds0)
    return jnp.where(cancels, 2 * _FOUR_ULP * jnp.where(cancels, odds0, 0.0), 0.0)


def log_loss_of_lead(lead, log_wrong):
    r"""$\ln \ln(1 + (K-1) e^{-\Delta})$."""
    logit = log_wrong - lead
    return jnp.where(logit < _TINY, logit, jnp.log(jnp.logaddexp(0.0, jnp.maximum(logit, _TINY))))


def lead_of_log_loss(log_loss, log_wrong):
    r"""$\Delta$ from the log of the loss: $\ln(K-1) - \ln(e^{\text{loss}} - 1)$."""
    tiny = log_loss < _TINY
    loss = jnp.exp(jnp.where(tiny, 0.0, log_loss))
    return log_wrong - jnp.where(tiny, log_loss, loss + jnp.log(-jnp.expm1(-loss)))


def _forward(advance: Points) -> Points:
    return jnp.where(advance >= 0, advance, jnp.nan)


def _timed(orbit: Orbit, log_types, advance: Points) -> tuple[Points, Points]:
    return log_types + log_time_at_advance(orbit, advance), advance


def _locate_log_time(orbit: Orbit, log_types, log_time: Points):
    return log_time, advance_at_log_time(orbit, log_time - log_types)


def _locate_margin(orbit: Orbit, log_types, margin: Points):
    return _timed(orbit, log_types, _forward(margin - orbit.margin0[:, None]))


def _locate_log_loss(orbit: Orbit, log_types, log_loss: Points):
    log_wrong = orbit.log_wrong[:, None]
    advance = advance_at_lead(orbit, lead_of_log_loss(log_loss, log_wrong))
    start = log_loss_of_lead(jax.nn.sigmoid(orbit.log_odds0) * orbit.margin0, orbit.log_wrong)[:, None]
    reached = log_loss <= start + _FOUR_ULP * (1 + jnp.abs(start))  # the loss of the start itself may be rounded up
    return _timed(orbit, log_types, jnp.where(reached, jnp.maximum(advance, 0.0), jnp.nan))


def _locate_attention(orbit: Orbit, log_types, attention: Points):
    change = jnp.log(attention) - jnp.log1p(-attention) - orbit.log_odds0[:, None]
    return _timed(orbit, log_types, _forward(orbit.spread().advance_of_change(change)))


def _slope_log_time(orbit: Orbit, advance: Points, state: State, log_types, observed: Observed) -> Points:
    log_slope = observed.log_time - log_types + observed.log_error - orbit.log_wrong + state.log_attention
    return jnp.where(jnp.isfinite(observed.log_time), jnp.exp(log_slope + orbit.ov.log_speed(advance)), 0.0)


def _slope_log_loss(orbit: Orbit, advance: Points, state: State, _, observed: Observed) -> Points:
    by_odds = state.margin * state.rest * orbit.log_odds_slope(advance, state)
    by_advance = state.attention * (1 + by_odds)  # of the lead
    return jnp.exp(observed.log_loss - observed.log_error) / by_advance


def _slope_one(orbit: Orbit, advance: Points, state: State, log_types, observed: Observed) -> Points:
    del orbit, advance, state, log_types
    return jnp.ones_like(observed.margin)


def _noise_log_time(orbit: Orbit, log_time: Points) -> Points:
    # At w = 0 the odds are y > z - ln(1 + z), where z = y + ln y; the log time takes 1/(1 + y) of the noise.
    lowest = jnp.exp(orbit.log_odds0) + orbit.log_odds0 - orbit.strength * jnp.abs(orbit.ov.supplied(-orbit.margin0))
    lowest = jnp.maximum(lowest, 0.0)
    rest = 1 / (1 + lowest - jnp.log1p(lowest))
    of_points = _FOUR_ULP * jnp.where(jnp.isfinite(log_time), jnp.abs(log_time), 0.0)
    return of_points + jnp.where(orbit.margin0 < 0, _orbit_noise(orbit) * rest, 0.0)


def _noise_log_loss(orbit: Orbit, log_loss: Points) -> Points:
    del orbit
    return _FOUR_ULP * (1 + jnp.abs(log_loss))


def _noise_none(orbit: Orbit, points: Points) -> Points:
    del orbit
    return jnp.zeros_like(points)


INDICES = {
    "log_time": Progress(_locate_log_time, _noise_log_time, _slope_log_time),
    "margin": Progress(_locate_margin, _noise_none, _slope_one),
    "log_loss": Progress(_locate_log_loss, _noise_log_loss, _slope_log_loss),
    "attention": Progress(_locate_attention, _noise_none, _slope_one),
}
