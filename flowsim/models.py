r"""The attention model: one head, no positions, in two forms.

*Count form.* In a sequence with query $q$ token $l$ receives attention $a_l \propto \mathrm{count}_l\, e^{s_{lq}}$,
where $s_{lq}$ is the score of the token at that query; the logits are $\sum_l z_l a_l$. Both tables, scores (tokens x
queries) and logits (outputs x tokens), follow from the circuits and the embedding, so the form serves any embedding.

*Sequence form.* The tokens in order, their embeddings, one softmax over the positions: the check on the count form.
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.data import Batch, Sequences
from flowsim.symmetric import Matrices


class AbstractCircuit(eqx.Module):
    """The parameters of one circuit (query-key or output-value) and the matrix that they make.

    Training differentiates with respect to the circuit's arrays, whatever they are.
    """

    @abc.abstractmethod
    def matrix(self) -> Float[Array, "rows columns"]:
        """The circuit's matrix."""

    @abc.abstractmethod
    def imbalance(self) -> Float[Array, "hidden hidden"] | None:
        """The matrix that gradient flow conserves; None if the circuit has none."""


class CollapsedCircuit(AbstractCircuit):
    """A circuit whose parameter is the matrix itself."""

    weight: Float[Array, "rows columns"]

    def matrix(self) -> Float[Array, "rows columns"]:
        """The circuit's matrix."""
        return self.weight

    def imbalance(self) -> None:
        """Nothing is conserved."""
        return


class FactorizedCircuit(AbstractCircuit):
    r"""A circuit whose matrix is a product: $W_{QK} = W_K W_Q^\top$, $W_{OV} = W_O W_V$.

    Attributes:
        left: $W_K$ or $W_O$.
        right: $W_Q^\top$ or $W_V$.
    """

    left: Float[Array, "rows hidden"]
    right: Float[Array, "hidden columns"]

    def matrix(self) -> Float[Array, "rows columns"]:
        """The circuit's matrix."""
        return self.left @ self.right

    def imbalance(self) -> Float[Array, "hidden hidden"]:
        r"""$W_O^\top W_O - W_V W_V^\top$, or $W_K^\top W_K - W_Q^\top W_Q$."""
        return self.left.mT @ self.left - self.right @ self.right.mT


class Circuits(NamedTuple):
    """All that is trained: the pair of circuits."""

    qk: AbstractCircuit
    ov: AbstractCircuit


class Embedding(eqx.Module):
    """What stands for tokens and queries; it is not trained.

    Attributes:
        tokens: one row for each token of the layout.
        queries: one row for each query.
    """

    tokens: Float[Array, "tokens d"]
    queries: Float[Array, "queries d"]


class LogAttention(NamedTuple):
    """Log of the attention of each sequence to each token and to each group of null tokens."""

    tokens: Float[Array, "rows tokens"]
    nulls: Float[Array, "rows nulls"]


class AttentionModel(eqx.Module):
    r"""One attention head.

    Attributes:
        qk: query-key circuit: tokens x queries, or $d \times d$ with an embedding.
        ov: output-value circuit: outputs x tokens, or outputs x $d$.
        embedding: vectors of tokens and queries; None for orthonormal ones, which are the basis vectors.
        score_scale: factor of the scores, $1/\sqrt{d}$ for instance.
    """

    qk: AbstractCircuit
    ov: AbstractCircuit
    embedding: Embedding | None = None
    score_scale: Float[Array, ""] | float = 1.0

    def matrices(self) -> Matrices:
        """The scores of all tokens at all queries, and the logits of all tokens."""
        qk, ov = self.qk.matrix(), self.ov.matrix()
        if self.embedding is not None:
            qk = self.embedding.tokens @ qk @ self.embedding.queries.T
            ov = ov @ self.embedding.tokens.T
        return Matrices(self.score_scale * qk, ov)

    def __call__(self, batch: Batch | Sequences) -> Float[Array, "rows outputs"]:
        """The logits of each sequence."""
        if isinstance(batch, Sequences):
            return self._of_sequences(batch)
        qk, ov = self.matrices()
        return attend(qk, batch) @ ov.T

    def log_attention(self, batch: Batch) -> LogAttention:
        """The attention in the log domain, where it neither underflows nor rounds to 1."""
        scores, top = _scores(self.matrices().qk, batch)
        mass = jnp.sum(jnp.exp(scores - top), axis=1, keepdims=True)
        mass += jnp.sum(jnp.exp(batch.log_nulls - top), axis=1, keepdims=True)
        total = top + jnp.log(mass)
        return LogAttention(scores - total, batch.log_nulls - total)

    def _of_sequences(self, batch: Sequences) -> Float[Array, "rows outputs"]:
        """Token by token; a null token is the zero vector."""
        qk, ov = self.qk.matrix(), self.ov.matrix()
        if self.embedding is None:
            vectors, asking = jnp.eye(ov.shape[1], dtype=ov.dtype), jnp.eye(qk.shape[1], dtype=qk.dtype)
        else:
            vectors, asking = self.embedding.tokens, self.embedding.queries
        x = jnp.concatenate([vectors, jnp.zeros_like(vectors[:1])])[batch.tokens]
        scores = self.score_scale * jnp.einsum("rpd,de,re->rp", x, qk, asking[batch.queries])
        attention = jax.nn.softmax(jnp.where(batch.present, scores, -jnp.inf), axis=1)
        return jnp.einsum("rp,rpd->rd", attention, x) @ ov.T


def attend(qk: Float[Array, "tokens queries"], batch: Batch) -> Float[Array, "rows tokens"]:
    """The attention of each sequence to each token, from the scores of the tokens at the queries."""
    scores, top = _scores(qk, batch)
    mass = jnp.exp(scores - top)
    total = jnp.sum(mass, axis=1, keepdims=True)
    if batch.log_nulls.shape[1]:
        total += jnp.sum(jnp.exp(batch.log_nulls - top), axis=1, keepdims=True)
    return mass / total


def log_error_odds(logits: Float[Array, "rows outputs"], batch: Batch | Sequences) -> Float[Array, " rows"]:
    """Log of $q/(1-q)$ with $q$ the probability of all outputs but the label; accurate however small $q$ is.

    The cross-entropy is `softplus` of it, which keeps the relative accuracy of a small loss and of its gradient.
    """
    own = jnp.sum(jnp.where(batch.labels, logits, 0), axis=1, keepdims=True)
    return jax.nn.logsumexp(jnp.where(batch.labels, -jnp.inf, logits - own), axis=1)


def loss(model: AttentionModel, batch: Batch | Sequences) -> Float[Array, ""]:
    """The mean cross-entropy over the batch."""
    return batch.weights @ jax.nn.softplus(log_error_odds(model(batch), batch))


def loss_and_gradient(
    circuits: Circuits, embedding: Embedding | None, score_scale: Float[Array, ""], batch: Batch | Sequences
) -> tuple[Float[Array, ""], Circuits]:
    """The mean cross-entropy and its derivative by the circuits' parameters.

    On counts the derivative by the tables of scores and logits is written out, which automatic differentiation takes
    half again as long for; it is the parameters' from there on.

    Args:
        circuits: where to differentiate.
        embedding: of the model.
        score_scale: of the model.
        batch: the sequences.

    Returns:
        The loss and the gradient. On counts the loss is NaN where any parameter is not finite, even one that no
        sequence asks for.
    """

    def model(circuits: Circuits) -> AttentionModel:
        return AttentionModel(circuits.qk, circuits.ov, embedding, score_scale)

    if isinstance(batch, Sequences):
        return jax.value_and_grad(lambda circuits: loss(model(circuits), batch))(circuits)
    matrices, pull = jax.vjp(lambda circuits: model(circuits).matrices(), circuits)
    value, slope = table_gradient(matrices, batch)
    return value, pull(slope)[0]


def table_gradient(matrices: Matrices, batch: Batch) -> tuple[Float[Array, ""], Matrices]:
    r"""The mean cross-entropy and its derivative by scores and logits.

    With $a$ the attention, $z$ the logits of a sequence and $y$ its label: $\partial L/\partial z_j = q\,
    \mathrm{softmax}_{j \ne y}(z)_j$ and $-q$ at the label, $q$ the error, without the difference of probabilities near
    1; $\partial L/\partial a = W_{OV}^\top\, \partial L/\partial z$; and $\partial L/\partial s_l = a_l (\partial
    L/\partial a_l - \sum_m a_m\, \partial L/\partial a_m)$.

    Args:
        matrices: scores and logits of the tokens.
        batch: the sequences.

    Returns:
        The loss, NaN where any entry of the matrices is not finite, and the derivatives in the shapes of the matrices.
    """
    qk, ov = matrices
    # One column for each sequence: sums over tokens and outputs then run along whole vectors, a sixth faster.
    queries, labels = batch.queries.T, batch.labels.T
    scores = qk @ queries + batch.log_counts.T
    top = jnp.max(scores, axis=0)
    if batch.log_nulls.shape[1]:
        top = jnp.maximum(top, jnp.max(batch.log_nulls, axis=1))
    mass = jnp.exp(scores - top)
    total = jnp.sum(mass, axis=0)
    if batch.log_nulls.shape[1]:
        total += jnp.sum(jnp.exp(batch.log_nulls.T - top), axis=0)
    attention = mass / total
    logits = ov @ attention
    own = jnp.sum(jnp.where(labels, logits, 0), axis=0)
    others = jnp.where(labels, -jnp.inf, logits - own)
    top = jnp.max(others, axis=0)
    mass = jnp.exp(others - top)
    total = jnp.sum(mass, axis=0)
    odds = top + jnp.log(total)
    wrong = batch.weights * jax.nn.sigmoid(odds)
    by_logits = jnp.where(labels, -wrong, mass * (wrong / total))
    by_attention = ov.T @ by_logits
    mean = jnp.sum(attention * by_attention, axis=0)
    by_scores = attention * (by_attention - mean)
    # 0 times what is not finite is NaN, so an entry of the logits' table that is not finite is in all of `mean`
    sound = jnp.all(jnp.isfinite(mean)) & jnp.all(jnp.isfinite(qk))
    value = jnp.where(sound, batch.weights @ jax.nn.softplus(odds), jnp.nan)
    return value, Matrices(by_scores @ queries.T, by_logits @ attention.T)


def log_softplus(x: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""$\ln \ln(1 + e^x)$, finite for every finite $x$: the log of a loss from the log odds of its error."""
    tiny = x < -40  # from here on ln(1 + e^x) = e^x (1 - e^x/2) to float64 rounding of the logarithm
    return jnp.where(tiny, x, jnp.log(jax.nn.softplus(jnp.where(tiny, 0, x))))


def _scores(qk: Float[Array, "tokens queries"], batch: Batch) -> tuple[Array, Array]:
    """Log of the unnormalized attention to the tokens of each sequence, and the largest, nulls included."""
    scores = batch.queries @ qk.T + batch.log_counts
    top = jnp.max(scores, axis=1, keepdims=True)
    if batch.log_nulls.shape[1]:
        top = jnp.maximum(top, jnp.max(batch.log_nulls, axis=1, keepdims=True))
    return scores, jax.lax.stop_gradient(top)
