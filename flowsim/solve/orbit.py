r"""An orbit: the flow with time eliminated, two clocks that a single variable drives (paper, section 6).

$$ \tau_k + \tfrac{m}{n} \int_0^{\tau_k} e^\theta = E = c \int_0^{\tau_v} w, \qquad c = r C (K-1)/K . $$

The right-hand side is what the output-value circuit supplies (`output_clocks`), the left-hand side what the query-key
circuit makes of it (`score_clocks`); any pair of them forms an orbit. Progress is measured by the *advance*
$x = w - w_0 \ge 0$, because $w - w_0$ would not survive the subtraction where the margin has barely moved, and
attention by the change $d = \ln y - \ln y_0 = \theta - \theta_0$, for the same reason.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.solve.output_clocks import AbstractOutputClock
from flowsim.solve.score_clocks import AbstractScoreClock, Shared


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


class Orbit(eqx.Module):
    r"""A trajectory with time eliminated: two clocks and what joins them. Fields have shape `(lanes,)` or are shared.

    The advance $x = w - w_0 \ge 0$ says how far along it one is. With a factorized query-key circuit $w_0 \ge 0$.

    Attributes:
        ov: the output-value circuit on its clock.
        qk: the query-key circuit on its clock.
        strength: the drive of the query-key clock over what the output-value clock supplies; 0 when it is frozen.
        log_wrong: $\ln(K - 1)$, logarithm of the number of wrong labels.
    """

    ov: AbstractOutputClock
    qk: AbstractScoreClock
    strength: Float[Array, " lanes"]
    log_wrong: Float[Array, " lanes"]

    @property
    def margin0(self) -> Float[Array, " lanes"]:
        """$w_0$."""
        return self.ov.margin0

    @property
    def log_odds0(self) -> Float[Array, " lanes"]:
        r"""$\ln y_0$."""
        return self.qk.log_odds0

    def drive(self, advance: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"]:
        r"""$E$, the drive of the query-key clock, at an advance."""
        return self.strength * self.ov.supplied(advance)

    def state(self, advance: Float[Array, "*n lanes"]) -> State:
        """The observables at an advance."""
        margin = self.margin0 + advance
        change = self.qk.change(self.drive(advance))
        log_odds = self.log_odds0 + change
        small = jnp.exp(-jnp.abs(log_odds))
        major = 1 / (1 + small)
        minor = small * major
        attention = jnp.where(log_odds > 0, major, minor)
        rest = jnp.where(log_odds > 0, minor, major)
        log_attention = jnp.minimum(log_odds, 0.0) - jnp.log1p(small)
        return State(margin, change, log_odds, attention, rest, attention * margin, log_attention)

    def log_odds_slope(self, advance: Float[Array, "*n lanes"], state: State) -> Float[Array, "*n lanes"]:
        r"""$d \ln y/dx$; for iterations and error estimates, not to be differentiated."""
        slope = self.qk.slope(self.drive(advance), state.rest)
        return slope * self.strength * state.margin * jnp.exp(-self.ov.log_speed(advance))

    def rate(self, advance: Float[Array, "*n lanes"]) -> tuple[Float[Array, "*n lanes"], Float[Array, "*n lanes"]]:
        r"""$dt/dx = (e^{\alpha w} + K - 1)/(\alpha v)$ without $C$, as $\text{factor} \cdot e^{\text{exponent}}$.

        Returns:
            The exponent, and the factor, which lies between 1 and 4.
        """
        log_odds = self.qk.after(self.drive(advance))
        small = jnp.exp(-jnp.abs(log_odds))
        major = 1 / (1 + small)
        lead = (self.margin0 + advance) * jnp.where(log_odds > 0, major, small * major)
        exponent = jnp.maximum(lead, self.log_wrong) - jnp.minimum(log_odds, 0.0) - self.ov.log_speed(advance)
        return exponent, (1 + jnp.exp(-jnp.abs(lead - self.log_wrong))) * (1 + small)

    def log_rate(self, advance: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"]:
        r"""$\varphi(x) = \ln (dt/dx)$."""
        exponent, factor = self.rate(advance)
        return exponent + jnp.log(factor)

    def first_width(self) -> Float[Array, " lanes"]:
        """A width over which the rate changes little at the start."""
        return self.ov.first_width(self.strength, self.qk.pace())

    def turn(self) -> Float[Array, " lanes"]:
        r"""The advance beyond which $\varphi$ has a single minimum at most and then only rises.

        Margin 0, where attention is lowest, or the start when that comes later.
        """
        return jnp.maximum(0.0, -self.margin0)

    def peak_foot(self) -> tuple[Float[Array, " lanes"], Float[Array, " lanes"]]:
        r"""The foot of a peak of $\varphi$ at `turn`; see the output-value clock."""
        return self.ov.peak_foot(self.strength)

    def advance_of_change(self, change: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"]:
        r"""The advance at which the log odds have first changed by $d$, with full relative accuracy.

        Attention depends on $w^2$ only and rises with it, so from a negative start it falls until $w = 0$ and is back
        at $w = |w_0|$.

        Args:
            change: $d$.

        Returns:
            $x = w - w_0$; NaN or negative where attention never gets there.
        """
        square = self.ov.square_gain(self.qk.drive_of_change(change) / self.strength)
        further = square / (jnp.sqrt(self.margin0**2 + square) + jnp.abs(self.margin0))  # |w| - |w0|
        falling = (change < 0) & (self.margin0 < 0)
        advance = jnp.where(falling, -further, further - 2 * jnp.minimum(self.margin0, 0.0))
        return jnp.where(change == 0, 0.0, advance)

    def margin_of_change(self, change: Float[Array, "*n lanes"]) -> Float[Array, "*n lanes"]:
        r"""The margin $w \ge 0$ at which the log odds differ from those of the start by $d$; NaN if there is none."""
        return jnp.sqrt(self.margin0**2 + self.ov.square_gain(self.qk.drive_of_change(change) / self.strength))

    def spread(self) -> "Orbit":
        """The orbit with fields of shape `(lanes, 1)`, which broadcast against points of shape `(lanes, times)`."""
        return self.map_lanes(lambda field: field[:, None])

    def map_lanes(self, change: Callable[[Array], Array]) -> "Orbit":
        """The orbit with each field of the lanes changed, and what they share as it is."""
        return jax.tree.map(lambda f: f if _is_shared(f) else change(f), self, is_leaf=_is_shared)

    def with_partials(self) -> "Orbit":
        """The orbit with what derivatives with respect to its fields need, for many evaluations."""
        return eqx.tree_at(lambda orbit: orbit.qk, self, self.qk.with_partials())


def _is_shared(leaf) -> bool:
    return isinstance(leaf, Shared)
