r"""Softmax in the log domain: the numerical core that generated vector fields call.

Nothing is clipped and no small number is a difference of large ones: $1 - \alpha$ is the sum of the other attentions,
$\alpha w$ is taken as $w - w(1-\alpha)$ around the dominant group, and `log_rate` joins an exponent before it is
exponentiated, so that $t\,q$ stays finite where $t$ overflows and $q$ underflows.

All functions take tuples with one array for each group or output, so that a group's arrays broadcast against a
composition axis. Two-term softmaxes, the common case, cost one exponential.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first

Scalar = Float[Array, ""] | Float[Array, " compositions"] | float


class Softmax(NamedTuple):
    r"""A softmax over groups, with what stays accurate when it saturates.

    Attributes:
        probabilities: $\alpha_g$, each with full relative accuracy.
        exponents: $\ell_g - \max_h \ell_h \le 0$ for logits $\ell$.
        total: $\sum_g e^{\ell_g - \max_h \ell_h}$, between 1 and the number of groups.
        dominant: for each group but the last, whether it has the largest logit; the first that has it counts.
        minor: the smaller of two probabilities (None with another number of groups).
    """

    probabilities: tuple[Array, ...]
    exponents: tuple[Array, ...]
    total: Array
    dominant: tuple[Array, ...]
    minor: Array | None = None


def softmax(logits: Sequence[Scalar]) -> Softmax:
    """Softmax over groups; a logit of `-inf` (a group without positions) is allowed, not for all groups.

    Args:
        logits: one array for each group.

    Returns:
        The softmax. Derivatives are exact also where two logits are equal.
    """
    if len(logits) == 1:
        zero = jnp.zeros_like(logits[0])
        return Softmax((jnp.exp(zero),), (zero,), jnp.exp(zero), ())
    if len(logits) == 2:
        difference = jnp.asarray(logits[0]) - logits[1]
        first = difference >= 0
        below = jnp.where(first, -difference, difference)
        small = jnp.exp(below)
        total = 1 + small
        major = 1 / total
        minor = small * major
        probabilities = (jnp.where(first, major, minor), jnp.where(first, minor, major))
        exponents = (jnp.where(first, 0.0, below), jnp.where(first, below, 0.0))
        return Softmax(probabilities, exponents, total, (first,), minor)
    largest = logits[0]
    for logit in logits[1:]:
        largest = jnp.maximum(largest, logit)
    largest = jax.lax.stop_gradient(largest)  # a common shift drops out of every result
    exponents = tuple(jnp.asarray(logit) - largest for logit in logits)
    weights = tuple(jnp.exp(exponent) for exponent in exponents)
    total = sum(weights[1:], weights[0])
    dominant = tuple(exponent >= 0 for exponent in exponents[:-1])
    return Softmax(tuple(weight / total for weight in weights), exponents, total, dominant)


def attend(attention: Softmax, values: Sequence[Scalar], log_rate: Scalar) -> tuple[Array, Array]:
    r"""The attended value $x = \sum_g \alpha_g y_g$, and $\ln(\text{rate}) + x$ with the small digits of both.

    The value of the dominant group is split off: $x = y_\ast + \sum_g \alpha_g (y_g - y_\ast)$. Where `log_rate` and
    $-y_\ast$ are large and close, as they are along a trajectory, `log_rate + y_*` is exact.

    Args:
        attention: a softmax over groups.
        values: the values $y_g$, aligned with it; the number 0 for groups that give none.
        log_rate: logarithm of a rate.

    Returns:
        The attended value, and its sum with `log_rate`.
    """
    main = _select(attention.dominant, values)
    if attention.minor is not None:
        difference = values[1] - values[0]
        rest = attention.minor * jnp.where(attention.dominant[0], difference, -difference)
        return main + rest, (log_rate + main) + rest
    rest = jnp.zeros(())
    for probability, value in zip(attention.probabilities, values, strict=True):
        rest = rest + probability * (value - main)
    return main + rest, (log_rate + main) + rest


class Errors(NamedTuple):
    """Softmax probabilities of the outputs that compete with the label, times a rate, in pieces.

    The probability of output kind k, times the rate, is `size_k * exp(exponents[k]) / total`.

    Attributes:
        exponents: one for each kind of output.
        total: between 1 and the number of outputs.
    """

    exponents: tuple[Array, ...]
    total: Array


def errors(sizes: Sequence[Scalar], logits: Sequence[tuple[Array, Array]], log_rate: Scalar) -> Errors:
    """Probabilities of the wrong outputs, times a rate.

    Args:
        sizes: how many outputs there are of each kind.
        logits: their logits relative to the label's, alone and with `log_rate` added, as `attend` returns them.
        log_rate: logarithm of the rate.

    Returns:
        The probabilities in the log domain.
    """
    if len(logits) == 1:
        ((logit, rated),) = logits
        right = logit <= 0
        small = jnp.exp(jnp.where(right, logit, -logit))
        total = jnp.where(right, 1 + sizes[0] * small, small + sizes[0])
        return Errors((jnp.where(right, rated, log_rate),), total)
    largest = jnp.zeros_like(logits[0][0])
    for logit, _ in logits:
        largest = jnp.maximum(largest, logit)
    largest = jax.lax.stop_gradient(largest)
    total = jnp.exp(-largest)
    for size, (logit, _) in zip(sizes, logits, strict=True):
        total = total + size * jnp.exp(logit - largest)
    exponents = tuple(jnp.where(largest <= 0, rated, log_rate + (logit - largest)) for logit, rated in logits)
    return Errors(exponents, total)


def joint(attention: Softmax, error: Errors, group: int, kind: int) -> Array:
    r"""Attention times error times rate, $\alpha_g q_k e^{\text{log rate}}$ over the number of outputs of kind k.

    One exponential takes all three, so that no factor over- or underflows unless the product does.

    Args:
        attention: a softmax over groups.
        error: probabilities of the wrong outputs.
        group: index $g$.
        kind: index $k$.

    Returns:
        The product.
    """
    return jnp.exp(error.exponents[kind] + attention.exponents[group]) / (attention.total * error.total)


def columns(counts: Float[Array, "n_compositions n_groups"]) -> tuple[Array, ...]:
    """The counts of each group: scalars when there is a single composition, else arrays over compositions."""
    if counts.shape[0] == 1:
        return tuple(counts[0])
    return tuple(counts.T)


def averaging(probabilities: Float[Array, " n_compositions"]) -> Callable[[Array], Array]:
    """The mean over compositions; the identity when there is a single one, whose probability is 1."""
    if probabilities.shape[0] == 1:
        return lambda value: value
    return lambda value: jnp.sum(probabilities * value)


def log_mean(logs: Array, probabilities: Float[Array, " n_compositions"]) -> Array:
    r"""$\ln \sum_c p_c e^{v_c}$; terms of $-\infty$ are allowed.

    Args:
        logs: $v_c$, a scalar for a single composition.
        probabilities: $p_c$.

    Returns:
        The logarithm of the mean.
    """
    if probabilities.shape[0] == 1:
        return logs
    largest = jax.lax.stop_gradient(jnp.max(logs))
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
    return largest + jnp.log(jnp.sum(probabilities * jnp.exp(logs - largest)))


def _select(masks: Sequence[Array], values: Sequence[Scalar]):
    chosen = values[-1]
    for mask, value in zip(reversed(masks), reversed(values[:-1]), strict=True):
        chosen = jnp.where(mask, value, chosen)
    return chosen
