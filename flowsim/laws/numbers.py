"""The numbers that the growth laws of one run depend on, or why theory predicts nothing for it."""

import dataclasses
import math

import numpy as np

from flowsim.errors import NoClosedForm
from flowsim.laws.circuits import (
    CollapsedOutput,
    CollapsedScore,
    FactorizedOutput,
    FactorizedScore,
    OutputCircuit,
    ScoreCircuit,
)
from flowsim.laws.lane import Lane
from flowsim.solve.closed_form import ClosedFormParameters, closed_form_parameters
from flowsim.task import Task

_UNDERIVED = "no growth law is derived for this task"
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
        strength: $c = r C (K-1)/K$, the drive of the query-key clock per action of the output-value clock.
        gain: $g$.
        margin0: $w_0$.
        log_odds0: $\ln y_0$.
        output: the output-value circuit.
        score: the query-key circuit.
    """

    classes: float
    distinct_types: float
    base_odds: float
    strength: float
    gain: float
    margin0: float
    log_odds0: float
    output: OutputCircuit
    score: ScoreCircuit

    @property
    def rho(self) -> float:
        r"""$\rho = g c$, with a factorized output $g c/(2\sqrt C)$: the constant of collapsed attention's orbit."""
        return self.gain * self.strength / (1 if self.output.power == 2 else 2 * math.sqrt(self.distinct_types))

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
        r"""$y_0 + \ln y_0 - g c J(w_0)$, the constant of collapsed attention's orbit."""
        action = float(self.output.action(self.margin0))
        return math.exp(self.log_odds0) + self.log_odds0 - self.gain * self.strength * action

    @property
    def crossing_margin(self) -> float:
        r"""The margin where attention's gate closes: there the score gap of the open gate has moved by 1.

        While $\theta - \theta_0 \ll 1$ the query-key clock is $(1 - \alpha_0) c (J(w) - J(w_0))$.
        """
        if not self.strength > 0:
            return math.inf
        clock = self.score.clock_of_change(1.0)
        action = float(self.output.action(self.margin0)) + clock / (self.unattended0 * self.strength)
        return self.output.margin_of_action(action)


@dataclasses.dataclass(frozen=True)
class Unknown:
    """Why theory predicts nothing for a run.

    Attributes:
        reason: one sentence.
        judge_exponent: whether exponents may still be judged, since nothing speaks against the two-clock task.
    """

    reason: str
    judge_exponent: bool


def numbers(lane: Lane) -> Numbers | Unknown:
    """The numbers that the laws of a run depend on, or why there is no prediction.

    Args:
        lane: the run.

    Returns:
        The numbers if the task has the two-clock closed form with fixed positive counts; otherwise the reason.
    """
    task = lane.task
    if task is None:
        return Unknown("no task is attached, so no constant is predicted", judge_exponent=True)
    try:
        constants = closed_form_parameters(task)
    except NoClosedForm as refusal:
        fact = str(refusal).removeprefix("No closed form: ").partition(";")[0]
        return Unknown(_cap(task) or f"{_UNDERIVED}: {fact}; the numbers are only measured", judge_exponent=False)
    ratio = lane.effective_ratio
    if ratio is None:
        return Unknown("no ratio is attached, so no constant is predicted", judge_exponent=True)
    log_odds0 = constants.log_base_odds + lane.score_gap0
    if abs(log_odds0) > _EXTREME_LOG_ODDS:
        return Unknown(f"no prediction: attention starts at odds e^{log_odds0:.4g}, too extreme", judge_exponent=False)
    rho = constants.rho_per_ratio * ratio
    if rho > 0 and not 1 / _EXTREME_RHO < rho < _EXTREME_RHO:
        return Unknown(f"no prediction at the extreme ratio {lane.ratio:g}", judge_exponent=False)
    score = _SCORES[lane.parameterization[0]](constants, lane)
    output = _OUTPUTS[lane.parameterization[2]](constants, lane)
    stuck = _stuck(lane, score, output)
    if stuck:
        return Unknown(stuck, judge_exponent=False)
    return Numbers(
        classes=constants.classes,
        distinct_types=constants.distinct_types,
        base_odds=math.exp(constants.log_base_odds),
        strength=constants.strength_per_ratio * ratio,
        gain=constants.gain,
        margin0=lane.margin0,
        log_odds0=log_odds0,
        output=output,
        score=score,
    )


def _collapsed_score(constants: ClosedFormParameters, lane: Lane) -> ScoreCircuit:
    del lane
    return CollapsedScore(constants.gain)


def _factorized_score(constants: ClosedFormParameters, lane: Lane) -> ScoreCircuit:
    r"""Each driven block starts at $F \tau_0$, where the collapsed flow is when the score gap is $g \tau_0$."""
    weights, speeds = (np.array(column) for column in zip(*constants.drives, strict=True))
    return FactorizedScore(weights, speeds, speeds * lane.score_gap0 / constants.gain, lane.line.imbalance_qk)


def _factorized_output(constants: ClosedFormParameters, lane: Lane) -> OutputCircuit:
    return FactorizedOutput(
        constants.distinct_types, abs(lane.imbalance_ov) / (2 * math.sqrt(constants.distinct_types))
    )


_SCORES = {"C": _collapsed_score, "F": _factorized_score}
_OUTPUTS = {"C": lambda constants, _: CollapsedOutput(constants.distinct_types), "F": _factorized_output}


def _stuck(lane: Lane, score: ScoreCircuit, output: OutputCircuit) -> str:
    """Why a balanced factorized circuit never grows, or an empty string."""
    if output.power == 1 and not output.imbalance and lane.margin0 <= 0:
        return f"no growth law: a balanced output-value circuit at margin0={lane.margin0:g} never becomes positive"
    if isinstance(score, FactorizedScore) and lane.ratio and not score.grows:
        return f"no growth law: a balanced query-key circuit at score_gap0={lane.score_gap0:g} never becomes positive"
    return ""


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
