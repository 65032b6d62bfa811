"""Training of factors: agreement with the recursion of the block factors, starts, and what the flow conserves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim as fs
from flowsim.models import Circuits, CollapsedCircuit, FactorizedCircuit
from flowsim.symmetric import Layout, averages_of_blocks, symmetric_matrices
from flowsim.training.starts import Shapes, circuits_at_start

LINE = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
GENERAL = fs.Task(
    classes=3,
    groups=[fs.Group("topic", "distinct", 4), fs.Group("tint", "distinct", 2), fs.Group("filler", "common", 5)],
    context=fs.MixtureContext([(0.3, (8, 1, 10)), (0.7, (2, 3, 5))]),
    other_outputs=7,
)
BLOCKS = {
    "qk_standard": [0.3, -0.2],
    "qk_trivial": [0.1, 0.4, -0.3],
    "ov_standard": [0.5, 0.2],
    "ov_trivial": [0.1, -0.2, 0.3],
    "ov_trivial_rest": [-0.1, 0.2, 0.05],
}
FACTORIZED = ("FACO", "CAFO", "FAFO")


OBSERVABLES = ("margin", "score_gap", "score_gap_change", "log_odds", "log_error", "log_loss")


def mismatch(trajectory, other):
    """Largest difference of any observable, relative where it exceeds 1."""
    pairs = [(np.asarray(getattr(trajectory, n)), np.asarray(getattr(other, n))) for n in OBSERVABLES]
    return max(float(np.max(np.abs(a - b) / np.maximum(1, np.abs(b)))) for a, b in pairs)


@pytest.mark.parametrize("parameterization", FACTORIZED)
def test_training_of_factors_is_the_reduced_descent(parameterization, capsys):
    hidden = {"hidden_qk": 6} if parameterization == "FACO" else {"hidden_ov": 9}  # units to spare
    run = {"ratio": 5.0, "lr": 0.2, "steps": 10_000, "points": 60}
    trained = fs.train(LINE, parameterization, **run, **hidden)
    reduced = fs.descend(LINE, parameterization, **run)
    worst, asymmetry = mismatch(trained, reduced), float(jnp.max(trained.extra["asymmetry"]))
    with capsys.disabled():
        print(f"\n{parameterization}: difference {worst:.1e}, asymmetry {asymmetry:.1e}", end=" ")
    assert trained.status == fs.Status.OK
    assert worst < 1e-9
    assert asymmetry < 1e-10
    # planted: a learning rate off by a part in a thousand
    assert mismatch(trained, fs.descend(LINE, parameterization, **run | {"lr": 0.2002})) > 1e-6


@pytest.mark.parametrize(
    ("parameterization", "imbalance_qk", "imbalance_ov"), [("FAFO", 0.3, -0.2), ("CAFO", None, 0.4)]
)
def test_imbalanced_factors_of_any_blocks(parameterization, imbalance_qk, imbalance_ov):
    run = {"ratio": 2.0, "lr": 0.1, "steps": 400, "points": 40, "start": fs.Start(**BLOCKS)}
    run |= {"imbalance_qk": imbalance_qk, "imbalance_ov": imbalance_ov}
    trained = fs.train(GENERAL, parameterization, **run)
    assert mismatch(trained, fs.descend(GENERAL, parameterization, **run)) < 1e-11
    assert mismatch(trained, fs.descend(GENERAL, parameterization, **run | {"imbalance_ov": 0.1})) > 1e-6  # planted


# --- starts ---


@pytest.mark.parametrize("imbalance", [0.0, 0.7, -0.7])
def test_symmetric_factors_make_the_matrix_and_are_balanced(imbalance):
    layout = Layout.of(GENERAL)
    blocks = np.concatenate([BLOCKS[name] for name in fs.derive(GENERAL).reduction.block_sizes])
    made, _ = circuits_at_start(
        GENERAL,
        "FAFO",
        Shapes.of(layout, "FAFO", None, None, None),
        np.zeros(1, int),
        start=fs.Start(**BLOCKS),
        line={"margin0": None, "score_gap0": None, "imbalance_ov": imbalance, "imbalance_qk": imbalance},
        embedded=False,
        score_scale=1.0,
        dtype=np.dtype("float64"),
    )
    circuits = jax.tree.map(lambda array: array[0], made)
    matrices = symmetric_matrices(layout, averages_of_blocks(layout, jnp.asarray(blocks)))
    k = GENERAL.classes
    # the standard part of each circuit has one hidden unit, the trivial one 1 (scores) and 2 (outputs)
    for circuit, matrix, used in zip(circuits, matrices, (k, k + 1), strict=True):
        np.testing.assert_allclose(circuit.matrix(), matrix, atol=1e-15)
        eigenvalues = np.linalg.eigvalsh(circuit.imbalance())
        expected = np.sort([imbalance] * used + [0.0] * (eigenvalues.size - used))
        np.testing.assert_allclose(eigenvalues, expected, atol=1e-14)
        assert (
            np.max(np.abs(eigenvalues - np.sort([imbalance + 0.1] * used + [0.0] * (eigenvalues.size - used)))) > 0.05
        )
    # permuting the classes permutes the units
    shifted = np.array(circuits.ov.left)
    shifted[:k, :k] = np.roll(shifted[:k, :k], (1, 1), axis=(0, 1))
    np.testing.assert_array_equal(shifted, circuits.ov.left)


def test_random_starts_differ_by_seed_and_have_the_stated_scale():
    run = {"ratio": 1.0, "lr": 1e-9, "steps": 1, "hidden_qk": 200, "hidden_ov": 300}
    layout = Layout.of(LINE)
    shapes = Shapes.of(layout, "FAFO", None, 200, 300)
    for kind, spread, largest in (("gaussian", 0.02, 0.12), ("uniform", 0.02 / np.sqrt(3), 0.02)):
        start = fs.RandomStart(0.02, kind)
        made, _ = circuits_at_start(
            LINE,
            "FAFO",
            shapes,
            np.arange(3),
            start=start,
            line={},
            embedded=False,
            score_scale=1.0,
            dtype=np.dtype("float64"),
        )
        entries = np.concatenate([np.asarray(leaf).reshape(3, -1) for leaf in jax.tree.leaves(made)], axis=1)
        n = entries.size
        assert abs(entries.std() / spread - 1) < 5 / np.sqrt(2 * n)
        assert abs(entries.mean()) < 5 * spread / np.sqrt(n)
        assert np.abs(entries).max() < largest
        assert np.abs(np.corrcoef(entries)[np.triu_indices(3, 1)]).max() < 5 / np.sqrt(entries.shape[1])
    trained = fs.train(LINE, "FAFO", start=start, seeds=[0, 7], **run)
    again = fs.train(LINE, "FAFO", start=start, seeds=[7], **run)
    assert trained.axes == ("seed",)
    assert trained.coords["seed"].tolist() == [0, 7]
    assert (trained.margin[1] == again.margin[0]).all()
    assert (trained.margin[0] != again.margin[0]).all()
    assert float(trained.extra["asymmetry"].min()) > 0.5


def test_given_arrays_are_where_training_starts():
    rng, layout = np.random.default_rng(0), Layout.of(GENERAL)
    w_k, w_q = rng.normal(size=(layout.tokens, 2)), rng.normal(size=(layout.queries, 2))
    w_ov = rng.normal(size=(layout.outputs, layout.tokens))
    start = {"qk": (w_k, w_q), "ov": w_ov}
    run = {"ratio": 1.0, "lr": 1e-300, "steps": 1, "hidden_qk": 2}
    trained = fs.train(GENERAL, "FACO", start=start, **run)
    circuits = Circuits(FactorizedCircuit(jnp.asarray(w_k), jnp.asarray(w_q.T)), CollapsedCircuit(jnp.asarray(w_ov)))
    topic = np.arange(12)  # four tokens for each of three classes
    own = topic // 4
    mine = np.asarray(circuits.ov.matrix())[own, topic].mean()
    other = np.asarray(circuits.ov.matrix())[:3, :12].sum() - np.asarray(circuits.ov.matrix())[own, topic].sum()
    assert float(trained.margin[0]) == pytest.approx(mine - other / 24, rel=1e-12)
    scores = w_k @ w_q.T
    assert float(trained.score_gap[0]) == pytest.approx(scores[topic, own].mean() - scores[18:].mean(), rel=1e-12)


# --- conservation ---


def test_drift_of_what_the_flow_conserves_is_of_first_order():
    """At fixed time the drift is proportional to the step."""
    start = fs.RandomStart(0.3)
    steps = np.array([200, 400, 800, 1600])
    drifts = []
    for n in steps:
        run = fs.train(LINE, "FAFO", start=start, hidden_ov=7, ratio=2.0, lr=40.0 / n, steps=int(n), points=1)
        drifts.append([float(run.extra[name][-1]) for name in ("drift_qk", "drift_ov")])
    for slope in np.polyfit(np.log(40.0 / steps), np.log(drifts), 1)[0]:
        assert slope == pytest.approx(1.0, abs=0.1)
    assert min(map(min, drifts)) > 1e-9  # nothing that rounding makes
    collapsed = fs.train(LINE, "CACO", ratio=1.0, lr=0.1, steps=5)
    assert not any(name.startswith("drift") for name in collapsed.extra)


# --- scale ---


def test_the_scale_of_the_scores_is_a_ratio():
    r"""$s = c\,W$: collapsed scores follow the unscaled flow at the ratio $c^2 r$, factorized ones at $c\,r$."""
    run = {"lr": 0.1, "steps": 500, "points": 50}
    for parameterization, power in (("CACO", 2), ("FACO", 1)):
        scaled = fs.train(LINE, parameterization, ratio=3.0, score_scale=0.4, **run)
        plain = fs.train(LINE, parameterization, ratio=3.0 * 0.4**power, **run)
        for name in ("margin", "score_gap", "log_odds"):
            np.testing.assert_allclose(getattr(scaled, name), getattr(plain, name), rtol=1e-10, atol=1e-13)
    by_name = fs.train(LINE, ratio=3.0, score_scale="1/sqrt(d)", **run)
    assert by_name.settings["score_scale"] == 54**-0.5


@pytest.mark.parametrize(
    ("parameterization", "changes", "words"),
    [
        ("CACO", {"hidden_qk": 3}, ["hidden_qk=3", "collapsed"]),
        ("FAFO", {"hidden_ov": 3}, ["hidden_ov=3", "4 hidden units"]),
        ("FAFO", {"margin0": 0.0}, ["margin0=0", "never move"]),
        ("FAFO", {"start": fs.Start(qk_standard=[1.0])}, ["qk_trivial", "never move"]),
        ("CACO", {"start": fs.RandomStart(0.1), "margin0": 0.1}, ["RandomStart", "margin0=0.1"]),
        ("CACO", {"start": {"qk": np.zeros((50, 4))}}, ["qk", "'ov'"]),
        ("CACO", {"start": {"qk": np.zeros((50, 4)), "ov": np.zeros((4, 49))}}, ["start['ov']", "(4, 50)"]),
        ("FACO", {"start": {"qk": np.zeros((50, 4)), "ov": np.zeros((4, 50))}}, ["start['qk']", "(W_K, W_Q)"]),
        ("FACO", {"embedding": 20}, ["orthonormal", "RandomStart"]),
        ("CACO", {"embedding": np.eye(53)}, ["(53, 53)", "(54, d)"]),
        ("CACO", {"embedding": "orthogonal"}, ["embedding='orthogonal'", "orthonormal"]),
        ("CACO", {"score_scale": 0.0}, ["score_scale=0", "above 0"]),
    ],
)
def test_refusals(parameterization, changes, words):
    with pytest.raises(fs.InvalidInput) as caught:
        fs.train(LINE, parameterization, **{"ratio": 1.0, "lr": 0.1, "steps": 5, **changes})
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("changes", [{"scale": 0.0}, {"scale": 1.0, "kind": "normal"}])
def test_random_start_refusals(changes):
    with pytest.raises(fs.InvalidInput):
        fs.RandomStart(**changes)
