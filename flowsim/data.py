"""What a model is trained on: sequences as token counts or token by token, with their queries and labels."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flowsim import _jax, _validate  # noqa: F401  float64 first
from flowsim.errors import InvalidInput
from flowsim.symmetric import Layout
from flowsim.task import Task

POPULATIONS = ("mean-counts", "sampled-identities")


class Batch(eqx.Module):
    """Sequences as token counts. Attention without positions depends on nothing else of a sequence.

    Attributes:
        log_counts: log of how often each token stands in each sequence, `-inf` where it does not.
        log_nulls: the same for each group of null tokens (zero embedding: score 0, no value).
        queries: one row of the identity for each sequence: which column of the query-key matrix asks.
        labels: which output is the label of each sequence, one per row.
        weights: probability of each sequence; they sum to 1.
    """

    log_counts: Float[Array, "rows tokens"]
    log_nulls: Float[Array, "rows nulls"]
    queries: Float[Array, "rows queries"]
    labels: Bool[Array, "rows outputs"]
    weights: Float[Array, " rows"]

    def rows(self, index: Any) -> "Batch":
        """Some of the sequences, equally likely; a pair of indices where the arrays have a leading axis."""
        return _rows(self, index)


class Sequences(eqx.Module):
    """Sequences token by token.

    Attributes:
        tokens: number of the token at each position, in the order of the layout; a null token is one more than the
            last.
        present: whether there is a token at the position.
        queries: number of the query.
        labels: which output is the label of each sequence, one per row.
        weights: probability of each sequence; they sum to 1.
    """

    tokens: Int[Array, "rows positions"]
    present: Bool[Array, "rows positions"]
    queries: Int[Array, " rows"]
    labels: Bool[Array, "rows outputs"]
    weights: Float[Array, " rows"]

    def rows(self, index: Any) -> "Sequences":
        """Some of the sequences, equally likely; a pair of indices where the arrays have a leading axis."""
        return _rows(self, index)


def _rows(batch: Any, index: Any) -> Any:
    picked = jax.tree.map(lambda array: array[index], batch)
    return eqx.tree_at(lambda batch: batch.weights, picked, jnp.full_like(picked.weights, 1 / picked.weights.shape[0]))


def population(task: Task, kind: str = "mean-counts", dtype: jax.typing.DTypeLike = np.float64) -> Batch:
    """All sequences of the task with their probabilities: one row for each composition and class.

    Args:
        task: the task.
        kind: `"mean-counts"`: each token of a group stands in every sequence count/types times (a real number).
        dtype: of the counts and weights.

    Raises:
        InvalidInput: if `kind` is unknown or `"sampled-identities"`, which no list of sequences can hold.
    """
    _validate.one_of("population", kind, POPULATIONS)
    if kind == "sampled-identities":
        raise InvalidInput(
            "population='sampled-identities' draws its sequences, and a full batch needs each of them; give examples= "
            "(a fixed data set) or batch= (fresh sequences at every step), or use population='mean-counts'."
        )
    layout, k = Layout.of(task), task.classes
    groups = task.all_groups
    compositions = task.compositions
    group_of, class_of = layout.owners
    sees = (class_of == np.arange(k)[:, None]) | (class_of < 0)  # a class sees its own tokens and those of all
    each = [
        np.array([count / group.types for group, count in zip(groups, c.counts, strict=True) if group.role != "null"])
        for c in compositions
    ]
    counts = np.stack([np.where(sees, per_token[group_of], 0.0) for per_token in each])
    null = [i for i, group in enumerate(groups) if group.role == "null"]
    nulls = np.stack([np.tile([c.counts[i] for i in null], (k, 1)) for c in compositions])
    labels = np.tile(np.eye(k, layout.outputs, dtype=bool), (len(compositions), 1))
    queries = np.ones((k, 1)) if layout.shared_query else np.eye(k)
    weights = np.repeat([composition.probability / k for composition in compositions], k)
    with np.errstate(divide="ignore"):  # ln 0 = -inf is a token that does not stand there
        log_counts, log_nulls = np.log(counts), np.log(nulls)
    rows = len(compositions) * k
    return Batch(
        log_counts=jnp.asarray(log_counts.reshape(rows, -1), dtype=dtype),
        log_nulls=jnp.asarray(log_nulls.reshape(rows, nulls.shape[2]), dtype=dtype),
        queries=jnp.asarray(np.tile(queries, (len(compositions), 1)), dtype=dtype),
        labels=jnp.asarray(labels),
        weights=jnp.asarray(weights / math.fsum(weights), dtype=dtype),
    )
