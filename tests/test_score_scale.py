"""A scale of the scores: full matrices under SciPy, finite steps, closed form, laws and command line."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import flowsim as fs
from flowsim import cli
from flowsim.score_scale import ScoreScale, dimensions
from flowsim.symmetric import Layout
from flowsim.training.starts import Shapes, circuits_at_start
from tests import full_matrix

TASK = fs.Task(classes=3, distinct=2, common=2, context=fs.FixedContext(distinct=3, common=4))
SCALE = 0.3
TIMES = np.array([0.5, 5.0, 40.0])


def factors_at_start(parameterization, **line):
    """The trained matrices: one or two for each circuit."""
    layout = Layout.of(TASK)
    line = {"margin0": None, "score_gap0": None, "imbalance_ov": None, "imbalance_qk": None, **line}
    circuits, _ = circuits_at_start(
        TASK, parameterization, Shapes.of(layout, parameterization, None, None, None), np.zeros(1, int),
        start=None, line=line, embedded=False, score_scale=SCALE, dtype=np.dtype(float),
    )  # fmt: skip
    return [[np.asarray(a[0]) for a in jax.tree.leaves(circuit)] for circuit in circuits]


def product(matrices):
    return matrices[0] if len(matrices) == 1 else matrices[0] @ matrices[1]


def gap_and_margin(qk, ov):
    """Score gap of the scaled scores and margin, from single entries of symmetric matrices."""
    distinct, common = np.arange(2), 6 + np.arange(2)  # of the first class, and of all
    return SCALE * (qk[distinct[0], 0] - qk[common[0], 0]), ov[0, distinct[0]] - ov[1, distinct[0]]


def scipy_flow(start, ratio, *, decay=(0.0, 0.0), normalize=(), factor=lambda _: 1.0, times=TIMES):
    """Autodiff of the scaled full model, SciPy's DOP853; nothing of flowsim but the matrices at the start."""
    sequences = full_matrix.mean_counts(TASK)
    sizes = [[a.shape for a in circuit] for circuit in start]
    flat0 = np.concatenate([a.ravel() for circuit in start for a in circuit])

    def unflatten(flat):
        found, at = [], 0
        for circuit in sizes:
            found.append([])
            for shape in circuit:
                n = int(np.prod(shape))
                found[-1].append(flat[at : at + n].reshape(shape))
                at += n
        return found

    sample = sequences.pad(*(product(c) for c in start))
    more = [tuple((0, p - a) for p, a in zip(padded.shape, product(c).shape, strict=True))
            for padded, c in zip(sample, start, strict=True)]  # fmt: skip

    @jax.jit
    def gradient(flat):
        def loss(flat):
            qk, ov = (jnp.pad(product(c), pad) for c, pad in zip(unflatten(flat), more, strict=True))
            return full_matrix.loss(SCALE * qk, ov, sequences)

        return jax.grad(loss)(flat)

    n_qk = sum(int(np.prod(shape)) for shape in sizes[0])

    def velocity(t, flat):
        g = np.asarray(gradient(flat))
        moves = []
        for name, here, rate, mu in (
            ("qk", slice(0, n_qk), ratio * factor(t), decay[0]),
            ("ov", slice(n_qk, None), 1.0, decay[1]),
        ):
            own = g[here] / np.linalg.norm(g[here]) if name in normalize else g[here]
            moves.append(-rate * (own + mu * flat[here]))
        return np.concatenate(moves)

    done = solve_ivp(velocity, (0, times[-1]), flat0, "DOP853", times, rtol=1e-11, atol=1e-13)
    return np.array([gap_and_margin(*map(product, unflatten(flat))) for flat in done.y.T]).T


@pytest.mark.parametrize(
    ("parameterization", "line"),
    [
        ("CACO", {"margin0": 0.1, "score_gap0": 0.2}),
        ("FACO", {"score_gap0": 0.3, "imbalance_qk": 0.4}),
        pytest.param("CAFO", {"imbalance_ov": -0.3}, marks=pytest.mark.slow),
        pytest.param("FAFO", {"score_gap0": 0.02, "imbalance_qk": -0.2}, marks=pytest.mark.slow),
    ],
)
def test_the_flow_is_that_of_the_scaled_matrices(parameterization, line):
    """Closed form and integration; DOP853 at 1e-11 leaves some 1e-10, the integration 1e-9."""
    start = factors_at_start(parameterization, **line)
    gap, margin = gap_and_margin(*map(product, start))
    assert gap == pytest.approx(line.get("score_gap0", 0.0), abs=1e-15)
    if len(start[0]) == 2:  # the imbalance is that of W_K and W_Q, not of scaled ones
        left, right = start[0]
        values = np.linalg.eigvalsh(left.T @ left - right @ right.T)
        assert values[np.argmax(np.abs(values))] == pytest.approx(line["imbalance_qk"])
    gap, margin = scipy_flow(start, 5.0)
    run = {"ratio": 5.0, "times": TIMES, "score_scale": SCALE, **line}
    closed = fs.exact(TASK, parameterization, **run)
    np.testing.assert_allclose(closed.score_gap, gap, rtol=0, atol=2e-9)
    np.testing.assert_allclose(closed.margin, margin, rtol=0, atol=2e-9)
    solved = fs.integrate(TASK, parameterization, **run)
    np.testing.assert_allclose(solved.score_gap, closed.score_gap, rtol=0, atol=2e-8)
    np.testing.assert_allclose(solved.margin, closed.margin, rtol=0, atol=2e-8)
    assert closed.settings["score_scale"] == solved.settings["score_scale"] == SCALE


@pytest.mark.parametrize(
    ("parameterization", "changes", "line"),
    [
        ("CACO", {"weight_decay_qk": 0.02, "weight_decay_ov": 0.01}, {"score_gap0": 0.4, "margin0": 0.3}),
        ("FACO", {"normalize": "qk", "weight_decay_qk": 0.3}, {"score_gap0": 0.4, "margin0": 0.3}),
        pytest.param("CACO", {"schedule": fs.schedules.Growing(20.0)}, {}, marks=pytest.mark.slow),
        pytest.param(
            "CACO",
            {"normalize": "both", "weight_decay_qk": 0.3},
            {"margin0": 0.2, "score_gap0": 0.1},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_interventions_act_on_the_matrices(parameterization, changes, line):
    """Decay has the rate of the matrices, a normalized gradient is that of the matrices, schedules are factors."""
    start = factors_at_start(parameterization, **line)
    normalize = {"qk": ("qk",), "both": ("qk", "ov")}.get(changes.get("normalize"), ())
    decay = (changes.get("weight_decay_qk", 0.0), changes.get("weight_decay_ov", 0.0))
    factor = changes.get("schedule", lambda _: 1.0)
    times = TIMES / 20 if normalize else TIMES  # a normalized gradient turns around at once where it reaches 0
    gap, margin = scipy_flow(
        start, 2.0, decay=decay, normalize=normalize, factor=lambda t: float(factor(t)), times=times
    )
    run = {"ratio": 2.0, "times": times, "score_scale": SCALE, "tol": 1e-9, **changes, **line}
    solved = fs.integrate(TASK, parameterization, **run)
    np.testing.assert_allclose(solved.score_gap, gap, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(solved.margin, margin, rtol=1e-8, atol=1e-8)
    if "weight_decay_qk" in changes:
        assert solved.settings["weight_decay_qk"] == changes["weight_decay_qk"]  # as given, not as it acts


@pytest.mark.parametrize("parameterization", ["CACO", "FACO", "CAFO", "FAFO"])
def test_training_takes_the_same_steps_as_the_blocks(parameterization):
    """Full matrices with the scale in their scores; the largest difference is some hundred roundings."""
    blocks = fs.Start(qk_standard=[0.3], qk_trivial=[0.2, -0.1], ov_standard=[0.1], ov_trivial=[0.2, 0.1])
    for line in ({}, {"start": blocks}):
        run = {"ratio": 4.0, "lr": 0.2, "steps": 200, "points": 10, "score_scale": "1/sqrt(d)", **line}
        run |= {"weight_decay_qk": 0.01, "weight_decay_ov": 0.02}
        trained = fs.train(TASK, parameterization, **run, progress=False)
        stepped = fs.descend(TASK, parameterization, **run)
        for name in ("margin", "score_gap", "log_odds", "log_loss"):
            np.testing.assert_allclose(getattr(trained, name), getattr(stepped, name), rtol=1e-11, atol=1e-13)
        assert stepped.settings["score_scale"] == trained.settings["score_scale"] == 11**-0.5
        # planted: a scale that is off by a thousandth
        wrong = fs.descend(TASK, parameterization, **{**run, "score_scale": 1.001 * 11**-0.5})
        assert abs(float(wrong.score_gap[-1] / trained.score_gap[-1]) - 1) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("parameterization", ["FAFO"])
def test_the_modified_flow_follows_scaled_steps(parameterization):
    """Orders 1, 2 and 3 for the flow and its first two corrections, at the slopes of halved steps."""
    line = {"score_gap0": 0.3, "margin0": 0.4, "score_scale": SCALE}
    for order in (0, 1, 2):
        errors = []
        for lr in (0.2, 0.1):
            stepped = fs.descend(TASK, parameterization, ratio=30.0, lr=lr, steps=int(20 / lr), points=1, **line)
            extra = {"step": lr, "order": order} if order else {}
            solved = fs.integrate(TASK, parameterization, ratio=30.0, times=[20.0], tol=1e-12, **extra, **line)
            errors.append(abs(float(stepped.score_gap[-1] - solved.score_gap[-1])))
        assert np.log2(errors[0] / errors[1]) == pytest.approx(order + 1, abs=0.15)


def test_equilibrium_is_where_the_scaled_flow_goes():
    decays = {"weight_decay_qk": 0.01, "weight_decay_ov": 0.02, "score_scale": SCALE}
    found = fs.equilibrium(TASK, "CACO", ratio=3.0, **decays)
    gone = fs.integrate(TASK, "CACO", ratio=3.0, times=[5e3], **decays)
    assert found.score_gap > 0.1
    assert found.score_gap == pytest.approx(float(gone.score_gap[-1]), abs=1e-6)
    assert found.margin == pytest.approx(float(gone.margin[-1]), abs=1e-6)
    # blocks of the matrices: a start there, with the same scale, has that score gap
    s, t, rest = found.state[:1], found.state[1:3], found.state[3:]
    start = fs.Start(qk_standard=s, qk_trivial=t, ov_standard=rest[:1], ov_trivial=rest[1:])
    there = fs.integrate(TASK, "CACO", ratio=3.0, times=[0.0], start=start, score_scale=SCALE)
    assert float(there.score_gap[0]) == pytest.approx(found.score_gap)


@pytest.mark.parametrize(("parameterization", "power"), [("CACO", 2), pytest.param("FAFO", 1, marks=pytest.mark.slow)])
def test_times_ratios_and_phases(parameterization, power):
    ratio = float(fs.ratio_for(TASK, parameterization, attention=0.9, margin=4.0, score_scale=SCALE))
    reached = fs.exact(TASK, parameterization, ratio=ratio, margins=[4.0], score_scale=SCALE)
    assert float(reached.attention[0]) == pytest.approx(0.9, rel=1e-11)
    assert float(fs.ratio_for(TASK, parameterization, attention=0.9, margin=4.0)) == pytest.approx(ratio * SCALE**power)
    time = fs.time_to(TASK, parameterization, ratio=ratio, attention=0.9, score_scale=SCALE)
    assert float(time) == pytest.approx(float(reached.log_time[0]), abs=1e-10)
    frozen = fs.frozen_gate(TASK, parameterization, ratio=2.0, times=[3.0], score_scale=SCALE)
    plain = fs.frozen_gate(TASK, parameterization, ratio=2.0 * SCALE**power, times=[3.0])
    assert float(frozen.score_gap[0]) == pytest.approx(float(plain.score_gap[0]), rel=1e-12)
    ratios, log_times = np.array([1e-3, 1.0, 30.0]), np.array([3.0, 30.0, 1e4])
    scaled = fs.phase_diagram(TASK, parameterization, ratios=ratios, log_times=log_times, score_scale=SCALE)
    plain = fs.phase_diagram(TASK, parameterization, ratios=ratios * SCALE**power, log_times=log_times)
    np.testing.assert_array_equal(scaled.law, plain.law)
    np.testing.assert_allclose(scaled.coefficient, plain.coefficient, rtol=1e-9)
    np.testing.assert_allclose(scaled.crossing, plain.crossing, rtol=1e-9)


def test_laws_are_judged_at_the_ratio_that_acts():
    """The constant of the odds is rho/2 with the effective ratio; without the scale in its settings, it fails."""
    run = {"ratio": 50.0, "log_times": np.geomspace(1, 1e6, 60)}
    trajectory = fs.exact(TASK, "CACO", score_scale=SCALE, **run)
    report = fs.verify(trajectory)
    assert report.ok
    (odds,) = [row for row in report.rows if row.kind == "exact-law" and row.observable == "odds"]
    plain = fs.verify(fs.exact(TASK, "CACO", **{**run, "ratio": 50.0 * SCALE**2}))
    (same,) = [row for row in plain.rows if row.kind == "exact-law" and row.observable == "odds"]
    assert odds.verdict == same.verdict == "holds"
    assert odds.predicted_constant == pytest.approx(same.predicted_constant)
    settings = {**trajectory.settings, "score_scale": 1.0}
    assert not fs.verify(dataclasses.replace(trajectory, settings=settings)).ok
    own = fs.Trajectory.from_arrays(
        margin=trajectory.margin, score_gap=trajectory.score_gap, log_odds=trajectory.log_odds,
        log_times=trajectory.log_time, task=TASK, ratio=50.0, score_scale=SCALE,
    )  # fmt: skip
    assert fs.verify(own).ok


@pytest.mark.slow
def test_derivatives_by_the_scale():
    def gap(scale):
        return fs.exact(TASK, "FACO", ratio=3.0, times=[20.0], score_scale=scale).score_gap[0]

    step = 1e-4
    slope = (float(gap(SCALE + step)) - float(gap(SCALE - step))) / (2 * step)
    assert float(jax.grad(gap)(SCALE)) == pytest.approx(slope, rel=1e-6)


def test_dimensions_and_bad_scales():
    context = fs.FixedContext(distinct=3, common=4, null=2)
    wide = fs.Task(classes=4, distinct=3, common=5, null=True, attend_query=True, context=context)
    shared = fs.Task(classes=4, distinct=3, common=5, null=True, query="shared", context=context)
    for task in (TASK, wide, shared):
        layout = Layout.of(task)
        assert dimensions(task) == layout.tokens + (0 if task.attend_query else layout.queries)
    for bad in (0.0, -1.0, np.nan, "1/d", None, True, 1e-200, 1e200):
        with pytest.raises(fs.InvalidInput, match="score_scale"):
            fs.exact(TASK, ratio=1.0, times=[1.0], score_scale=bad)
    with pytest.raises(fs.InvalidInput, match="needs a task"):
        fs.Trajectory.from_arrays(margin=[1.0], times=[1.0], score_scale="1/sqrt(d)")
    assert ScoreScale.of(2.0, "FACO").gain() == 2.0
    assert ScoreScale.of(2.0, "CACO").gain() == 4.0
    assert ScoreScale.of(2.0, "CACO").gain(normalized=True) == 2.0


def test_the_command_line_takes_a_scale(capsys):
    task = ["--classes", "3", "--distinct", "2", "--common", "2", "--context", "3,4"]
    assert cli.run(["sweep", *task, "--ratios", "2", "--time", "9", "--score-scale", "1/sqrt(d)", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["score_scale"] == 11**-0.5
    assert cli.run(["integrate", *task, "--score-scale", "0", "--json"]) == 2
    assert "--score-scale 0" in capsys.readouterr().err
