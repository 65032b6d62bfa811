"""What theory predicts for one run: each growth law with its corrections on the run's own times."""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from flowsim.laws.circuits import FactorizedScore
from flowsim.laws.lane import Lane
from flowsim.laws.numbers import Numbers
from flowsim.theory import growth

PRECISION = 0.01
"""Relative accuracy to which a law is read: the window is where theory leaves out less, scatter must stay below it."""
DISTORTION = 0.1
"""The window is where corrections change the leading term by less than this, so that the law itself is seen."""
SAFETY = 1.5
"""The first term left out counts this often, for the terms after it."""
_HORIZON = 1e7  # beyond every ln t of interest
_FACTORIZED = 0.5  # theta dln(theta')/dtheta is at least this where a factorized circuit's exponential is seen


@dataclasses.dataclass(frozen=True)
class Prediction:
    r"""A growth law on the times of a run: `leading + correction`, up to `remainder`.

    Attributes:
        observable: `"margin"`, `"odds"` or `"score_gap"`.
        regime: `"saturated"` or `"before saturation"`.
        name: the law as one says it, `"log^2 t"`.
        power: the power of $l$, 0 for a law `constant * ln(l) + offset`.
        constant: coefficient of the leading term.
        l: the logarithm of time that the law is read against, shape `(time,)`; NaN where it is not above 1.
        basis: the function of $l$ that the constant multiplies: $l^{power}$, with a factor $\Lambda$ for
            `log log t`; or a logarithm.
        predicted: leading term, offset and corrections.
        distortion: what the offset of a power law and the corrections add, relative to `scale`.
        remainder: size of what is left out, relative to `scale`.
        scale: what errors are measured in: the leading term of a power law, 1 for a logarithm.
    """

    observable: str
    regime: str
    name: str
    power: int
    constant: float
    l: np.ndarray
    basis: np.ndarray
    predicted: np.ndarray
    distortion: np.ndarray
    remainder: np.ndarray
    scale: np.ndarray

    @property
    def iterated(self) -> np.ndarray | None:
        r"""$\ln(\text{basis}/l^{power})$ of a power law with a factor $\log\log t$, None for a plain power."""
        if not (self.power and "log log t" in self.name):
            return None
        return np.log(self.basis) - self.power * np.log(self.l)

    @property
    def precise(self) -> np.ndarray:
        """Where theory is precise and the law itself stands out, whatever the run shows, shape `(time,)`."""
        with np.errstate(invalid="ignore"):  # NaN compares false
            return (self.remainder <= PRECISION) & (np.abs(self.distortion) <= DISTORTION)


def predictions(lane: Lane, known: Numbers) -> tuple[Prediction, ...]:
    """The growth laws of a run, evaluated on its times.

    Args:
        lane: the run.
        known: its numbers, from `numbers`.

    Returns:
        Every derived law, saturated ones first; laws whose constant is 0 (ratio 0) are left out.
    """
    found = []
    for law, compiled in zip(growth.growth_laws(lane.parameterization), _compiled(lane.parameterization), strict=True):
        if known.rho == 0 and (law.regime == growth.SATURATED or law.observable != growth.MARGIN):
            continue
        found.append(_evaluate(law, compiled, lane.log_time, known))
    return tuple(found)


def readable_range(lane: Lane, known: Numbers) -> dict[tuple[str, str], tuple[float, float] | None]:
    r"""Where each law could be read with any run, whatever its times.

    Args:
        lane: the run, for its parameterization.
        known: its numbers.

    Returns:
        For each observable and regime the range of $\ln t$ (up to `_HORIZON`), or None if there is none.
    """
    grid = dataclasses.replace(lane, log_time=np.geomspace(1, _HORIZON, 1000))
    found: dict[tuple[str, str], tuple[float, float] | None] = {}
    for law in predictions(grid, known):
        at = grid.log_time[law.precise]
        found[law.observable, law.regime] = (float(at[0]), float(at[-1])) if at.size else None
    return found


# The order of the arguments of every compiled expression.
_ARGUMENTS = (
    growth.l, growth.rho, growth.kappa, growth.alpha0, growth.unattended0, growth.margin0, growth.base_odds,
    growth.imbalance, growth.margin_l, growth.odds_l, growth.loglog, *growth.tower, growth.odds_rate,
    growth.start_share, growth.drive, *growth.gate,
)  # fmt: skip


@functools.cache
def _compiled(parameterization: str) -> tuple[Callable, ...]:
    import sympy as sp

    return tuple(
        sp.lambdify(
            _ARGUMENTS, [law.constant, law.basis, law.offset, law.correction, law.remainder], modules="numpy", cse=True
        )
        for law in growth.growth_laws(parameterization)
    )


@dataclasses.dataclass(frozen=True)
class _Frame:
    r"""What the circuits give at each $l$, for the symbols of the laws; NaN where a law cannot be read."""

    l: np.ndarray
    margin: np.ndarray
    odds: np.ndarray | float = math.nan
    loglog: np.ndarray | float = math.nan
    tower: tuple[np.ndarray | float, ...] = (math.nan, math.nan, math.nan)
    start_share: np.ndarray | float = math.nan
    drive: np.ndarray | float = math.nan
    gate: tuple[np.ndarray | float, np.ndarray | float] = (math.nan, math.nan)

    def arguments(self, known: Numbers) -> tuple:
        """In the order of `_ARGUMENTS`."""
        rate = math.nan
        if isinstance(known.score, FactorizedScore):
            rate = known.score.speeds[0] * known.strength
            rate /= 1 if known.output.power == 2 else math.sqrt(known.distinct_types)
        return (
            self.l, known.rho, known.kappa, known.attention0, known.unattended0, known.margin0, known.base_odds,
            known.output.imbalance, self.margin, self.odds, self.loglog, *self.tower, rate,
            self.start_share, self.drive, *self.gate,
        )  # fmt: skip


def _saturated(log_time: np.ndarray, known: Numbers) -> _Frame:
    l = log_time - known.output.log_unit
    if isinstance(known.score, FactorizedScore):
        return _saturated_factorized(np.where(l > 1, l, np.nan), known, known.score)
    # The lead of collapsed attention lags a factorized output's margin by 1/rho.
    lag = 1 / known.rho if known.output.power == 1 else 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        margin = known.output.margin(l + lag)
        valid = l > 1
        # the series is one in 1/E and ln E
        valid &= known.gain * known.strength * known.output.action(margin) + known.kappa > math.e
    return _Frame(np.where(valid, l, np.nan), np.where(valid, margin, np.nan))


def _saturated_factorized(l: np.ndarray, known: Numbers, score: FactorizedScore) -> _Frame:
    margin = known.output.margin(l)
    action, action0 = known.output.action(margin), float(known.output.action(known.margin0))
    with np.errstate(invalid="ignore", divide="ignore"):
        force = known.strength * (action - action0)
        log_force = np.log(np.where(force > 0, force, np.nan))
    clock, tower = score.saturated(log_force, math.log(known.base_odds))
    gap, slope, *higher = tower
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        n1, n2, n3 = (value / slope ** (k + 2) for k, value in enumerate(higher))
        valid = (n1 * gap > _FACTORIZED) & (l > 1)
        odds = slope * force
        share = (np.abs(clock) + _start_drive(known, score)) / force
        drive = np.where(share < 1, -np.log1p(-share), np.inf)
    return _Frame(
        l=np.where(valid, l, np.nan),
        margin=margin,
        odds=odds,
        loglog=slope / (2 * score.speeds[0]),
        tower=(n1, n2 - n1**2, n3 - n1**3),
        start_share=action / (action - action0),
        drive=drive,
    )


def _start_drive(known: Numbers, score: FactorizedScore) -> float:
    r"""Upper bound of the constant in $\int y\,d\tau_k = (y/\theta') B + constant$.

    Up to a score gap of 1 (or the start, if that is larger) by the integral itself, from there on by its upper end.
    """
    beyond = max(1.0 - known.score_gap0, 0.0)
    clock = score.clock_of_change(beyond) if beyond else 0.0
    _, slope = score.change(clock)
    odds = known.base_odds * math.exp(known.score_gap0 + beyond)
    return odds * (clock + 2 / float(slope))


def before_saturation(log_time: np.ndarray, known: Numbers) -> _Frame:
    """What the circuits give before attention saturates: their clocks with the gate open."""
    alpha = known.attention0
    l = log_time - known.output.log_unit + known.output.power * math.log(alpha)
    margin = known.output.margin(l)
    with np.errstate(invalid="ignore", over="ignore"):
        force = known.strength * (known.output.action(margin / alpha) - known.output.action(known.margin0))
        psi, slope = known.score.change(np.where(l > 1, known.unattended0 * force, np.nan))
        # dJ/dw = w dtau_v/dw: 1 over the power of w that is left
        pace = margin / alpha if known.output.power == 2 else 1 / (2 * math.sqrt(known.distinct_types))
        gate = (psi, slope * known.unattended0 * known.strength * pace / alpha)
    return _Frame(np.where(l > 1, l, np.nan), margin, gate=gate)


def _evaluate(law: growth.GrowthLaw, compiled: Callable, log_time: np.ndarray, known: Numbers) -> Prediction:
    saturated = law.regime == growth.SATURATED
    frame = (_saturated if saturated else before_saturation)(log_time, known)
    l = frame.l
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        values = compiled(*frame.arguments(known))
        constant, basis, offset, correction, remainder = (
            np.where(np.isnan(l), np.nan, np.broadcast_to(np.asarray(value, float), l.shape)) for value in values
        )
    number = float(np.asarray(values[0]).flat[0])
    # A law c l^n has its corrections against itself; a logarithm has no scale, its constant offset belongs to it.
    scale = np.abs(constant * basis) if law.power else np.where(np.isnan(l), np.nan, 1.0)
    distortion = (correction + offset) if law.power else correction
    # The time that the series account for is shorter by a share, its logarithm less than l by -ln(1 - share).
    share = _share_left_out(l, known, saturated)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        lag = np.where(share < 1, -np.log1p(-share), np.inf)
        # d basis/d ln l is at most (power + 1) basis with the factor log log t, at most 2 for the logarithms
        slope = np.abs(constant) * ((law.power + 1) * basis / l if law.power else 2 / l)
        remainder = (SAFETY * remainder + slope * lag) / scale
    return Prediction(
        observable=law.observable,
        regime=law.regime,
        name=law.name,
        power=law.power,
        constant=number,
        l=l,
        basis=basis,
        predicted=constant * basis + offset + correction,
        distortion=distortion / scale,
        remainder=remainder,
        scale=scale,
    )


def _share_left_out(l: np.ndarray, known: Numbers, saturated: bool) -> np.ndarray:
    """Upper bound of the share of t that the series leave out: what the start and the K - 1 term take."""
    log_attention0, power = math.log(known.attention0), known.output.power
    least = _least_log_attention(known)
    log_time = l if saturated else l - power * log_attention0  # ln(t), in the unit of e^l under full attention
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # l is NaN where the law cannot be read
        end = 2 * known.output.margin(l + 1) if power == 1 else l
        way = known.output.way(min(known.margin0, 0.0) if power == 2 else known.margin0, end / known.attention0)
        # The lower end, e^Delta0: Delta0 = alpha0 w0, or up to w0 where attention saturates at once.
        start = max(known.margin0, 0.0) * (1.0 if saturated else known.attention0) - 2 * log_attention0
        start = start + (np.log1p(np.abs(way)) if power == 1 else 0.0)
        # (K - 1) times the integral of dtau_v/alpha, with the smallest attention on the way.
        rest = math.log(known.classes - 1) + np.log(way) - least
        return np.exp(np.logaddexp(start, rest) - log_time)


def _least_log_attention(known: Numbers) -> float:
    r"""Lower bound of $\ln\alpha$: the start, or for a negative margin, which turns attention away, the margin 0."""
    log_attention0 = math.log(known.attention0)
    if known.margin0 >= 0:
        return log_attention0
    if not isinstance(known.score, FactorizedScore):
        # At w = 0, y + ln y = kappa (+ rho nu) gives y >= exp(min(kappa, 0) - 1), and alpha >= y/2 as long as y <= 1.
        kappa = known.kappa + known.gain * known.strength * float(known.output.action(0.0))
        return min(log_attention0, min(kappa, 0) - 1 - math.log(2))
    # The clock runs back by at most the drive, since 1 + y > 1.
    force = known.strength * float(known.output.action(0.0) - known.output.action(known.margin0))
    gap, _ = known.score.change(np.asarray(force))
    return min(log_attention0, known.log_odds0 + float(gap) - math.log(2))
