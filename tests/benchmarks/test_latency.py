"""What a user waits for: one ratio and 200 times, warm; and the first result in a fresh process."""

import os
import subprocess
import sys

import numpy as np
import pytest

import flowsim as fs
from tests.benchmarks.test_sweep import LOG_TIMES, task

pytestmark = pytest.mark.benchmark

FIRST = """
import time
import flowsim as fs
from flowsim import _cache
_cache.enable()  # as the command line does
import jax, sympy, diffrax, equinox, xarray
from flowsim import codegen, theory, trajectory
from flowsim.solve import ode, exact
task = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
times = [10.0 ** (k / 10 - 3) for k in range(150)]
begin = time.perf_counter()
fs.{solver}(task, ratio=1.0, times=times).margin.block_until_ready()
print(time.perf_counter() - begin)
"""


@pytest.mark.parametrize("solver", ["exact", "integrate"])
def test_one_ratio(benchmark, comparison, solver):
    """The whole call, Python around the compiled code included."""
    table = comparison("One ratio, 200 times, warm, whole call", "call", "ms")
    solve = getattr(fs, solver)
    ratios = iter(np.linspace(0.5, 2.0, 100_000))  # a new value each time: nothing is remembered

    benchmark(lambda: solve(task(), ratio=float(next(ratios)), log_times=LOG_TIMES).margin.block_until_ready())
    table.add(f"flowsim.{solver}", 1e3 * benchmark.stats.stats.median)


@pytest.mark.parametrize("solver", ["exact", "integrate"])
def test_first_result(benchmark, comparison, tmp_path, solver):
    """Seconds after the imports, with an empty compilation cache and with a filled one."""
    table = comparison("First result in a fresh process, after imports", "call", "cold, s", "cache warm, s")

    def fresh() -> float:
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
        command = [sys.executable, "-c", FIRST.format(solver=solver)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        return float(done.stdout)

    cold = fresh()
    warm = [fresh() for _ in range(3)]
    benchmark.pedantic(fresh, rounds=1)
    table.add(f"flowsim.{solver}", cold, min(warm))
