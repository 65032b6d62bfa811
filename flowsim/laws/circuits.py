r"""The two circuits as the growth laws see them: their clocks far out, and how attention starts to move.

Plain NumPy: a law is read at a handful of times, and what it needs of a circuit is explicit or one root away.
"""

import abc
import dataclasses
import math
from typing import Any

import numpy as np

_ITERATIONS = 100
_BISECTIONS = 64  # halvings of a logarithm that spans 700


class OutputCircuit(abc.ABC):
    r"""The output-value circuit: the margin $w$ as a function of its own clock.

    Attributes:
        distinct_types: $C$.
        imbalance: $\nu = |\lambda|/(2\sqrt C)$, 0 for a collapsed circuit.
        power: the drive grows as this power of the margin.
    """

    distinct_types: float
    imbalance: float
    power: int

    @property
    @abc.abstractmethod
    def log_unit(self) -> float:
        r"""$\ln(t/e^l)$ under full attention."""

    @abc.abstractmethod
    def margin(self, l: np.ndarray) -> np.ndarray:
        """The margin under full attention, up to terms that vanish, NaN where there is none."""

    @abc.abstractmethod
    def action(self, margin: Any) -> Any:
        r"""$J = \int w \, d\tau_v$, up to a constant."""

    @abc.abstractmethod
    def margin_of_action(self, action: float) -> float:
        """The positive margin with this action."""

    @abc.abstractmethod
    def way(self, start: float, end: np.ndarray) -> np.ndarray:
        r"""The clock between two margins, in the unit in which $e^l$ is counted."""


@dataclasses.dataclass(frozen=True)
class CollapsedOutput(OutputCircuit):
    r"""$w = w_0 + \tau_v$ and $l = \ln(t/C)$."""

    distinct_types: float
    imbalance: float = 0.0
    power: int = 2

    @property
    def log_unit(self) -> float:
        r"""$\ln C$."""
        return math.log(self.distinct_types)

    def margin(self, l: np.ndarray) -> np.ndarray:
        """$l$ itself."""
        return l

    def action(self, margin: Any) -> Any:
        """$w^2/2$."""
        return margin**2 / 2

    def margin_of_action(self, action: float) -> float:
        r"""$\sqrt{2 J}$."""
        return math.sqrt(2 * action)

    def way(self, start: float, end: np.ndarray) -> np.ndarray:
        """The difference."""
        return end - start


@dataclasses.dataclass(frozen=True)
class FactorizedOutput(OutputCircuit):
    r"""$dw/d\tau_v = 2\sqrt C \sqrt{w^2 + \nu^2}$ and $l = \ln(2t/\sqrt C)$."""

    distinct_types: float
    imbalance: float
    power: int = 1

    @property
    def log_unit(self) -> float:
        r"""$\ln(\sqrt C/2)$."""
        return math.log(self.distinct_types) / 2 - math.log(2)

    def margin(self, l: np.ndarray) -> np.ndarray:
        r"""The larger root of $w - \ln w = l$."""
        with np.errstate(invalid="ignore", divide="ignore"):
            w = np.where(l > 1, l + np.log(l), np.nan)
            for _ in range(_ITERATIONS):
                step = (w - np.log(w) - l) / (1 - 1 / w)
                w = w - step
                if not (np.abs(step) > 4e-16 * w).any():
                    break
        return w

    def action(self, margin: Any) -> Any:
        r"""$\sqrt{w^2 + \nu^2}/(2\sqrt C)$."""
        return np.hypot(margin, self.imbalance) / (2 * math.sqrt(self.distinct_types))

    def margin_of_action(self, action: float) -> float:
        """The inverse."""
        root = 2 * math.sqrt(self.distinct_types) * action
        return math.sqrt((root - self.imbalance) * (root + self.imbalance))

    def way(self, start: float, end: np.ndarray) -> np.ndarray:
        r"""$\ln(w/w_0)$, or the difference of $\mathrm{arsinh}(w/\nu)$."""
        if self.imbalance:
            return np.arcsinh(end / self.imbalance) - np.arcsinh(start / self.imbalance)
        return np.log(end / start)


class ScoreCircuit(abc.ABC):
    r"""The query-key circuit: the score gap $\theta$ on its clock $\tau_k$."""

    @abc.abstractmethod
    def change(self, clock: Any) -> tuple[Any, Any]:
        r"""$\theta - \theta_0$ and $\theta' = d\theta/d\tau_k$ at a clock of either sign."""

    @abc.abstractmethod
    def clock_of_change(self, change: Any) -> Any:
        r"""The clock at which $\theta - \theta_0$ is this large, for changes above 0."""

    @abc.abstractmethod
    def curvature(self, clock: Any) -> Any:
        r"""$\theta''/\theta'^2$: how fast $\ln\theta'$ rises with $\theta$."""


@dataclasses.dataclass(frozen=True)
class CollapsedScore(ScoreCircuit):
    r"""$\theta = \theta_0 + g \tau_k$.

    Attributes:
        gain: $g$.
    """

    gain: float

    def change(self, clock: Any) -> tuple[Any, Any]:
        """Linear."""
        return self.gain * clock, self.gain * np.ones_like(clock)

    def clock_of_change(self, change: Any) -> Any:
        """Linear."""
        return change / self.gain

    def curvature(self, clock: Any) -> Any:
        """None."""
        return np.zeros_like(clock)


@dataclasses.dataclass(frozen=True)
class FactorizedScore(ScoreCircuit):
    r"""$\theta = \sum a\,(b_0 \cosh 2F\tau_k + h \sinh 2F\tau_k)$ over the driven blocks, from the start on the line.

    Attributes:
        weights: $a$ of each block.
        speeds: its drive $F$, the largest first.
        starts: $b_0$.
        imbalance: $\lambda$ of every block.
    """

    weights: np.ndarray
    speeds: np.ndarray
    starts: np.ndarray
    imbalance: float

    @property
    def grows(self) -> bool:
        """Whether the fastest block runs away upwards, so that attention saturates on the distinct tokens."""
        return bool(self.starts[0] > 0 or self.imbalance != 0)

    @property
    def terms(self) -> tuple[np.ndarray, np.ndarray]:
        r"""Coefficients of $e^{2F\tau}$ and $e^{-2F\tau}$, without cancellation."""
        h = np.hypot(self.starts, self.imbalance / 2)
        large = h + np.abs(self.starts)
        small = np.divide((self.imbalance / 2) ** 2, large, out=np.zeros_like(large), where=large > 0)
        up = np.where(self.starts >= 0, large, small) / 2
        down = np.where(self.starts >= 0, small, large) / 2
        return self.weights * up, -self.weights * down

    def derivatives(self, clock: Any, order: int) -> np.ndarray:
        r"""$\theta$ and its derivatives with respect to the clock, shape `(order + 1, *clock.shape)`."""
        up, down = self.terms
        rate = 2 * self.speeds
        clock = np.asarray(clock, dtype=float)[..., None]
        with np.errstate(over="ignore", invalid="ignore"):
            rising, falling = up * np.exp(rate * clock), down * np.exp(-rate * clock)
            return np.stack([(rate**k * (rising + (-1) ** k * falling)).sum(-1) for k in range(order + 1)])

    def change(self, clock: Any) -> tuple[Any, Any]:
        """By the exponentials, with `expm1` for the change."""
        up, down = self.terms
        rate = 2 * self.speeds
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = rate * np.asarray(clock, dtype=float)[..., None]
            gap = (up * np.expm1(scaled) + down * np.expm1(-scaled)).sum(-1)
            return gap, (rate * (up * np.exp(scaled) - down * np.exp(-scaled))).sum(-1)

    def clock_of_change(self, change: Any) -> Any:
        """By bisection in the logarithm; infinite where the blocks do not grow."""
        change = np.asarray(change, dtype=float)
        if not self.grows:
            return np.full(change.shape, np.inf)[()]
        high = 1.0
        while self.change(high)[0] < change.max(initial=0.0):
            high *= 2
        low, high = np.full(change.shape, 1e-300), np.full(change.shape, high)
        for _ in range(_BISECTIONS):
            middle = np.sqrt(low) * np.sqrt(high)
            below = self.change(middle)[0] < change
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return high[()]

    def curvature(self, clock: Any) -> Any:
        """From the exponentials."""
        _, slope, second = self.derivatives(clock, 2)
        return second / slope**2

    def saturated(self, log_drive: np.ndarray, log_base: float) -> tuple[np.ndarray, np.ndarray]:
        r"""Where $y = \theta' X$, the leading odds at a drive.

        Args:
            log_drive: $\ln X$.
            log_base: $\ln(m/n)$.

        Returns:
            The clock, and $\theta$ with its first four derivatives there; NaN where there is no such place, or where
            $\theta'$ changes so fast that the odds do not follow the drive.
        """

        def excess(clock):
            gap, slope, second, *_ = self.derivatives(clock, 2)
            with np.errstate(invalid="ignore", divide="ignore"):
                return log_base + gap - np.log(slope), second / slope**2

        # From some clock on theta''/theta'^2 < 1/2, and ln y - ln theta' rises.
        end = self._reach(float(np.nanmax(log_drive, initial=0.0)) - log_base)
        grid = np.linspace(0, end, 2000)
        level, curvature = excess(grid)
        usable = np.flatnonzero(~(curvature < 0.5))
        first = usable[-1] + 1 if usable.size else 0
        if first >= grid.size:
            low = np.full(log_drive.shape, np.nan)
        else:
            low = np.where(log_drive >= level[first], grid[first], np.nan)
        high = np.where(np.isnan(low), np.nan, end)
        clock = high
        for _ in range(_ITERATIONS):
            value, curvature = excess(clock)
            slope = self.derivatives(clock, 1)[1] * (1 - curvature)
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                low, high = np.where(value < log_drive, clock, low), np.where(value < log_drive, high, clock)
                new = clock - (value - log_drive) / slope
                new = np.where((new > low) & (new < high), new, (low + high) / 2)
            moved = np.abs(new - clock) > 4e-16 * np.abs(new)
            clock = new
            if not moved.any():
                break
        return clock, self.derivatives(clock, 4)

    def _reach(self, log_odds: float) -> float:
        """A clock beyond every one asked for: theta there exceeds ln y plus ln theta' amply."""
        return self.clock_of_change(2 * abs(log_odds) + 100)
