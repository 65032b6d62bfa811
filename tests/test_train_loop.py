"""The loop around the steps: devices, parts, interruption, checkpoints, divergence with noise."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import flowsim as fs
from flowsim.training import checkpoint, loop, machine

TASK = fs.Task(classes=3, distinct=2, common=3, context=fs.FixedContext(distinct=4, common=5))
RUN = {"ratio": [0.5, 2.0], "lr": 0.1, "steps": 300, "points": 30}
NOISY = {
    "start": fs.RandomStart(0.1),
    "seeds": 3,
    "population": "sampled-identities",
    "batch": 8,
    "test": 50,
    "optimizer": "adam",
}
OBSERVABLES = ("margin", "score_gap", "score_gap_change", "log_odds", "log_error", "log_loss", "status", "n_steps")


def difference(one, other):
    return max(float(np.max(np.abs(np.asarray(getattr(one, n)) - np.asarray(getattr(other, n))))) for n in OBSERVABLES)


def same(one, other):
    return all(np.array_equal(getattr(one, n), getattr(other, n), equal_nan=True) for n in OBSERVABLES) and all(
        np.array_equal(one.extra[name], other.extra[name], equal_nan=True) for name in other.extra
    )


PROGRAM = """
import sys
import flowsim as fs
task = fs.Task(classes=3, distinct=2, common=3, context=fs.FixedContext(distinct=4, common=5))
noisy = dict(start=fs.RandomStart(0.1), seeds=3, population="sampled-identities", batch=8, test=50, optimizer="adam")
"""


def environment(**more):
    root = str(pathlib.Path(fs.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": root, **more}


@pytest.mark.slow
def test_the_same_numbers_on_any_number_of_devices():
    """Six runs over four host devices (two of them padding), and over one."""
    code = PROGRAM + (
        "import jax, json, numpy as np\n"
        "assert jax.device_count() == 4\n"
        "run = dict(ratio=[0.5, 2.0], lr=0.1, steps=100, points=10, **noisy)\n"
        "many = fs.train(task, 'FAFO', **run)\n"
        "one = fs.train(task, 'FAFO', devices=jax.devices()[3:], **run)\n"
        "names = ('margin', 'score_gap', 'log_odds', 'log_loss')\n"
        "print(json.dumps([float(np.max(np.abs(np.asarray(getattr(one, n)) - np.asarray(getattr(many, n)))))"
        " for n in names]))\n"
        "print(json.dumps(np.asarray(many.margin)[..., -1].tolist()))\n"
    )
    flags = environment(XLA_FLAGS="--xla_force_host_platform_device_count=4")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=flags, capture_output=True, text=True, check=True
    )
    differences, margins = (json.loads(line) for line in done.stdout.splitlines())
    assert max(differences) < 1e-12
    assert np.shape(margins) == (2, 3)
    assert np.unique(margins).size == 6
    here = fs.train(TASK, "FAFO", **{**RUN, "steps": 100, "points": 10}, **NOISY)
    np.testing.assert_allclose(here.margin[..., -1], margins, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_runs_that_do_not_fit_the_memory_together(monkeypatch, capsys):
    whole = fs.train(TASK, "FAFO", **RUN, **NOISY)
    each = []
    original = machine.memory
    monkeypatch.setattr(machine, "memory", lambda *args: (each.append(original(*args)), each[-1])[1])
    monkeypatch.setattr(machine, "memory_limit", lambda _: int(4.5 * each[-1]) if each else 2**40)
    parts = loop.parts_that_fit
    monkeypatch.setattr(loop, "parts_that_fit", lambda *args: (found := parts(*args), sizes.append(found))[0])
    sizes = []
    cut = fs.train(TASK, "FAFO", **RUN, **NOISY)
    assert sizes == [[slice(0, 4), slice(4, 6)]]
    assert difference(whole, cut) < 1e-12
    assert "6 runs would take about" in capsys.readouterr().err
    monkeypatch.setattr(machine, "memory_limit", lambda _: each[-1] - 1)
    with pytest.raises(fs.InvalidInput, match="one run would take about"):
        fs.train(TASK, "FAFO", **RUN, **NOISY)


def test_the_estimate_of_memory_is_not_below_what_the_parameters_take(monkeypatch):
    task = fs.Task(classes=200, distinct=100, common=10, context=fs.FixedContext(distinct=3, common=4))
    monkeypatch.setattr(machine, "memory_limit", lambda _: 8 * 2 * 20_010 * 200)
    with pytest.raises(fs.InvalidInput, match=r"20010 tokens"):
        fs.train(task, ratio=1.0, lr=0.1, steps=1)


def interrupt_after(monkeypatch, stretches):
    """Ctrl-C arrives while the given stretch runs."""
    count = []
    original = machine.Machine.go_on

    def go_on(self, carries, gaps):
        count.append(1)
        if len(count) == stretches:
            signal.raise_signal(signal.SIGINT)
        return original(self, carries, gaps)

    monkeypatch.setattr(machine.Machine, "go_on", go_on)


def test_ctrl_c_keeps_what_is_done_and_a_checkpoint_goes_on(monkeypatch, tmp_path):
    whole = fs.train(TASK, "FAFO", **RUN, **NOISY)
    path = tmp_path / "run.npz"
    with monkeypatch.context() as patched:
        patched.setattr(loop, "_FIRST_STEPS", 20)
        patched.setattr(loop, "_SECONDS", 0.0)  # short stretches, however fast the machine is
        interrupt_after(patched, 2)
        part = fs.train(TASK, "FAFO", **RUN, **NOISY, checkpoint=path)
    n = part.n_time
    assert 0 < n < whole.n_time
    assert (part.status == fs.Status.INTERRUPTED).all()
    assert bool(part.ok.all())
    assert np.array_equal(part.margin, whole.margin[..., :n])
    assert np.array_equal(part.log_time, whole.log_time[:n])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(fs.FileProblem, match="resume=True"):
        fs.train(TASK, "FAFO", **RUN, **NOISY, checkpoint=path)
    with pytest.raises(fs.InvalidInput, match=r"lr was \[0\.1\] and is now \[0\.2\]"):
        fs.train(TASK, "FAFO", **{**RUN, "lr": 0.2}, **NOISY, checkpoint=path, resume=True)
    resumed = fs.train(TASK, "FAFO", **RUN, **NOISY, checkpoint=path, resume=True)
    assert same(resumed, whole)
    # at its end there is nothing left to do, and the same is returned
    assert same(fs.train(TASK, "FAFO", **RUN, **NOISY, checkpoint=path, resume=True), whole)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(fs.FileProblem, match="damaged"):
        fs.train(TASK, "FAFO", **RUN, **NOISY, checkpoint=path, resume=True)
    with pytest.raises(fs.FileProblem, match="does not exist"):
        fs.train(TASK, **RUN, checkpoint=tmp_path / "none.npz", resume=True)


@pytest.mark.slow
def test_killed_training_loses_at_most_one_interval(tmp_path):
    path, log = tmp_path / "run.npz", tmp_path / "steps.txt"
    run = "ratio=[0.5, 2.0], lr=0.1, steps=200_000, points=30"
    code = PROGRAM + (
        "from flowsim.training import machine\n"
        "original, total = machine.Machine.go_on, 0\n"
        "def go_on(self, carries, gaps):\n"
        "    global total\n"
        "    done = original(self, carries, gaps)\n"
        "    total += int(gaps.sum())\n"
        "    print(total, file=open(sys.argv[2], 'w'), flush=True)\n"
        "    return done\n"
        "machine.Machine.go_on = go_on\n"
        f"fs.train(task, 'FAFO', {run}, **noisy, checkpoint=sys.argv[1], checkpoint_every=500)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path), str(log)], env=environment())
    deadline = time.monotonic() + 120
    while not (log.exists() and path.exists() and int(log.read_text() or 0) > 1200):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    reached = int(log.read_text() or 0)
    with np.load(path) as file:
        assert reached - 500 <= int(file["step"]) <= reached
    # steps to a tenth of the way are enough to compare: both runs stop there
    whole = checkpoint_at(tmp_path / "whole.npz", 4000)
    killed = checkpoint_at(path, 4000, resume=True)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(killed.carry, whole.carry, strict=True))
    for a, b in zip(killed.records, whole.records, strict=True):
        assert np.array_equal(a[:, : killed.points[0]], b[:, : killed.points[0]], equal_nan=True)


def checkpoint_at(path, steps, resume=False):
    """The checkpoint of the killed training's settings at a step, where it is stopped by Ctrl-C."""
    original, saved = checkpoint.write, []

    def write(path, snapshot, settings):
        saved.append(snapshot._replace(records=[leaf.copy() for leaf in snapshot.records]))
        if snapshot.step == steps:
            signal.raise_signal(signal.SIGINT)
        return original(path, snapshot, settings)

    checkpoint.write = write
    try:
        fs.train(
            TASK,
            "FAFO",
            ratio=[0.5, 2.0],
            lr=0.1,
            steps=200_000,
            points=30,
            **NOISY,
            checkpoint=path,
            checkpoint_every=500,
            resume=resume,
        )
    finally:
        checkpoint.write = original
    return next(snapshot for snapshot in saved if snapshot.step == steps)


def test_noisy_runs_are_judged_by_averages():
    """A minibatch of one, from a trained start: its loss jumps about, which is no divergence; a huge step is."""
    run = {"ratio": 1.0, "steps": 40, "points": 40, "population": "sampled-identities", "batch": 1, "seeds": 2}
    task = fs.Task(classes=3, distinct=2, common=3, context=fs.BinomialContext(4, 0.5))
    trained = fs.train(task, lr=[0.05, 1e4], margin0=3.0, test=64, **run)
    assert trained.status[0].tolist() == [fs.Status.OK] * 2
    assert trained.status[1].tolist() == [fs.Status.DIVERGED] * 2
    assert np.isfinite(trained.margin[0]).all()
    assert (trained.n_steps[0] == 40).all()
    assert (trained.n_steps[1] < 40).all()
    assert (np.diff(np.asarray(trained.log_loss[0])) > 0).any()
    for lane, n in enumerate(np.asarray(trained.n_steps[1])):
        assert np.isnan(trained.margin[1, lane, n:]).all()
        assert np.isfinite(trained.margin[1, lane, :n]).all()


def test_progress_is_shown_on_standard_error(capsys):
    fs.train(TASK, ratio=1.0, lr=0.1, steps=20, points=5, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("training: 100% of 20 run-steps")
    assert "run-steps/s, 0 s left" in shown.err


def test_traced_rates_still_train():
    lr = 0.1
    slope = jax.jit(lambda ratio: fs.train(TASK, ratio=ratio, lr=lr, steps=30, points=3).score_gap[-1])
    plain = fs.train(TASK, ratio=2.0, lr=lr, steps=30, points=3)
    assert float(slope(2.0)) == pytest.approx(float(plain.score_gap[-1]), rel=1e-12)
    derivative = float(jax.jvp(slope, (2.0,), (1.0,))[1])
    step = 1e-5
    numeric = (float(slope(2.0 + step)) - float(slope(2.0 - step))) / (2 * step)
    assert derivative == pytest.approx(numeric, rel=1e-7)
