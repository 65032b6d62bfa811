"""Isotypic parts: orthogonal, complete, equivariant, and of the dimensions that character theory counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim as fs
from flowsim import isotypic
from flowsim.isotypic import TYPES, asymmetries, existing
from flowsim.symmetric import Layout, Matrices, asymmetry, averages_of_matrices, symmetric_matrices

isotypic_parts = jax.jit(isotypic.isotypic_parts, static_argnums=0)
CONTEXT = fs.FixedContext(distinct=4, common=5)
TASKS = {
    "per-class": fs.Task(classes=4, distinct=3, common=3, context=CONTEXT),
    "two classes": fs.Task(classes=2, distinct=3, common=2, context=CONTEXT),
    "three classes, vocabulary": fs.Task(classes=3, distinct=2, common=4, context=CONTEXT, other_outputs=3),
    "shared": fs.Task(classes=3, distinct=2, common=3, context=CONTEXT, query="shared"),
    "attended": fs.Task(classes=4, distinct=2, common=3, context=CONTEXT, attend_query=True),
}


def _random(layout: Layout, seed: int) -> Matrices:
    rng = np.random.default_rng(seed)
    return Matrices(rng.normal(size=(layout.tokens, layout.queries)), rng.normal(size=(layout.outputs, layout.tokens)))  # pyright: ignore[reportArgumentType]


def _permutation(layout: Layout, seed: int):
    """A random element of the symmetry group, as permutations of tokens, queries and outputs."""
    rng = np.random.default_rng(seed)
    k = layout.classes
    classes = rng.permutation(k)
    tokens, first = [], 0
    for role, types in zip(layout.roles, layout.types, strict=True):
        if role == "distinct":
            tokens += [first + owner * types + rng.permutation(types) for owner in classes]
            first += k * types
        else:
            tokens.append(first + rng.permutation(types))
            first += types
    queries = np.zeros(1, int) if layout.shared_query else classes
    return np.concatenate(tokens), queries, np.concatenate([classes, k + rng.permutation(layout.other_outputs)])


@pytest.mark.parametrize("name", TASKS)
def test_parts_are_orthogonal_complete_and_equivariant(name):
    layout = Layout.of(TASKS[name])
    matrices = _random(layout, 0)
    parts = isotypic_parts(layout, matrices)
    assert set(parts) == set(existing(layout))  # a compiled function sorts them
    symmetric = symmetric_matrices(layout, averages_of_matrices(layout, matrices))
    for i in range(2):
        total = symmetric[i] + sum(part[i] for part in parts.values())
        np.testing.assert_allclose(total, matrices[i], atol=1e-14)
    every = {kind: [np.asarray(matrix) for matrix in part] for kind, part in parts.items()}
    every["symmetric"] = [np.asarray(matrix) for matrix in symmetric]
    for a in every:
        for b in every:
            if a < b:
                assert abs(sum(np.sum(x * y) for x, y in zip(every[a], every[b], strict=True))) < 1e-13
    squares = sum(float(value) ** 2 for value in asymmetries(layout, matrices).values())
    assert squares == pytest.approx(float(asymmetry(layout, matrices)) ** 2, rel=1e-12)

    tokens, queries, outputs = _permutation(layout, 1)
    moved = isotypic_parts(layout, Matrices(matrices.qk[np.ix_(tokens, queries)], matrices.ov[np.ix_(outputs, tokens)]))
    for kind, part in parts.items():
        np.testing.assert_allclose(moved[kind].qk, every[kind][0][np.ix_(tokens, queries)], atol=1e-14)
        np.testing.assert_allclose(moved[kind].ov, every[kind][1][np.ix_(outputs, tokens)], atol=1e-14)
        again = isotypic_parts(layout, part)
        for other in parts:
            for x, y in zip(again[other], part, strict=True):
                np.testing.assert_allclose(x, np.asarray(y) * (other == kind), atol=1e-14)


def test_dimensions_are_those_of_the_representations():
    """Traces of the projections against multiplicity times dimension, counted by hand for K=4, C=3, D=3."""
    layout = Layout.of(TASKS["per-class"])
    k, c, d = 4, 3, 3

    n = layout.tokens * (layout.queries + layout.outputs)

    def project(flat):
        at = layout.tokens * layout.queries
        matrices = Matrices(flat[:at].reshape(layout.tokens, -1), flat[at:].reshape(layout.outputs, -1))
        parts = isotypic_parts(layout, matrices)
        return {kind: jnp.concatenate([part.qk.ravel(), part.ov.ravel()]) for kind, part in parts.items()}

    projections = jax.jit(jax.vmap(project, out_axes=-1))(np.eye(n))
    # each circuit has the tokens times one set of classes
    each = {
        "class": 4 * (k - 1),
        "pair": k * (k - 3) // 2 + (k - 1) * (k - 2) // 2,
        "distinct": 2 * k * (c - 1),
        "distinct_label": k * (c - 1) * (k - 2),
        "common": d - 1,
        "query_code": (d - 1) * (k - 1),
    }
    for kind, dimension in each.items():
        assert np.trace(projections[kind]) == pytest.approx(2 * dimension, rel=1e-12)
    assert 2 * (sum(each.values()) + 3) == n


def test_what_the_names_promise():
    layout = Layout.of(TASKS["per-class"])
    zero = Matrices(np.zeros((15, 4)), np.zeros((4, 15)))  # pyright: ignore[reportArgumentType]
    planted = {
        "class": lambda m: m.qk[:3, 0].__iadd__(1.0),  # class 0 looks at its own tokens more
        "distinct": lambda m: m.qk[0:2, 0].__iadd__([1.0, -1.0]),
        "common": lambda m: m.qk[12:14].__iadd__([[1.0], [-1.0]]),
        "query_code": lambda m: m.qk[12:14, :2].__iadd__([[1.0, -1.0], [-1.0, 1.0]]),
    }
    for kind, plant in planted.items():
        matrices = Matrices(zero.qk.copy(), zero.ov.copy())
        plant(matrices)
        found = {name: float(value) for name, value in asymmetries(layout, matrices).items()}
        assert max(found, key=lambda name: found[name]) == kind
        assert set(found) <= set(TYPES)
        for name, value in found.items():
            assert (value > 0.1) == (name == kind)
    assert all(float(value) == 0 for value in asymmetries(layout, zero).values())


def test_training_records_them_and_takes_a_start_for_each_seed():
    task = TASKS["per-class"]
    layout = Layout.of(task)
    starts = [_random(layout, seed) for seed in (1, 2)]
    run = {"ratio": 2.0, "lr": 0.1, "steps": 3, "points": 3}
    stacked = {name: np.stack([getattr(start, name) for start in starts]) for name in ("qk", "ov")}
    together = fs.train(task, "CACO", **run, start=stacked, seeds=2)
    for i, start in enumerate(starts):
        alone = fs.train(task, "CACO", **run, start=start._asdict())
        for name, values in alone.extra.items():
            np.testing.assert_allclose(together.extra[name][i], values, rtol=1e-13)
        squares = sum(np.asarray(alone.extra[f"asymmetry_{kind}"]) ** 2 for kind in existing(layout))
        np.testing.assert_allclose(squares, np.asarray(alone.extra["asymmetry"]) ** 2, rtol=1e-12)
    with pytest.raises(fs.InvalidInput, match=r"start\['qk'\] has shape"):
        fs.train(task, "CACO", **run, start=stacked, seeds=3)
    with pytest.raises(fs.InvalidInput, match="nothing random"):
        fs.train(task, "CACO", **run, start=starts[0]._asdict(), seeds=2)
