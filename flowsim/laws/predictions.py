"""What theory predicts for one run: its numbers, and each growth law with its corrections on the run's own times."""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from flowsim.errors import NoClosedForm
from flowsim.laws.lane import Lane
from flowsim.solve.closed_form import closed_form_parameters
from flowsim.task import Task
from flowsim.theory import growth

PRECISION = 0.01
"""Relative accuracy to which a law is read: the window is where theory leaves out less, scatter must stay below it."""
DISTORTION = 0.1
"""The window is where corrections change the leading term by less than this, so that the law itself is seen."""
SAFETY = 1.5
"""The first term left out counts this often, for the terms after it."""
_UNDERIVED = "no growth law is derived for this task"
_HORIZON = 1e7  # beyond every ln t of interest
# Beyond these the powers in the laws leave float64.
_EXTREME_LOG_ODDS = 60.0
_EXTREME_RHO = 1e50


@dataclasses.dataclass(frozen=True)
class Numbers:
    r"""The numbers that the growth laws of the two-clock task depend on.

    Attributes:
        classes: $K$.
        distinct_types: $C$.
        base_odds: $m/n$.
        rho: $\rho = g\, r\, C (K-1)/K$, the constant of the orbit.
        margin0: $w_0$.
        log_odds0: $\ln y_0$.
    """

    classes: float
    distinct_types: float
    base_odds: float
    rho: float
    margin0: float
    log_odds0: float

    @property
    def score_gap0(self) -> float:
        r"""$\theta_0$."""
        return self.log_odds0 - math.log(self.base_odds)

    @property
    def attention0(self) -> float:
        r"""$\alpha_0$, attention at the start."""
        return 1 / (1 + math.exp(-self.log_odds0))

    @property
    def unattended0(self) -> float:
        r"""$1 - \alpha_0$, free of cancellation."""
        return 1 / (1 + math.exp(self.log_odds0))

    @property
    def kappa(self) -> float:
        r"""$y_0 + \ln y_0 - \rho w_0^2/2$, the constant of the orbit."""
        return math.exp(self.log_odds0) + self.log_odds0 - self.rho * self.margin0**2 / 2

    @property
    def crossing_margin(self) -> float:
        """The margin where the two regimes of the score gap meet."""
        return float(_crossing()(self.rho, self.unattended0, self.margin0)) if self.rho > 0 else math.inf


@dataclasses.dataclass(frozen=True)
class Unknown:
    """Why theory predicts nothing for a run.

    Attributes:
        reason: one sentence.
        judge_exponent: whether exponents may still be judged, since nothing speaks against the two-clock task.
    """

    reason: str
    judge_exponent: bool


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
        basis: $l^{power}$, or $\ln l$.
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
    def precise(self) -> np.ndarray:
        """Where theory is precise and the law itself stands out, whatever the run shows, shape `(time,)`."""
        with np.errstate(invalid="ignore"):  # NaN compares false
            return (self.remainder <= PRECISION) & (np.abs(self.distortion) <= DISTORTION)


def numbers(lane: Lane) -> Numbers | Unknown:
    """The numbers that the laws of a run depend on, or why there is no prediction.

    Args:
        lane: the run.

    Returns:
        The numbers if the task has the two-clock closed form with fixed positive counts; otherwise the reason.
    """
    if not growth.growth_laws(lane.parameterization):
        return Unknown(f"growth laws are derived for CACO, this is {lane.parameterization}", judge_exponent=False)
    task = lane.task
    if task is None:
        return Unknown("no task is attached, so no constant is predicted", judge_exponent=True)
    try:
        constants = closed_form_parameters(task, lane.parameterization)
    except NoClosedForm as refusal:
        fact = str(refusal).removeprefix("No closed form: ").partition(";")[0]
        return Unknown(_cap(task) or f"{_UNDERIVED}: {fact}; the numbers are only measured", judge_exponent=False)
    if lane.ratio is None:
        return Unknown("no ratio is attached, so no constant is predicted", judge_exponent=True)
    log_odds0 = constants.log_base_odds + lane.score_gap0
    if abs(log_odds0) > _EXTREME_LOG_ODDS:
        return Unknown(f"no prediction: attention starts at odds e^{log_odds0:.4g}, too extreme", judge_exponent=False)
    rho = constants.rho_per_ratio * lane.ratio
    if rho > 0 and not 1 / _EXTREME_RHO < rho < _EXTREME_RHO:
        return Unknown(f"no prediction at the extreme ratio {lane.ratio:g}", judge_exponent=False)
    return Numbers(
        classes=constants.classes,
        distinct_types=constants.distinct_types,
        base_odds=math.exp(constants.log_base_odds),
        rho=rho,
        margin0=lane.margin0,
        log_odds0=log_odds0,
    )


def _cap(task: Task) -> str:
    """Why a mixture of contexts keeps attention from saturating, or an empty string."""
    first = next(i for i, group in enumerate(task.groups) if group.role == "distinct")
    without = math.fsum(c.probability for c in task.compositions if c.counts[first] == 0)
    if not 0 < without < 1:
        return ""
    return (
        f"the law does not apply, since the context caps attention: with probability {without:.3g} a sequence has no "
        f"distinct token, so attention stays below {1 - without:.6g} (odds below {(1 - without) / without:.6g}) and "
        f"the loss above {without * math.log(task.classes):.3g}; nothing can grow without bound and no law is broken"
    )


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
_ARGUMENTS = (growth.l, growth.rho, growth.kappa, growth.alpha0, growth.unattended0, growth.margin0, growth.base_odds)


@functools.cache
def _crossing() -> Callable:
    import sympy as sp

    return sp.lambdify((growth.rho, growth.unattended0, growth.margin0), growth.crossing_margin(), modules="math")


@functools.cache
def _compiled(parameterization: str) -> tuple[Callable, ...]:
    import sympy as sp

    return tuple(
        sp.lambdify(
            _ARGUMENTS, [law.constant, law.offset, law.correction, law.remainder], modules="numpy", cse=True
        )
        for law in growth.growth_laws(parameterization)
    )  # fmt: skip


def _evaluate(law: growth.GrowthLaw, compiled: Callable, log_time: np.ndarray, known: Numbers) -> Prediction:
    saturated = law.regime == growth.SATURATED
    shift = -math.log(known.distinct_types)
    if not saturated:
        shift += 2 * math.log(known.attention0)
    l = log_time + shift
    with np.errstate(over="ignore"):
        valid = l > 1
        if saturated:
            valid &= known.rho * l**2 / 2 + known.kappa > math.e  # the series is one in 1/E and ln E
    l = np.where(valid, l, np.nan)
    values = compiled(l, known.rho, known.kappa, known.attention0, known.unattended0, known.margin0, known.base_odds)
    constant, offset, correction, remainder = (np.broadcast_to(np.asarray(value, float), l.shape) for value in values)
    basis = l**law.power if law.power else np.log(l)
    scale = np.abs(constant * basis) if law.power else np.ones_like(l)
    distortion = (correction + offset) if law.power else correction
    # The time that the series account for is shorter by a share, its logarithm less than l by -ln(1 - share).
    share = _share_left_out(l, known, saturated)
    with np.errstate(invalid="ignore", divide="ignore"):
        lag = np.where(share < 1, -np.log1p(-share), np.inf)
    slope = np.abs(constant) * (law.power * l ** (law.power - 1) if law.power else 1 / l)
    left_out = slope * lag
    return Prediction(
        observable=law.observable,
        regime=law.regime,
        name=law.name,
        power=law.power,
        constant=float(constant.flat[0]),
        l=l,
        basis=basis,
        predicted=constant * basis + offset + correction,
        distortion=distortion / scale,
        remainder=(SAFETY * remainder + left_out) / scale,
        scale=scale,
    )


def _share_left_out(l: np.ndarray, known: Numbers, saturated: bool) -> np.ndarray:
    """Upper bound of the share of t that the series leave out: what the start and the K - 1 term take."""
    # The lower end e^Delta0/alpha0^2: Delta0 = alpha0 w0, or up to w0 where attention saturates at once.
    log_attention0 = math.log(known.attention0)
    start = max(known.margin0, 0.0) * (1.0 if saturated else known.attention0) - 2 * log_attention0
    # (K - 1) times the integral of dw/alpha, with the smallest attention on the way. A negative start passes w = 0,
    # where y + ln y = kappa gives y >= exp(min(kappa, 0) - 1), and alpha >= y/2 as long as y <= 1.
    least = log_attention0 if known.margin0 >= 0 else min(log_attention0, min(known.kappa, 0) - 1 - math.log(2))
    way = l / known.attention0 - min(known.margin0, 0.0)
    rest = math.log(known.classes - 1) + np.log(way) - least
    log_time = l if saturated else l - 2 * log_attention0  # ln(t/C)
    with np.errstate(over="ignore", invalid="ignore"):  # l is NaN where the law cannot be read
        return np.exp(np.logaddexp(start, rest) - log_time)
