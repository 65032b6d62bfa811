r"""The output-value circuit on its own clock, with the margin as its hand (paper, section 6).

The advance $x = w - w_0 \ge 0$ measures how far it has gone: $dw/d\tau_v = v(w)$ with $v = 1$ for a collapsed circuit
and $v = \sqrt{\lambda^2 + 4 C w^2}$ for a factorized one. What it supplies to the query-key circuit is
$J = \int w \, d\tau_v$, a function of $w^2$.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first

# A negative start climbs through low attention to a peak of the log rate at margin 0; its foot is so many widths away.
_PEAK_WIDTHS = 10.0
# ln of the integral of exp(-v^2/2) from -infinity to -10 over its last value (Mills' ratio at 10).
_LOG_MILLS_RATIO = -2.312346617307798


class AbstractOutputClock(eqx.Module):
    r"""How fast the margin moves on the circuit's clock; fields have shape `(lanes,)`.

    Attributes:
        margin0: $w_0$, where it starts.
    """

    margin0: eqx.AbstractVar[Float[Array, " lanes"]]

    @abc.abstractmethod
    def supplied(self, advance: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"]:
        r"""$J = \int w \, d\tau_v$ from the start, without cancellation."""

    @abc.abstractmethod
    def log_speed(self, advance: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"] | float:
        r"""$\ln v$."""

    @abc.abstractmethod
    def square_gain(self, supplied: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"]:
        r"""$w^2 - w_0^2$ from $J$; NaN or less than $-w_0^2$ where no margin supplies that."""

    @abc.abstractmethod
    def first_width(self, strength: Float[Array, " lanes"], pace: Float[Array, " lanes"]) -> Float[Array, " lanes"]:
        """An advance over which neither this clock nor attention changes much.

        Args:
            strength: the drive is strength times $J$.
            pace: one over a drive that moves attention a little.
        """

    @abc.abstractmethod
    def peak_foot(self, strength: Float[Array, " lanes"]) -> tuple[Float[Array, " lanes"], Float[Array, " lanes"]]:
        r"""The foot of a peak of the log rate $\varphi$ at margin 0, up to which $\varphi$ rises and is concave.

        Args:
            strength: the drive is strength times $J$.

        Returns:
            Its advance (0 if there is no peak), and $\ln \int e^\varphi dx - \varphi$ there, should $\varphi$ have
            risen far by then.
        """


class CollapsedOutput(AbstractOutputClock):
    r"""$w = w_0 + \tau_v$."""

    margin0: Float[Array, " lanes"]

    def supplied(self, advance: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"]:
        r"""$(w^2 - w_0^2)/2$."""
        return advance * (advance / 2 + self.margin0)

    def log_speed(self, advance: Float[Array, "*n lanes"]) -> float:
        """0."""
        del advance
        return 0.0

    def square_gain(self, supplied: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"]:
        r"""$2 J$."""
        return 2 * supplied

    def first_width(self, strength: Float[Array, " lanes"], pace: Float[Array, " lanes"]) -> Float[Array, " lanes"]:
        """Set by the margin itself, by the drive at the start, and by its curvature."""
        return 1 / (1 + jnp.sqrt(strength * jnp.maximum(1.0, pace)) + strength * jnp.abs(self.margin0) * pace)

    def peak_foot(self, strength: Float[Array, " lanes"]) -> tuple[Float[Array, " lanes"], Float[Array, " lanes"]]:
        r"""Ten widths of the peak before margin 0; where attention is negligible $\varphi + \rho w^2/2$ is constant."""
        width = 1 / jnp.sqrt(strength)
        return jnp.maximum(0.0, -self.margin0 - _PEAK_WIDTHS * width), jnp.log(width) + _LOG_MILLS_RATIO


class FactorizedOutput(AbstractOutputClock):
    r"""$dw/d\tau_v = \sqrt{\lambda^2 + 4 C w^2}$.

    Attributes:
        margin0: $w_0$.
        imbalance: $\lambda$ of the output-value block.
        types: $C$.
    """

    margin0: Float[Array, " lanes"]
    imbalance: Float[Array, " lanes"]
    types: Float[Array, " lanes"]

    def supplied(self, advance: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"]:
        r"""$(v - v_0)/(4 C)$."""
        return advance * (advance + 2 * self.margin0) / (self._speed(advance) + self._speed(0.0))

    def log_speed(self, advance: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"]:
        r"""$\ln v$."""
        return jnp.log(self._speed(advance))

    def square_gain(self, supplied: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"]:
        r"""$J (2 v_0 + 4 C J)$, while $v = v_0 + 4 C J$ is positive."""
        start, change = self._speed(0.0), 4 * self.types * supplied
        return jnp.where(start + change >= 0, supplied * (2 * start + change), jnp.nan)

    def first_width(self, strength: Float[Array, " lanes"], pace: Float[Array, " lanes"]) -> Float[Array, " lanes"]:
        """Set by the margin itself, by the zero of the speed that is nearest to the start, and by the drive."""
        per_margin = 2 * jnp.sqrt(self.types)
        return 1 / (1 + per_margin / self._speed(0.0) + strength * pace / per_margin)

    def peak_foot(self, strength: Float[Array, " lanes"]) -> tuple[Float[Array, " lanes"], Float[Array, " lanes"]]:
        """No peak is leapt over."""
        return jnp.zeros_like(strength), jnp.zeros_like(strength)

    def _speed(self, advance):
        return jnp.sqrt(self.imbalance**2 + 4 * self.types * (self.margin0 + advance) ** 2)
