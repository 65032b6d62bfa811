"""When the two regimes of the score gap meet, by the closed form."""

import functools
import math

import numpy as np

from flowsim.errors import InvalidInput
from flowsim.laws.lane import Lane
from flowsim.laws.numbers import Numbers


def crossing_log_time(lane: Lane, known: Numbers) -> float:
    r"""$\ln t$ at the margin where the regimes meet; NaN where the closed form does not reach so far.

    Args:
        lane: the run.
        known: its numbers.
    """
    start = (lane.margin0, lane.score_gap0, lane.imbalance_ov, lane.imbalance_qk)
    return _log_time(lane.task, lane.parameterization, lane.ratio, known.crossing_margin, *start, lane.scale.value)


@functools.lru_cache(maxsize=4096)  # the seeds and step sizes of a ratio share it
def _log_time(
    task, parameterization: str, ratio, margin: float, margin0: float, score_gap0: float, ov: float, qk: float, scale
) -> float:
    from flowsim.solve.exact import time_to

    start = {"margin0": margin0, "score_gap0": score_gap0}
    start |= {name: value for name, value in (("imbalance_ov", ov), ("imbalance_qk", qk)) if value}
    start["score_scale"] = scale
    try:
        log_time = time_to(task, parameterization, ratio=ratio, margin=margin, **start)
    except InvalidInput:  # beyond what the closed form can reach in float64, at ratios like 1e-30
        return math.nan
    return float(np.asarray(log_time))
