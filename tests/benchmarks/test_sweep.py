"""10,000 ratios x 200 times to 1e12, by the ODE: flowsim against SciPy, torchdiffeq and compiled LSODA."""

import time

import numpy as np
import pytest

import flowsim as fs
from tests.benchmarks import peers

pytestmark = pytest.mark.benchmark

RATIOS = np.geomspace(1e-2, 1e3, 10_000)
LOG_TIMES = np.linspace(np.log(1e-3), np.log(1e12), 200)
ROUNDS = 9  # of every method, the best of which counts
SAMPLE = 100  # lanes of the loops that are too slow for all of them; scaled up in the table
TITLE = "ODE: 10,000 ratios in [1e-2, 1e3] x 200 times to 1e12, all cores"


def task():
    return fs.Task(
        classes=peers.K,
        distinct=peers.C,
        common=peers.D,
        context=fs.FixedContext(distinct=peers.M, common=peers.N),
    )


def achieved(margin, gap, ratios) -> float:
    """Largest error of margin and log odds, each relative to max(1, value), against the closed form."""
    exact = fs.exact(task(), ratio=ratios, log_times=LOG_TIMES)
    log_odds = np.log(peers.M / peers.N) + np.asarray(gap)
    errors = [
        np.abs(np.asarray(margin) - exact.margin) / np.maximum(1, np.abs(exact.margin)),
        np.abs(log_odds - exact.log_odds) / np.maximum(1, np.abs(exact.log_odds)),
    ]
    return float(np.max([np.max(error) for error in errors]))


def best_of(run, rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def test_sweep(benchmark, comparison):
    table = comparison(TITLE, "method", "compile, s", "ms", "times flowsim's", "achieved error")

    def ours():
        return fs.integrate(task(), ratio=RATIOS, log_times=LOG_TIMES)

    begin = time.perf_counter()
    trajectory = ours()
    first = time.perf_counter() - begin
    benchmark.pedantic(ours, rounds=ROUNDS, warmup_rounds=1)
    own = benchmark.stats.stats.min
    table.add(
        "flowsim.integrate",
        first - own,
        1e3 * own,
        1.0,
        achieved(trajectory.margin, trajectory.score_gap, RATIOS),
    )

    sample = RATIOS[:: RATIOS.size // SAMPLE]
    result = peers.scipy_odeint(sample, LOG_TIMES)
    seconds = best_of(lambda: peers.scipy_odeint(sample, LOG_TIMES), ROUNDS) * RATIOS.size / sample.size
    table.add("SciPy odeint, loop (scaled from 100)", 0.0, 1e3 * seconds, seconds / own, achieved(*result, sample))

    optional = {
        "torchdiffeq dopri5, batched": peers.torchdiffeq_dopri5(),
        "compiled LSODA, all cores": peers.compiled_lsoda(),
    }
    for name, solve in optional.items():
        if isinstance(solve, str):
            table.add(name, solve, "", "", "")
            continue
        begin = time.perf_counter()
        result = solve(RATIOS, LOG_TIMES)
        first = time.perf_counter() - begin
        seconds = best_of(lambda solve=solve: solve(RATIOS, LOG_TIMES), ROUNDS)
        table.add(name, first - seconds, 1e3 * seconds, seconds / own, achieved(*result, RATIOS))
