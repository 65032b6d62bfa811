r"""The orbit of the collapsed flow with time eliminated: odds as a function of the margin (paper, section 6).

$$ y + \ln y = \tfrac{\rho}{2} (w^2 - w_0^2) + y_0 + \ln y_0, \qquad \rho = g c, \quad c = r C (K-1)/K . $$

Progress along the orbit is measured by the *advance* $x = w - w_0 \ge 0$, because $w - w_0$ would not survive the
subtraction where the margin has barely moved. The unknown is the change $d = \ln y - \ln y_0 = \theta - \theta_0$:
dividing the orbit by $1 + y_0$ gives

$$ (1 - \alpha_0) d + \alpha_0 (e^d - 1) = (1 - \alpha_0) D, \qquad D = \tfrac{\rho}{2} x (x + 2 w_0), $$

in which nothing overflows, underflows or cancels, however small $d$ and however extreme $\theta_0$.
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.solve.omega import correction, log_omega_guess, log_wright_omega

# Below it the power series in D is the better first guess, above it the Wright omega function.
_SMALL = 0.4
# A negative start climbs through low attention to a peak of the log rate at margin 0; its foot is so many widths away.
_PEAK_WIDTHS = 10.0
# ln of the integral of exp(-v^2/2) from -infinity to -10 over its last value (Mills' ratio at 10).
_LOG_MILLS_RATIO = -2.312346617307798


class AbstractOrbit(eqx.Module):
    r"""What the time map needs to know about a trajectory with time eliminated; all fields have shape `(lanes,)`.

    The advance $x \ge 0$ is the change of the margin (in general: of the output-value clock).
    """

    @abc.abstractmethod
    def rate(self, advance: Float[Array, "*n lanes"]) -> tuple[Float[Array, "*n lanes"], Float[Array, "*n lanes"]]:
        r"""$dt/dx$ without the constant $C$, as $\text{factor} \cdot e^{\text{exponent}}$.

        Returns:
            The exponent, and the factor, which lies between 1 and 4.
        """

    def log_rate(self, advance: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"]:
        r"""$\varphi(x) = \ln (dt/dx)$."""
        exponent, factor = self.rate(advance)
        return exponent + jnp.log(factor)

    @abc.abstractmethod
    def first_width(self) -> Float[Array, " lanes"]:
        """A width over which the rate changes little at the start."""

    @abc.abstractmethod
    def turn(self) -> Float[Array, " lanes"]:
        r"""The advance beyond which $\varphi$ has a single minimum at most and then only rises."""

    @abc.abstractmethod
    def peak_foot(self) -> tuple[Float[Array, " lanes"], Float[Array, " lanes"]]:
        r"""The foot of a peak of $\varphi$ at `turn`, up to which $\varphi$ rises and is concave.

        Returns:
            Its advance (0 if there is no peak), and $\ln \int e^\varphi dx - \varphi$ there, should $\varphi$ have
            risen far by then.
        """


class State(NamedTuple):
    r"""Observables at a point of the orbit.

    Attributes:
        margin: $w$.
        change: $\ln (y/y_0) = \theta - \theta_0$.
        log_odds: $\ln y$.
        attention: $\alpha$.
        rest: $1 - \alpha$, with full relative accuracy.
        lead: $\Delta = \alpha w$.
        log_attention: $\ln \alpha$.
    """

    margin: Float[Array, "*shape"]
    change: Float[Array, "*shape"]
    log_odds: Float[Array, "*shape"]
    attention: Float[Array, "*shape"]
    rest: Float[Array, "*shape"]
    lead: Float[Array, "*shape"]
    log_attention: Float[Array, "*shape"]


class CollapsedOrbit(AbstractOrbit):
    r"""An orbit of CACO.

    Attributes:
        rho: $\rho = g c \ge 0$; 0 for a frozen query-key circuit.
        margin0: $w_0$, where it starts.
        log_odds0: $\ln y_0 = \ln(m/n) + \theta_0$.
        log_wrong: $\ln(K - 1)$, logarithm of the number of wrong labels.
    """

    rho: Float[Array, " lanes"]
    margin0: Float[Array, " lanes"]
    log_odds0: Float[Array, " lanes"]
    log_wrong: Float[Array, " lanes"]

    def state(self, advance: Float[Array, "*n lanes"]) -> State:
        """The observables at an advance."""
        margin = self.margin0 + advance
        change = log_odds_change(self.drive(advance), self.log_odds0)
        log_odds = self.log_odds0 + change
        small = jnp.exp(-jnp.abs(log_odds))
        major = 1 / (1 + small)
        minor = small * major
        attention = jnp.where(log_odds > 0, major, minor)
        rest = jnp.where(log_odds > 0, minor, major)
        log_attention = jnp.minimum(log_odds, 0.0) - jnp.log1p(small)
        return State(margin, change, log_odds, attention, rest, attention * margin, log_attention)

    def drive(self, advance: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"]:
        r"""$D = \rho (w^2 - w_0^2)/2$ from the advance, without cancellation."""
        return self.rho * advance * (advance / 2 + self.margin0)

    def rate(self, advance: Float[Array, "*n lanes"]) -> tuple[Float[Array, "*n lanes"], Float[Array, "*n lanes"]]:
        r"""$(e^{\alpha w} + K - 1)/\alpha$."""
        log_odds = log_odds_after(self.drive(advance), self.log_odds0)
        small = jnp.exp(-jnp.abs(log_odds))
        major = 1 / (1 + small)
        lead = (self.margin0 + advance) * jnp.where(log_odds > 0, major, small * major)
        exponent = jnp.maximum(lead, self.log_wrong) - jnp.minimum(log_odds, 0.0)
        return exponent, (1 + jnp.exp(-jnp.abs(lead - self.log_wrong))) * (1 + small)

    def first_width(self) -> Float[Array, " lanes"]:
        """Set by the margin itself, by the drive at the start, and by its curvature."""
        slope = self.rho * jnp.abs(self.margin0) * jax.nn.sigmoid(-self.log_odds0)
        return 1 / (1 + jnp.sqrt(self.rho) + slope)

    def turn(self) -> Float[Array, " lanes"]:
        """Margin 0, where attention is lowest, or the start when that comes later."""
        return jnp.maximum(0.0, -self.margin0)

    def peak_foot(self) -> tuple[Float[Array, " lanes"], Float[Array, " lanes"]]:
        r"""Ten widths of the peak before margin 0; where attention is negligible $\varphi + \rho w^2/2$ is constant."""
        width = 1 / jnp.sqrt(self.rho)
        return jnp.maximum(0.0, -self.margin0 - _PEAK_WIDTHS * width), jnp.log(width) + _LOG_MILLS_RATIO

    def advance_of_change(self, change: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"]:
        r"""The advance at which the log odds have first changed by $d$: explicit, with full relative accuracy.

        $w^2 = w_0^2 + 2 (d + y_0 (e^d - 1))/\rho$. Attention rises with $|w|$, so from a negative start it falls until
        $w = 0$ and is back at $w = |w_0|$.

        Args:
            change: $d$.

        Returns:
            $x = w - w_0$; NaN or negative where attention never gets there.
        """
        near = jnp.abs(change) < 1
        gain = jnp.where(
            near,
            jnp.exp(self.log_odds0) * jnp.expm1(jnp.where(near, change, 0.0)),
            jnp.exp(self.log_odds0 + change) - jnp.exp(self.log_odds0),
        )
        square = 2 * (change + gain) / self.rho
        further = square / (jnp.sqrt(self.margin0**2 + square) + jnp.abs(self.margin0))  # |w| - |w0|
        falling = (change < 0) & (self.margin0 < 0)
        advance = jnp.where(falling, -further, further - 2 * jnp.minimum(self.margin0, 0.0))
        return jnp.where(change == 0, 0.0, advance)

    def spread(self) -> "CollapsedOrbit":
        """The orbit with fields of shape `(lanes, 1)`, which broadcast against points of shape `(lanes, times)`."""
        return jax.tree.map(lambda field: field[:, None], self)


@jax.custom_jvp
def log_odds_after(drive: Float[Array, "*shape"], log_odds0: Float[Array, "*lanes"]) -> Float[Array, "*shape"]:
    r"""$u = \ln y$ from $e^u + u = D + y_0 + \ln y_0$: half the work of `log_odds_change`, where $u$ is needed.

    Args:
        drive: $D$, a finite number of either sign.
        log_odds0: $\ln y_0$. Where $y_0$ overflows the result is $\infty$: attention is 1 to all digits.

    Returns:
        $u$ within an ulp of $D$, of $\ln y_0$ or of itself.
    """
    return log_wright_omega(drive + (jnp.exp(log_odds0) + log_odds0))


@log_odds_after.defjvp
def _log_odds_after_jvp(primals, tangents):
    log_odds = log_odds_after(*primals)
    by_start = jnp.exp(jax.nn.softplus(primals[1]) - jax.nn.softplus(log_odds))  # (1 + y0)/(1 + y)
    return log_odds, jax.nn.sigmoid(-log_odds) * tangents[0] + by_start * tangents[1]


@jax.custom_jvp
def log_odds_change(drive: Float[Array, "*shape"], log_odds0: Float[Array, "*lanes"]) -> Float[Array, "*shape"]:
    r"""The root $d$ of $d + y_0 (e^d - 1) = D$, with full relative accuracy.

    Args:
        drive: $D$, a finite number of either sign.
        log_odds0: $\ln y_0$, a finite number of either sign; $y_0$ itself may over- or underflow.

    Returns:
        $d = \ln(y/y_0)$ within 3 ulp, differentiable in forward and reverse mode.
    """
    rest0 = jax.nn.sigmoid(-log_odds0)
    attention0 = jax.nn.sigmoid(log_odds0)
    scaled = rest0 * drive
    small = jnp.abs(scaled) < _SMALL
    guess = jnp.where(
        small,
        correction(jnp.where(small, scaled, 0.0), attention0),
        log_omega_guess(jnp.where(small, 0.0, drive + (jnp.exp(log_odds0) + log_odds0))) - log_odds0,
    )
    near = jnp.abs(guess) < 1
    gain = jnp.where(
        near,
        attention0 * jnp.expm1(jnp.where(near, guess, 0.0)),
        rest0 * jnp.exp(jnp.where(near, -1.0, log_odds0 + guess)) - attention0,
    )
    per_slope = 1 / (rest0 + (gain + attention0))
    return guess + correction((scaled - rest0 * guess - gain) * per_slope, (gain + attention0) * per_slope)


@log_odds_change.defjvp
def _log_odds_change_jvp(primals, tangents):
    drive, log_odds0 = primals
    change = log_odds_change(drive, log_odds0)
    log_odds = log_odds0 + change
    by_drive = jax.nn.sigmoid(-log_odds)
    # (y0 - y)/(1 + y), written for either sign of the change so that no factor overflows
    falling = jnp.exp(log_odds0 - jax.nn.softplus(log_odds)) * -jnp.expm1(jnp.minimum(change, 0.0))
    rising = jax.nn.sigmoid(log_odds) * jnp.expm1(-jnp.maximum(change, 0.0))
    by_start = jnp.where(change < 0, falling, rising)
    return change, by_drive * tangents[0] + by_start * tangents[1]
