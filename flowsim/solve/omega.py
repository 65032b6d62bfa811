r"""The Wright omega function of a real argument: the $y > 0$ with $y + \ln y = z$ (Corless and Jeffrey, 2002).

**Method.** Write $u = \ln y$, so that $u + e^u = z$. At a guess $v$ with $e^v = Y$ the correction $\delta = u - v$
obeys

$$ \delta + a (e^\delta - 1 - \delta) = s, \qquad a = \frac{Y}{1 + Y}, \quad s = \frac{z - v - Y}{1 + Y}, $$

whose solution is the power series of `correction`: $\delta = s - a s^2/2 + a(3a - 1) s^3/6 - \dots$. It is summed
twice.

1. From $v = z$ ($z < 0.4$) or $v = \ln z$, where $Y$ is $e^z$ or $z$ itself and $s = -Y/(1+Y)$ or $-\ln z/(1+z)$ has
   no cancellation. There $|s| < 0.66$, and five terms leave an error in $u$ below $3 \cdot 10^{-4}$.
2. From that $v$, a float64 taken as exact, with $Y = e^v$ computed. Now $|s| < 3 \cdot 10^{-4}$, and the first term
   left out is below $10^{-21}$.

**Accuracy.** In the second step $v$ is exact, so $Y$ carries only the error of one `exp` (1.4 ulp in XLA), and the
residual $z - v - Y$ that corrects it is computed with an absolute error of about an ulp of $Y$ or of $z - v$, which
reaches $y = Y e^\delta$ divided by $1 + Y$ or as a relative $2^{-53}$. No rounded $\ln y$ is ever exponentiated, which
for $z = -700$ would cost 500 ulp. Measured against 40 digits: $y$ within 2 ulp over [-700, 1e12], $\ln y$ within 1 ulp
where $|\ln y| \ge 1$ and within $2^{-52}$ elsewhere, also where $y$ underflows (then $\ln y = z$).

One logarithm and two exponentials in all.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first

# Below it z - e^z/(1 + e^z) is the better first guess of ln omega(z), above it ln z - ln z/(1 + z).
_SPLIT = 0.4


def correction(s: Float[Array, "*shape"], a: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""The root $\delta$ of $\delta + a (e^\delta - 1 - \delta) = s$ for small $s$, to fifth order.

    Args:
        s: the right-hand side.
        a: a number in [0, 1].

    Returns:
        $\delta$, with an error below $0.1 |s|^6$ for $|s| < 0.1$.
    """
    c2 = -a / 2
    c3 = a * (3 * a - 1) / 6
    c4 = a * ((-15 * a + 10) * a - 1) / 24
    c5 = a * (((105 * a - 105) * a + 25) * a - 1) / 120
    return s * (1 + s * (c2 + s * (c3 + s * (c4 + s * c5))))


def log_omega_guess(z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""$\ln \omega(z)$ with an absolute error below $3 \cdot 10^{-4}$; one logarithm and one exponential.

    Args:
        z: a finite real number.

    Returns:
        The approximate logarithm, from which `correction` gives the exact one.
    """
    low = z < _SPLIT
    exponential = jnp.exp(jnp.where(low, z, 0.0))
    logarithm = jnp.log(jnp.where(low, 1.0, z))
    y = jnp.where(low, exponential, z)
    rest = 1 / (1 + y)
    s = -jnp.where(low, exponential, logarithm) * rest
    return jnp.where(low, z, logarithm) + correction(s, y * rest)


@jax.custom_jvp
def wright_omega_pair(z: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    r"""$y = \omega(z)$ and $\ln y = z - y$.

    Args:
        z: real numbers; $\pm\infty$ are allowed.

    Returns:
        $y$, which underflows to 0 below $z \approx -708$, and $\ln y$, which does not. Both are differentiable in
        forward and reverse mode: $y' = y/(1 + y)$.
    """
    v = log_omega_guess(z)
    y = jnp.exp(v)
    rest = 1 / (1 + y)
    delta = correction((z - v - y) * rest, y * rest)
    y = y * (1 + delta * (1 + delta * (1 / 2 + delta * (1 / 6 + delta / 24))))
    infinite = jnp.isinf(z)
    return jnp.where(infinite, jnp.where(z > 0, z, 0.0), y), jnp.where(infinite, z, v + delta)


@wright_omega_pair.defjvp
def _wright_omega_pair_jvp(primals, tangents):
    y, log_y = wright_omega_pair(*primals)
    slope = 1 / (1 + y)  # of ln y
    return (y, log_y), (jnp.where(y > 1, 1 - slope, y * slope) * tangents[0], slope * tangents[0])


def wright_omega(z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The Wright omega function; see `wright_omega_pair`."""
    return wright_omega_pair(jnp.asarray(z, dtype=float))[0]


def log_wright_omega(z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The logarithm of the Wright omega function, also where the function underflows; see `wright_omega_pair`."""
    return wright_omega_pair(jnp.asarray(z, dtype=float))[1]
