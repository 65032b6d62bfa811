r"""Leading-order theory of the detour: when attention leaves the distinct tokens, how far, and for how long.

Collapsed circuits, zero start, per-class query, one distinct and one common group, vocabulary head; $\alpha_0$ the
attention at the start, $u = (1-\alpha)/\alpha$ the odds of the common tokens, $V$ how far common tokens raise the
labels above the other outputs.

**Beginning.** All logits grow as $t$ at first, and the score gap as
$\theta = \frac{r g\,\alpha_0 (1-\alpha_0)}{2 K^2 (K+R)}
\bigl[(K+R-1)\frac{\alpha_0}{C} - R \frac{1-\alpha_0}{D}\bigr] t^2$ with $g = 1/C + 1/D$.
It falls, whatever the ratio, if and only if $\alpha_0/(1-\alpha_0) < \frac{C R}{D (K+R-1)}$.

**Plateau**, $r \to \infty$. Attention leaves within $t \sim r^{-1/2}$. Afterwards
$\dot V = q_R/\kappa$ with $\kappa = D K R/(K+R)$ and $\dot u = (r g/K) (q_R V - \frac{K-1}{K} w)$,
$\dot w = 1/(C K u)$. The first force integrates to $\kappa V^2/2$ exactly; the second is what the label head has, so
that in $x = t/T$, $\tilde w = \sqrt{\rho}\, w$ ($\rho = r g c$, $c = C (K-1)/K$) and
$\tilde u = u / (\frac{r g \kappa}{2 K} \Lambda^2)$, $\Lambda = V(T)$,

$$\tilde u = (1 + \tfrac{\ln x}{\Lambda})^2 - \int \tilde w\, dx, \qquad \tilde w' = 1/\tilde u, \qquad
  T = B \sqrt r\, \Lambda^2, \qquad B = \tfrac{\kappa C}{2} \sqrt{g/c}.$$

At $\Lambda = \infty$, $\tilde u = e^{-(\tilde w^2 - p^2)/2}$: attention is back after $x = M(p)$, Mills' ratio of the
normal law, with $p = \tilde w$ at the beginning of the plateau, which is what was learnt while attention was leaving;
it does not depend on $r$. With the next order in $1/\Lambda$ the time of return is

$$t = B M(p) \sqrt r\, \bigl(\Lambda + c_1(p)/2\bigr)^2 (1 + O(\Lambda^{-2})), \qquad \Lambda \approx \tfrac12 \ln r.$$
"""

from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.task import Task

# The early stage is followed to this ln(sqrt(r) t); attention falls as its inverse square, which the tail adds.
_EARLY_FROM, _EARLY_TO = -12.0, 16.0
_NODES, _FAR = 80, 14.0


class Numbers(NamedTuple):
    """What the formulas need of a task: classes, types, other outputs, odds of the distinct tokens at the start."""

    classes: float
    distinct: float
    common: float
    other_outputs: float
    odds0: float

    @staticmethod
    def of(task: Task) -> "Numbers":
        """The numbers of a task with one distinct group, one common group and a single composition."""
        (composition,) = task.compositions
        m, n = composition.counts
        return Numbers(task.classes, task.groups[0].types, task.groups[1].types, task.other_outputs, m / n)

    @property
    def mobility(self) -> float:
        """$g = 1/C + 1/D$."""
        return 1 / self.distinct + 1 / self.common

    @property
    def orbit(self) -> float:
        """$c = C (K - 1)/K$."""
        return self.distinct * (self.classes - 1) / self.classes

    @property
    def kappa(self) -> float:
        r"""$\kappa = D K R/(K + R)$."""
        return self.common * self.classes * self.other_outputs / (self.classes + self.other_outputs)


def critical_gamma(classes: int, distinct: int, common: int, other_outputs: int) -> float:
    r"""The attention at the start below which the score gap falls first.

    Args:
        classes: $K$.
        distinct: $C$.
        common: $D$.
        other_outputs: $R$.

    Returns:
        $\gamma_c = C R/(C R + D (K + R - 1))$, whatever the ratio.
    """
    return distinct * other_outputs / (distinct * other_outputs + common * (classes + other_outputs - 1))


def curvature(numbers: Numbers) -> float:
    r"""$\lim_{t \to 0} \theta/(r t^2)$ from zero matrices.

    Args:
        numbers: of the task.

    Returns:
        Its sign decides whether attention falls or rises first.
    """
    k, c, d, other = numbers.classes, numbers.distinct, numbers.common, numbers.other_outputs
    a = numbers.odds0 / (1 + numbers.odds0)
    force = (k + other - 1) * a / c - other * (1 - a) / d
    return numbers.mobility * a * (1 - a) * force / (2 * k**2 * (k + other))


class Plateau(NamedTuple):
    r"""The detour at a large ratio.

    Attributes:
        back: time at which attention is back at its start, to the next order.
        back_leading: the same to leading order.
        depth: lowest log odds relative to those at the start; NaN where the ratio is too small for the formula.
        level: $\Lambda$, of which the corrections are inverse powers.
    """

    back: np.ndarray
    back_leading: np.ndarray
    depth: np.ndarray
    level: np.ndarray


def plateau(numbers: Numbers, ratio: np.ndarray) -> Plateau:
    """Length and depth of the detour from the formulas above.

    Args:
        numbers: of the task; attention must fall first.
        ratio: ratios.

    Returns:
        Arrays of the shape of `ratio`.
    """
    k, g, kappa = numbers.classes, numbers.mobility, numbers.kappa
    p = learnt_while_leaving(numbers)
    mills, c1 = _mills(p)
    scale = kappa * numbers.distinct / 2 * np.sqrt(g / numbers.orbit) * np.sqrt(ratio)
    level = np.full(np.shape(ratio), 10.0)
    for _ in range(60):  # a contraction: ln(scale level^2) changes by 2/level for each unit of level
        level = _label_lead(numbers, scale * level**2)
    x = 4 / level / (p + np.sqrt(p**2 + 8 / level))  # where 1 + 2 ln(x)/level - p x - x^2/2 is largest
    bracket = 1 + 2 * np.log(x) / level - p * x - x**2 / 2
    highest = ratio * g * kappa / (2 * k) * level**2 * np.where(bracket > 0, bracket, np.nan)
    return Plateau(
        back=scale * mills * (level + c1 / 2) ** 2,
        back_leading=scale * mills * level**2,
        depth=-np.log(highest) - np.log(numbers.odds0),
        level=level,
    )


def learnt_while_leaving(numbers: Numbers) -> float:
    r"""$p = \sqrt\rho\, w$ at the beginning of the plateau, for $r \to \infty$.

    In $s = \sqrt r\, t$ the ratio drops out: with $A = \int \alpha\, ds$ the log odds follow
    $\frac{g}{K} \alpha (1-\alpha) \bigl[\frac{K+R-1}{K+R} \frac{A}{C K} - \frac{R}{K+R} \frac{s - A}{D K}\bigr]$, and
    $p = \sqrt{g c}\, A(\infty)/(C K)$.

    Args:
        numbers: of the task; attention must fall first.

    Returns:
        $p$.
    """
    return float(_leave(*map(jnp.asarray, map(float, numbers))))


@jax.jit
def _leave(k, c, d, other, odds0):
    g = 1 / c + 1 / d

    def along(log_s, y, _):
        log_odds, area = y
        s, a = jnp.exp(log_s), jax.nn.sigmoid(log_odds)
        pull = (k + other - 1) * area / c - other * (s - area) / d
        return s * g / k * a * jax.nn.sigmoid(-log_odds) * pull / ((k + other) * k), s * a

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(along),
        diffrax.Dopri8(),
        t0=_EARLY_FROM,
        t1=_EARLY_TO,
        dt0=0.01,
        y0=(jnp.log(odds0), odds0 / (1 + odds0) * jnp.exp(_EARLY_FROM)),
        stepsize_controller=diffrax.PIDController(rtol=1e-10, atol=1e-12),
        max_steps=1 << 14,
    )
    assert solution.ys is not None
    log_odds, area = solution.ys[0][-1], solution.ys[1][-1]
    tail = jax.nn.sigmoid(log_odds) * jnp.exp(_EARLY_TO)
    return jnp.sqrt(g * c * (k - 1) / k) * (area + tail) / (c * k)


def _mills(p: float) -> tuple[float, float]:
    r"""$M(p) = e^{p^2/2} \int_p^\infty e^{-s^2/2} ds$, and its correction.

    $c_1 = 2 \lim_{\delta \to 0} [\ln\delta + \int_{p+\delta}^\infty \frac{M - x}{M x}\, dp']$ with
    $x(p') = e^{p^2/2} \int_p^{p'} e^{-s^2/2} ds$.
    """
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)

    def missing(h):
        return np.exp(p**2 / 2 + np.asarray(log_ndtr(-(p + h)))) * np.sqrt(2 * np.pi)

    mills = float(missing(np.zeros(1))[0])
    near = (nodes + 1) / 2
    rest = missing(near)
    total = np.sum(weights / 2 * (rest / (mills - rest) - mills / near))  # the pole is ln(delta)'s
    far = 1 + (nodes + 1) / 2 * (_FAR - 1)
    rest = missing(far)
    total += np.sum(weights * (_FAR - 1) / 2 * rest / (mills - rest))
    return mills, 2 * float(total) / mills


def _label_lead(numbers: Numbers, time: np.ndarray) -> np.ndarray:
    r"""$V(t)$ on the plateau: $K e^V + R V = K + R t/\kappa$."""
    k, other = numbers.classes, numbers.other_outputs
    target = k + other * time / numbers.kappa
    v = np.log(target / k)
    for _ in range(50):  # Newton's method on a convex function from above: it converges monotonically
        v = v - (k * np.exp(v) + other * v - target) / (k * np.exp(v) + other)
    return v
