"""The check of a device: its bounds, its file, and that it fails when a number is wrong."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim as fs
from flowsim import device_check
from flowsim.device_check import cases
from flowsim.errors import FileProblem
from flowsim.solve import exact, lanes
from flowsim.solve.initial import begin
from flowsim.solve.interventions import driven_velocity


@pytest.mark.parametrize("name", ["CACO", "FAFO"])
@pytest.mark.parametrize("ratio", cases.RATIOS)
def test_rounding_grows_as_little_as_the_bounds_say(name, ratio):
    """By the derivatives of all later steps: an error of every entry at every step, and of every step itself."""
    begun = begin(cases.TASK, name)
    field, parameters = begun.field, begun.parameters._replace(ratio=jnp.asarray(ratio))
    velocity = driven_velocity(field, parameters, None, begun.state, cases.LR)

    def advance(change):
        return change + velocity(jnp.zeros(()), jnp.zeros(()), change)

    def look(change):
        seen = field.observables(field.to_reduced(field.circuits.blocks(begun.state + change), parameters), parameters)
        return jnp.stack([seen.margin, seen.score_gap])

    def odds(change):
        blocks = field.circuits.blocks(begun.state + change)
        return jnp.exp(field.observables(field.to_reduced(blocks, parameters), parameters).log_odds)

    is_qk = jnp.arange(begun.state.size) < field.circuits.qk.size

    @jax.jit
    def grown():
        end, path = jax.lax.scan(lambda c, _: (advance(c), c), jnp.zeros_like(begun.state), None, length=cases.STEPS)

        def back(sensitivity, change):
            step = jnp.abs(advance(change) - change) * jnp.where(is_qk, 1 + odds(change), 1.0)
            of = jnp.abs(sensitivity)
            entries = of @ jnp.abs(begun.state + change)
            return sensitivity @ jax.jacfwd(advance)(change), (entries**2, of @ step)

        _, (entries, moves) = jax.lax.scan(back, jax.jacfwd(look)(end), path, reverse=True)
        return look(end), jnp.sqrt(entries.sum(0) / cases.STEPS), moves.sum(0)

    end, entries, moves = grown()
    size = float(jnp.max(jnp.abs(end)))
    assert float(jnp.max(entries)) < cases.ENTRIES * size
    assert float(jnp.max(moves)) < cases.WAY[name] * size


def test_results_beyond_their_bounds_are_told():
    """An error of twice the bound in one number, a number that is none, and another end of a run."""
    stored = device_check.read_reference()
    assert all(row.ok and row.difference == 0 for row in device_check.compare(stored, stored))
    for case, observable in (("exact FAFO", "log_odds"), ("train CACO float32", "margin")):
        bound = float(cases.CASES[case].bound(stored[case])[observable].flat[-1])
        for wrong, ok in ((0.5 * bound, True), (2 * bound, False), (np.nan, False)):
            found = {name: {key: array.copy() for key, array in own.items()} for name, own in stored.items()}
            found[case][observable].flat[-1] += wrong
            bad = [(row.case, row.observable) for row in device_check.compare(found, stored) if not row.ok]
            assert bad == ([] if ok else [(case, observable)])
    found = {**stored, "exact CACO": {**stored["exact CACO"], "status": stored["exact CACO"]["status"] + 1}}
    assert [row.observable for row in device_check.compare(found, stored) if not row.ok] == ["status"]


def test_single_precision_does_not_pass_as_double():
    stored = device_check.read_reference()
    for name in ("CACO", "FAFO"):
        found = {**stored, f"train {name} float64": stored[f"train {name} float32"]}
        assert {row.case for row in device_check.compare(found, stored) if not row.ok} == {f"train {name} float64"}


def test_files_that_are_no_stored_results(tmp_path):
    with pytest.raises(FileProblem, match="cannot be read as stored results"):
        device_check.read_reference(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(FileProblem, match="cannot be read as stored results"):
        device_check.read_reference(tmp_path / "text.npz")
    np.savez(tmp_path / "few.npz", **{"exact CACO/margin": np.zeros(2)})
    with pytest.raises(FileProblem, match="lacks a case"):
        device_check.read_reference(tmp_path / "few.npz")
    stored = device_check.read_reference()
    margin = stored["exact CACO"]["margin"]
    for wrong in (margin[:, :2], margin.astype(str), np.array(1.0)):  # other times, no numbers, no lanes
        other = {**stored, "exact CACO": {**stored["exact CACO"], "margin": wrong}}
        device_check.write_reference(tmp_path / "other.npz", other)
        with pytest.raises(FileProblem, match="lacks a case"):
            device_check.read_reference(tmp_path / "other.npz")
    shorter = {
        **stored,
        "exact CACO": {name: a if a.ndim == 1 else a[:, :2] for name, a in stored["exact CACO"].items()},
    }
    assert [row.observable for row in device_check.compare(stored, shorter) if not row.ok] == ["shape"]
    with pytest.raises(FileProblem, match="cannot be written"):
        device_check.write_reference(tmp_path / "nowhere" / "a.npz", device_check.read_reference())


def test_lanes_go_side_by_side_where_there_are_no_cores_to_fill(monkeypatch):
    """The path of an accelerator, on this CPU: chunks of 8 lanes in one call each, the same numbers."""
    monkeypatch.setattr(lanes, "on_cores", lambda: False)
    monkeypatch.setattr(lanes, "WIDE_CHUNK", 8)
    sizes = []

    def twice(values):
        sizes.append(values.size)
        return 2 * jnp.asarray(values)

    values = np.arange(20.0)
    np.testing.assert_array_equal(lanes.map_lanes(twice, [values]), 2 * values)
    np.testing.assert_array_equal(lanes.map_lanes(twice, [values], 4), 2 * values)
    assert sizes == [8] * 6


@pytest.mark.slow
def test_solvers_without_cores_to_fill(monkeypatch):
    ratios = np.geomspace(0.01, 100, 80)  # more than `exact` takes side by side on a core

    def solve():
        jax.clear_caches()
        here = fs.exact(cases.TASK, ratio=ratios, log_times=[1.0, 8.0])
        return here, fs.integrate(cases.TASK, ratio=ratios, log_times=[1.0, 8.0])

    on_cores = solve()
    monkeypatch.setattr(lanes, "on_cores", lambda: False)
    monkeypatch.setattr(exact, "on_cores", lambda: False)
    elsewhere = solve()
    np.testing.assert_allclose(elsewhere[0].log_odds, on_cores[0].log_odds, rtol=1e-12)
    np.testing.assert_allclose(elsewhere[1].margin, on_cores[1].margin, rtol=1e-8)  # neighbours in a chunk share a grid


def environment(**more):
    root = str(pathlib.Path(fs.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": root, **more}


@pytest.mark.slow
def test_the_command_on_four_host_devices(tmp_path):
    """All cases are within their bounds but the one of which a stored number was changed by a millionth."""
    stored = device_check.read_reference()
    stored["train CACO float64"]["margin"][0, 3] *= 1 + 1e-6
    device_check.write_reference(tmp_path / "wrong.npz", stored)
    options = ["--parity-only", "--json", "--reference", str(tmp_path / "wrong.npz")]
    done = subprocess.run(
        [sys.executable, "-m", "flowsim", "device-check", *options],
        env=environment(XLA_FLAGS="--xla_force_host_platform_device_count=4"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["ok"] is False
    assert len(found["devices"]) == 4
    assert found["memory"]["peak_bytes"] > 2**20
    bad = [(row["case"], row["observable"]) for row in found["parity"] if not row["ok"]]
    assert bad == [("train CACO float64", "margin")]
