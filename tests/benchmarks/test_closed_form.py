"""The closed form: points per second by time and by margin, against the Wright omega of SciPy in plain NumPy."""

import dataclasses
import time

import jax
import mpmath as mp
import numpy as np
import pytest
from scipy.special import wrightomega

import flowsim as fs
from flowsim.solve.lanes import map_lanes
from tests.benchmarks import peers
from tests.benchmarks.test_sweep import RATIOS, best_of, task
from tests.closed_form_reference import DIGITS, Reference, judge
from tests.two_clocks_reference import TwoClocks

pytestmark = pytest.mark.benchmark

TITLE = "Closed form: 10,000 ratios x 200 points, all cores"
LOG_TIMES = np.linspace(np.log(1e-3), np.log(1e12), 200)
MARGINS = np.linspace(0.1, 60.0, 200)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(48)


def plain_omega(ratios, log_times):
    """What a script would do: Wright omega, Gauss-Legendre on [0, w], Newton in ln t."""
    rho = (1 / peers.C + 1 / peers.D) * ratios[:, None] * peers.C * (peers.K - 1) / peers.K
    y0 = peers.M / peers.N

    def log_odds(w):
        return np.log(wrightomega(rho[..., None] * w**2 / 2 + y0 + np.log(y0)).real)

    w = np.broadcast_to(np.log1p(np.exp(log_times) / peers.C / 4), (ratios.size, log_times.size))
    for _ in range(6):
        x = w[..., None] * (1 + NODES) / 2
        alpha = 1 / (1 + np.exp(-log_odds(x)))
        integrand = (np.exp(alpha * x) + peers.K - 1) / alpha
        time_ = peers.C * w / 2 * (integrand * WEIGHTS).sum(-1)
        end = 1 / (1 + np.exp(-log_odds(w[..., None])[..., 0]))
        slope = peers.C * (np.exp(end * w) + peers.K - 1) / end
        w = w - (np.log(time_) - log_times) * time_ / slope
    return w


@pytest.mark.parametrize("index", ["log_times", "margins"])
def test_closed_form(benchmark, comparison, index):
    table = comparison(TITLE, "method", "compile, s", "ms", "million points/s", "achieved error")
    grid = {"log_times": LOG_TIMES, "margins": MARGINS}[index]

    def ours():
        return fs.exact(task(), ratio=RATIOS, **{index: grid})

    begin = time.perf_counter()
    trajectory = ours()
    first = time.perf_counter() - begin
    benchmark.pedantic(ours, rounds=9, warmup_rounds=1)
    own = benchmark.stats.stats.min
    table.add(f"flowsim.exact({index}=)", first - own, 1e3 * own, 2.0 / own, against_mpmath(trajectory))

    if index == "log_times":
        sample = RATIOS[::100]
        margin = plain_omega(sample, LOG_TIMES)
        seconds = best_of(lambda: plain_omega(sample, LOG_TIMES), 1) * RATIOS.size / sample.size
        error = np.max(np.abs(margin - trajectory.margin[::100]) / np.maximum(1, trajectory.margin[::100]))
        table.add("SciPy omega, quadrature, Newton (scaled)", 0.0, 1e3 * seconds, 2.0 / seconds, float(error))


def test_orbit_alone(benchmark, comparison):
    """Who compiles it and asks for margin and log odds only does not pay for the time map: XLA leaves it out."""
    table = comparison(TITLE, "method", "compile, s", "ms", "million points/s", "achieved error")

    @jax.jit
    def margin_and_log_odds(ratio):
        trajectory = fs.exact(task(), ratio=ratio, margins=MARGINS)
        return trajectory.margin, trajectory.log_odds

    def ours():
        return jax.block_until_ready(map_lanes(margin_and_log_odds, [RATIOS]))

    begin = time.perf_counter()
    _, log_odds = ours()
    first = time.perf_counter() - begin
    benchmark.pedantic(ours, rounds=9, warmup_rounds=1)
    own = benchmark.stats.stats.min
    whole = fs.exact(task(), ratio=RATIOS, margins=MARGINS).log_odds
    error = np.max(np.abs(log_odds - whole) / np.maximum(1, np.abs(whole)))  # `whole` is compared with mpmath above
    table.add("the same in jax.jit, no times", first - own, 1e3 * own, 2.0 / own, float(error))


NAMES = ["CACO", "FACO", "CAFO", "FAFO"]


def test_four_parameterizations(benchmark, comparison):
    """As many lanes as the rows above, a quarter of each parameterization, in one call."""
    table = comparison(TITLE, "method", "compile, s", "ms", "million points/s", "achieved error")
    ratios = RATIOS[:: RATIOS.size // 2500]

    def ours():
        return fs.exact(task(), NAMES, ratio=ratios, log_times=LOG_TIMES)

    begin = time.perf_counter()
    trajectory = ours()
    first = time.perf_counter() - begin
    benchmark.pedantic(ours, rounds=5, warmup_rounds=1)
    own = benchmark.stats.stats.min
    error = max(by_two_clocks(trajectory.lane(parameterization=i)) for i in range(len(NAMES)))
    points = len(NAMES) * ratios.size * LOG_TIMES.size / 1e6
    table.add("flowsim.exact, 4 parameterizations x 2,500 ratios", first - own, 1e3 * own, points / own, error)


def by_two_clocks(trajectory) -> float:
    """Largest error of a handful of points against 40 digits, relative to max(1, value)."""
    errors = []
    for lane, point in ((300, 60), (1200, 120), (2400, 190)):
        ratio, margin = float(trajectory.coords["ratio"][lane]), float(trajectory.margin[lane, point])
        start = {name: value for name, value in trajectory.settings.items() if value is not None}
        reference = TwoClocks(trajectory.parameterization, ratio, peers.K, peers.C, peers.D, **start)
        reference = dataclasses.replace(reference, positions=(peers.M, peers.N))
        log_time, change, slope, by_margin = reference.at_margin(margin)
        with mp.workdps(DIGITS):
            step = (mp.mpf(float(trajectory.log_time[point])) - log_time) * slope
            change += step * by_margin
            errors.append(abs(step) / max(1, margin))
            errors.append(abs(float(trajectory.score_gap_change[lane, point]) - change) / max(1, change))
    return float(max(errors))


def against_mpmath(trajectory) -> float:
    """Largest error of a handful of lanes and points against arithmetic of 40 digits, relative to max(1, value)."""
    errors = []
    log_times = np.broadcast_to(np.asarray(trajectory.log_time), trajectory.margin.shape)
    with mp.workdps(DIGITS):
        for lane in range(0, RATIOS.size, 2500):
            reference = Reference(ratio=float(RATIOS[lane]))
            for point in range(9, 200, 48):
                found = judge(
                    reference,
                    float(log_times[lane, point]),
                    float(trajectory.margin[lane, point]),
                    float(trajectory.log_odds[lane, point]),
                    float(trajectory.score_gap_change[lane, point]),
                    1.0,
                )
                errors += [found.margin, found.log_odds]
    return max(errors)
