"""Trained slopes: what every seed's run shows of a growth law, and an interval over the seeds."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from flowsim.errors import InvalidInput
from flowsim.laws import judge
from flowsim.laws.bootstrap import FEWEST, mean_interval
from flowsim.laws.exact_law import measured, readable
from flowsim.laws.judge import DECADES, POINTS, Window
from flowsim.laws.lane import Lane, lanes
from flowsim.laws.numbers import Numbers, numbers
from flowsim.laws.predictions import Prediction, predictions
from flowsim.trajectory import Trajectory

SEED = "seed"
TIME_DECADES = 1.0
"""Where a run ends before the law can be read, its last so many decades of time are taken, or half of that at least."""


class Estimate(NamedTuple):
    """A number that every seed has its own of.

    Attributes:
        mean: over the seeds.
        low: lower end of the bootstrap interval of the mean.
        high: upper end.
        flow: the same estimator on the flow at the same times; None where no theory was given.
        law: what it is in the law, as t goes to infinity.
    """

    mean: float
    low: float
    high: float
    flow: float | None
    law: float

    @property
    def has_flow(self) -> bool | None:
        """Whether the flow's value lies in the interval; None where no theory was given."""
        return None if self.flow is None else self.low <= self.flow <= self.high

    def __str__(self) -> str:
        mean, low, high = (_number(value, self) for value in (self.mean, self.low, self.high))
        return f"{mean} [{low}, {high}]"


@dataclasses.dataclass(frozen=True)
class TrainedSlope:
    r"""One law in the runs of several seeds.

    Attributes:
        coords: lane coordinates, without the seed.
        parameterization: CACO, FACO, CAFO or FAFO.
        ratio: the learning-rate ratio.
        observable: `"margin"`, `"odds"` or `"score_gap"`.
        law: the law as one says it.
        regime: `"saturated"` or `"before saturation"`.
        window: where the runs were read.
        readable: whether the law itself can be read there, by the rule of `verify`; otherwise the window is the last
            decade of time, as far as the law's function is defined in it (half of it at least), and the flow's own
            slope is what a run can be compared with.
        slope: slope of the observable against the law's function of time; in the law its constant.
        exponent: slope of $\ln y$ against $\ln l$, in the law its power; None for a logarithm.
        seeds: number of seeds used.
        left_out: number of seeds whose runs cannot be used (diverged).
        level: of the intervals.
    """

    coords: dict[str, Any]
    parameterization: str
    ratio: float
    observable: str
    law: str
    regime: str
    window: Window
    readable: bool
    slope: Estimate
    exponent: Estimate | None
    seeds: int
    left_out: int
    level: float

    def __str__(self) -> str:
        return f"trained slope {self.slope}, {self.seeds} seeds"

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return dataclasses.asdict(self) | {
            "window": self.window._asdict(),
            "slope": self.slope._asdict(),
            "exponent": None if self.exponent is None else self.exponent._asdict(),
        }


def trained_slopes(
    trajectory: Trajectory, theory: Trajectory | None = None, *, level: float = 0.95
) -> tuple[TrainedSlope, ...]:
    r"""Slopes of the growth laws in trained runs, with bootstrap intervals over their seeds.

    For each seed, the least-squares slope of the observable against the law's function of time ($l$ for $\log t$, $l^2$
    for $\log^2 t$, ...) over one window, weighted as in `verify` so that the sampling of time does not matter; then the
    mean over the seeds and its studentized bootstrap interval. The window is where the law can be read, if the runs
    show half a decade of $l$ of that, and otherwise their last decade of time. The interval is about the seeds alone:
    what all seeds have in common (a step size, say) is not in it.

    Args:
        trajectory: trained runs with a seed axis, of a task whose laws are derived.
        theory: the flow at the same times, lanes as those of `trajectory` without the seeds.
        level: how often the intervals are to cover the true mean.

    Returns:
        One entry for each lane (but for the seed) and law of the exact flow; laws of which the window shows nothing
        (attention not saturated yet, or already) are left out.

    Raises:
        InvalidInput: if the trajectory has no seed axis of at least five seeds, or the theory has other times or lanes.
    """
    if not isinstance(trajectory, Trajectory) or SEED not in trajectory.axes:
        raise InvalidInput("trajectory has no seed axis; give what flowsim.train(..., seeds=16) returned.")
    by_lane: dict[tuple, list[Lane]] = {}
    for lane in lanes(trajectory):
        by_lane.setdefault(_key(lane), []).append(lane)
    n_seeds = len(next(iter(by_lane.values())))
    if n_seeds < FEWEST:
        raise InvalidInput(f"trajectory has {n_seeds} seeds; an interval over them takes at least {FEWEST}.")
    flows = {} if theory is None else _flows(theory, trajectory, by_lane)
    found: list[TrainedSlope] = []
    for key, runs in by_lane.items():
        used = [lane for lane in runs if lane.status.usable]
        if len(used) >= FEWEST:
            found += _slopes(used, flows.get(key), len(runs) - len(used), level)
    return tuple(found)


def _flows(theory: Trajectory, trajectory: Trajectory, by_lane: dict[tuple, list[Lane]]) -> dict[tuple, Lane]:
    if not np.array_equal(np.asarray(theory.log_time), np.asarray(trajectory.log_time)):
        raise InvalidInput("theory has other times than trajectory; solve it at log_times=trajectory.log_time.")
    flows = {_key(lane): lane for lane in lanes(theory)}
    # a learning rate of the training is none of the flow's
    matched = {key: next((flow for at, flow in flows.items() if set(at) <= set(key)), None) for key in by_lane}
    if None in matched.values():
        raise InvalidInput("theory lacks a lane of trajectory; give it the same ratios.")
    return {key: flow for key, flow in matched.items() if flow is not None}


def _key(lane: Lane) -> tuple:
    return tuple((name, value) for name, value in lane.coords.items() if name != SEED)


def _slopes(runs: list[Lane], flow: Lane | None, left_out: int, level: float) -> Iterator[TrainedSlope]:
    known = [numbers(lane) for lane in runs]
    each = [predictions(lane, found) for lane, found in zip(runs, known, strict=True) if isinstance(found, Numbers)]
    if len(each) < len(runs):  # no law is derived for this task
        return
    for laws in zip(*each, strict=True):
        inside, is_readable = _window(runs, laws)
        observed = [measured(lane, laws[0].observable, laws[0].regime) for lane in runs]
        span = judge.window(runs[0].log_time, laws[0].l, inside)
        if span is None or span.points < POINTS or not all(np.isfinite(y[inside]).all() for y, _ in observed):
            continue
        law = laws[0]
        slopes = [judge.slope(own.basis[inside], y[inside]) for own, (y, _) in zip(laws, observed, strict=True)]
        exponents = [
            judge.exponent(own.l[inside], log_y[inside]) for own, (_, log_y) in zip(laws, observed, strict=True)
        ]
        truth = exponent_of_flow = None
        if flow is not None:
            y, log_y = measured(flow, law.observable, law.regime)
            truth = judge.slope(law.basis[inside], y[inside])
            exponent_of_flow = judge.exponent(law.l[inside], log_y[inside])
        lane = runs[0]
        assert lane.ratio is not None, "laws with constants are those of a known ratio"
        has_power = law.power > 0 and all(exponent is not None for exponent in exponents)
        yield TrainedSlope(
            coords=dict(_key(lane)),
            parameterization=lane.parameterization,
            ratio=lane.ratio,
            observable=law.observable,
            law=law.name,
            regime=law.regime,
            window=span,
            readable=is_readable,
            slope=_estimate(slopes, truth, law.constant, level),
            exponent=_estimate(exponents, exponent_of_flow, float(law.power), level) if has_power else None,
            seeds=len(runs),
            left_out=left_out,
            level=level,
        )


def _window(runs: list[Lane], laws: tuple[Prediction, ...]) -> tuple[np.ndarray, bool]:
    """The common window of all seeds, and whether the law can be read there."""
    seen = np.logical_and.reduce([readable(lane, law) for lane, law in zip(runs, laws, strict=True)])
    span = judge.window(runs[0].log_time, laws[0].l, seen)
    if span is not None and span.points >= POINTS and span.decades >= DECADES:
        return seen, True
    log_time = runs[0].log_time
    last = log_time >= log_time[-1] - TIME_DECADES * math.log(10)
    last &= np.logical_and.reduce([np.isfinite(law.basis) for law in laws])
    enough = last[-1] and log_time[-1] - log_time[last][0] >= DECADES * math.log(10)
    return (last if enough else np.zeros_like(last), False)


def _estimate(values: Any, flow: float | None, law: float, level: float) -> Estimate:
    values = np.asarray(values, dtype=np.float64)
    return Estimate(float(values.mean()), *mean_interval(values, level), flow, law)


def _number(value: float, beside: Estimate) -> str:
    """A value with so many digits that the interval's width shows two, within reason."""
    size, width = abs(beside.mean), beside.high - beside.low
    small = 0 < size < 1e-3
    unit = 10.0 ** math.floor(math.log10(size)) if small else 1.0
    digits = 5 if width <= 0 else min(max(1 - math.floor(math.log10(width / unit)), 2), 5)
    return f"{value:.{digits}e}" if small else f"{value:.{digits}f}"
