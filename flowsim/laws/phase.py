r"""Which law the score gap shows where, over learning-rate ratio and time, from the exact solution."""

import math
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from flowsim import _validate
from flowsim.errors import InvalidInput
from flowsim.laws.crossing import crossing_log_time
from flowsim.laws.lane import Lane, lanes
from flowsim.laws.numbers import Numbers, numbers
from flowsim.laws.predictions import before_saturation
from flowsim.task import Task
from flowsim.theory.growth import BEFORE, SATURATED, SCORE_GAP, growth_laws

NEITHER, EARLY, LATE = 0, 1, 2
TOLERANCE = 0.1
"""A law is shown where the local exponent (or, of a logarithm, the coefficient) is within this share of the law's."""
_SETTLED = 4.0  # the start takes a share of about e^-l of the time
_STEEP = 0.25  # d ln(theta')/d theta below which a factorized query-key circuit grows as its law says


class PhaseDiagram(eqx.Module):
    r"""Local growth of the score gap over (ratio, time), and the law that it shows.

    Attributes:
        task: the task.
        parameterization: four letters.
        ratios: $\eta_{QK}/\eta_{OV}$.
        log_times: $\ln t$.
        score_gap_change: $\theta - \theta_0$.
        exponent: $d \ln(\theta - \theta_0)/d \ln l_0$ with $l_0$ the logarithm of time that early laws are read
            against; NaN where $l_0$ is not above 1.
        coefficient: $d\theta/d\ln l$ with $l$ the logarithm of time of saturated attention; NaN where $l$ is not
            above 1.
        early_exponent: the exponent that the law before saturation has there: 2 for CACO and 1 for CAFO from a zero
            start, growing with time for a factorized query-key circuit.
        late_coefficient: the coefficient that the law after saturation has there: 2 for a collapsed and 1 for a
            factorized output-value circuit, more by $1/(1 - \theta''/\theta'^2)$ for a factorized query-key circuit.
        law: 1 where the early law is shown, 2 where the late one is, 0 where neither is; see `names`.
        crossing: $\ln t$ where theory has the regimes meet: the score gap of the open gate has moved by 1.
    """

    task: Task = eqx.field(static=True)
    parameterization: str = eqx.field(static=True)
    ratios: Float[np.ndarray, " ratio"]
    log_times: Float[np.ndarray, " time"]
    score_gap_change: Float[np.ndarray, "ratio time"]
    exponent: Float[np.ndarray, "ratio time"]
    coefficient: Float[np.ndarray, "ratio time"]
    early_exponent: Float[np.ndarray, "ratio time"]
    late_coefficient: Float[np.ndarray, "ratio time"]
    law: Int[np.ndarray, "ratio time"]
    crossing: Float[np.ndarray, " ratio"]

    @property
    def names(self) -> tuple[str, str, str]:
        """What the numbers of `law` mean."""
        found = {law.regime: law.name for law in growth_laws(self.parameterization) if law.observable == SCORE_GAP}
        # A factorized query-key circuit follows its clock, an exponential of log^2 t or log t.
        power = "^2" if self.parameterization[2] == "C" else ""
        return "neither", found.get(BEFORE, f"exp(log{power} t)"), found[SATURATED]


def phase_diagram(
    task: Task,
    parameterization: str = "CACO",
    *,
    ratios: Any,
    log_times: Any,
    margin0: Any = None,
    score_gap0: Any = None,
    imbalance_ov: Any = None,
    imbalance_qk: Any = None,
    score_scale: float | str = 1.0,
) -> PhaseDiagram:
    r"""Which law the score gap shows over (ratio, time), from the closed form.

    Local exponents are derivatives by the flow itself, not differences of neighbouring cells, so any grid will do.

    Args:
        task: a task with a closed form.
        parameterization: four letters.
        ratios: learning-rate ratios above 0, strictly increasing.
        log_times: $\ln t$, strictly increasing.
        margin0: margin at the start, 0 or more; None for the circuit's default.
        score_gap0: score gap at the start; None for the circuit's default.
        imbalance_ov: imbalance of a factorized output-value circuit.
        imbalance_qk: imbalance of a factorized query-key circuit.
        score_scale: factor of the scores, as in `exact`.

    Returns:
        The data; `flowsim.plot.phase_diagram` draws them.

    Raises:
        NoClosedForm: if the task has no closed form.
        InvalidInput: if a grid or a start cannot be used.
    """
    from flowsim.solve.exact import exact

    values, _ = _validate.lane_values("ratios", ratios, above=0.0)
    if (np.diff(values) <= 0).any():
        raise InvalidInput(f"ratios={_validate.show(ratios)} must be strictly increasing.")
    times, _ = _validate.lane_values("log_times", log_times)
    if margin0 is not None and _validate.real("margin0", margin0) < 0:
        raise InvalidInput(f"margin0={margin0:g} turns attention away first and has no early law; give 0 or more.")
    start = {"margin0": margin0, "score_gap0": score_gap0, "imbalance_ov": imbalance_ov, "imbalance_qk": imbalance_qk}
    start = {name: value for name, value in start.items() if value is not None}
    trajectory = exact(task, parameterization, ratio=values, log_times=times, score_scale=score_scale, **start)
    runs = [(lane, _known(lane)) for lane in lanes(trajectory)]
    crossed = np.array([crossing_log_time(lane, known) for lane, known in runs])
    rows = [
        _row(lane, known, row, at)
        for (lane, known), row, at in zip(runs, np.asarray(trajectory.log_error), crossed, strict=True)
    ]
    change, exponent, coefficient, early, late, law = (np.stack(column) for column in zip(*rows, strict=True))
    return PhaseDiagram(
        task, parameterization, values, times, change, exponent, coefficient, early, late, law, crossed
    )  # fmt: skip


def _known(lane: Lane) -> Numbers:
    known = numbers(lane)
    if not isinstance(known, Numbers):
        raise InvalidInput(f"ratio={lane.ratio:g} has no phase: {known.reason}; choose another start or ratio.")
    if known.margin0 < 0:
        raise InvalidInput(
            f"margin0={known.margin0:g} turns attention away first and has no early law; give 0 or more."
        )
    return known


def _row(lane: Lane, known: Numbers, log_error: np.ndarray, crossing: float) -> tuple[np.ndarray, ...]:
    """Everything about one ratio but its crossing, in the order of the fields."""
    change = lane.score_gap_change
    clock = known.score.clock_of_change(np.where(change > 0, change, np.nan))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        pace = known.score.change(clock)[1]
        curvature = known.score.curvature(clock)
        # d theta/d ln t = theta' (r/K) alpha (1 - alpha) q w t, in logarithms
        log_gate = -np.logaddexp(0, lane.log_odds) - np.logaddexp(0, -lane.log_odds)
        log_rate = math.log(lane.effective_ratio or 1.0) - math.log(known.classes)
        log_velocity = np.log(pace) + log_rate + log_gate + log_error + np.log(lane.margin) + lane.log_time
        velocity = np.exp(log_velocity)
        late = lane.log_time - known.output.log_unit
        coefficient = np.where(late > 1, velocity * late, np.nan)
        frame = before_saturation(lane.log_time, known)
        psi, slope = frame.gate
        stretch = frame.margin / (frame.margin - 1) if known.output.power == 1 else 1.0  # dx/dl of x - ln x = l
        early_exponent = slope * stretch * frame.l / psi
        exponent = velocity * frame.l / change
        late_coefficient = known.output.power / (1 - curvature)
        shows_early = np.abs(exponent / early_exponent - 1) <= TOLERANCE
        shows_late = np.abs(coefficient / late_coefficient - 1) <= TOLERANCE
        # A curve on its way from one law to the other passes through the values of both: the early law needs an open
        # gate, the late one a closed one and, for exponentials, a theta' that no longer jumps; both that log t counts.
        shows_early &= (psi < 1) & (frame.l > _SETTLED)
        shows_late &= (lane.log_time > crossing) & (curvature < _STEEP) & (late > _SETTLED)
    law = np.where(shows_early, EARLY, np.where(shows_late, LATE, NEITHER))
    return change, exponent, coefficient, early_exponent, late_coefficient, law
