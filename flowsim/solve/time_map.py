r"""Time along an orbit: $t = C \int_0^x e^{\varphi(x')}\,dx'$, a quadrature in the log domain (paper, section 6).

The integrand is analytic, but its scales differ by many orders: it changes on the scale $1/\sqrt\rho$ while attention
saturates, on the scale 1 where $e^{\alpha w}$ grows, and for a negative start it has a peak of height
$e^{\rho w_0^2/2}$. So the axis is cut into panels, lane by lane, on which it is a polynomial of degree 23 to rounding.

**Panels.** On a panel of width $h$ the integrand $f(\xi) = h e^{\varphi - S}$, $0 \le \xi \le 1$, is sampled at 24
Gauss-Legendre nodes. Its Chebyshev coefficients say how well it is resolved; a panel whose last two coefficients
exceed $10^{-12} \min f$ plus the rounding of the time so far is tried again with a smaller width, and the next width
follows from their decay. The time inside is $e^S (\tau + \xi A(\xi))$ with $\tau$ the time so far and $A$ the mean of
$f$ over $[0, \xi]$, again a polynomial: near the start, where $\tau = 0$, the time keeps its *relative* accuracy down
to $\xi = 0$. All of this is linear in the samples, one constant matrix.

**Error.** The first coefficient left out is smaller than the last one kept, so each panel adds a relative error below
$10^{-12}$, in practice $10^{-14}$, to the increments of $t$. Sums of positive terms lose nothing more. The exponent
$\varphi$ itself is rounded to an ulp, which is an ulp of $\ln t$.

**End of the integral.** Once $\varphi$ has risen by `RISE` above everything before, and since its slope last changed
within a panel by more than `_BENT` (from a large margin attention may jump within a tiny advance), the integral
comes from its last 45 units of $\varphi$ alone. A lane that has used `ENOUGH` panels by then gets no more: beyond is
a *gap*, where 2 x 14 Gauss-Legendre nodes near the end of the integral serve at any distance, to $10^{-12}$ of an
integral of which $10^{-11}$ times the margin is asked. The neglected part is below $e^{-45}$. A climb to a peak of
$\varphi$ higher than 2 `RISE` is leapt over in the same way.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.solve.orbit import Orbit

NODES = 24
MAX_PANELS = 128
# So many panels are cheaper than the ends of integrals, for a lane with 200 points.
ENOUGH = 72
# How far the log rate must rise above its earlier maximum before the end of the integral dominates it.
RISE = 45.0
# Width, in units of the log rate, of the end that a local quadrature covers.
_REACH = 45.0
# A panel in which the slope of the log rate changes by more than this factor is a bend, which no end may reach back to.
_BENT = 1.5
_TOLERANCE = 1e-12
# A rate that is lower than the time by this many units in the log adds nothing to it.
_UNFELT = 40.0
# Coefficients that have stopped decaying below this size are rounding errors of the exponent.
_NOISE = 1e-7
_SAFETY, _GROW, _SHRINK = 0.95, 8.0, 0.2

# Rows of one panel, followed by the NODES coefficients of A. A gap has width 0; there SCALE holds the slope of the log
# rate at its left edge and TOTAL its right edge.
LEFT, WIDTH, LOG_LEFT, SCALE, TOTAL, BEND, FIRST = range(7)
ROWS = FIRST + NODES


def _gauss(n: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return (nodes + 1) / 2, weights / 2


def _chebyshev(points: np.ndarray) -> np.ndarray:
    return np.cos(np.arccos(2 * points - 1)[..., None] * np.arange(NODES))


XI, WEIGHTS = _gauss(NODES)


def _from_samples() -> np.ndarray:
    r"""From samples at the nodes to coefficients of $f$, coefficients of $A$, and the integral of $f$."""
    coefficients = np.linalg.inv(_chebyshev(XI))
    means = np.einsum("m,jmk->jk", WEIGHTS, _chebyshev(np.outer(XI, XI))) @ coefficients
    return np.concatenate([coefficients, coefficients @ means, WEIGHTS[None]])


_FROM_SAMPLES = _from_samples()
# Distances from the end of an integral in units of the reach: the end itself, then two pieces, the finer first.
_PIECES = [(0.0, 0.3), (0.3, 1.0)]
_END_XI = np.concatenate([[0.0], *(a + (b - a) * _gauss(14)[0] for a, b in _PIECES)])
_END_WEIGHTS = np.concatenate([[0.0], *((b - a) * _gauss(14)[1] for a, b in _PIECES)])


class TimeMap(NamedTuple):
    """The panels of every lane.

    Attributes:
        table: `ROWS` numbers of each panel, shape `((MAX_PANELS + 1) * ROWS, lanes)`. Attempts that were rejected stay
            in the table; the next attempt starts at the same place, and a search finds the last.
        used: panels in use, the last of which is a gap without end.
        complete: whether a lane's panels reach to its horizon or to where the end of the integral dominates it.
    """

    table: Float[Array, "rows lanes"]
    used: Int[Array, ""]
    complete: Bool[Array, " lanes"]


class _Carry(NamedTuple):
    panel: Int[Array, ""]
    left: Float[Array, " lanes"]
    width: Float[Array, " lanes"]
    log_left: Float[Array, " lanes"]
    slope: Float[Array, " lanes"]
    bend: Float[Array, " lanes"]
    done: Bool[Array, " lanes"]
    rejected: Bool[Array, " lanes"]
    leap: Bool[Array, " lanes"]
    table: Float[Array, "rows lanes"]


def build(orbit: Orbit, log_time: Float[Array, " lanes"], advance: Float[Array, " lanes"]) -> TimeMap:
    """Cuts the axis into panels, at least up to a time and an advance.

    Args:
        orbit: the orbit; fields of shape `(lanes,)`.
        log_time: logarithm of the last time of each lane, in units of C.
        advance: the last advance of each lane.

    Returns:
        The panels.
    """
    lanes = log_time.shape
    zero, no = jnp.zeros(lanes), jnp.zeros(lanes, bool)
    foot, log_before_foot = orbit.peak_foot()
    landmarks = jnp.stack([zero, orbit.turn(), foot])

    def attempt(carry: _Carry) -> _Carry:
        left, width = carry.left, carry.width
        # The landmarks ride along with the nodes, so that the compiled program holds the log rate only once.
        exponents, factors = orbit.rate(jnp.concatenate([landmarks, left + width * XI[:, None]]))
        start_rate, turn_rate, foot_rate, rate = exponents[0], exponents[1], exponents[2], exponents[3:]
        log_width = jnp.log(width)
        scale = jnp.maximum(jnp.max(rate, axis=0) + log_width, carry.log_left)
        samples = factors[3:] * jnp.exp(rate + (log_width - scale))
        before = jnp.exp(carry.log_left - scale)
        numbers = _FROM_SAMPLES @ samples
        coefficients, mean, total = numbers[:NODES], numbers[NODES:-1], numbers[-1]
        accepted, negligible, factor = _judge(coefficients, samples, before, scale, carry.rejected)

        gap = carry.leap | carry.done
        slope = (rate[-1] - rate[-2]) / (width * (XI[-1] - XI[-2]))
        first_slope = (rate[1] - rate[0]) / (width * (XI[1] - XI[0]))
        straight = (slope < _BENT * first_slope) & (first_slope < _BENT * slope)
        rows = [
            left,
            jnp.where(gap, 0.0, width),
            carry.log_left,
            jnp.where(gap, carry.slope, scale),
            jnp.where(gap, jnp.where(carry.leap, foot, jnp.inf), total),
            (rate[-1] - rate[0]) / (XI[-1] - XI[0]),
        ]
        block = jnp.concatenate([jnp.stack(rows), mean])
        table = jax.lax.dynamic_update_slice_in_dim(carry.table, block, carry.panel * ROWS, axis=0)

        moved = accepted & ~gap
        right = left + width
        log_right = scale + jnp.log(before + total)
        # Where nothing adds to the time any more, go straight to where the rising rate will be felt again.
        rise = jnp.maximum(log_right - rate[-1] - _UNFELT, 0.25 * _UNFELT)
        next_width = jnp.where(accepted & negligible & (slope > 0), rise / slope, width * factor)
        leap = moved & (foot_rate > start_rate + 2 * RISE) & (right < foot) & (rate[-1] > start_rate + RISE)
        bend = jnp.where(moved & ~straight, rate[-1], carry.bend)
        before_end = jnp.maximum(jnp.maximum(start_rate, turn_rate), bend)
        far = (rate[-1] > before_end + RISE) & (carry.panel >= ENOUGH)
        return _Carry(
            panel=carry.panel + 1,
            left=jnp.where(carry.leap, foot, jnp.where(moved, right, left)),
            width=jnp.where(carry.leap, orbit.first_width(), jnp.where(gap, width, next_width)),
            log_left=jnp.where(
                carry.leap,
                foot_rate + jnp.log(factors[2]) + log_before_foot,
                jnp.where(moved, log_right, carry.log_left),
            ),
            slope=jnp.where(moved, slope, carry.slope),
            bend=bend,
            done=carry.done | moved & ~leap & ((log_right >= log_time) & (right >= advance) | far),
            rejected=~accepted & ~gap,
            leap=leap,
            table=table,
        )

    def unfinished(carry: _Carry):
        return (carry.panel < MAX_PANELS) & ~jnp.all(carry.done)

    table = jnp.zeros(((MAX_PANELS + 1) * ROWS, *lanes))
    nothing = jnp.full(lanes, -jnp.inf)
    start = _Carry(jnp.asarray(0), zero, orbit.first_width(), nothing, zero, nothing, no, no, no, table)
    end = jax.lax.while_loop(unfinished, attempt, start)
    rest = jnp.stack([end.left, zero, end.log_left, end.slope, jnp.full(lanes, jnp.inf)])
    table = jax.lax.dynamic_update_slice_in_dim(end.table, rest, end.panel * ROWS, axis=0)
    return TimeMap(table, end.panel + 1, end.done)


def _judge(coefficients, samples, before, scale, rejected):
    """Whether a panel resolves its integrand, whether it adds anything to the time, and a factor for the next width."""
    lowest, highest = jnp.min(samples, axis=0), jnp.max(samples, axis=0)
    size = lowest + before
    sixth, half, middle, last = NODES // 4, NODES // 2, 3 * NODES // 4 - 1, NODES - 2

    def level(k):
        return (jnp.abs(coefficients[k]) + jnp.abs(coefficients[k + 1])) / size

    tail = level(last)
    rounding = 2.0**-53 * (1 + jnp.abs(scale))  # of the exponent, and of the log time
    floor = 4 * rounding * highest / size
    noisy = ((tail > 0.1 * level(middle)) | (tail < floor)) & (tail < _NOISE + 8 * rounding)
    accepted = (tail * size <= (_TOLERANCE + rounding) * lowest + rounding * before) | noisy
    negligible = highest <= rounding * before
    # Coefficient k of a panel wider by F is larger by F^k; the last one is to end at the tolerance or at the noise.
    noisier = noisy & ((level(middle) > 0.1 * level(half)) | (level(half) < floor))
    k = jnp.where(noisier, sixth, jnp.where(noisy, half, last)) + 0.5
    log_level = jnp.log(jnp.where(noisier, level(sixth), jnp.where(noisy, level(half), tail)))
    log_target = jnp.log(jnp.where(noisy, jnp.maximum(tail, _TOLERANCE), _TOLERANCE))
    factor = _SAFETY * jnp.exp(log_target / (NODES - 1.5) - log_level / k)
    wider = jnp.clip(jnp.where(negligible, _GROW, factor), jnp.where(noisy, 1.0, 0.0), _GROW)
    wider = jnp.where(rejected, jnp.minimum(wider, 1.0), wider)
    narrower = jnp.where(factor > _SHRINK, jnp.minimum(factor, 0.75), _SHRINK)  # also where the factor is NaN
    return accepted, negligible, jnp.where(accepted, wider, narrower)


class Place(NamedTuple):
    """The panels that hold many targets.

    Attributes:
        flat: all numbers of all panels.
        panel: number of each target's panel, shape `(lanes, times)`.
        entry: where its row 0 is, same shape.
    """

    flat: Float[Array, " entries"]
    panel: Int[Array, "lanes times"]
    entry: Int[Array, "lanes times"]

    def read(self, row: int) -> Float[Array, "lanes times"]:
        """One number of each target's panel."""
        return self.flat.at[self.entry + row * self.entry.shape[0]].get(mode="promise_in_bounds")

    def edges(self) -> "Edges":
        """Where the panels begin."""
        return Edges(*(self.read(row) for row in (LEFT, WIDTH, LOG_LEFT, SCALE)))

    def mean(self, xi: Float[Array, "lanes times"]) -> Float[Array, "lanes times"]:
        r"""$A(\xi)$, the mean of the integrand over $[0, \xi]$ (Clenshaw's recurrence)."""
        twice = 2 * (2 * xi - 1)
        b1 = b2 = jnp.zeros_like(xi)
        for k in range(NODES - 1, 0, -1):
            b1, b2 = self.read(FIRST + k) + twice * b1 - b2, b1
        return self.read(FIRST) + twice / 2 * b1 - b2

    def coefficients(self) -> Float[Array, "nodes lanes times"]:
        r"""The coefficients of $A$, gathered once for many evaluations."""
        steps = jnp.arange(FIRST, ROWS, dtype=self.entry.dtype)[:, None, None] * self.entry.shape[0]
        return jax.lax.optimization_barrier(self.flat.at[self.entry + steps].get(mode="promise_in_bounds"))


class Edges(NamedTuple):
    """Where panels begin; shape `(lanes, times)`. A gap has width 0, and the slope of the log rate as its scale."""

    left: Float[Array, "lanes times"]
    width: Float[Array, "lanes times"]
    log_left: Float[Array, "lanes times"]
    scale: Float[Array, "lanes times"]


def mean_and_slope(coefficients: Float[Array, "nodes lanes times"], xi: Float[Array, "lanes times"]):
    r"""$A(\xi)$ and $A'(\xi)$ (Clenshaw's recurrence and its derivative)."""
    twice = 2 * (2 * xi - 1)
    b1 = b2 = d1 = d2 = jnp.zeros_like(xi)
    for k in range(NODES - 1, 0, -1):
        d1, d2 = 2 * b1 + twice * d1 - d2, d1
        b1, b2 = coefficients[k] + twice * b1 - b2, b1
    return coefficients[0] + twice / 2 * b1 - b2, 2 * b1 + twice * d1 - 2 * d2


def find(time_map: TimeMap, targets: Float[Array, "lanes times"], by: int) -> Place:
    """The last panel whose left edge, or time there, does not exceed each target.

    Args:
        time_map: the panels.
        targets: advances (`by=LEFT`) or log times (`by=LOG_LEFT`).
        by: the row to search.

    Returns:
        The place of each target.
    """
    lanes = time_map.table.shape[-1]

    def step(panel, index):
        edge = jax.lax.dynamic_index_in_dim(time_map.table, panel * ROWS + by, keepdims=False)
        return jnp.where(edge[:, None] <= targets, panel.astype(index.dtype), index)

    index = jax.lax.fori_loop(0, time_map.used, step, jnp.zeros(targets.shape, dtype=jnp.int32))
    entry = index * (ROWS * lanes) + jnp.arange(lanes, dtype=index.dtype)[:, None]
    return Place(time_map.table.reshape(-1), index, entry)


class End(NamedTuple):
    r"""The end of an integral; see `end_of_integral`.

    Attributes:
        log_integral: its logarithm.
        log_rate: $\varphi(x)$.
        nodes: where it is sampled, shape `(nodes, lanes, times)`.
        shares: the part of the integral that each node carries; they sum to 1.
    """

    log_integral: Float[Array, "lanes times"]
    log_rate: Float[Array, "lanes times"]
    nodes: Float[Array, "nodes lanes times"]
    shares: Float[Array, "nodes lanes times"]


def end_of_integral(orbit: Orbit, advance: Float[Array, "lanes times"], lower: Float[Array, "lanes times"]) -> End:
    r"""$\int e^\varphi$ over the end of $[\text{lower}, x]$ that dominates it.

    Args:
        orbit: the orbit, with fields of shape `(lanes, 1)`.
        advance: $x$, where $\varphi$ rises and has risen by `RISE`.
        lower: where the integral starts.

    Returns:
        The logarithm of the integral, and where it comes from.
    """
    # The slope must be that of this very place: a reach that is too long would miss the end between two nodes.
    slope = jax.lax.stop_gradient(jax.jvp(orbit.log_rate, (advance,), (jnp.ones_like(advance),))[1])
    reach = jnp.minimum(jnp.where(slope > 0, _REACH / slope, jnp.inf), advance - lower)
    nodes = advance - reach * _END_XI[:, None, None]
    exponents, factors = orbit.rate(nodes)
    terms = reach * _END_WEIGHTS[:, None, None] * factors * jnp.exp(exponents - exponents[0])
    total = jnp.sum(terms, axis=0)
    return End(exponents[0] + jnp.log(total), exponents[0] + jnp.log(factors[0]), nodes, terms / total)
