r"""The score gap of a factorized query-key circuit as a function of what drives it (paper, section 6).

On its own clock the gap is a sum of hyperbolic terms, one for each drive $F_i$ with its weight $a_i$,

$$ \theta - \theta_0 = \sum_i a_i \sinh(F_i\tau) (p_i e^{F_i\tau} + q_i e^{-F_i\tau}), \qquad
   p = h + b_0, \quad q = h - b_0, \quad h = \sqrt{b_0^2 + \lambda^2/4}, $$

which is positive and without cancellation for either sign of $b_0$ ($pq = \lambda^2/4$ gives the smaller of the two).
The orbit asks for it as a function of the *drive* $E = \tau + \int_0^\tau y$, which does not depend on the ratio of the
learning rates: one table serves all lanes of a call.

**Table.** With $\varepsilon = (1-\alpha_0) E = \int_0^\tau (1 - \alpha_0 + \alpha_0 e^{\theta-\theta_0})$ nothing
overflows. The axis is $\zeta = \ln(1 + \varepsilon/\varepsilon_1)$, linear at the start and logarithmic later, where
the gap itself is nearly a logarithm. It is cut into panels on which $\theta - \theta_0$ is a polynomial of degree 17,
in the first panel $\varepsilon$ times a polynomial, so that small changes keep their relative accuracy. The samples of
a panel come from Newton's method for $\tau$, with the integral from the panel's left edge by Gauss-Legendre quadrature.

**Error.** A panel is accepted when its last two Chebyshev coefficients are below $10^{-14}$ of the smallest sample (or
have stopped decaying at rounding) and its quadrature agrees with that over its two halves to $10^{-14}$. Both $\tau$
and $\varepsilon$ are sums of positive terms, and the samples come from $\tau$ by the formula above: no error
accumulates but the rounding of $\tau$.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first

PANELS = 127  # with the edge behind them a power of two
DEGREE = 17
_NODES = DEGREE + 1
_END = 400.0  # of the axis: drives beyond e^400 of their natural unit are out of reach
_WIDEST = 32.0
_TOLERANCE = 1e-14
_NOISE = 1e-11  # coefficients that have stopped decaying below this size are rounding errors
_ATTEMPTS = 400
_NEWTON = 40
_CLOSE = 1e-6  # one more step of Newton's method squares it
_BISECTIONS = 60
_GROW, _SHRINK, _SAFETY = 4.0, 0.25, 0.9
_LEVELS = np.asarray([4, 9, DEGREE - 1])


def _gauss(n: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return (nodes + 1) / 2, weights / 2


_QUADRATURE = _gauss(24)
_XI = (1 - np.cos((np.arange(_NODES) + 0.5) * np.pi / _NODES)) / 2
_FROM_SAMPLES = np.linalg.inv(np.cos(np.arccos(2 * _XI - 1)[:, None] * np.arange(_NODES)))


class Drives(eqx.Module):
    r"""The hyperbolic terms of the score gap.

    Attributes:
        weights: $a_i$, so that $\theta = \sum_i a_i b_i$.
        speeds: $F_i$.
    """

    weights: Float[Array, " drives"]
    speeds: Float[Array, " drives"]


class ScoreStart(NamedTuple):
    r"""What the table depends on besides the drives.

    Attributes:
        log_odds0: $\ln y_0$.
        score_gap0: $\theta_0$, which fixes every $b_0$.
        imbalance: $\lambda$ of every block.
    """

    log_odds0: Float[Array, ""]
    score_gap0: Float[Array, ""]
    imbalance: Float[Array, ""]


class Table(eqx.Module):
    r"""$\theta - \theta_0$ over $\zeta$, panel by panel.

    Attributes:
        unit: $\varepsilon_1$.
        edges: left edges of the panels in $\zeta$; infinity where there is none.
        per_width: 2 over the width of each panel.
        coefficients: Chebyshev coefficients; of the change over $\varepsilon$ in the first panel.
        at_edges: the change at the left edges; infinity where there is none.
        end: up to where the table reaches.
    """

    unit: Float[Array, ""]
    edges: Float[Array, " panels"]
    per_width: Float[Array, " panels"]
    coefficients: Float[Array, "degree panels"]
    at_edges: Float[Array, " panels"]
    end: Float[Array, ""]


class _Motion(NamedTuple):
    """The query-key circuit on its own clock."""

    rest0: Array
    log_attention0: Array
    weights: Array
    speeds: Array
    rising: Array
    falling: Array

    def change(self, clock):
        r"""$\theta - \theta_0$ after a time of the clock."""
        phase = 2 * self.speeds * clock[..., None]
        grown = jnp.where(self.rising > 0, self.rising * jnp.expm1(phase), 0.0)
        return jnp.sum(self.weights * (grown - self.falling * jnp.expm1(-phase)), axis=-1) / 2

    def pace(self, clock):
        r"""$d\theta/d\tau$."""
        phase = 2 * self.speeds * clock[..., None]
        grown = jnp.where(self.rising > 0, self.rising * jnp.exp(phase), 0.0)
        return jnp.sum(self.weights * self.speeds * (grown + self.falling * jnp.exp(-phase)), axis=-1)

    def growth(self, clock):
        r"""$d\varepsilon/d\tau$."""
        return self.rest0 + jnp.exp(self.change(clock) + self.log_attention0)


def motion_of(drives: Drives, start: ScoreStart) -> _Motion:
    """The circuit on its own clock, from the balanced split of each block on the line."""
    gain = jnp.sum(drives.weights * drives.speeds)
    b0 = drives.speeds * (start.score_gap0 / gain)
    half = jnp.abs(start.imbalance) / 2
    h = jnp.hypot(b0, half)
    larger = h + jnp.abs(b0)
    smaller = half**2 / larger
    positive = b0 >= 0
    return _Motion(
        rest0=jax.nn.sigmoid(-start.log_odds0),
        log_attention0=-jax.nn.softplus(-start.log_odds0),
        weights=drives.weights,
        speeds=drives.speeds,
        rising=jnp.where(positive, larger, smaller),
        falling=jnp.where(positive, smaller, larger),
    )


class _Carry(NamedTuple):
    attempts: Array
    panel: Array
    left: Array
    width: Array
    clock: Array
    table: Table


def build(drives: Drives, start: ScoreStart) -> Table:
    """Tabulates the change of the score gap; differentiable in forward mode.

    Args:
        drives: the hyperbolic terms.
        start: where they start.

    Returns:
        The table; its panels end early (see `end`) should they be too few.
    """
    motion = motion_of(drives, start)
    frozen = jax.lax.stop_gradient(motion)
    unit = 1 / (2 * jnp.max(drives.speeds) + frozen.pace(jnp.zeros(())))

    def attempt(carry: _Carry) -> _Carry:
        left, width, first = carry.left, carry.width, carry.panel == 0
        nodes = jnp.concatenate([left + width * _XI, (left + width)[None]])
        gained = unit * jnp.exp(left) * jnp.expm1(nodes - left)
        steps, settled = _clock_steps(motion, carry.clock, gained)
        change = motion.change(carry.clock + steps)
        samples = change[:-1] / jnp.where(first, gained[:-1], 1.0)
        coefficients = _FROM_SAMPLES @ samples
        size = jnp.min(jnp.abs(samples))
        level = (jnp.abs(coefficients[1:]) + jnp.abs(coefficients[:-1]))[_LEVELS] / size
        noisy = (level[-1] > 0.1 * level[1]) & (level[-1] < _NOISE)
        accepted = settled & ((level[-1] <= _TOLERANCE) | noisy)
        # Coefficient k of a panel wider by F is larger by F^k; those that are rounding errors decay more slowly.
        decay = jnp.min(level ** (1 / (_LEVELS + 0.5)))
        wanted = _SAFETY * _TOLERANCE ** (1 / DEGREE) / decay
        factor = jnp.where(accepted, jnp.clip(wanted, 0.5, _GROW), jnp.clip(wanted, _SHRINK, 0.7))
        factor = jnp.where(settled, factor, _SHRINK)
        factor = jnp.where(jnp.isnan(factor), jnp.where(accepted, _GROW, _SHRINK), factor)
        right = jnp.where(accepted, left + width, left)
        next_panel = carry.panel + accepted
        old = carry.table

        def put(array, value, at):
            return array.at[..., at].set(jnp.where(accepted, value, array[..., at]))

        table = Table(
            unit=unit,
            edges=put(old.edges, right, next_panel),
            per_width=put(old.per_width, 2 / width, carry.panel),
            coefficients=put(old.coefficients, coefficients, carry.panel),
            at_edges=put(old.at_edges, change[-1], next_panel),
            end=right,
        )
        return _Carry(
            attempts=carry.attempts + 1,
            panel=next_panel,
            left=right,
            width=jax.lax.stop_gradient(jnp.minimum(width * factor, _WIDEST)),
            clock=jnp.where(accepted, carry.clock + steps[-1], carry.clock),
            table=table,
        )

    def unfinished(carry: _Carry):
        return (carry.attempts < _ATTEMPTS) & (carry.panel < PANELS) & (carry.left < _END)

    infinite = jnp.full(PANELS + 1, jnp.inf).at[0].set(0.0)
    empty = Table(unit, infinite, jnp.ones(PANELS + 1), jnp.zeros((_NODES, PANELS + 1)), infinite, jnp.zeros(()))
    zero = jnp.asarray(0)
    start_width = jnp.full_like(unit, 0.25)
    end = jax.lax.while_loop(
        unfinished, attempt, _Carry(zero, zero, jnp.zeros(()), start_width, jnp.zeros(()), empty)
    ).table
    cut = end.edges >= end.end  # the edge where the last panel ends starts none
    edges, at_edges = (jnp.where(cut, jnp.inf, array) for array in (end.edges, end.at_edges))
    return eqx.tree_at(lambda table: (table.edges, table.at_edges), end, (edges, at_edges))


def _clock_steps(motion: _Motion, clock, gained):
    r"""By how much the clock advances until $\varepsilon$ has gained so much, and whether that is known well."""
    nodes, weights = _QUADRATURE

    def integral(motion, clock, steps):
        return steps * (motion.growth(clock + steps[:, None] * nodes) @ weights)

    def newton(motion, clock, steps):
        value = integral(motion, clock, steps)
        move = jnp.log(gained / value) * value / motion.growth(clock + steps)
        return jnp.maximum(steps + move, steps / 8)

    frozen = jax.lax.stop_gradient((motion, clock))

    def refine(carry):
        count, steps, _ = carry
        new = newton(*frozen, steps)
        return count + 1, new, jnp.max(jnp.abs(new / steps - 1))

    def go_on(carry):
        count, _, change = carry
        return (count < _NEWTON) & (change > _CLOSE)

    growth = frozen[0].growth(frozen[1])
    attention = jnp.exp(frozen[0].change(frozen[1]) + frozen[0].log_attention0) / growth
    bend = frozen[0].pace(frozen[1]) * attention
    relative = gained / growth
    guess = jnp.where(bend * relative > 1e-8, jnp.log1p(bend * relative) / jnp.where(bend > 0, bend, 1.0), relative)
    _, steps, change = jax.lax.while_loop(go_on, refine, (0, guess, jnp.full_like(guess[0], jnp.inf)))
    steps = newton(motion, clock, steps)  # the last step carries the derivative
    last = steps[-1]
    finer = last / 2 * sum(motion.growth(begin + last / 2 * nodes) @ weights for begin in (clock, clock + last / 2))
    rounding = 2.0**-50 * (4 + jnp.abs(motion.change(clock + last)) + jnp.abs(motion.log_attention0))
    settled = (change <= _CLOSE) & (jnp.abs(finer / gained[-1] - 1) < _TOLERANCE + rounding)
    return steps, settled


def evaluate(table: Table, scaled: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""The change of the score gap.

    Args:
        table: the panels.
        scaled: $\varepsilon = (1 - \alpha_0) E \ge 0$.

    Returns:
        $\theta - \theta_0$ with full relative accuracy; NaN beyond the table.
    """
    zeta = jnp.log(1 + scaled / table.unit)
    panel = _search(table.edges, zeta)

    def read(array):
        return array.at[panel].get(mode="promise_in_bounds")

    twice = 2 * ((zeta - read(table.edges)) * read(table.per_width) - 1)

    def clenshaw(carry, row):  # a loop, so that XLA does not copy it into everything that uses the value
        b1, b2 = carry
        return (read(row) + twice * b1 - b2, b1), None

    nothing = jnp.zeros_like(zeta + table.unit)
    (b1, b2), _ = jax.lax.scan(clenshaw, (nothing, nothing), table.coefficients[:0:-1])
    value = read(table.coefficients[0]) + twice / 2 * b1 - b2
    inside = (scaled >= 0) & (zeta <= table.end)
    return jnp.where(inside, value * jnp.where(panel == 0, scaled, 1.0), jnp.nan)


def invert(table: Table, change: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""$\varepsilon$ at which the score gap has changed by so much: Newton's method in a bracket, for $\zeta$.

    Args:
        table: the panels.
        change: $\theta - \theta_0$.

    Returns:
        $\varepsilon$; NaN where the gap never gets there. Derivatives follow from the last step.
    """
    frozen, target = jax.lax.stop_gradient((table, change))
    panel = _search(table.at_edges, target)
    low, high = frozen.edges[panel], jnp.minimum(frozen.edges[panel + 1], frozen.end)
    bottom, top = frozen.at_edges[panel], frozen.at_edges[panel + 1]

    def value_and_slope(table, scaled):
        return jax.jvp(lambda at: evaluate(table, at), (scaled,), (jnp.ones_like(scaled),))

    def refine(_, carry):
        zeta, low, high = carry
        value, slope = value_and_slope(frozen, frozen.unit * jnp.expm1(zeta))
        low, high = jnp.where(value < target, zeta, low), jnp.where(value >= target, zeta, high)
        new = zeta + (target - value) / (slope * frozen.unit * jnp.exp(zeta))
        return jnp.where((new >= low) & (new <= high), new, (low + high) / 2), low, high

    first = low + (high - low) * jnp.where(jnp.isinf(top), 0.5, (target - bottom) / (top - bottom))
    zeta = jax.lax.fori_loop(0, _BISECTIONS, refine, (first, low, high))[0]
    scaled = frozen.unit * jnp.expm1(zeta)
    value, slope = value_and_slope(table, scaled)
    reached = (target >= 0) & (target < evaluate(frozen, frozen.unit * jnp.expm1(frozen.end)))
    return jnp.where(change == 0, 0.0, jnp.where(reached, scaled + (change - value) / slope, jnp.nan))


def _search(edges, targets):
    """The last panel whose edge does not exceed each target (bisection)."""
    panel = jnp.zeros(targets.shape, jnp.int32)
    step = (PANELS + 1) // 2
    while step:
        edge = edges.at[panel + step].get(mode="promise_in_bounds")
        panel = jnp.where(targets >= edge, panel + step, panel)
        step //= 2
    return panel
