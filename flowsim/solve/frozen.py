r"""Attention that is held fixed, and the approximation that freezes the softmax gate only (paper, section 5).

With $\alpha$ fixed the output-value circuit alone moves: $e^\Delta + (K-1) \Delta$ grows linearly in time when it is
collapsed, $\mathrm{Ei}(\Delta) + (K-1) \ln \Delta$ when it is factorized and balanced. Both, and any imbalance, are the
orbit of `flowsim.exact` with a query-key clock that stands still, so times of any size are possible.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _jax, _validate
from flowsim.errors import InvalidInput
from flowsim.solve.clocks import with_ratios
from flowsim.solve.exact import Numbers, blockwise, check_reachable, grid_of, lanes_of, numbers_of
from flowsim.solve.inversion import advance_at_log_time
from flowsim.solve.lanes import map_lanes
from flowsim.solve.orbit import Orbit
from flowsim.solve.progress import INDICES, log_loss_of_lead, observe
from flowsim.solve.score_clocks import FrozenScore
from flowsim.status import Status
from flowsim.task import Task
from flowsim.trajectory import Trajectory

DELTA = 0.005
"""By how much attention is sharpened to see whether that pays."""


class FixedAttention(NamedTuple):
    r"""The output-value circuit at fixed attention; axes `(attention, time)`, of which scalars drop theirs.

    Attributes:
        log_time: $\ln t$.
        margin: $w$.
        lead: $\Delta = \alpha w$, own-label minus other-label logit.
        log_loss: log of the cross-entropy.
    """

    log_time: Float[Array, "*time"]
    margin: Float[Array, "*shape"]
    lead: Float[Array, "*shape"]
    log_loss: Float[Array, "*shape"]

    @property
    def loss(self) -> Float[Array, "*shape"]:
        """Cross-entropy; underflows to 0 beyond a lead of about 745."""
        return jnp.exp(self.log_loss)


def fixed_attention(
    task: Task,
    parameterization: str = "CACO",
    *,
    attention: Any,
    times: Any = None,
    log_times: Any = None,
    margin0: Any = None,
    imbalance_ov: Any = None,
) -> FixedAttention:
    r"""Margin, lead and loss over time when attention is held at a value.

    Args:
        task: a task with a closed form; its counts do not matter.
        parameterization: only the output letter matters.
        attention: $\alpha$ above 0, up to 1; a number or a list.
        times: gradient-flow times, strictly increasing; or
        log_times: their natural logarithms.
        margin0: margin at the start, by default as in `flowsim.exact`.
        imbalance_ov: imbalance of a factorized output-value circuit.

    Returns:
        What the circuit does.

    Raises:
        NoClosedForm: naming the condition that the task breaks.
        InvalidInput: naming the argument, its value and the fix.
    """
    _jax.require_x64()
    lanes, scalar = lanes_of("attention", attention, above=0.0)
    if not _validate.is_traced(lanes) and lanes.max() > 1:
        raise InvalidInput(f"attention={lanes.max():.15g} is more than 1; give values up to 1.")
    index, grid = grid_of(times=times, log_times=log_times)
    given = times if times is not None else log_times
    numbers, _, _ = numbers_of(task, parameterization, {"margin0": margin0, "imbalance_ov": imbalance_ov})
    del index
    margin, lead, log_loss = _at_fixed_attention(numbers, lanes, jnp.asarray(grid))
    log_time = jnp.asarray(grid)
    if not np.ndim(given):
        log_time, margin, lead, log_loss = (array[..., 0] for array in (log_time, margin, lead, log_loss))
    if scalar:
        margin, lead, log_loss = margin[0], lead[0], log_loss[0]
    return FixedAttention(log_time, margin, lead, log_loss)


def sharpening_incentive(
    task: Task,
    parameterization: str = "CACO",
    *,
    attention: Any,
    delta: float = DELTA,
    times: Any = None,
    log_times: Any = None,
    margin0: Any = None,
    imbalance_ov: Any = None,
) -> Array:
    r"""By how much the loss is lower at slightly sharper attention: loss$(\alpha, t)$ - loss$(\alpha + \delta, t)$.

    Args:
        task: a task with a closed form.
        parameterization: only the output letter matters.
        attention: $\alpha$, up to $1 - \delta$; a number or a list.
        delta: $\delta > 0$.
        times: as in `fixed_attention`; or
        log_times: as in `fixed_attention`.
        margin0: as in `fixed_attention`.
        imbalance_ov: as in `fixed_attention`.

    Returns:
        The incentive, with axes `(attention, time)`, of which scalars drop theirs.

    Raises:
        NoClosedForm: naming the condition that the task breaks.
        InvalidInput: naming the argument, its value and the fix.
    """
    delta = _validate.real("delta", delta, above=0.0)
    lanes, _ = lanes_of("attention", attention, above=0.0)
    if not _validate.is_traced(lanes) and lanes.max() + delta > 1:
        raise InvalidInput(
            f"attention={lanes.max():.15g} with delta={delta:g} is sharpened beyond 1; give values up to 1 - delta."
        )
    how = {"times": times, "log_times": log_times, "margin0": margin0, "imbalance_ov": imbalance_ov}
    sharper = (lanes if np.ndim(attention) else lanes[0]) + delta
    blunt, sharp = (
        fixed_attention(task, parameterization, attention=at, **how).log_loss for at in (attention, sharper)
    )
    return -jnp.exp(blunt) * jnp.expm1(sharp - blunt)


def frozen_gate(
    task: Task,
    parameterization: str = "CACO",
    *,
    ratio: Any,
    times: Any = None,
    log_times: Any = None,
    margins: Any = None,
    losses: Any = None,
    log_losses: Any = None,
    margin0: Any = None,
    score_gap0: Any = None,
    imbalance_ov: Any = None,
    imbalance_qk: Any = None,
    score_scale: float | str = 1.0,
) -> Trajectory:
    r"""The approximation that freezes the softmax gate: $\alpha = \alpha_0$ in both equations of motion.

    The margin is that of attention fixed at its start, and the score gap follows without saturating: for CACO
    $\theta - \theta_0 = \rho (1 - \alpha_0)(w^2 - w_0^2)/2$, so that it grows as $\ln^2 t$ for ever. Margin, error and
    loss are those at $\alpha_0$; the log odds are $\ln(m/n) + \theta$, what the score gap would make of them. Where
    they come close to those of `flowsim.exact`, the paper's reading of the growth laws holds.

    Args:
        task: a task with a closed form.
        parameterization: `"CACO"`, `"FACO"`, `"CAFO"` or `"FAFO"`.
        ratio: as in `flowsim.exact`, and so are all others.
        times: gradient-flow times; or
        log_times: their natural logarithms; or
        margins: margins; or
        losses: losses; or
        log_losses: their natural logarithms.
        margin0: margin at the start.
        score_gap0: score gap at the start.
        imbalance_ov: imbalance of a factorized output-value circuit.
        imbalance_qk: imbalance of a factorized query-key circuit.
        score_scale: factor of the scores.

    Returns:
        A trajectory with `method="frozen-gate"`.

    Raises:
        NoClosedForm: naming the condition that the task breaks.
        InvalidInput: naming the argument, its value and the fix.
    """
    _jax.require_x64()
    lanes, scalar = lanes_of("ratio", ratio, minimum=0.0)
    points = {"margins": margins, "losses": losses, "log_losses": log_losses}
    index, grid = grid_of(times=times, log_times=log_times, **points)
    begun = {
        "margin0": margin0, "score_gap0": score_gap0, "imbalance_ov": imbalance_ov, "imbalance_qk": imbalance_qk,
        "score_scale": score_scale,
    }  # fmt: skip
    numbers, _, settings = numbers_of(task, parameterization, begun)
    solve = functools.partial(_solve_frozen_gate, index, numbers, grid)
    if _validate.is_traced(lanes, numbers, grid):
        solution = solve(lanes)
    else:
        solution = map_lanes(solve, [lanes])
        check_reachable(solution, **points)
    if index == "log_time":
        solution = solution._replace(log_time=jnp.asarray(grid))
    trajectory = Trajectory(
        **solution._asdict(),
        n_steps=jnp.zeros_like(solution.status),
        axes=("ratio",),
        coords={"ratio": lanes},
        task=task,
        parameterization=parameterization,
        method="frozen-gate",
        settings=settings,
    )
    return trajectory.squeeze("ratio") if scalar else trajectory


def _standing(orbit: Orbit, log_odds0) -> Orbit:
    """The orbit with a query-key clock that stands still."""
    return Orbit(orbit.ov, FrozenScore(log_odds0), jnp.zeros_like(orbit.strength), orbit.log_wrong)


@jax.jit
def _at_fixed_attention(numbers: Numbers, attention: Float[Array, " lanes"], log_time: Float[Array, " times"]):
    def solve(attention):
        orbit = _standing(with_ratios(numbers.orbit, attention), jnp.log(attention) - jnp.log1p(-attention))
        points = jnp.broadcast_to(log_time - numbers.log_types, (attention.shape[0], log_time.shape[0]))
        orbit, advance = orbit.spread(), advance_at_log_time(orbit, points)
        margin = orbit.margin0 + advance
        lead = attention[:, None] * margin
        return margin, lead, log_loss_of_lead(lead, orbit.log_wrong)

    return blockwise(solve, attention)


@functools.partial(jax.jit, static_argnums=0)
def _solve_frozen_gate(index: str, numbers: Numbers, grid: Float[Array, " times"], ratio: Float[Array, " lanes"]):
    def solve(ratio):
        points = jnp.broadcast_to(grid, (ratio.shape[0], grid.shape[0]))
        orbit = with_ratios(numbers.orbit, ratio)
        standing = _standing(orbit, orbit.log_odds0)
        observed = observe(index, standing, numbers.log_types, numbers.score_gap0, points)
        _, advance = INDICES[index].locate(standing, numbers.log_types, points)
        orbit = orbit.spread()
        change = orbit.qk.ungated(orbit.drive(advance))
        # without the gate the score gap of factors grows as an exponential, and may leave float64
        lost = ~jnp.all(jnp.isfinite(change), axis=1)
        observed = observed._replace(
            status=jnp.maximum(observed.status, jnp.where(lost, int(Status.NOT_FINITE), int(Status.OK))),
            score_gap=numbers.score_gap0 + change,
            score_gap_change=change,
            log_odds=orbit.log_odds0 + change,
        )
        return observed._replace(log_time=None) if index == "log_time" else observed

    return blockwise(solve, ratio)
