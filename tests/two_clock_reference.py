"""The two-clock solution of the factorized flows, written down from the paper and integrated by SciPy at 1e-13.

Nothing is imported from flowsim but the task: margin and score gap are explicit on their clocks, and the two clocks
are integrated over the logarithm of time.
"""

from typing import NamedTuple

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import expit

from flowsim.task import Task


class Clocks(NamedTuple):
    """The trajectory of one ratio."""

    margin: np.ndarray
    score_gap_change: np.ndarray
    log_odds: np.ndarray


class TwoClocks(NamedTuple):
    """A task with one distinct and one background group, a parameterization and a start."""

    task: Task
    parameterization: str
    margin0: float
    score_gap0: float
    imbalance_ov: float = 0.0
    imbalance_qk: float = 0.0

    def numbers(self):
        """K, C, D (None for null tokens), m, n."""
        distinct, background = self.task.groups
        (composition,) = self.task.compositions
        types = None if background.role == "null" else float(background.types)
        return float(self.task.classes), float(distinct.types), types, *composition.counts

    def gain(self) -> float:
        """By how much the score gap moves with the query-key clock, collapsed."""
        k, c, d, _, _ = self.numbers()
        return 1 / c + (0.0 if d is None else (1 if self.task.query == "per-class" else k) / d)

    def parts(self):
        """Drive along its direction, start along it and weight in the score gap, for each query-key part."""
        k, c, d, _, _ = self.numbers()
        tau0 = self.score_gap0 / self.gain()
        if self.task.query == "shared":
            drive = np.sqrt(k / c + (0.0 if d is None else k * k / d))
            return [(drive, drive * tau0, drive / k)]
        standard = 1 / np.sqrt(c)
        trivial = np.sqrt(1 / c + (0.0 if d is None else k / d))
        return [(standard, standard * tau0, (k - 1) / k * standard), (trivial, trivial * tau0, trivial / k)]

    def margin(self, tau):
        """The margin on the output-value clock."""
        if self.parameterization[2] == "C":
            return self.margin0 + tau
        root = np.sqrt(self.numbers()[1])
        return self.margin0 + _grown(root * self.margin0, self.imbalance_ov, 2 * root * tau) / root

    def score_gap_change(self, tau):
        """The change of the score gap on the query-key clock."""
        if self.parameterization[0] == "C":
            return self.gain() * tau
        return sum(w * _grown(b0, self.imbalance_qk, 2 * drive * tau) for drive, b0, w in self.parts())

    def solve(self, ratio, log_times, tol=1e-13) -> Clocks:
        """The trajectory at the given log times."""
        k, c, _, m, n = self.numbers()

        def pace(log_time, clocks):
            w, theta = self.margin(clocks[0]), self.score_gap0 + self.score_gap_change(clocks[1])
            log_odds = np.log(m / n) + theta
            alpha, off = expit(log_odds), expit(-log_odds)
            # t q, with the small digits of alpha w
            rate = np.exp(log_time - np.logaddexp((w - np.log(k - 1)) - off * w, 0.0))
            return [alpha * rate / (c * (k - 1)), ratio / k * alpha * off * rate * w]

        begin = min(log_times[0], -10.0) - 30.0
        first = np.exp(begin) * np.array(pace(0.0, [0.0, 0.0]))
        with np.errstate(over="ignore", invalid="ignore"):  # steps that are tried and rejected
            path = solve_ivp(pace, (begin, log_times[-1]), first, "DOP853", log_times, rtol=tol, atol=1e-30)
        assert path.success
        tau_v, tau_k = path.y
        change = self.score_gap_change(tau_k)
        return Clocks(self.margin(tau_v), change, np.log(m / n) + self.score_gap0 + change)


def _grown(b0, imbalance, x):
    """b - b0 with b = b0 cosh x + h sinh x."""
    return 2 * b0 * np.sinh(x / 2) ** 2 + np.sqrt(b0**2 + imbalance**2 / 4) * np.sinh(x)
