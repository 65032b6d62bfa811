"""Training of the full matrices: the model, its gradient, and agreement with the reduced steps."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import flowsim as fs
from flowsim import data, symmetric
from flowsim.models import (
    AttentionModel,
    Circuits,
    CollapsedCircuit,
    FactorizedCircuit,
    log_error_odds,
    log_softplus,
    loss,
    loss_and_gradient,
    table_gradient,
)
from flowsim.solve.stepping import STRICT, record_steps
from flowsim.training import step
from flowsim.training.examples import Examples, Source
from flowsim.training.observe import Plan, observe
from flowsim.training.optimizer import optimizer
from tests import full_matrix as full

TASKS = {
    "paper-size": fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31)),
    "mixture, shared and attended query, vocabulary head": fs.Task(
        classes=3,
        groups=[fs.Group("topic", "distinct", 4), fs.Group("tint", "distinct", 2), fs.Group("filler", "common", 5)],
        context=fs.MixtureContext([(0.3, (8, 1, 10)), (0.7, (2, 3, 5))]),
        query="shared",
        attend_query=True,
        other_outputs=7,
    ),
    "null tokens, attended query": fs.Task(
        classes=5, distinct=2, null=True, context=fs.FixedContext(distinct=3, null=7.5), attend_query=True
    ),
    "binomial, shared query, null tokens": fs.Task(
        classes=3, distinct=2, null=True, context=fs.BinomialContext(6, 0.4), query="shared"
    ),
}
SMALL = fs.Task(
    classes=2,
    groups=[fs.Group("filler", "common", 3), fs.Group("blank", "null"), fs.Group("topic", "distinct", 1)],
    context=fs.MixtureContext([(0.3, (4, 5, 1)), (0.7, (2, 1.5, 0))]),
    other_outputs=2,
)
OBSERVABLES = ("margin", "score_gap", "score_gap_change", "log_odds", "log_error", "log_loss")
BY_GROUP = ("margins", "scores", "log_attentions")


def mismatch(one: fs.Trajectory, other: fs.Trajectory) -> float:
    """Largest difference of any observable at any time, relative where the observable exceeds 1."""
    worst = 0.0
    for name in OBSERVABLES + BY_GROUP:
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None)
        if a is not None:
            worst = max(worst, float(np.max(np.abs(a - b) / np.maximum(1, np.abs(b)))))
    return worst


# --- training is the reduced descent ---


@pytest.mark.parametrize("name", TASKS)
def test_full_batch_training_is_the_reduced_descent(name, capsys):
    runs = {"ratio": [0.1, 5.0], "lr": [0.05, 0.5], "steps": 10_000, "points": 100}
    trained, reduced = fs.train(TASKS[name], **runs), fs.descend(TASKS[name], **runs)
    assert (trained.status == fs.Status.OK).all()
    assert (reduced.status == fs.Status.OK).all()
    assert (trained.n_steps == 10_000).all()
    assert (trained.log_time == reduced.log_time).all()
    asymmetry = float(jnp.max(trained.extra["asymmetry"]))
    worst = mismatch(trained, reduced)
    with capsys.disabled():
        print(f"\n{name}: difference {worst:.1e}, asymmetry {asymmetry:.1e}", end=" ")
    assert worst < 1e-9
    assert asymmetry < 1e-10
    # planted: a ratio, then a learning rate, off by one in a thousand
    assert mismatch(trained, fs.descend(TASKS[name], **runs | {"ratio": [0.1001, 5.005]})) > 1e-6
    assert mismatch(trained, fs.descend(TASKS[name], **runs | {"lr": [0.05005, 0.5005]})) > 1e-6


def test_agreement_from_a_start():
    task = TASKS["mixture, shared and attended query, vocabulary head"]
    start = fs.Start(
        qk_trivial=[0.3, -0.2, 0.5, 0.1],
        ov_standard=[0.4, -0.3],
        ov_trivial=[0.1, 0.2, -0.4, 0.3],
        ov_trivial_rest=[0.2, 0.1, 0.0, -0.6],
    )
    runs = {"ratio": [0.0, 2.0], "lr": [0.05, 0.2], "steps": 300, "points": 100, "start": start}
    trained, reduced = fs.train(task, **runs), fs.descend(task, **runs)
    assert mismatch(trained, reduced) < 1e-11
    np.testing.assert_allclose(trained.time[0], np.outer([0.05, 0.2], record_steps(300, 100)), rtol=1e-14)
    other = fs.Start(qk_trivial=[0.3, -0.2, 0.5, 0.1], ov_standard=[0.4, -0.3])  # planted: another start
    assert mismatch(trained, fs.descend(task, **runs | {"start": other})) > 1e-3


def test_the_margin_and_the_gap_of_the_start_are_kept(reference_task):
    runs = {"ratio": 5.0, "lr": 0.1, "steps": 100, "points": 100, "margin0": 0.7, "score_gap0": -0.4}
    trained = fs.train(reference_task, **runs)
    assert mismatch(trained, fs.descend(reference_task, **runs)) < 1e-12
    assert float(trained.margin[0]) == pytest.approx(0.7, abs=0.01)
    assert float(trained.score_gap[0]) == pytest.approx(-0.4, abs=0.01)


# --- the model ---


def random_matrices(layout, seed, scale):
    generator = np.random.default_rng(seed)
    qk = scale * generator.normal(size=(layout.tokens, layout.queries))
    return symmetric.Matrices(
        jnp.asarray(qk), jnp.asarray(scale * generator.normal(size=(layout.outputs, layout.tokens)))
    )


def model_of(matrices):
    return AttentionModel(CollapsedCircuit(matrices.qk), CollapsedCircuit(matrices.ov))


_value_and_grad = jax.jit(jax.value_and_grad(loss))
_table_gradient = jax.jit(table_gradient)
_nearest = jax.jit(
    lambda layout, w: symmetric.symmetric_matrices(layout, symmetric.averages_of_matrices(layout, w)), static_argnums=0
)
_asymmetry = jax.jit(symmetric.asymmetry, static_argnums=0)


@pytest.mark.parametrize("task", [*TASKS.values(), SMALL], ids=[*TASKS, "small"])
def test_loss_and_gradient_of_any_matrices(task):
    layout, batch, reference = symmetric.Layout.of(task), data.population(task), full.mean_counts(task)
    for seed, scale in enumerate([0.1, 1.0, 4.0]):
        matrices = random_matrices(layout, seed, scale)
        value, slope = _value_and_grad(model_of(matrices), batch)
        qk, ov = (np.asarray(w) for w in matrices)
        assert float(value) == pytest.approx(full.full_loss(qk, ov, reference), rel=1e-12)
        for ours, theirs in zip((slope.qk.weight, slope.ov.weight), full.full_gradient(qk, ov, reference), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-13 * max(1, np.abs(theirs).max()))
        by_hand, slopes = _table_gradient(matrices, batch)
        assert float(by_hand) == pytest.approx(float(value), rel=1e-14)
        for ours, theirs in zip(slopes, (slope.qk.weight, slope.ov.weight), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15 * float(jnp.max(jnp.abs(theirs))))
        # planted: one weight of the population off by a part in a million
        wrong = eqx.tree_at(lambda batch: batch.weights, batch, batch.weights.at[0].multiply(1 + 1e-6))
        assert float(_value_and_grad(model_of(matrices), wrong)[0]) != pytest.approx(float(value), rel=1e-12)


@pytest.mark.parametrize("name", ["mixture, shared and attended query, vocabulary head", "null tokens, attended query"])
def test_the_loss_tells_of_every_parameter_that_is_not_finite(name):
    """One entry of one factor at a time, of tokens that no sequence holds too; finite factors have a finite loss."""
    task = TASKS[name]
    layout, batch = symmetric.Layout.of(task), data.population(task).rows(jnp.arange(2))
    generator = np.random.default_rng(0)
    sizes = [(layout.tokens, 3), (3, layout.queries), (layout.outputs, 3), (3, layout.tokens)]
    flat = jnp.asarray(generator.normal(size=sum(a * b for a, b in sizes)))

    @jax.jit
    @jax.vmap
    def value(flat):
        parts = jnp.split(flat, np.cumsum([a * b for a, b in sizes])[:-1])
        factors = [part.reshape(size) for part, size in zip(parts, sizes, strict=True)]
        circuits = Circuits(FactorizedCircuit(*factors[:2]), FactorizedCircuit(*factors[2:]))
        return loss_and_gradient(circuits, None, jnp.asarray(1.0), batch)[0]

    assert np.isfinite(value(flat[None])).all()
    for bad in (np.inf, -np.inf, np.nan):
        assert np.isnan(value(jnp.where(jnp.eye(flat.size, dtype=bool), bad, flat))).all()


@pytest.mark.parametrize("name", list(TASKS)[1:3])
def test_gradient_against_finite_differences(name):
    task = TASKS[name]
    batch, matrices = data.population(task), random_matrices(symmetric.Layout.of(task), 0, 1.0)
    directions = random_matrices(symmetric.Layout.of(task), 1, 1.0)
    _, slope = _value_and_grad(model_of(matrices), batch)
    for circuit in ("qk", "ov"):

        def along(step, circuit=circuit):
            moved = matrices._replace(**{circuit: getattr(matrices, circuit) + step * getattr(directions, circuit)})
            return float(_value_and_grad(model_of(moved), batch)[0])

        h = 1e-3
        by_difference = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
        ours = float(jnp.sum(getattr(slope, circuit).weight * getattr(directions, circuit)))
        assert ours == pytest.approx(by_difference, rel=1e-8)
        assert ours * (1 + 1e-6) != pytest.approx(by_difference, rel=1e-8)  # planted


@pytest.mark.parametrize("task", [*TASKS.values(), SMALL], ids=[*TASKS, "small"])
def test_matrices_of_blocks_and_back(task):
    layout = symmetric.Layout.of(task)
    blocks = np.random.default_rng(0).normal(size=sum(fs.derive(task).reduction.block_sizes.values()))
    averages = symmetric.averages_of_blocks(layout, jnp.asarray(blocks))
    matrices = jax.tree.map(np.asarray, symmetric.symmetric_matrices(layout, averages))
    for ours, theirs in zip(matrices, full.symmetric_matrices(task, blocks), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-14)
    # any matrices: the averages are the orthogonal projection
    anything = random_matrices(layout, 0, 1.0)
    by_basis = full.symmetric_matrices(task, full.project(task, *anything))
    for ours, theirs in zip(_nearest(layout, anything), by_basis, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-14)
    off = sum(float(np.sum(np.square(a - b))) for a, b in zip(anything, by_basis, strict=True))
    size = sum(float(np.sum(np.square(a))) for a in anything)
    assert float(_asymmetry(layout, anything)) == pytest.approx(np.sqrt(off / size), rel=1e-12)
    assert float(_asymmetry(layout, matrices)) < 1e-14
    assert float(_asymmetry(layout, jax.tree.map(np.zeros_like, matrices))) == 0
    off_by_one = np.array(matrices.ov)
    off_by_one[0, 0] += 1e-6  # planted
    assert float(_asymmetry(layout, matrices._replace(ov=off_by_one))) > 1e-8


def test_a_small_loss_keeps_its_digits():
    task = TASKS["null tokens, attended query"]
    layout, batch = symmetric.Layout.of(task), data.population(task)
    with mpmath.workdps(50):
        for scale in (1.0, 30.0, 300.0):
            matrices = random_matrices(layout, 3, scale)
            model = model_of(matrices)
            odds = np.asarray(log_error_odds(model(batch), batch))
            for row, logits in enumerate(np.asarray(model(batch))):
                own = mpmath.mpf(float(logits[np.asarray(batch.labels)[row]][0]))
                others = [mpmath.mpf(float(z)) for z in logits[~np.asarray(batch.labels)[row]]]
                exact = mpmath.log(mpmath.fsum(mpmath.exp(z - own) for z in others))
                assert abs(odds[row] - exact) <= 4e-16 * max(1, abs(exact), abs(own))


@pytest.mark.parametrize("x", [-800.0, -745.0, -41.0, -40.0, -39.0, -1.0, 0.0, 3.0, 800.0])
def test_log_softplus(x):
    with mpmath.workdps(400):
        exact = mpmath.log(mpmath.log1p(mpmath.exp(mpmath.mpf(x))))
        assert abs(float(log_softplus(jnp.asarray(x))) - exact) <= 4e-16 * max(1, abs(exact))
    assert np.isfinite(float(jax.grad(log_softplus)(jnp.asarray(x))))


def test_records_far_from_the_start_do_not_underflow(reference_task):
    run = fs.train(reference_task, ratio=1.0, lr=0.1, steps=100, points=100, margin0=3000.0, score_gap0=800.0)
    np.testing.assert_allclose(run.log_loss, np.log(3) - 3000.0, rtol=1e-15)
    np.testing.assert_allclose(run.log_odds, 800 + np.log(32 / 31), rtol=1e-15)
    assert run.status == fs.Status.OK


# --- records ---


def test_attention_is_the_mean_over_sequences():
    task = TASKS["mixture, shared and attended query, vocabulary head"]
    plan, matrices = Plan.of(task), random_matrices(symmetric.Layout.of(task), 5, 0.7)
    seen = jax.jit(observe, static_argnums=0)(plan, data.population(task), model_of(matrices), 0.0)
    sequences = full.mean_counts(task)
    qk, ov = sequences.pad(*(np.asarray(w) for w in matrices))
    attention = np.asarray(full.attend(qk[:, sequences.columns].T, sequences.appearances, sequences.nulls))
    tokens = [index for index in full.token_index(task) if index is not None]
    masses = np.array([sequences.weights @ attention[:, index.ravel()].sum(axis=1) for index in tokens])
    np.testing.assert_allclose(seen.log_attentions, np.log(masses), rtol=1e-12)
    assert float(seen.log_odds) == pytest.approx(np.log(masses[0] / (1 - masses[0])), rel=1e-12)
    logits = np.where(sequences.possible, attention @ ov.T, -np.inf)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    own = np.take_along_axis(p / p.sum(axis=1, keepdims=True), sequences.labels[:, None], axis=1)[:, 0]
    assert float(seen.log_error) == pytest.approx(np.log(sequences.weights @ (1 - own)), rel=1e-12)
    assert float(seen.log_loss) == pytest.approx(np.log(sequences.weights @ -np.log(own)), rel=1e-12)
    assert float(seen.extra["asymmetry"]) > 0.5


# --- many runs ---


def test_a_diverged_lane_says_when_and_leaves_the_others_alone(reference_task):
    runs = {"steps": 400, "points": 100, "margin0": 0.1}
    both = fs.train(reference_task, ratio=[5.0, 1e10], lr=[0.1, 1e300], **runs)
    assert both.status.tolist() == [[fs.Status.OK, fs.Status.OK], [fs.Status.OK, fs.Status.DIVERGED]]
    assert both.axes == ("ratio", "lr")
    np.testing.assert_allclose(both.log_time[0], np.log(np.outer([0.1, 1e300], record_steps(400, 100))), atol=1e-15)
    assert both.n_steps.tolist() == [[400, 400], [400, 0]]
    assert np.isnan(both.margin[1, 1]).all()
    assert np.isfinite(both.margin[0]).all()
    calm = fs.train(reference_task, ratio=[5.0, 1e10], lr=[0.1, 0.2], **runs)
    for name in (*OBSERVABLES, "status", "n_steps"):
        assert (getattr(both, name)[:, 0] == getattr(calm, name)[:, 0]).all()
    reduced = fs.descend(reference_task, ratio=[5.0, 1e10], lr=[0.1, 1e300], **runs)
    assert (reduced.n_steps == both.n_steps).all()
    assert (reduced.status == both.status).all()


def contradictory(batch: data.Batch) -> data.Batch:
    """Every sequence twice, with two different labels: no model can learn that, and large steps overshoot."""
    twice = jax.tree.map(lambda array: jnp.concatenate([array, array]), batch)
    labels = jnp.concatenate([batch.labels, jnp.roll(batch.labels, 1, axis=1)])
    return eqx.tree_at(lambda b: (b.labels, b.weights), twice, (labels, twice.weights / 2))


def test_large_steps_off_the_symmetric_line(reference_task):
    plan, batch = Plan.of(reference_task), contradictory(data.population(reference_task))
    lrs, steps = [0.1, 60.0, 300.0, 1e4], 50
    start = random_matrices(plan.layout, 0, 1.0)
    circuits = Circuits(CollapsedCircuit(start.qk), CollapsedCircuit(start.ov))
    whole, circuits = jax.tree.map(lambda array: array[None], (batch, circuits))
    program = step.Program(
        plan, Source(None, None, "counts", True), optimizer("sgd", None, None, None, "coupled")[0], STRICT
    )
    fixed = step.Fixed(Examples(whole, whole, None), None, jnp.asarray(1.0), None, None, circuits)

    @jax.jit
    def run(lrs, gaps):
        zero = jnp.asarray(0)
        return jax.vmap(lambda lr: step.whole_run(program, fixed, step.Lane(1.0, lr, zero, zero), gaps))(lrs)

    got = run(jnp.asarray(lrs), jnp.ones(steps, dtype=int))
    for lane, lr in enumerate(lrs):  # the same steps, one by one, judged by the documented rules
        qk, ov = start
        losses = []
        for _ in range(steps + 1):
            value, slope = _value_and_grad(model_of(symmetric.Matrices(qk, ov)), batch)
            losses.append(float(value))
            qk, ov = qk - lr * slope.qk.weight, ov - lr * slope.ov.weight
        exploded = [i for i, value in enumerate(losses) if value > 10 * max(losses[0], np.log(4))]
        if exploded:
            expected = (fs.Status.DIVERGED, exploded[0] - 1)
        elif losses[-1] > losses[0]:
            expected = (fs.Status.DIVERGED, max(i for i, value in enumerate(losses) if value <= losses[0]))
        else:
            expected = (fs.Status.OK, steps)
        assert (got.status[lane], got.n_steps[lane]) == expected
        last = expected[1]
        np.testing.assert_allclose(
            got.records.log_loss[lane, :last], np.log(losses[1 : last + 1]), rtol=1e-9, atol=1e-9
        )
        assert np.isnan(got.records.log_loss[lane, last:]).all()
    assert got.status.tolist() == [fs.Status.OK, fs.Status.DIVERGED, fs.Status.DIVERGED, fs.Status.DIVERGED]
    # what blocks cannot describe says so
    assert float(got.records.extra["asymmetry"][0].min()) > 0.9


def test_one_trace_for_all_numbers(monkeypatch):
    traces = []
    original = step.stretch
    monkeypatch.setattr(step, "stretch", lambda *args: (traces.append(1), original(*args))[1])
    for m, ratio, lr, steps in [(3, 5.0, 0.1, 1000), (2.5, 7.0, 0.3, 123), (1.0, 0.0, 2.0, 2000)]:
        task = fs.Task(classes=2, distinct=1, common=1, context=fs.FixedContext(distinct=m, common=31))
        fs.train(task, ratio=ratio, lr=lr, steps=steps, points=100, margin0=0.1 * m)
    assert len(traces) == 1


def test_single_precision(reference_task):
    runs = {"ratio": 5.0, "lr": 0.5, "steps": 2000, "points": 100}
    single, double = fs.train(reference_task, **runs, dtype="float32"), fs.train(reference_task, **runs)
    assert single.settings["dtype"] == "float32"
    assert single.margin.dtype == np.float64
    assert 1e-9 < mismatch(single, double) < 1e-3
    assert 1e-9 < float(jnp.max(single.extra["asymmetry"])) < 1e-4


@pytest.mark.slow
def test_single_precision_alone():
    """Without JAX's float64, float32 training works and float64 is refused by name."""
    code = (
        "import flowsim as fs\n"
        "task = fs.Task(classes=2, distinct=1, common=1, context=fs.FixedContext(distinct=3, common=4))\n"
        "run = fs.train(task, ratio=1.0, lr=0.1, steps=50, dtype='float32')\n"
        "print(run.margin.dtype, run.status)\n"
        "try: fs.train(task, ratio=1.0, lr=0.1, steps=50)\n"
        "except fs.InvalidInput as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"FLOWSIM_X64": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first == "float32 0"
    assert "FLOWSIM_X64" in second


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": 8}, ["seeds=8", "random"]),
        ({"population": "sampled-identities"}, ["sampled-identities", "mean-counts"]),
        ({"population": "mean"}, ["population='mean'", "mean-counts"]),
        ({"dtype": "float16"}, ["dtype='float16'", "float32"]),
        ({"dtype": "many digits"}, ["dtype='many digits'", "float32"]),
    ],
)
def test_refusals(reference_task, changes, words):
    with pytest.raises(fs.InvalidInput) as caught:
        fs.train(reference_task, **{"ratio": 1.0, "lr": 0.1, "steps": 5, **changes})
    assert all(word in str(caught.value) for word in words), str(caught.value)
