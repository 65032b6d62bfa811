"""Training of factors: agreement with the recursion of the block factors, starts, and what the flow conserves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim as fs
from flowsim.codegen import compile
from flowsim.models import Circuits, CollapsedCircuit, FactorizedCircuit
from flowsim.solve.stepping import record_steps
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


# --- the recursion, written out for blocks ---


def block_parts(task, blocks):
    """The small matrices of both circuits, from the documented order s, t, S, T1, T2."""
    sizes = fs.derive(task).reduction.block_sizes
    at, family = 0, {}
    for name, size in sizes.items():
        family[name] = blocks[at : at + size]
        at += size
    qk = [family[name][:, None] for name in ("qk_standard", "qk_trivial") if name in family]
    trivial = [family[name] for name in ("ov_trivial", "ov_trivial_rest") if name in family]
    return [qk, [family["ov_standard"][None], jnp.stack(trivial)]]


def join(qk, ov):
    return jnp.concatenate([part.ravel() for part in (*qk, *ov)])


def balanced(matrix, imbalance):
    """P Q = matrix with P^T P - Q Q^T = lambda I, by the singular values."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    p = np.sqrt(imbalance / 2 + np.sqrt(imbalance**2 / 4 + s**2))
    p = np.where(p > 0, p, np.sqrt(np.maximum(s, 0)))
    q = np.divide(s, p, out=np.zeros_like(s), where=p > 0)
    return jnp.asarray(u * p), jnp.asarray(q[:, None] * v)


def recursion(task, parameterization, blocks, imbalance_qk, imbalance_ov, ratio, lr, grid):
    """Blocks after each number of steps: B <- B - eta G, or P <- P - eta G Q^T, Q <- Q - eta P^T G."""
    field = compile(fs.derive(task))
    parameters = field.parameters(task, 1.0)
    parts = block_parts(task, blocks)
    state = []
    for letter, own, imbalance in zip(parameterization[::2], parts, (imbalance_qk, imbalance_ov), strict=True):
        state.append([(part,) if letter == "C" else balanced(np.asarray(part), imbalance) for part in own])

    def product(factors):
        return factors[0] if len(factors) == 1 else factors[0] @ factors[1]

    def step(_, state):
        blocks = join(*[[product(factors) for factors in own] for own in state])
        pulls = block_parts(task, field.gradient(blocks, 0.0, parameters))
        new = []
        for own, pull, rate in zip(state, pulls, (ratio * lr, lr), strict=True):
            moved = []
            for factors, g in zip(own, pull, strict=True):
                if len(factors) == 1:
                    moved.append((factors[0] - rate * g,))
                else:
                    p, q = factors
                    moved.append((p - rate * g @ q.T, q - rate * p.T @ g))
            new.append(moved)
        return new

    def segment(state, gap):
        state = jax.lax.fori_loop(0, gap, step, state)
        return state, join(*[[product(factors) for factors in own] for own in state])

    return jax.jit(lambda state, gaps: jax.lax.scan(segment, state, gaps)[1])(
        state, jnp.asarray(np.diff(grid, prepend=0))
    )


def observed(task, blocks):
    field = compile(fs.derive(task))
    parameters = field.parameters(task, 1.0)
    seen = jax.jit(jax.vmap(lambda b: field.observables(field.to_reduced(b, parameters), parameters)))(blocks)
    return {name: np.asarray(getattr(seen, name)) for name in ("margin", "score_gap", "log_odds", "log_loss")}


def mismatch(trajectory, expected):
    return max(
        float(np.max(np.abs(np.asarray(getattr(trajectory, name)) - value) / np.maximum(1, np.abs(value))))
        for name, value in expected.items()
    )


@functools.cache
def line_blocks(margin, gap):
    """The start on the line of the collapsed flow, from a long way down that flow."""
    field = compile(fs.derive(LINE))
    parameters = field.parameters(LINE, 1.0)
    zeros = jnp.zeros(2)
    both = field.from_reduced(jnp.asarray([gap, margin]), zeros, jnp.zeros(field.n_blocks), parameters)
    return np.asarray(both)


@pytest.mark.parametrize("parameterization", FACTORIZED)
def test_training_of_factors_is_the_recursion_of_the_block_factors(parameterization, capsys):
    grid = record_steps(10_000, 60)
    qk, ov = (0.01 if letter == "F" else 0.0 for letter in parameterization[::2])
    hidden = {"hidden_qk": 6} if parameterization == "FACO" else {"hidden_ov": 9}  # units to spare
    trained = fs.train(LINE, parameterization, ratio=5.0, lr=0.2, steps=10_000, points=60, **hidden)
    expected = observed(LINE, recursion(LINE, parameterization, line_blocks(ov, qk), 0, 0, 5.0, 0.2, grid))
    worst, asymmetry = mismatch(trained, expected), float(jnp.max(trained.extra["asymmetry"]))
    with capsys.disabled():
        print(f"\n{parameterization}: difference {worst:.1e}, asymmetry {asymmetry:.1e}", end=" ")
    assert trained.status == fs.Status.OK
    assert worst < 1e-9
    assert asymmetry < 1e-10
    # planted: a margin off by a part in a thousand
    other = {**expected, "margin": 1.001 * expected["margin"]}
    assert mismatch(trained, other) > 1e-6


@pytest.mark.parametrize(("parameterization", "imbalances"), [("FAFO", (0.3, 0.2))])
def test_imbalanced_factors_of_any_blocks(parameterization, imbalances):
    task, grid = GENERAL, record_steps(400, 40)
    blocks = np.concatenate([BLOCKS[name] for name in fs.derive(task).reduction.block_sizes])
    given = dict(zip(("imbalance_qk", "imbalance_ov"), imbalances, strict=True))
    given = {name: value for name, value in given.items() if value}
    run = {"ratio": 2.0, "lr": 0.1, "steps": 400, "points": 40}
    trained = fs.train(task, parameterization, start=fs.Start(**BLOCKS), **run, **given)
    expected = observed(task, recursion(task, parameterization, blocks, *imbalances, 2.0, 0.1, grid))
    assert mismatch(trained, expected) < 1e-11
    other = observed(task, recursion(task, parameterization, blocks, imbalances[0], 0.1, 2.0, 0.1, grid))  # planted
    assert mismatch(trained, other) > 1e-6


# --- starts ---


@pytest.mark.parametrize("task", [LINE, GENERAL], ids=["line", "general"])
@pytest.mark.parametrize("imbalance", [0.0, 0.7, -0.7])
def test_symmetric_factors_make_the_matrix_and_are_balanced(task, imbalance):
    layout = Layout.of(task)
    blocks = np.concatenate([BLOCKS[name] for name in fs.derive(GENERAL).reduction.block_sizes])
    start = fs.Start(**BLOCKS) if task is GENERAL else None
    line = {"margin0": None, "score_gap0": None, "imbalance_ov": imbalance, "imbalance_qk": imbalance}
    if task is LINE:
        line |= {"margin0": 0.8, "score_gap0": -0.3}
        blocks = line_blocks(0.8, -0.3)
    shapes = Shapes.of(layout, "FAFO", None, None, None)
    made, _ = circuits_at_start(
        task,
        "FAFO",
        shapes,
        np.zeros(1, int),
        start=start,
        line=line,
        embedded=False,
        score_scale=1.0,
        dtype=np.dtype("float64"),
    )
    circuits = jax.tree.map(lambda array: array[0], made)
    matrices = symmetric_matrices(layout, averages_of_blocks(layout, jnp.asarray(blocks)))
    for circuit, matrix, parts in zip(circuits, matrices, block_parts(task, jnp.asarray(blocks)), strict=True):
        np.testing.assert_allclose(circuit.matrix(), matrix, atol=1e-15)
        # lambda on every hidden unit in use: one copy of a representation for each singular value of its part
        ranks = [np.linalg.matrix_rank(np.asarray(part)) for part in parts]
        used = (task.classes - 1) * ranks[0] + ranks[1]
        eigenvalues = np.linalg.eigvalsh(circuit.imbalance())
        expected = np.sort([imbalance] * used + [0.0] * (eigenvalues.size - used))
        np.testing.assert_allclose(eigenvalues, expected, atol=1e-14)
        # permuting the classes permutes the units: every factor is the same after a cyclic shift of both
        k = task.classes
        if circuit is circuits.ov:
            shifted = np.array(circuit.left)
            shifted[:k, :k] = np.roll(shifted[:k, :k], (1, 1), axis=(0, 1))
            np.testing.assert_array_equal(shifted, circuit.left)


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
    assert set(collapsed.extra) == {"asymmetry"}


# --- scale ---


def test_the_scale_of_the_scores_is_a_ratio():
    r"""$s = c\,W$: collapsed scores follow the unscaled flow at the ratio $c^2 r$, factorized ones at $c\,r$."""
    run = {"lr": 0.1, "steps": 500, "points": 50}
    for parameterization, power in (("CACO", 2), ("FAFO", 1)):
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
