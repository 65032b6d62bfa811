"""The two clocks at 40 digits with mpmath, parametrized by the query-key clock: no root is sought but the last.

On its own clock the score gap is explicit (a line, or cosh and sinh), the drive E is a quadrature of 1 + (m/n) e^theta,
the margin follows from E, and the time is a second quadrature over the same panels. The package goes the other way,
from the margin to the clock. With tau = u^2 the start at margin 0 is regular.
"""

import dataclasses
import functools

import mpmath as mp

from tests.closed_form_reference import DIGITS, _gauss

# From margin 0 with an imbalance the drive is a difference of square roots that agree to the square of the margin.
_WORKING_DIGITS = 80
_FAR = 80  # units of the lead before the end in which all but e^-80 of the time passes


@functools.cache
def _cumulative():
    """From samples at the Gauss nodes of [-1, 1] to the integrals up to each node."""
    nodes = [x for x, _ in _gauss()]
    n = len(nodes)
    powers = mp.matrix(n, n)
    integrals = mp.matrix(n, n)
    for i, x in enumerate(nodes):
        for k in range(n):
            powers[i, k] = mp.legendre(k, x)
            integrals[i, k] = (mp.legendre(k + 1, x) - mp.legendre(k - 1, x)) / (2 * k + 1) if k else x + 1
    return integrals * powers**-1


@dataclasses.dataclass(frozen=True)
class TwoClocks:
    """One orbit of any parameterization from a margin of 0 or more; all numbers are taken as exact."""

    parameterization: str
    ratio: float
    classes: float = 4
    distinct: float = 10
    common: float | None = 10  # None: null background
    shared: bool = False
    positions: tuple[float, float] = (32, 31)
    margin0: float = 0.01
    score_gap0: float = 0.01
    imbalance_ov: float = 0.0
    imbalance_qk: float = 0.0

    @functools.cached_property
    def _drives(self):
        """Multiplicity and squared length of each drive, by hand from the table of drives."""
        k, c = mp.mpf(self.classes), mp.mpf(self.distinct)
        d = mp.inf if self.common is None else mp.mpf(self.common)
        if self.shared:
            return [(mp.mpf(1), k / c + k**2 / d)]
        return [(k - 1, 1 / c), (mp.mpf(1), 1 / c + k / d)]

    @functools.cached_property
    def gain(self):
        return sum(times * square for times, square in self._drives) / self.classes

    @property
    def strength(self):
        k = mp.mpf(self.classes)
        return mp.mpf(self.ratio) * self.distinct * (k - 1) / k

    @property
    def log_odds0(self):
        return mp.log(mp.mpf(self.positions[0]) / mp.mpf(self.positions[1])) + mp.mpf(self.score_gap0)

    @functools.cached_property
    def _blocks(self):
        """Multiplicity times F/K, b0, h and 2F of each block."""
        blocks = []
        for times, square in self._drives:
            speed = mp.sqrt(square)
            b0 = speed * mp.mpf(self.score_gap0) / self.gain
            h = mp.sqrt(b0**2 + mp.mpf(self.imbalance_qk) ** 2 / 4) if self.imbalance_qk else abs(b0)
            blocks.append((times * speed / self.classes, b0, h, 2 * speed))
        return blocks

    def change(self, clock):
        """theta - theta0."""
        if self.parameterization[0] == "C":
            return self.gain * clock
        return sum(
            weight * ((b0 + h) * mp.expm1(speed * clock) + (b0 - h) * mp.expm1(-speed * clock)) / 2
            for weight, b0, h, speed in self._blocks
        )

    def pace(self, clock):
        if self.parameterization[0] == "C":
            return self.gain
        return sum(
            weight * speed * ((b0 + h) * mp.exp(speed * clock) - (b0 - h) * mp.exp(-speed * clock)) / 2
            for weight, b0, h, speed in self._blocks
        )

    def growth(self, clock):
        """dE/dtau."""
        return 1 + mp.exp(self.log_odds0 + self.change(clock))

    def speed(self, margin):
        """dw/dtau_v."""
        if self.parameterization[2] == "C":
            return mp.mpf(1)
        return mp.sqrt(mp.mpf(self.imbalance_ov) ** 2 + 4 * self.distinct * margin**2)

    def margin(self, drive):
        w0, supplied = mp.mpf(self.margin0), drive / self.strength
        if self.parameterization[2] == "C":
            return mp.sqrt(w0**2 + 2 * supplied)
        v = self.speed(w0) + 4 * self.distinct * supplied
        return mp.sqrt(v**2 - mp.mpf(self.imbalance_ov) ** 2) / (2 * mp.sqrt(self.distinct))

    def drive(self, margin):
        w, w0 = mp.mpf(margin), mp.mpf(self.margin0)
        if self.parameterization[2] == "C":
            return self.strength * (w**2 - w0**2) / 2
        return self.strength * (self.speed(w) - self.speed(w0)) / (4 * self.distinct)

    def lead(self, clock, drive):
        y = mp.exp(self.log_odds0 + self.change(clock))
        return y / (1 + y) * self.margin(drive)

    def rate_at_start(self):
        """dt/dw at time 0."""
        w0 = mp.mpf(self.margin0)
        alpha = 1 / (1 + mp.exp(-self.log_odds0))
        return self.distinct * (mp.exp(alpha * w0) + self.classes - 1) / alpha / self.speed(w0)

    def at_margin(self, margin):
        """ln t, theta - theta0, dw/d ln t and d theta/dw where the margin has a value."""
        with mp.workdps(_WORKING_DIGITS):
            return self._at_margin(mp.mpf(margin))

    def _at_margin(self, margin):
        end = self.drive(margin)
        clock_end = self._clock(end)
        lead_end = self.lead(clock_end, end)
        u, u_end = mp.mpf(0), mp.sqrt(clock_end)
        drive, time = mp.mpf(0), mp.mpf(0)
        while u < u_end:
            step, near = self._step(u, u_end, drive, lead_end)
            us = [u + step * (1 + x) / 2 for x, _ in _gauss()]
            growths = [2 * v * self.growth(v**2) * step / 2 for v in us]
            if near:
                drives = [drive + d for d in _cumulative() * mp.matrix(growths)]
                for v, growth, at, (_, weight) in zip(us, growths, drives, _gauss(), strict=True):
                    w = self.margin(at)
                    y = self.growth(v**2) - 1
                    alpha = y / (1 + y)
                    time += weight * growth / (self.strength * w) * (mp.exp(alpha * w) + self.classes - 1) / alpha
            drive += sum(weight * growth for growth, (_, weight) in zip(growths, _gauss(), strict=True))
            u += step
        assert abs(drive / end - 1) < mp.mpf(10) ** -25
        time *= self.distinct
        y = self.growth(clock_end) - 1
        rate = self.distinct * (mp.exp(lead_end) + self.classes - 1) * (1 + y) / y / self.speed(margin)  # dt/dw
        by_margin = self.pace(clock_end) / (1 + y) * self.strength * margin / self.speed(margin)
        return mp.log(time), self.change(clock_end), time / rate, by_margin

    def _step(self, u, u_end, drive, lead_end):
        """A panel on which everything is smooth, and whether its time is felt at the end."""
        step = u_end - u
        while True:
            here, there = u**2, (u + step) ** 2
            moved = self.change(there) - self.change(here)
            if moved < 1 and max(s for *_, s in self._blocks) * (there - here) < 1:
                ahead = drive + (there - here) * self.growth(there)  # not less than the drive there
                w, w_ahead = self.margin(drive), self.margin(ahead)
                if self.lead(there, ahead) < lead_end - _FAR:
                    return step, False
                tame = w_ahead < 3 * w or (u == 0 and w_ahead < 2 * self._scale())
                if tame and self.lead(there, ahead) - self.lead(here, drive) < 4:
                    return step, True
            step /= 2

    def _scale(self):
        """How far the margin may go in the first panel."""
        w0 = mp.mpf(self.margin0)
        if w0 > 0:
            return w0
        return mp.mpf(1) / 2 if self.parameterization[2] == "C" else self.speed(w0) / (8 * mp.sqrt(self.distinct))

    def _clock(self, drive):
        """tau with E(tau) = drive, by panels and at last by Newton's method."""
        tau, total, step = mp.mpf(0), mp.mpf(0), mp.mpf(1)
        while True:
            while self.change(tau + step) - self.change(tau) > 1 or max(s for *_, s in self._blocks) * step > 1:
                step /= 2
            gained = self._integral(tau, step)
            if total + gained >= drive:
                break
            tau, total, step = tau + step, total + gained, step * 4
        for _ in range(60):
            move = (drive - total - self._integral(tau, step)) / self.growth(tau + step)
            step += move
            if abs(move) < mp.mpf(10) ** (8 - DIGITS) * (tau + step):
                return tau + step
        raise ArithmeticError("Newton's method for the clock did not converge")

    def _integral(self, tau, step):
        return step / 2 * sum(weight * self.growth(tau + step * (1 + x) / 2) for x, weight in _gauss())
