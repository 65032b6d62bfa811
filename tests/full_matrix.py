"""The attention head written out in full, as a reference: every token, every query, every output, and autodiff.

Nothing here knows about blocks, orbits or fluxes, or imports the theory: one matrix entry for each pair of tokens and
queries, one for each pair of outputs and tokens, and the population loss of softmax attention and softmax
cross-entropy. Symmetric matrices are built and read with an orthonormal basis of the representations.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.task import Task


def token_index(task: Task) -> list[np.ndarray | None]:
    """For each group, the token numbers: (classes, types) if distinct, (1, types) if common, None if null."""
    index, start = [], 0
    for group in task.all_groups:
        if group.role == "null":
            index.append(None)
            continue
        rows = task.classes if group.role == "distinct" else 1
        index.append(start + np.arange(rows * group.types).reshape(rows, group.types))
        start += rows * group.types
    return index


def n_tokens(task: Task) -> int:
    """Number of tokens with an embedding."""
    return sum(0 if index is None else index.size for index in token_index(task))


def n_queries(task: Task) -> int:
    """Number of query tokens."""
    return task.classes if task.query == "per-class" else 1


class Sequences(NamedTuple):
    """A population of sequences. Shapes are padded to few sizes, so that random tasks share compiled code.

    Padding: tokens that never appear, outputs whose logit is -inf, sequences of weight 0.
    """

    weights: np.ndarray  # of each sequence, sum 1
    appearances: np.ndarray  # sequences x tokens
    nulls: np.ndarray  # null positions of each sequence
    labels: np.ndarray
    columns: np.ndarray  # number of each sequence's query
    possible: np.ndarray  # which outputs exist

    def pad(self, w_qk, w_ov):
        """Both matrices in the padded shapes."""
        tokens, outputs = self.appearances.shape[1], len(self.possible)
        w_qk = np.pad(w_qk, ((0, tokens - w_qk.shape[0]), (0, -w_qk.shape[1] % 8)))
        return w_qk, np.pad(w_ov, ((0, outputs - w_ov.shape[0]), (0, tokens - w_ov.shape[1])))


def mean_counts(task: Task) -> Sequences:
    """One sequence for each class and composition; every token of a group appears count/types times."""
    rows = []
    for probability, counts in task.compositions:
        for label in range(task.classes):
            appearances, nulls = np.zeros(n_tokens(task)), 0.0
            for group, count, index in zip(task.all_groups, counts, token_index(task), strict=True):
                if index is None:
                    nulls += count
                else:
                    appearances[index[label if group.role == "distinct" else 0]] += count / group.types
            rows.append((probability / task.classes, appearances, nulls, label))
    return _sequences(task, rows)


def random_identities(task: Task) -> Sequences:
    """For integer counts, every way to fill the positions of each group with its tokens."""
    rows = []
    for probability, counts in task.compositions:
        positions = [
            (group, index)
            for group, count, index in zip(task.all_groups, counts, token_index(task), strict=True)
            for _ in range(round(count))
        ]
        for label in range(task.classes):
            choices = [
                [None] if index is None else list(index[label if group.role == "distinct" else 0])
                for group, index in positions
            ]
            fillings = list(itertools.product(*choices))
            for filling in fillings:
                tokens = [token for token in filling if token is not None]
                appearances = np.bincount(tokens, minlength=n_tokens(task)).astype(float)
                weight = probability / task.classes / len(fillings)
                rows.append((weight, appearances, float(len(filling) - len(tokens)), label))
    return _sequences(task, rows)


def _sequences(task: Task, rows) -> Sequences:
    weights, appearances, nulls, labels = (np.array(column) for column in zip(*rows, strict=True))
    more, outputs = (0, -len(weights) % 16), task.classes + task.other_outputs
    return Sequences(
        weights=np.pad(weights, more),
        appearances=np.pad(appearances, (more, (0, -appearances.shape[1] % 64))),
        nulls=np.pad(nulls, more, constant_values=1.0),
        labels=np.pad(labels, more),
        columns=np.pad(labels % n_queries(task), more),
        possible=np.arange(outputs + (-outputs % 16)) < outputs,
    )


def loss(w_qk, w_ov, sequences: Sequences):
    """Softmax attention, then softmax cross-entropy, weighted over the sequences (matrices already padded)."""
    scores = w_qk[:, sequences.columns].T
    attention = attend(scores, sequences.appearances, sequences.nulls)
    logits = jnp.where(sequences.possible, attention @ w_ov.T, -jnp.inf)
    own = jnp.take_along_axis(logits, sequences.labels[:, None], axis=1)[:, 0]
    return sequences.weights @ (jax.nn.logsumexp(logits, axis=1) - own)


def attend(scores, appearances, nulls):
    """Attention on every token (last axis), from how often each appears and how many null positions there are."""
    top = jnp.maximum(jnp.max(jnp.where(appearances > 0, scores, -jnp.inf), axis=-1), 0.0)
    weights = appearances * jnp.exp(scores - top[..., None])
    return weights / (weights.sum(axis=-1) + nulls * jnp.exp(-top))[..., None]


_value = jax.jit(loss)
_gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))


def full_loss(w_qk, w_ov, sequences: Sequences) -> float:
    """The population loss of two matrices (tokens x queries, outputs x tokens)."""
    return float(_value(*sequences.pad(w_qk, w_ov), sequences))


def full_gradient(w_qk, w_ov, sequences: Sequences) -> tuple[np.ndarray, np.ndarray]:
    """Its autodiff gradient by both."""
    for_qk, for_ov = (np.asarray(g) for g in _gradient(*sequences.pad(w_qk, w_ov), sequences))
    return for_qk[: w_qk.shape[0], : w_qk.shape[1]], for_ov[: w_ov.shape[0], : w_ov.shape[1]]


def _standard_basis(classes: int) -> np.ndarray:
    """Orthonormal basis, (classes, classes - 1), of the vectors that sum to zero."""
    centred = np.eye(classes)[:, 1:] - 1 / classes
    return np.linalg.qr(centred)[0]


def _row_groups(task: Task) -> list[tuple[str, np.ndarray]]:
    pairs = zip(task.all_groups, token_index(task), strict=True)
    return [(group.role, index) for group, index in pairs if index is not None]


def symmetric_matrices(task: Task, blocks):
    """Both matrices from the block vector: s, t, S, first row of T, second row of T."""
    classes, rest = task.classes, task.other_outputs
    basis, ones = _standard_basis(classes), np.ones((classes, 1)) / np.sqrt(classes)
    groups = _row_groups(task)
    values = iter(np.asarray(blocks))
    standard_qk = [next(values) if role == "distinct" and task.query == "per-class" else None for role, _ in groups]
    trivial_qk = [next(values) for _ in groups]
    standard_ov = [next(values) if role == "distinct" else None for role, _ in groups]
    trivial_ov = [next(values) for _ in groups]
    trivial_rest = [next(values) for _ in groups] if rest else [None for _ in groups]
    assert not list(values)

    w_qk = np.zeros((n_tokens(task), n_queries(task)))
    w_ov = np.zeros((classes + rest, n_tokens(task)))
    query = ones if task.query == "per-class" else np.ones((1, 1))
    for g, (role, index) in enumerate(groups):
        types = np.ones(index.shape[1]) / np.sqrt(index.shape[1])
        token = ones if role == "distinct" else np.ones((1, 1))
        qk, ov = trivial_qk[g] * token @ query.T, trivial_ov[g] * ones @ token.T
        if standard_qk[g] is not None:
            qk = qk + standard_qk[g] * basis @ basis.T
        if standard_ov[g] is not None:
            ov = ov + standard_ov[g] * basis @ basis.T
        w_qk[index.ravel()] = np.kron(qk, types[:, None])
        w_ov[:classes, index.ravel()] = np.kron(ov, types[None, :])
        if rest:
            never = np.ones((rest, 1)) / np.sqrt(rest)
            w_ov[classes:, index.ravel()] = np.kron(trivial_rest[g] * never @ token.T, types[None, :])
    return w_qk, w_ov


def project(task: Task, w_qk, w_ov) -> np.ndarray:
    """The block vector of the symmetric part of two matrices."""
    classes, rest = task.classes, task.other_outputs
    basis, ones = _standard_basis(classes), np.ones((classes, 1)) / np.sqrt(classes)
    w_qk, w_ov = np.asarray(w_qk), np.asarray(w_ov)
    query = ones if task.query == "per-class" else np.ones((1, 1))
    s, t, big_s, t1, t2 = [], [], [], [], []
    for role, index in _row_groups(task):
        types = np.ones(index.shape[1]) / np.sqrt(index.shape[1])
        token = ones if role == "distinct" else np.ones((1, 1))
        qk = np.einsum("ktq,t->kq", w_qk[index.ravel()].reshape(*index.shape, -1), types)
        ov = np.einsum("okt,t->ok", w_ov[:, index.ravel()].reshape(-1, *index.shape), types)
        if role == "distinct" and task.query == "per-class":
            s.append(np.trace(basis.T @ qk @ basis) / (classes - 1))
        t.append((token.T @ qk @ query).item())
        if role == "distinct":
            big_s.append(np.trace(basis.T @ ov[:classes] @ basis) / (classes - 1))
        t1.append((ones.T @ ov[:classes] @ token).item())
        if rest:
            t2.append((np.ones((1, rest)) / np.sqrt(rest) @ ov[classes:] @ token).item())
    return np.array(s + t + big_s + t1 + t2)


class Factors(NamedTuple):
    """Full factor matrices: W_QK = W_K W_Q^T and W_OV = W_O W_V; the hidden space carries the symmetry."""

    key: np.ndarray  # tokens x hidden
    query: np.ndarray  # queries x hidden
    output: np.ndarray  # outputs x hidden
    value: np.ndarray  # hidden x tokens


def symmetric_factors(task: Task, parts: dict[str, tuple[np.ndarray, np.ndarray]]) -> Factors:
    """Full factors from the block factors (P, Q) of each part: standard and trivial copies in the hidden space.

    Parts: qk_standard (distinct groups x 1; per-class query only), qk_trivial (groups x 1), ov_standard (1 x distinct
    groups), ov_trivial (1 or 2 x groups).
    """
    classes, rest = task.classes, task.other_outputs
    basis, ones = _standard_basis(classes), np.ones((classes, 1)) / np.sqrt(classes)
    groups = _row_groups(task)
    per_class = task.query == "per-class"
    none = np.zeros((len(groups), 0)), np.zeros((0, len(groups)))
    standard_qk, trivial_qk = parts.get("qk_standard", none), parts["qk_trivial"]
    standard_ov, trivial_ov = parts["ov_standard"], parts["ov_trivial"]

    def tokens(standard_rows: np.ndarray, trivial_rows: np.ndarray) -> np.ndarray:
        rows = np.zeros((n_tokens(task), (classes - 1) * standard_rows.shape[1] + trivial_rows.shape[1]))
        distinct = 0
        for g, (role, index) in enumerate(groups):
            types = np.ones((index.shape[1], 1)) / np.sqrt(index.shape[1])
            carries = role == "distinct"
            standard = np.kron(basis, standard_rows[distinct]) if carries else np.zeros((1, rows.shape[1]))
            trivial = np.kron(ones if carries else np.ones((1, 1)), trivial_rows[g])
            if carries:
                distinct += 1
                rows[index.ravel(), : standard.shape[1]] = np.kron(standard, types)
            rows[index.ravel(), (classes - 1) * standard_rows.shape[1] :] = np.kron(trivial, types)
        return rows

    if per_class:
        query = np.hstack([np.kron(basis, standard_qk[1].T), np.kron(ones, trivial_qk[1].T)])
    else:
        query = trivial_qk[1].T
    labels = np.hstack([np.kron(basis, standard_ov[0]), np.kron(ones, trivial_ov[0][:1])])
    never = np.zeros((rest, labels.shape[1]))
    if rest:
        never[:, (classes - 1) * standard_ov[0].shape[1] :] = trivial_ov[0][1] / np.sqrt(rest)
    return Factors(
        tokens(standard_qk[0], trivial_qk[0]),
        query,
        np.vstack([labels, never]),
        tokens(standard_ov[1].T, trivial_ov[1].T).T,
    )


def _factor_loss(key, query, output, value, sequences: Sequences):
    return loss(key @ query.T, output @ value, sequences)


_factor_gradient = jax.jit(jax.grad(_factor_loss, argnums=(0, 1, 2, 3)))


def factor_gradient(factors: Factors, sequences: Sequences) -> Factors:
    """The autodiff gradient by the four factors; shapes are padded so that random tasks share compiled code."""
    tokens, outputs, hidden = sequences.appearances.shape[1], len(sequences.possible), 32
    shapes = (tokens, hidden), (-(-len(factors.query) // 8) * 8, hidden), (outputs, hidden), (hidden, tokens)
    padded = [
        np.pad(matrix, [(0, n - m) for n, m in zip(shape, matrix.shape, strict=True)])
        for matrix, shape in zip(factors, shapes, strict=True)
    ]
    gradient = _factor_gradient(*padded, sequences)
    return Factors(*(np.asarray(g)[: m.shape[0], : m.shape[1]] for g, m in zip(gradient, factors, strict=True)))
