"""The trained parameters, as `train(keep_circuits=True)` gives them back."""

import contextlib
import functools
import io

import jax
import numpy as np
import pytest

import flowsim as fs
from flowsim._files import read_arrays
from flowsim.models import Circuits, CollapsedCircuit, FactorizedCircuit
from flowsim.symmetric import Layout
from flowsim.training import machine
from flowsim.training import step as steps
from tests import full_matrix as full

TASK = fs.Task(classes=3, distinct=2, common=2, context=fs.FixedContext(distinct=3, common=4), other_outputs=1)
RUN = {"lr": 0.5, "points": 1, "progress": False}


def test_matrices_after_the_last_step_are_those_of_the_reference():
    trained = fs.train(TASK, "CACO", ratio=[1.0, 3.0], steps=7, keep_circuits=True, **RUN)
    seen = full.mean_counts(TASK)
    for i, ratio in enumerate((1.0, 3.0)):
        qk, ov = np.zeros((8, 3)), np.zeros((4, 8))
        for _ in range(7):
            by_qk, by_ov = full.full_gradient(qk, ov, seen)
            qk, ov = qk - ratio * 0.5 * by_qk, ov - 0.5 * by_ov
        own = trained.lane(ratio=i).circuits
        # seven steps of size below 1, each with a rounding of a few ulp
        np.testing.assert_allclose(own.qk.matrix(), qk, rtol=0, atol=1e-14)
        np.testing.assert_allclose(own.ov.matrix(), ov, rtol=0, atol=1e-14)
        np.testing.assert_array_equal(own.qk.matrix(), trained.circuits.qk.matrix()[i])
    assert fs.train(TASK, "CACO", ratio=1.0, steps=1, **RUN).circuits is None


@pytest.mark.slow
def test_factors_have_the_axes_of_the_lanes_and_training_goes_on_from_them(tmp_path):
    given = {"ratio": 2.0, "start": fs.RandomStart(0.3), "hidden_qk": 4, "hidden_ov": 5, **RUN}
    both = fs.train(TASK, "FAFO", steps=9, seeds=2, keep_circuits=True, **given)
    assert both.circuits.ov.left.shape == (2, 4, 5)
    assert both.circuits.qk.right.shape == (2, 4, 3)
    assert both.circuits.qk.imbalance().shape == (2, 4, 4)
    first = fs.train(TASK, "FAFO", steps=4, seeds=2, keep_circuits=True, **given).lane(seed=1).circuits
    rest = {"qk": (first.qk.left, first.qk.right.T), "ov": (first.ov.left, first.ov.right)}
    after = fs.train(TASK, "FAFO", steps=5, keep_circuits=True, **{**given, "start": rest})
    for one, other in zip(jax.tree.leaves(after.circuits), jax.tree.leaves(both.lane(seed=1).circuits), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)

    both.save(tmp_path / "both.nc")
    loaded = fs.Trajectory.load(tmp_path / "both.nc").circuits
    assert isinstance(loaded, Circuits)
    assert isinstance(loaded.qk, FactorizedCircuit)
    jax.tree.map(np.testing.assert_array_equal, loaded, both.circuits)
    mixed = fs.train(TASK, "CAFO", ratio=1.0, steps=1, start=fs.RandomStart(0.3), keep_circuits=True, **RUN)
    mixed.save(tmp_path / "mixed.nc")
    loaded = fs.Trajectory.load(tmp_path / "mixed.nc").circuits
    assert isinstance(loaded.qk, CollapsedCircuit)
    jax.tree.map(np.testing.assert_array_equal, loaded, mixed.circuits)


def test_runs_in_parts_a_diverged_one_and_a_resumed_one(monkeypatch, tmp_path):
    given = {**RUN, "ratio": 1.0, "lr": [0.1, 0.2, 0.5, 1e9], "steps": 6, "start": fs.RandomStart(0.3)}
    given["keep_circuits"] = True
    together = fs.train(TASK, "FAFO", **given)
    assert together.status.tolist()[:3] == [0, 0, 0]
    assert not together.ok[3]
    assert np.isnan(together.circuits.ov.left[3]).all()
    assert np.isfinite(together.circuits.ov.left[:3]).all()

    one, each = machine.memory, []
    monkeypatch.setattr(machine, "memory", lambda *args: each.append(one(*args)) or each[-1])
    monkeypatch.setattr(machine, "memory_limit", lambda _: int(2.5 * each[-1]) if each else 2**40)
    path = tmp_path / "run.npz"
    in_parts = fs.train(TASK, "FAFO", checkpoint=path, **given)
    resumed = fs.train(TASK, "FAFO", checkpoint=path, resume=True, **given)
    jax.tree.map(np.testing.assert_array_equal, resumed.circuits, in_parts.circuits)
    # another number of runs side by side may sum in another order
    near = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14)
    jax.tree.map(near, in_parts.circuits, together.circuits)
    with pytest.raises(fs.InvalidInput, match="keep_circuits was True and is now False"):
        fs.train(TASK, "FAFO", checkpoint=path, resume=True, **{**given, "keep_circuits": False})


def test_a_traced_rate_has_trained_matrices_too():
    def matrix(lr):
        return fs.train(TASK, "CACO", ratio=1.0, lr=lr, steps=3, points=1, keep_circuits=True).circuits.ov.matrix()

    value, slope = jax.jvp(matrix, (0.5,), (1.0,))
    plain = fs.train(TASK, "CACO", ratio=1.0, steps=3, keep_circuits=True, **RUN).circuits.ov.matrix()
    np.testing.assert_allclose(value, plain, rtol=0, atol=1e-14)
    # a central difference: error h^2 times a third derivative of order 1, and rounding 1e-16/h
    h = 1e-5
    np.testing.assert_allclose(slope, (matrix(0.5 + h) - matrix(0.5 - h)) / (2 * h), rtol=0, atol=1e-9)


def test_another_mixture_weight_or_start_does_not_trace_again(monkeypatch):
    traces = []
    original = steps.stretch
    monkeypatch.setattr(steps, "stretch", lambda *args: (traces.append(1), original(*args))[1])
    for gamma, scale in ((0.3, 0.1), (0.6, 0.1), (0.6, 0.2)):
        fs.train(
            fs.Task(classes=2, distinct=3, common=2, context=fs.BinomialContext(5, gamma)),
            "CACO",
            ratio=1.0,
            steps=4,
            population="sampled-identities",
            batch=3,
            test=4,
            start=fs.RandomStart(scale),
            **RUN,
        )
    assert len(traces) == 1


def test_the_axes_of_ratios_and_rates():
    run = fs.train(TASK, "CACO", ratio=[1.0, 2.0], lr=[0.1, 0.2, 0.3], steps=1, points=1, keep_circuits=True)
    ov = run.circuits.ov.weight
    assert ov.shape == (2, 3, 4, 8)
    # one step from zero: proportional to the learning rate, whatever the ratio
    np.testing.assert_allclose(ov[0, 2], 3 * ov[0, 0], rtol=1e-14)
    np.testing.assert_array_equal(ov[0], ov[1])


def test_a_training_resumes_only_with_the_arrays_that_it_began_with(tmp_path):
    rng = np.random.default_rng(0)
    layout = Layout.of(TASK)
    start = {
        "qk": rng.normal(size=(2, layout.tokens, layout.queries)),
        "ov": rng.normal(size=(2, layout.outputs, layout.tokens)),
    }
    path = tmp_path / "a.npz"
    given = {"ratio": 1.0, "lr": 0.1, "steps": 40, "points": 4, "seeds": 2, "progress": False, "checkpoint": path}
    whole = fs.train(TASK, "CACO", start=start, **given)
    again = fs.train(TASK, "CACO", start={name: array.copy() for name, array in start.items()}, resume=True, **given)
    np.testing.assert_array_equal(again.margin, whole.margin)
    with pytest.raises(fs.InvalidInput, match="start_arrays"):
        fs.train(TASK, "CACO", start={**start, "ov": 2 * start["ov"]}, resume=True, **given)


def test_whatever_is_wrong_with_a_file_of_arrays_is_one_problem(tmp_path):
    path = tmp_path / "a.npz"
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(9.0), b=np.ones((2, 3)))
    whole, rng = buffer.getvalue(), np.random.default_rng(0)
    path.write_bytes(whole)
    assert sorted(read_arrays(path, "bad")) == ["a", "b"]
    single = io.BytesIO()
    np.save(single, np.ones(3))
    broken = [b"", b"text", single.getvalue(), *(whole[:n] for n in range(1, len(whole), 37))]
    for data in broken:
        path.write_bytes(data)
        with pytest.raises(fs.FileProblem, match="bad"):
            read_arrays(path, "bad")
    for _ in range(300):  # another byte somewhere: read as it was, or refused
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] = rng.integers(256)
        path.write_bytes(bytes(changed))
        with contextlib.suppress(fs.FileProblem):
            read_arrays(path, "bad")
