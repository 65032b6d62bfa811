"""Inverse design: the ratio of the learning rates at which attention is what one wants it to be (paper, section 6)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _jax, _validate
from flowsim.errors import InvalidInput
from flowsim.score_scale import ScoreScale
from flowsim.solve.clocks import orbit_per_ratio, with_ratios
from flowsim.solve.closed_form import closed_form_parameters
from flowsim.solve.exact import check_start
from flowsim.solve.inversion import advance_at_log_time
from flowsim.solve.line_start import LineStart, line_start
from flowsim.solve.orbit import Orbit
from flowsim.solve.progress import lead_of_log_loss

# Logs of the ratios among which the one for a time is sought, halved until nothing is left to halve.
_WIDEST, _HALVINGS = 100.0, 60


def ratio_for(
    task,
    parameterization: str = "CACO",
    *,
    attention: Any,
    margin: Any = None,
    loss: Any = None,
    time: Any = None,
    margin0: Any = None,
    score_gap0: Any = None,
    imbalance_ov: Any = None,
    imbalance_qk: Any = None,
    score_scale: float | str = 1.0,
) -> Array:
    r"""The ratio $\eta_{QK}/\eta_{OV}$ at which attention reaches a value exactly at a margin, a loss or a time.

    At a margin $w$ it is explicit: the drive $E$ that moves attention so far, over what the output-value clock supplies
    up to $w$. A loss fixes the margin, $w = \Delta/\alpha$. At a time it is the only root, because attention at a fixed
    time rises with the ratio.

    Args:
        task: a task with a closed form.
        parameterization: `"CACO"`, `"FACO"`, `"CAFO"` or `"FAFO"`.
        attention: attention $\alpha$ between 0 and 1, a number or a list.
        margin: margin $w$, a number or a list that broadcasts against attention; or
        loss: loss; or
        time: gradient-flow time.
        margin0: margin at the start, 0 or more; by default as in `flowsim.exact`.
        score_gap0: score gap at the start.
        imbalance_ov: imbalance of a factorized output-value circuit.
        imbalance_qk: imbalance of a factorized query-key circuit.
        score_scale: factor of the scores.

    Returns:
        The ratio, of the shape to which attention and the margin, loss or time broadcast.

    Raises:
        NoClosedForm: naming the condition that the task breaks.
        InvalidInput: naming the argument, its value and the fix; also if no ratio gets there.
    """
    _jax.require_x64()
    numbers = closed_form_parameters(task, parameterization)
    start = line_start(
        parameterization,
        margin0=margin0,
        score_gap0=score_gap0,
        imbalance_ov=imbalance_ov,
        imbalance_qk=imbalance_qk,
    )
    check_start(parameterization, start)
    if start.margin0 < 0:
        raise InvalidInput(f"margin0={start.margin0:g} is negative; ratio_for needs a start at a margin of 0 or more.")
    given = {name: value for name, value in {"margin": margin, "loss": loss, "time": time}.items() if value is not None}
    if len(given) != 1:
        got = " and ".join(f"{name}=" for name in given) or "none of them"
        raise InvalidInput(f"give exactly one of margin=, loss=, time=; got {got}.")
    ((name, value),) = given.items()
    wanted = _within("attention", attention, 0.0, 1.0)
    points = _within(name, value, 0.0, math.inf)
    try:
        shape = np.broadcast_shapes(wanted.shape, points.shape)
    except ValueError as error:
        raise InvalidInput(
            f"attention of shape {wanted.shape} and {name} of shape {points.shape} do not broadcast; give lists of one "
            "length, or a number."
        ) from error
    wanted, points = (np.broadcast_to(array, shape).reshape(-1) for array in (wanted, points))
    orbit = orbit_per_ratio(parameterization, numbers, start, ScoreScale.of(score_scale, parameterization, task))
    ratio = np.asarray(
        _SOLVERS[name](orbit, math.log(numbers.distinct_types), jnp.asarray(wanted), jnp.asarray(points))
    )
    _check(ratio, name, wanted, points, start)
    return jnp.asarray(ratio.reshape(shape))


@jax.jit
def _at_margin(orbit: Orbit, log_types, attention: Float[Array, " n"], margin: Float[Array, " n"]):
    """The drive that is needed over the supply that there is."""
    del log_types
    lanes = with_ratios(orbit, jnp.ones_like(attention))
    change = jnp.log(attention) - jnp.log1p(-attention) - lanes.log_odds0
    supplied = lanes.ov.supplied(margin - lanes.margin0)
    ratio = lanes.qk.drive_of_change(change) / (supplied * lanes.strength)
    return jnp.where(margin > lanes.margin0, ratio, jnp.nan)


@jax.jit
def _at_loss(orbit: Orbit, log_types, attention: Float[Array, " n"], loss: Float[Array, " n"]):
    """The loss fixes the lead, and the lead over the attention is the margin."""
    lead = lead_of_log_loss(jnp.log(loss), orbit.log_wrong)
    return _at_margin(orbit, log_types, attention, lead / attention)


@jax.jit
def _at_time(orbit: Orbit, log_types, attention: Float[Array, " n"], time: Float[Array, " n"]):
    """Bisection for the log of the ratio."""
    log_time = (jnp.log(time) - log_types)[:, None]

    def missing(log_ratio):
        lanes = with_ratios(orbit, jnp.exp(log_ratio))
        state = lanes.spread().state(advance_at_log_time(lanes, log_time))
        change = jnp.log(attention) - jnp.log1p(-attention) - lanes.log_odds0
        return state.change[:, 0] - change

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        below = missing(middle) < 0
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    wide = jnp.full_like(attention, _WIDEST)
    low, high = jax.lax.fori_loop(0, _HALVINGS, halve, (-wide, wide))
    reached = (low > -_WIDEST) & (high < _WIDEST)
    return jnp.where(reached, jnp.exp((low + high) / 2), jnp.nan)


_SOLVERS = {"margin": _at_margin, "loss": _at_loss, "time": _at_time}


def _within(name: str, value, above: float, below: float) -> np.ndarray:
    array = _validate.numeric_array(name, value)
    values, _ = _validate.lane_values(name, array, above=above)
    if values.max() >= below:
        raise InvalidInput(f"{name}={values.max():.17g} is too large; give values below {below:g}.")
    return array


def _check(ratio: np.ndarray, name: str, attention: np.ndarray, points: np.ndarray, start: LineStart) -> None:
    bad = ~(np.isfinite(ratio) & (ratio >= 0))
    if bad.any():
        i = int(np.argmax(bad))
        raise InvalidInput(
            f"attention={attention[i]:.15g} at {name}={points[i]:.15g} is reached with no ratio from margin0="
            f"{start.margin0:g}, score_gap0={start.score_gap0:g}; give an attention above that of the start and a "
            f"{name} beyond it."
        )
