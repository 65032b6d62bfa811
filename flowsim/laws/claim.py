"""The paper's reading of the query-key scalar, log^2 t for the odds or the score gap itself, on a run."""

import dataclasses
import math

import numpy as np

from flowsim.laws import judge
from flowsim.laws.exact_law import measured, readable
from flowsim.laws.judge import DECADES, POINTS, Judgement
from flowsim.laws.lane import Lane
from flowsim.laws.predictions import Prediction
from flowsim.theory.growth import BEFORE, SCORE_GAP

POWER = 2
CLAIM = "log^2 t"
TOLERANCE = 0.1
"""How far a local exponent may be from 2: corrections of log^2 t that the window lets through change it by less."""


def judge_odds_claim(saturated: Prediction, judgement: Judgement) -> Judgement:
    r"""Whether the odds grow as $\log^2 t$: they do where that is their law, and not where another one holds.

    Args:
        saturated: the law of the odds after saturation.
        judgement: the verdict on it.
    """
    if saturated.name == CLAIM:
        return judgement
    if judgement.verdict == "holds":
        return dataclasses.replace(
            judgement, verdict="fails", reason=f"the odds grow as {saturated.name}: {judgement.reason}"
        )
    reason = f"no {CLAIM} is expected, and {saturated.name}, which is, cannot be judged: {judgement.reason}"
    return dataclasses.replace(judgement, verdict="undecided", reason=reason)


def judge_score_gap_claim(
    lane: Lane,
    early: Prediction | None,
    saturated: Prediction,
    early_judgement: Judgement | None,
    crossing: float | None,
) -> Judgement:
    r"""Whether the score gap grows as $\log^2 t$ once attention is saturated.

    Args:
        lane: the run.
        early: the law before saturation, whose clock the claim is read with, if there is one.
        saturated: the law of the score gap after saturation, whose window is used.
        early_judgement: the verdict on `early`.
        crossing: $\ln t$ where the regimes meet, if known.

    Returns:
        *fails* if the local exponent after saturation is not 2, *undecided* if the run does not show saturated
        attention.
    """
    change, log_change = measured(lane, SCORE_GAP, BEFORE)
    if np.isnan(change).all():
        return Judgement("undecided", "the score gap was not recorded")
    clock = saturated.l if early is None else early.l
    inside = readable(lane, saturated) & ~np.isnan(change) & ~np.isnan(clock)
    span = judge.window(lane.log_time, clock, inside)
    meets = "" if crossing is None else f" (the regimes meet at ln t = {crossing:.4g})"
    if span is None or span.points < POINTS or span.decades < DECADES:
        if early is not None and early.name == CLAIM and early_judgement and early_judgement.verdict == "holds":
            reason = f"true so far, as before saturation, but the run does not reach saturated attention{meets}"
        else:
            reason = f"the run does not show enough of saturated attention{meets}"
        return Judgement("undecided", reason, window=span)
    l = clock[inside]
    local = judge.exponent(l, log_change[inside])
    weights = judge.trapezoid(np.log(l))
    constant = float(weights @ (change[inside] / l**POWER))
    noise = judge.scatter(np.log(l), change[inside] / np.abs(change[inside]).max())
    # The error that noise of this size gives to a slope over the window.
    error = noise / math.sqrt(span.points) / (math.log(10) * span.decades)
    seen = f"over the {span.decades:.2f} decades of l after saturation"
    if local is None:
        return Judgement("fails", f"the score gap does not grow {seen}{meets}", local, constant, span)
    if abs(local - POWER) > TOLERANCE + 4 * error:
        once = early is not None and early.name == CLAIM and local < POWER
        only = "log^2 t is true only before saturation: " if once else ""
        return Judgement("fails", f"{only}the exponent is {local:.3g} {seen}{meets}", local, constant, span)
    if noise > judge.PRECISION:
        return Judgement("undecided", f"the data scatter by {100 * noise:.2g} % {seen}", local, constant, span)
    return Judgement("holds", f"the exponent is {local:.3g} {seen}", local, constant, span)
