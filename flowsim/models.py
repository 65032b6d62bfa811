r"""The attention model: one head, no positions, trained on token counts.

Embeddings are orthonormal, so tokens are basis vectors, and in a sequence with query $q$ token $l$ receives attention
$a_l \propto \mathrm{count}_l\, e^{W_{QK}[l, q]}$. The logits are $W_{OV}\, a$.
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.data import Batch
from flowsim.symmetric import Matrices


class AbstractCircuit(eqx.Module):
    """The parameters of one circuit (query-key or output-value) and the matrix that they make.

    Training differentiates with respect to the circuit's arrays, whatever they are.
    """

    @abc.abstractmethod
    def matrix(self) -> Float[Array, "rows columns"]:
        """The circuit's matrix."""


class CollapsedCircuit(AbstractCircuit):
    """A circuit whose parameter is the matrix itself."""

    weight: Float[Array, "rows columns"]

    def matrix(self) -> Float[Array, "rows columns"]:
        """The circuit's matrix."""
        return self.weight


class LogAttention(NamedTuple):
    """Log of the attention of each sequence to each token and to each group of null tokens."""

    tokens: Float[Array, "rows tokens"]
    nulls: Float[Array, "rows nulls"]


class AttentionModel(eqx.Module):
    """One attention head on the count form.

    Attributes:
        qk: query-key circuit, tokens x queries.
        ov: output-value circuit, outputs x tokens.
    """

    qk: AbstractCircuit
    ov: AbstractCircuit

    def matrices(self) -> Matrices:
        """The matrices of both circuits."""
        return Matrices(self.qk.matrix(), self.ov.matrix())

    def __call__(self, batch: Batch) -> Float[Array, "rows outputs"]:
        """The logits of each sequence."""
        scores, nulls, top = self._scores(batch)
        mass, null_mass = jnp.exp(scores - top), jnp.exp(nulls - top)
        attention = mass / (jnp.sum(mass, axis=1, keepdims=True) + jnp.sum(null_mass, axis=1, keepdims=True))
        return attention @ self.ov.matrix().T

    def log_attention(self, batch: Batch) -> LogAttention:
        """The attention in the log domain, where it neither underflows nor rounds to 1."""
        scores, nulls, top = self._scores(batch)
        mass = jnp.sum(jnp.exp(scores - top), axis=1, keepdims=True)
        mass += jnp.sum(jnp.exp(nulls - top), axis=1, keepdims=True)
        total = top + jnp.log(mass)
        return LogAttention(scores - total, nulls - total)

    def _scores(self, batch: Batch) -> tuple[Array, Array, Array]:
        """Log of the unnormalized attention to tokens and nulls, and the larger of both per sequence."""
        scores = batch.queries @ self.qk.matrix().T + batch.log_counts
        top = jnp.max(scores, axis=1, keepdims=True)
        if batch.log_nulls.shape[1]:
            top = jnp.maximum(top, jnp.max(batch.log_nulls, axis=1, keepdims=True))
        return scores, batch.log_nulls, jax.lax.stop_gradient(top)


def log_error_odds(logits: Float[Array, "rows outputs"], batch: Batch) -> Float[Array, " rows"]:
    """Log of $q/(1-q)$ with $q$ the probability of all outputs but the label; accurate however small $q$ is.

    The cross-entropy is `softplus` of it, which keeps the relative accuracy of a small loss and of its gradient.
    """
    own = jnp.sum(jnp.where(batch.labels, logits, 0), axis=1, keepdims=True)
    return jax.nn.logsumexp(jnp.where(batch.labels, -jnp.inf, logits - own), axis=1)


def loss(model: AttentionModel, batch: Batch) -> Float[Array, ""]:
    """The mean cross-entropy over the batch."""
    return batch.weights @ jax.nn.softplus(log_error_odds(model(batch), batch))


def log_softplus(x: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""$\ln \ln(1 + e^x)$, finite for every finite $x$: the log of a loss from the log odds of its error."""
    tiny = x < -40  # from here on ln(1 + e^x) = e^x (1 - e^x/2) to float64 rounding of the logarithm
    return jnp.where(tiny, x, jnp.log(jax.nn.softplus(jnp.where(tiny, 0, x))))
