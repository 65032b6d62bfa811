"""The transformer against a forward pass written out in NumPy, and its masks by perturbation."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim as fs
from flowsim.transformer import Transformer

SIZES = {"vocabulary": 11, "length": 7, "classes": 3, "d": 8, "layers": 2, "heads": 2}


def model(parameterization="FAFO", **changes):
    """Weights far from their small start, so that every part is felt."""
    start = Transformer.start(jax.random.key(0), parameterization=parameterization, **{**SIZES, **changes})
    arrays, rest = eqx.partition(start, eqx.is_array)
    leaves, tree = jax.tree.flatten(arrays)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    moved = [leaf + 0.4 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return eqx.combine(jax.tree.unflatten(tree, moved), rest)


@eqx.filter_jit
def run(m, text, size):
    return m(jnp.asarray(text), jnp.asarray(size))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def norm(layer, x):
    mean, var = x.mean(), x.var()
    return (x - mean) / math.sqrt(var + 1e-5) * np.asarray(layer.scale) + np.asarray(layer.shift)


def matrix(circuit, head):
    if hasattr(circuit, "weight"):
        return np.asarray(circuit.weight[head])
    return np.asarray(circuit.left[head]) @ np.asarray(circuit.right[head]).T


def forward(m, words, places=None):
    """One text without padding, token by token; what an attended position gives is summed in a loop."""
    n, d, heads = len(words), m.tokens.shape[1], SIZES["heads"]
    places = range(n) if places is None else places
    x = [np.asarray(m.tokens[w]) + np.asarray(m.positions[i]) for w, i in zip(words, places, strict=True)]
    everything = []
    for block in m.blocks:
        inside = [norm(block.before_attention, row) for row in x]
        attention, after = np.zeros((heads, n, n)), []
        for i in range(n):
            total = x[i].copy()
            for h in range(heads):
                s = np.array([inside[j] @ matrix(block.qk, h) @ inside[i] for j in range(i + 1)]) / math.sqrt(d / heads)
                weights = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
                attention[h, i, : i + 1] = weights
                for j in range(i + 1):
                    total += weights[j] * matrix(block.ov, h) @ inside[j]
            hidden = gelu(np.asarray(block.up) @ norm(block.before_mlp, total) + np.asarray(block.up_bias))
            after.append(total + np.asarray(block.down) @ hidden + np.asarray(block.down_bias))
        x = after
        everything.append(attention)
    x = [norm(m.last, row) for row in x]
    spans = np.stack([np.asarray(m.span) @ row for row in x], axis=1)
    return np.asarray(m.head) @ x[-1] + np.asarray(m.head_bias), spans, np.stack(everything)


@pytest.mark.parametrize("parameterization", ["FAFO", "CACO", "FACO", "CAFO"])
def test_against_numpy(parameterization):
    m, words = model(parameterization), [3, 1, 4, 1, 5]
    read = run(m, jnp.asarray(words), jnp.asarray(5))
    logits, spans, attention = forward(m, words)
    # sums of some hundred terms of size 1 to 10: a few hundred roundings
    np.testing.assert_allclose(read.logits, logits, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(read.span_logits, spans, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(read.attention, attention, rtol=1e-11, atol=1e-13)
    planted = eqx.tree_at(lambda t: t.blocks[1].qk, m, jax.tree.map(lambda a: 1.001 * a, m.blocks[1].qk))
    assert np.max(np.abs(run(planted, jnp.asarray(words), jnp.asarray(5)).logits - logits)) > 1e-6


def test_padding_changes_nothing_and_is_not_seen():
    m, words = model(), [3, 1, 4]
    alone = run(m, jnp.asarray(words), jnp.asarray(3))
    for filler in (0, 9):
        read = run(m, jnp.asarray([filler] * 4 + words), jnp.asarray(3))
        np.testing.assert_allclose(read.logits, alone.logits, rtol=1e-12)
        np.testing.assert_allclose(read.span_logits[:, 4:], alone.span_logits, rtol=1e-12)
        np.testing.assert_allclose(read.attention[..., 4:, 4:], alone.attention, rtol=1e-12)
        assert np.all(np.asarray(read.attention[..., 4:, :4]) == 0)
        assert np.all(np.isneginf(read.span_logits[:, :4]))
        np.testing.assert_allclose(read.attention.sum(axis=-1), 1, rtol=1e-12)
    longer = run(m, jnp.asarray([9] * 4 + words), jnp.asarray(4))  # the same row read as one token more
    assert np.max(np.abs(longer.logits - alone.logits)) > 1e-3


@pytest.mark.parametrize("words", [[3, 0, 4, 0, 5], [0, 3, 1, 0, 0]])
def test_padding_within_a_text_is_hidden_and_leaves_the_others_their_positions(words):
    m, places = model(), [i for i, word in enumerate(words) if word]
    logits, spans, attention = forward(m, [words[i] for i in places], places)
    read = run(m, jnp.asarray([9, 9, *words]), jnp.asarray(len(words)))
    inside = 2 + np.array(places)
    np.testing.assert_allclose(read.logits, logits, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(read.span_logits[:, inside], spans, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(read.attention[..., inside[:, None], inside], attention, rtol=1e-11, atol=1e-13)
    hidden = [i for i in range(2 + len(words)) if i not in inside]
    np.testing.assert_array_equal(read.attention[0, 0, hidden], np.eye(2 + len(words))[hidden])
    moved, *_ = forward(m, [words[i] for i in places])
    assert np.max(np.abs(moved - logits)) > 1e-3


def test_a_text_without_any_word_is_its_first_position_alone():
    m = model()
    blank = eqx.tree_at(lambda t: t.tokens, m, m.tokens.at[3].set(0.0))
    for text, size in (([9, 9], 0), ([0, 0], 1), ([0], 1)):
        read = run(m, jnp.asarray(text), jnp.asarray(size))
        np.testing.assert_allclose(read.logits, run(blank, jnp.asarray([3]), jnp.asarray(1)).logits, rtol=1e-12)


def test_no_position_sees_a_later_one():
    m = model()
    first = run(m, jnp.asarray([3, 1, 4, 1, 5]), jnp.asarray(5))
    second = run(m, jnp.asarray([3, 1, 4, 7, 8]), jnp.asarray(5))
    np.testing.assert_array_equal(first.span_logits[:, :3], second.span_logits[:, :3])
    assert np.all(np.triu(np.asarray(first.attention), k=1) == 0)
    assert np.max(np.abs(first.span_logits[:, 3:] - second.span_logits[:, 3:])) > 1e-3


def test_collapsed_circuits_start_as_the_product_of_the_factors():
    factors, products = (Transformer.start(jax.random.key(2), parameterization=p, **SIZES) for p in ("FAFO", "CACO"))
    text = jnp.asarray([3, 1, 4]), jnp.asarray(3)
    np.testing.assert_allclose(run(factors, *text).logits, run(products, *text).logits, rtol=1e-12)
    gradient = jax.jit(jax.grad(lambda t: t(*text).logits[0]))(eqx.filter(products, eqx.is_array))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 3}, ["d=8", "heads=3"]),
        ({"layers": 0}, ["layers=0"]),
        ({"vocabulary": 2.5}, ["vocabulary"]),
        ({"parameterization": "FAFA"}, ["parameterization='FAFA'"]),
    ],
)
def test_bad_input_is_one_sentence(changes, words):
    with pytest.raises(fs.InvalidInput) as caught:
        Transformer.start(jax.random.key(0), **{**SIZES, **changes})
    assert all(word in str(caught.value) for word in words)
