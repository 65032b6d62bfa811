"""Counts and tokens, collapsed and factorized, any embedding: the forms of the model agree; so does the sampler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim as fs
from flowsim.models import AttentionModel, Circuits, CollapsedCircuit, Embedding, FactorizedCircuit, loss_and_gradient
from flowsim.sampler import Sampler, composition_law
from flowsim.symmetric import Layout
from tests import full_matrix as full

TASKS = {
    "query not attended": fs.Task(classes=3, distinct=2, common=4, context=fs.FixedContext(distinct=5, common=6)),
    "query attended, vocabulary head": fs.Task(
        classes=2,
        groups=[fs.Group("topic", "distinct", 3), fs.Group("blank", "null"), fs.Group("filler", "common", 2)],
        context=fs.MixtureContext([(0.3, (4, 2, 1)), (0.7, (0, 3, 5))]),
        attend_query=True,
        other_outputs=4,
    ),
    "shared query, null tokens": fs.Task(
        classes=4, distinct=2, null=True, context=fs.BinomialContext(7, 0.5), query="shared"
    ),
}


def circuits_of(layout, d, factorized, rng):
    qk = (layout.tokens, layout.queries) if d is None else (d, d)
    ov = (layout.outputs, layout.tokens if d is None else d)

    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape))

    made = []
    for (rows, columns), hidden in ((qk, 3), (ov, 5)):
        if factorized:
            made.append(FactorizedCircuit(draw(rows, hidden), draw(hidden, columns)))
        else:
            made.append(CollapsedCircuit(draw(rows, columns)))
    return Circuits(*made)


def drawn(task, rows=64, seed=0):
    sampler = Sampler.of(task)
    made = jax.jit(sampler.draw, static_argnums=1)(jax.random.key(seed), rows, composition_law(task))
    return sampler, made, sampler.counts_of(made), sampler.sequences_of(made)


@jax.jit
def gradient_and_logits(circuits, embedding, scale, batch):
    model = AttentionModel(circuits.qk, circuits.ov, embedding, scale)
    return loss_and_gradient(circuits, embedding, scale, batch), model(batch)


@pytest.mark.parametrize(
    ("name", "d", "factorized"),
    [
        ("query not attended", 5, True),
        ("query attended, vocabulary head", None, True),
        ("query attended, vocabulary head", 40, False),
        ("shared query, null tokens", None, False),
    ],
)
def test_counts_and_sequences_agree(name, d, factorized):
    task, rng = TASKS[name], np.random.default_rng(0)
    layout = Layout.of(task)
    _, _, counts, sequences = drawn(task)
    circuits = circuits_of(layout, d, factorized, rng)
    embedding = None
    if d is not None:
        tokens, queries = (jnp.asarray(rng.normal(size=(n, d)) / np.sqrt(d)) for n in (layout.tokens, layout.queries))
        embedding = Embedding(tokens, queries)
    scale = jnp.asarray(0.6)
    by_counts, logits = gradient_and_logits(circuits, embedding, scale, counts)
    by_sequences, also = gradient_and_logits(circuits, embedding, scale, sequences)
    assert float(by_counts[0]) == pytest.approx(float(by_sequences[0]), rel=1e-13)
    size = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(by_sequences[1]))
    # a sum of 64 rows and some 20 tokens: a few hundred roundings of terms as large as the largest entry
    for ours, theirs in zip(jax.tree.leaves(by_counts[1]), jax.tree.leaves(by_sequences[1]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-13 * size)
    np.testing.assert_allclose(logits, also, rtol=1e-11, atol=1e-11)
    other, _ = gradient_and_logits(circuits, embedding, scale * (1 + 1e-6), sequences)  # planted: the scale
    assert abs(float(other[0]) - float(by_counts[0])) > 1e-10


def test_sampled_sequences_have_the_right_law():
    """The mean of the sampled counts is the mean-counts population: within five standard errors."""
    task = TASKS["query attended, vocabulary head"]
    rows = 40_000
    sampler, made, counts, sequences = drawn(task, rows, seed=3)
    sampled = np.exp(np.asarray(counts.log_counts))
    reference = full.mean_counts(task)
    for k in range(task.classes):
        own = np.asarray(made.classes) == k
        assert abs(own.sum() - rows / 2) < 5 * np.sqrt(rows / 4)
        here = reference.labels == k
        expected = reference.weights[here] @ reference.appearances[here][:, : sampled.shape[1]]
        expected = expected / reference.weights[here].sum()
        error = sampled[own].std(axis=0) / np.sqrt(own.sum())
        assert (np.abs(sampled[own].mean(axis=0) - expected) <= 5 * error).all()
        assert (np.abs(1.02 * sampled[own].mean(axis=0) - expected) > 5 * error).any()  # planted: counts 2 % too large
    share = float(np.mean(np.asarray(made.compositions) == 0))
    assert abs(share - 0.3) < 5 * np.sqrt(0.21 / rows)
    # token by token the same sequences: every token as often as counted
    tokens = np.where(sequences.present, sequences.tokens, -1)
    for token in range(sampled.shape[1]):
        np.testing.assert_allclose((tokens == token).sum(axis=1), sampled[:, token], rtol=1e-14)
    nulls = (tokens == sampled.shape[1]).sum(axis=1)
    np.testing.assert_allclose(nulls, np.exp(np.asarray(counts.log_nulls))[:, 0], rtol=1e-14)
    assert sampler.positions == sequences.tokens.shape[1] == 4 + 3 + 5 + 1


def test_counts_that_are_not_whole_cannot_be_sampled():
    task = fs.Task(classes=2, distinct=1, common=1, context=fs.FixedContext(distinct=2.5, common=1))
    with pytest.raises(fs.InvalidInput, match=r"'distinct' has 2\.5 of them.*mean-counts"):
        Sampler.of(task)
