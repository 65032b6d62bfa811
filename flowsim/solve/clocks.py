"""From the numbers of a task and a start to an orbit: each letter of a parameterization names a clock."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.score_scale import ScoreScale
from flowsim.solve.closed_form import ClosedFormParameters
from flowsim.solve.line_start import LineStart
from flowsim.solve.orbit import Orbit
from flowsim.solve.output_clocks import AbstractOutputClock, CollapsedOutput, FactorizedOutput
from flowsim.solve.score_clocks import AbstractScoreClock, CollapsedScore, FactorizedScore
from flowsim.solve.score_table import Drives

# Drives of a query-key circuit, at most; a circuit with fewer has weight 0 in the others, so that one trace serves all.
_DRIVES = 2


class _Score(NamedTuple):
    """A query-key clock, and the drive that moves it in units of the clock."""

    clock: AbstractScoreClock
    unit: float


def _collapsed_score(numbers: ClosedFormParameters, start: LineStart) -> _Score:
    return _Score(CollapsedScore(numbers.log_base_odds + start.score_gap0), numbers.gain)


def _factorized_score(numbers: ClosedFormParameters, start: LineStart) -> _Score:
    weights, speeds = np.zeros(_DRIVES), np.full(_DRIVES, numbers.drives[0][1])
    for i, (weight, speed) in enumerate(numbers.drives):
        weights[i], speeds[i] = weight, speed
    drives = Drives(jnp.asarray(weights), jnp.asarray(speeds))
    clock = _start_factorized(drives, numbers.log_base_odds + start.score_gap0, start.score_gap0, start.imbalance_qk)
    return _Score(clock, 1.0)


_start_factorized = jax.jit(
    lambda drives, *start: FactorizedScore.start(drives, *(jnp.asarray(number, dtype=float) for number in start))
)


def _collapsed_output(numbers: ClosedFormParameters, start: LineStart) -> AbstractOutputClock:
    del numbers
    return CollapsedOutput(start.margin0)


def _factorized_output(numbers: ClosedFormParameters, start: LineStart) -> AbstractOutputClock:
    return FactorizedOutput(start.margin0, start.imbalance_ov, numbers.distinct_types)  # pyright: ignore


_SCORES: dict[str, Callable[[ClosedFormParameters, LineStart], _Score]] = {
    "C": _collapsed_score,
    "F": _factorized_score,
}
_OUTPUTS: dict[str, Callable[[ClosedFormParameters, LineStart], AbstractOutputClock]] = {
    "C": _collapsed_output,
    "F": _factorized_output,
}


def orbit_per_ratio(parameterization: str, numbers: ClosedFormParameters, start: LineStart, scale: ScoreScale) -> Orbit:
    """The orbit at ratio 1, with fields of shape `()`.

    Args:
        parameterization: four letters.
        numbers: the numbers of the task.
        start: where it starts.
        scale: of the scores.

    Returns:
        An orbit; `with_ratios` makes lanes of it.
    """
    start = scale.line(start)
    score = _SCORES[parameterization[0]](numbers, start)
    return Orbit(
        ov=_OUTPUTS[parameterization[2]](numbers, start),
        qk=score.clock,
        strength=score.unit * numbers.strength_per_ratio * scale.gain(),  # pyright: ignore  numbers, until they become lanes
        log_wrong=np.log(numbers.classes - 1),  # pyright: ignore
    )


def with_ratios(orbit: Orbit, ratio: Any) -> Orbit:
    """One lane for each ratio.

    Args:
        orbit: of `orbit_per_ratio`.
        ratio: shape `(lanes,)`.
    """
    full = jnp.ones_like(ratio)
    lanes = orbit.map_lanes(lambda field: jnp.asarray(field) * full)
    return Orbit(lanes.ov, lanes.qk, lanes.strength * ratio, lanes.log_wrong)
