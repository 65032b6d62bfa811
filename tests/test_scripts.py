"""Every derivation and example runs from its first line to its last."""

import os
import pathlib
import subprocess
import sys

import pytest

from flowsim import _cache

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = sorted([*ROOT.glob("derivations/*.py"), *ROOT.glob("examples/*.py")])
# scripts that are done within 5 seconds; the others run with the slow tests
QUICK = {"01_symmetric_reduction.py", "02_collapsed_flow.py", "07_two_clocks.py"}


def test_there_are_derivations_and_examples():
    assert {script.parent.name for script in SCRIPTS} == {"derivations", "examples"}
    assert {script.name for script in SCRIPTS} >= QUICK


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, id=f"{script.parent.name}/{script.name}", marks=[] if script.name in QUICK else slow)
        for slow in [pytest.mark.slow]
        for script in SCRIPTS
    ],
)
def test_script_runs_and_leaves_the_repository_alone(script, tmp_path):
    before = sorted(ROOT.iterdir())
    kept: dict[str, str] = {}
    _cache.enable(kept)  # what other tests have compiled
    kept.pop("EQX_ON_ERROR", None)  # a script runs with the checks of the library, not those of the command line
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env={**os.environ, **kept, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert sorted(ROOT.iterdir()) == before
