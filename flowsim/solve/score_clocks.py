r"""The query-key circuit on its own clock: how far attention has moved after a given drive (paper, section 6).

Whatever the circuit, $\tau + y_0 \int_0^\tau e^{\theta-\theta_0} = E$ relates its clock $\tau$ to the drive $E \ge 0$
that the output-value clock supplies. A collapsed circuit moves at a constant pace, so the orbit is the Wright omega
function; a factorized one is a sum of exponentials, tabulated once (`score_table`).
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.errors import InvalidInput
from flowsim.solve import score_table
from flowsim.solve.omega import correction, log_omega_guess, log_wright_omega
from flowsim.solve.score_table import Drives, ScoreStart, Table

# Below it the power series in D is the better first guess, above it the Wright omega function.
_SMALL = 0.4


class Shared(eqx.Module):
    """Arrays that all lanes share; they carry no derivatives, which follow from the lanes' own numbers."""

    content: Any


class AbstractScoreClock(eqx.Module):
    r"""Attention as a function of the drive $E$; fields have shape `(lanes,)` or are `Shared`.

    Attributes:
        log_odds0: $\ln y_0 = \ln(m/n) + \theta_0$, where it starts.
    """

    log_odds0: eqx.AbstractVar[Float[Array, " lanes"]]

    @abc.abstractmethod
    def change(self, drive: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        r"""$d = \theta - \theta_0 = \ln (y/y_0)$, with full relative accuracy."""

    @abc.abstractmethod
    def after(self, drive: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        r"""$\ln y$."""

    @abc.abstractmethod
    def slope(self, drive: Float[Array, "*shape"], rest: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        r"""$d\theta/dE$, given $1 - \alpha$ there; for iterations and error estimates, not to be differentiated."""

    @abc.abstractmethod
    def drive_of_change(self, change: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        r"""The drive that moves $\theta$ by $d$; explicit or by inverting the table. NaN where none does."""

    @abc.abstractmethod
    def pace(self) -> Float[Array, " lanes"]:
        r"""One over a drive that moves attention a little from its start."""

    @abc.abstractmethod
    def ungated(self, drive: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        r"""How far $\theta$ would move if attention stayed what it was at the start: $\tau = (1 - \alpha_0) E$."""

    def with_partials(self) -> "AbstractScoreClock":
        """The clock with what derivatives with respect to its fields need, if that is worth preparing."""
        return self


class CollapsedScore(AbstractScoreClock):
    r"""A score gap that moves at a constant pace; the drive is counted in units in which it is 1, $D = g E$."""

    log_odds0: Float[Array, " lanes"]

    def change(self, drive: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The root of $d + y_0 (e^d - 1) = D$."""
        return log_odds_change(drive, self.log_odds0)

    def after(self, drive: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The Wright omega function."""
        return log_odds_after(drive, self.log_odds0)

    def slope(self, drive: Float[Array, "*shape"], rest: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        r"""$1 - \alpha$."""
        del drive
        return rest

    def drive_of_change(self, change: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        r"""$d + y_0 (e^d - 1)$."""
        near = jnp.abs(change) < 1
        gain = jnp.where(
            near,
            jnp.exp(self.log_odds0) * jnp.expm1(jnp.where(near, change, 0.0)),
            jnp.exp(self.log_odds0 + change) - jnp.exp(self.log_odds0),
        )
        return change + gain

    def pace(self) -> Float[Array, " lanes"]:
        r"""$1 - \alpha_0$."""
        return jax.nn.sigmoid(-self.log_odds0)

    def ungated(self, drive: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        r"""$(1 - \alpha_0) D$."""
        return jax.nn.sigmoid(-self.log_odds0) * drive


class FrozenScore(AbstractScoreClock):
    r"""Attention that stays what it is, whatever the drive; $\ln y_0 = \infty$ is attention 1."""

    log_odds0: Float[Array, " lanes"]

    def change(self, drive: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """0."""
        return jnp.zeros_like(drive + self.log_odds0)

    def after(self, drive: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """As at the start."""
        return self.log_odds0 + self.change(drive)

    def slope(self, drive: Float[Array, "*shape"], rest: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """0."""
        del rest
        return self.change(drive)

    def drive_of_change(self, change: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """No drive changes anything."""
        return jnp.full_like(change + self.log_odds0, jnp.nan)

    def pace(self) -> Float[Array, " lanes"]:
        """0."""
        return jnp.zeros_like(self.log_odds0)

    def ungated(self, drive: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """0."""
        return self.change(drive)


class FactorizedScore(AbstractScoreClock):
    r"""A score gap that is a sum of exponentials on its clock.

    Attributes:
        log_odds0: $\ln y_0$.
        score_gap0: $\theta_0$, the same in all lanes.
        imbalance: $\lambda$ of the query-key blocks, the same in all lanes.
        shared: the drives, the table, and maybe the table's derivatives with respect to the three numbers.
    """

    log_odds0: Float[Array, " lanes"]
    score_gap0: Float[Array, " lanes"]
    imbalance: Float[Array, " lanes"]
    shared: Shared

    @staticmethod
    def start(drives: Drives, log_odds0, score_gap0, imbalance) -> "FactorizedScore":
        """The clock of one start, with fields of shape `()`."""
        frozen = jax.lax.stop_gradient(ScoreStart(log_odds0, score_gap0, imbalance))
        return FactorizedScore(
            log_odds0, score_gap0, imbalance, Shared((drives, score_table.build(drives, frozen), None))
        )

    def change(self, drive: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """From the table."""
        return _tabulated(self._numbers(), self.shared.content, drive)

    def after(self, drive: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The start and the change."""
        return self.log_odds0 + self.change(drive)

    def slope(self, drive: Float[Array, "*shape"], rest: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """From the table's derivative."""
        del rest
        rest0 = jax.nn.sigmoid(-self.log_odds0)
        return rest0 * _derivative(self.shared.content[1], rest0 * drive)

    def drive_of_change(self, change: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """By inverting the table."""
        return _inverted(self._numbers(), self.shared.content, change)

    def pace(self) -> Float[Array, " lanes"]:
        """From the table's own unit."""
        return jax.nn.sigmoid(-self.log_odds0) / self.shared.content[1].unit

    def ungated(self, drive: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The sum of exponentials itself."""
        motion = score_table.motion_of(self.shared.content[0], _of_one_lane(self._numbers()))
        return motion.change(jax.nn.sigmoid(-self.log_odds0) * drive)

    def with_partials(self) -> "FactorizedScore":
        """With the table as a function of the start, and its derivatives."""
        drives, table, _ = self.shared.content
        shared = Shared((drives, table, _table_and_partials(drives, _of_one_lane(self._numbers()))))
        return FactorizedScore(self.log_odds0, self.score_gap0, self.imbalance, shared)

    def _numbers(self) -> ScoreStart:
        return ScoreStart(self.log_odds0, self.score_gap0, self.imbalance)


def _table_and_partials(drives: Drives, start: ScoreStart) -> tuple[Table, list[Table]]:
    """The table, and its derivative with respect to each number of the start."""
    partials = []
    table = None
    for i in range(len(start)):
        unit = ScoreStart(*(jnp.asarray(float(i == k)) for k in range(len(start))))
        table, partial = jax.jvp(lambda at: score_table.build(drives, at), (start,), (unit,))
        partials.append(partial)
    assert table is not None
    return table, partials


@jax.custom_jvp
def _tabulated(start: ScoreStart, content, drive):
    return score_table.evaluate(content[1], jax.nn.sigmoid(-start.log_odds0) * drive)


def _tabulated_jvp(primals, tangents):
    start, content, drive = primals
    start_tangent, _, drive_tangent = tangents
    change = _tabulated(*primals)
    zero = [isinstance(tangent, SymbolicZero) for tangent in start_tangent]
    drives, table, prepared = content
    partials: list[Table] = []
    if prepared is not None:
        table, partials = prepared
    elif not all(zero):
        table, partials = _table_and_partials(drives, _of_one_lane(start))
    rest0 = jax.nn.sigmoid(-start.log_odds0)
    scaled = rest0 * drive
    by_scaled = _derivative(table, scaled)
    moved = jnp.zeros_like(change)
    if not isinstance(drive_tangent, SymbolicZero):
        moved = moved + by_scaled * rest0 * drive_tangent
    for partial, tangent, absent in zip(partials, start_tangent, zero):  # noqa: B905  no partials, no tangents
        if not absent:
            # the table is linear in its coefficients, and its panels do not move
            at = eqx.tree_at(lambda t: t.coefficients, table, partial.coefficients)
            moved = moved + score_table.evaluate(at, scaled) * tangent
    if not zero[0]:
        moved = moved - by_scaled * scaled * jax.nn.sigmoid(start.log_odds0) * start_tangent.log_odds0
    return change, _first_only(start.score_gap0, start.imbalance, moved)


_tabulated.defjvp(_tabulated_jvp, symbolic_zeros=True)


@jax.custom_jvp
def _first_only(score_gap0, imbalance, tangent):
    """A derivative of the table, which may be differentiated again by all but these two numbers of the start."""
    del score_gap0, imbalance
    return tangent


def _first_only_jvp(primals, tangents):
    if not all(isinstance(tangent, SymbolicZero) for tangent in tangents[:2]):
        raise InvalidInput(
            "score_gap0 or imbalance_qk of a factorized query-key circuit has no second derivative here; take the "
            "first one and difference it."
        )
    moved = tangents[2]
    return primals[2], jnp.zeros_like(primals[2]) if isinstance(moved, SymbolicZero) else moved


_first_only.defjvp(_first_only_jvp, symbolic_zeros=True)


def _derivative(table: Table, scaled):
    return jax.jvp(lambda at: score_table.evaluate(table, at), (scaled,), (jnp.ones_like(scaled),))[1]


def _of_one_lane(start: ScoreStart) -> ScoreStart:
    return ScoreStart(*(jnp.reshape(field, -1)[0] for field in start))


@jax.custom_jvp
def _inverted(start: ScoreStart, content, change):
    return score_table.invert(content[1], change) / jax.nn.sigmoid(-start.log_odds0)


@_inverted.defjvp
def _inverted_jvp(primals, tangents):
    start, content, _ = primals
    start_tangent, _, change_tangent = tangents
    drive = _inverted(*primals)
    _, by_drive = jax.jvp(lambda at: _tabulated(start, content, at), (drive,), (jnp.ones_like(drive),))
    _, by_start = jax.jvp(lambda at: _tabulated(at, content, drive), (start,), (start_tangent,))
    return drive, (change_tangent - by_start) / by_drive


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
