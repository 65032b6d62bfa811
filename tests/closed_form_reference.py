"""The closed form again, at 40 digits with mpmath: plain Newton for the orbit, plain adaptive quadrature for the time.

It shares no formula with the package beyond the two equations it solves,

    y + ln y = rho (w^2 - w0^2)/2 + y0 + ln y0        t = C * integral of (e^(alpha w) + K - 1)/alpha over w,

and needs no log domain, because the exponents of mpmath's numbers have no bounds.
"""

import dataclasses
import functools
import itertools
import math

import mpmath as mp
import numpy as np

DIGITS = 40
_NODES = 24
_RELATIVE = mp.mpf(10) ** -24


@functools.cache
def _gauss():
    with mp.workdps(DIGITS):
        pairs = []
        for guess in np.polynomial.legendre.leggauss(_NODES)[0]:
            x = mp.findroot(lambda v: mp.legendre(_NODES, v), guess)
            slope = _NODES * (mp.legendre(_NODES - 1, x) - x * mp.legendre(_NODES, x)) / (1 - x * x)
            pairs.append((x, 2 / ((1 - x * x) * slope**2)))
        return pairs


def omega(z):
    """ln of the Wright omega function by Newton's method on u + e^u = z."""
    z = mp.mpf(z)
    if z > 2:
        u = mp.log(z)
    elif z < -1:
        u = z
    else:
        u = (z - 1) / 2
    for _ in range(100):
        y = mp.exp(u)
        step = (z - u - y) / (1 + y)
        u += step
        if abs(step) <= mp.mpf(10) ** (-mp.mp.dps + 3) * max(1, abs(u)):
            return u
    raise ArithmeticError(f"Newton's method for omega({z}) did not converge")


@dataclasses.dataclass(frozen=True)
class Reference:
    """One orbit; all numbers are taken as exact."""

    ratio: float
    classes: float = 4
    distinct: float = 10  # C
    gain: float = 0.2  # g = 1/C + 1/D and its like
    positions: tuple[float, float] = (32, 31)  # m, n
    margin0: float = 0.0
    score_gap0: float = 0.0

    @property
    def rho(self):
        k = mp.mpf(self.classes)
        return mp.mpf(self.gain) * mp.mpf(self.ratio) * mp.mpf(self.distinct) * (k - 1) / k

    @property
    def log_odds0(self):
        return mp.log(mp.mpf(self.positions[0]) / mp.mpf(self.positions[1])) + mp.mpf(self.score_gap0)

    def log_odds(self, advance):
        """ln y after the margin has moved by `advance`."""
        x, u0 = mp.mpf(advance), self.log_odds0
        return omega(self.rho * x * (x / 2 + mp.mpf(self.margin0)) + mp.exp(u0) + u0)

    def change(self, advance):
        """ln (y/y0), by Newton's method on the increment so that small ones keep their digits."""
        x, y0 = mp.mpf(advance), mp.exp(self.log_odds0)
        drive = self.rho * x * (x / 2 + mp.mpf(self.margin0))
        d = self.log_odds(advance) - self.log_odds0
        if abs(d) < mp.mpf(10) ** -8:
            d = drive / (1 + y0)
        for _ in range(3):
            d -= (d + y0 * mp.expm1(d) - drive) / (1 + y0 * mp.exp(d))
        return d

    def rate(self, advance):
        """dt/dw."""
        y = mp.exp(self.log_odds(advance))
        alpha = y / (1 + y)
        w = mp.mpf(self.margin0) + mp.mpf(advance)
        return mp.mpf(self.distinct) * (mp.exp(alpha * w) + self.classes - 1) / alpha

    def lead(self, advance):
        y = mp.exp(self.log_odds(advance))
        return y / (1 + y) * (mp.mpf(self.margin0) + mp.mpf(advance))

    def log_error(self, advance):
        k = mp.mpf(self.classes)
        return mp.log((k - 1) / (mp.exp(self.lead(advance)) + k - 1))

    def log_loss(self, advance):
        return mp.log(mp.log1p((mp.mpf(self.classes) - 1) * mp.exp(-self.lead(advance))))

    def _landmarks(self, end):
        """Where the integrand changes its character, so that the bisection cannot miss a narrow feature."""
        marks = {mp.mpf(0), mp.mpf(end)}
        w0, rho, u0 = mp.mpf(self.margin0), self.rho, self.log_odds0
        marks.add(-w0)
        for k in (1, 3, 10, 30, 100):  # the end of the integral, and its start
            marks |= {mp.mpf(end) - k, mp.mpf(end) - 1 / mp.mpf(k) / 10, mp.mpf(k) / 3}
        if rho > 0:
            for u in (-30, -3, 0, 3, 30):
                square = w0**2 + 2 * (mp.exp(u) + u - mp.exp(u0) - u0) / rho
                if square > 0:
                    marks |= {mp.sqrt(square) - w0, -mp.sqrt(square) - w0}
            marks |= {-w0 + s * k / mp.sqrt(rho) for s in (-1, 1) for k in (1, 5, 20)}
        return sorted(m for m in marks if 0 <= m <= end)

    def time(self, advance):
        """The time at which the margin has moved by `advance`."""
        with mp.workdps(DIGITS):
            marks = self._landmarks(mp.mpf(advance))
            pieces = [(a, b, self._panel(a, b)) for a, b in itertools.pairwise(marks) if b > a]
            floor = sum(p for _, _, p in pieces) * _RELATIVE
            return sum(self._refine(a, b, value, floor, 0) for a, b, value in pieces)

    def log_time(self, advance):
        with mp.workdps(DIGITS):
            return mp.log(self.time(advance))

    def _panel(self, a, b):
        middle, half = (a + b) / 2, (b - a) / 2
        return half * sum(weight * self.rate(middle + half * x) for x, weight in _gauss())

    def _refine(self, a, b, whole, floor, depth):
        middle = (a + b) / 2
        left, right = self._panel(a, middle), self._panel(middle, b)
        if abs(left + right - whole) <= max(floor, _RELATIVE * (left + right)):
            return left + right
        if depth > 200:
            raise ArithmeticError(f"the reference quadrature did not converge on [{a}, {b}]")
        return self._refine(a, middle, left, floor, depth + 1) + self._refine(middle, b, right, floor, depth + 1)


@dataclasses.dataclass(frozen=True)
class Errors:
    """Errors of computed values against the reference, in units of what design allows (1 = just allowed)."""

    margin: float
    log_odds: float
    change: float
    slope: float  # dw/d ln t


def judge(reference, log_time, advance, log_odds, change, tolerance):
    """Compares values computed for a float64 log time, taken as exact, with the reference.

    Allowed are `tolerance max(1, |margin|)`, `tolerance max(1, |log odds|)` and `tolerance |change|`, each plus what
    4 ulp of the log time make.
    """
    with mp.workdps(DIGITS):
        advance = mp.mpf(advance)
        exact, slope = advance, mp.mpf(0)
        for _ in range(3):
            t = reference.time(exact)
            slope = t / reference.rate(exact)
            step = (mp.mpf(log_time) - mp.log(t)) * slope
            exact += step
            if abs(step) <= mp.mpf(10) ** -13 * abs(exact):  # the next step would be its square
                break
        ulps = 4 * mp.mpf(math.ulp(log_time)) * slope
        w = mp.mpf(reference.margin0) + exact
        u, d = reference.log_odds(exact), reference.change(exact)
        by_margin = abs(reference.rho * w / (1 + mp.exp(u)))
        allowed = {
            "margin": tolerance * max(1, abs(w)) + ulps,
            "log_odds": tolerance * max(1, abs(u)) + ulps * by_margin,
            "change": tolerance * abs(d) + ulps * by_margin,
        }
        return Errors(
            float(abs(advance - exact) / allowed["margin"]),
            float(abs(mp.mpf(log_odds) - u) / allowed["log_odds"]),
            float(abs(mp.mpf(change) - d) / allowed["change"]) if d else 0.0,
            float(slope),
        )
