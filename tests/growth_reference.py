"""The two clocks of all four parameterizations once more, far out in time: SciPy, Gauss-Legendre panels, bisection."""

import math

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy.interpolate import CubicHermiteSpline
from scipy.special import wrightomega

NODES, WEIGHTS = leggauss(12)
UNIT = (NODES + 1) / 2
SMALL = 0.01


class CollapsedGap:
    """y + ln y = g X + y0 + ln y0."""

    def __init__(self, gain, log_odds0):
        self.gain, self.y0 = gain, math.exp(log_odds0)

    def log_odds(self, force):
        x = self.gain * force + self.y0 + math.log(self.y0)
        y = wrightomega(x)
        return np.where(y > 1e-200, np.log(np.maximum(y, 1e-300)), x - y)


class FactorizedGap:
    """tau + (m/n) int e^theta = X, tabulated in tau; between the points by Hermite's cubic in arsinh X."""

    def __init__(self, blocks, log_base, imbalance):
        self.log_base = log_base
        self.blocks = [(a, f, b, math.sqrt(b * b + imbalance**2 / 4)) for a, f, b in blocks]
        tau, edges = 0.0, [0.0]
        while self.gap(tau) + log_base < 90:  # odds beyond those of every test
            tau += min(0.02, 0.02 / abs(self.slope(tau)))
            edges.append(tau)
        edges = np.array(edges)
        width = np.diff(edges)
        at = edges[:-1, None] + width[:, None] * UNIT
        parts = width + (np.exp(log_base + self.gap(at)) * WEIGHTS).sum(1) * width / 2
        total = np.concatenate([[0.0], np.cumsum(parts)])
        log_odds = log_base + self.gap(edges)
        slope = self.slope(edges) / (1 + np.exp(log_odds)) * np.hypot(total, SMALL)
        self.spline = CubicHermiteSpline(np.arcsinh(total / SMALL), log_odds, slope)

    def gap(self, tau):
        return sum(a * (b * np.cosh(2 * f * tau) + h * np.sinh(2 * f * tau)) for a, f, b, h in self.blocks)

    def slope(self, tau):
        return sum(2 * a * f * (b * np.sinh(2 * f * tau) + h * np.cosh(2 * f * tau)) for a, f, b, h in self.blocks)

    def log_odds(self, force):
        return self.spline(np.arcsinh(np.asarray(force) / SMALL))


class TwoClocks:
    """Any parameterization, start and query; margin0 >= 0."""

    def __init__(self, task, name, ratio, margin0=None, score_gap0=None, imbalance_ov=0.0, imbalance_qk=0.0):
        roles = [group.role for group in task.groups]
        own = roles.index("distinct")
        other, counts = task.groups[1 - own], task.compositions[0].counts
        self.k, self.c = task.classes, task.groups[own].types
        self.factorized = name[2] == "F"
        self.w0 = (0.01 if self.factorized else 0.0) if margin0 is None else margin0
        self.gap0 = (0.01 if name[0] == "F" else 0.0) if score_gap0 is None else score_gap0
        self.log_base = math.log(counts[own] / counts[1 - own])
        k, c, null = self.k, self.c, other.role == "null"
        shared = task.query == "shared"
        gain = 1 / c + (0 if null else (k if shared else 1) / other.types)
        self.strength = ratio * c * (k - 1) / k
        self.rate = abs(imbalance_ov)
        if name[0] == "C":
            self.gap = CollapsedGap(gain, self.log_base + self.gap0)
        else:
            distinct, common = (math.sqrt(k / c), 0 if null else -k / math.sqrt(other.types)) if shared else (
                1 / math.sqrt(c), 0 if null else -math.sqrt(k / other.types))  # fmt: skip
            f = math.hypot(distinct, common)
            blocks = [(f / k, f, f * self.gap0 / gain)]
            if not shared:
                blocks.append(((k - 1) / (k * math.sqrt(c)), 1 / math.sqrt(c), self.gap0 / gain / math.sqrt(c)))
            self.gap = FactorizedGap(blocks, self.log_base, imbalance_qk)

    def action(self, w):
        return np.sqrt(self.rate**2 + 4 * self.c * w**2) / (4 * self.c) if self.factorized else w**2 / 2

    def log_odds(self, w):
        return self.gap.log_odds(self.strength * (self.action(w) - self.action(self.w0)))

    def clock(self, w):
        """Twice sqrt(C) tau_v, or tau_v itself."""
        if not self.factorized:
            return w - self.w0
        nu = self.rate / (2 * math.sqrt(self.c))
        return np.arcsinh(w / nu) - np.arcsinh(self.w0 / nu) if nu else np.log(w / self.w0)

    def margin_before(self, w, back):
        """The margin `back` on that clock before it was w."""
        if not self.factorized:
            return w - back
        nu = self.rate / (2 * math.sqrt(self.c))
        return w * np.cosh(back) - np.sqrt(w * w + nu * nu) * np.sinh(back) if nu else w * np.exp(-back)

    def log_rate(self, w):
        log_attention = -np.logaddexp(0, -self.log_odds(w))
        unit = math.sqrt(self.c) / 2 if self.factorized else self.c
        return math.log(unit) + np.logaddexp(w * np.exp(log_attention), np.log(self.k - 1)) - log_attention

    def log_time(self, w):
        attention = np.exp(-np.logaddexp(0, -self.log_odds(w)))
        span = self.clock(w)[:, None]
        speed = np.hypot(w, self.rate / (2 * math.sqrt(self.c))) if self.factorized else 1.0
        first = np.minimum(0.5 / (attention * speed)[:, None], span / 60)
        edges = np.minimum(first * np.concatenate([[0.0], np.cumsum(1.35 ** np.arange(75))]), span)
        edges[:, -1] = span[:, 0]
        edges = np.maximum(edges, 0)
        low, high = edges[:, :-1, None], edges[:, 1:, None]
        terms = self.log_rate(self.margin_before(w[:, None, None], low + (high - low) * UNIT))
        top = terms.max((1, 2))
        return top + np.log((np.exp(terms - top[:, None, None]) * (high - low) / 2 * WEIGHTS).sum((1, 2)))

    def margin(self, log_time):
        low = np.full(log_time.shape, float(self.w0))
        high = self.w0 + (np.maximum(log_time, 0) + 10 + self.k) * 2 * (1 + math.exp(-self.log_base - self.gap0))
        w = np.clip(log_time - np.log(self.c), low + 1e-9, high)
        nu = self.rate / (2 * math.sqrt(self.c))
        for _ in range(100):
            now = self.log_time(w)
            low, high = np.where(now < log_time, w, low), np.where(now < log_time, high, w)
            speed = np.hypot(w, nu) if self.factorized else 1.0
            new = w + (log_time - now) * speed * np.exp(np.minimum(now - self.log_rate(w), 300))
            new = np.where((new > low) & (new < high), new, (low + high) / 2)
            if np.all(np.abs(new - w) <= 1e-13 * np.abs(w)):
                return new
            w = new
        return w
