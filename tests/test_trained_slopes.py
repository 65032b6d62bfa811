"""Trained slopes: the bootstrap interval by simulation, the estimator on data with a known law, and its refusals."""

import dataclasses

import numpy as np
import pytest

import flowsim as fs
from flowsim.errors import InvalidInput
from flowsim.laws.bootstrap import mean_interval
from flowsim.laws.slopes import Estimate

TASK = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
LOG_TIMES = np.linspace(0.1, 9.0, 120)
RATIO = 2.0
RHO_HALF = RATIO * 3 * 2 / 4 / 2


def runs(margins, gaps=None, log_odds=None, times=LOG_TIMES):
    """Runs of one ratio and many seeds, from margins of shape (seed, time)."""
    gaps = np.broadcast_to(np.log(times + 1), margins.shape) if gaps is None else gaps
    rows = fs.Trajectory.from_arrays(
        log_times=times,
        margin=margins,
        score_gap=gaps,
        log_odds=gaps + np.log(32 / 31) if log_odds is None else log_odds,
        ratio=np.arange(1.0, len(margins) + 1),
        task=TASK,
    )
    return dataclasses.replace(rows, axes=("seed",), coords={"seed": np.arange(len(margins)), "ratio": RATIO})


DRAWS = {
    "normal": (lambda rng, shape: rng.normal(1.0, 0.3, shape), 1.0),
    "skewed": (lambda rng, shape: rng.gamma(4.0, 0.25, shape), 1.0),
    "flat": (lambda rng, shape: rng.uniform(0.0, 2.0, shape), 1.0),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_interval_covers_the_true_mean_as_often_as_it_says(name):
    # 500 draws: the standard deviation of the coverage is 1 %, so 95 % shows as 92 to 98 %; a skewed law is known to
    # cost the studentized interval some of it
    draw, truth = DRAWS[name]
    samples = draw(np.random.default_rng(7), (500, 16))
    ends = [mean_interval(values, resamples=999) for values in samples]
    coverage = np.mean([low <= truth <= high for low, high in ends])
    assert 0.90 <= coverage <= 0.98
    # the planted error: half the interval covers far less
    halves = [((3 * low + high) / 4, (low + 3 * high) / 4) for low, high in ends]
    assert np.mean([low <= truth <= high for low, high in halves]) < 0.80


def test_the_interval_of_normal_values_is_students():
    from scipy import stats

    values = np.random.default_rng(3).normal(5.0, 2.0, 400)
    low, high = mean_interval(values, 0.9)
    expected = stats.t.interval(0.9, 399, values.mean(), stats.sem(values))
    # 10,000 resamples know a 5 % quantile of the pivot to 0.02 of a standard error
    assert np.allclose((low, high), expected, atol=0.1 * stats.sem(values))
    assert mean_interval(values, 0.9) == (low, high)  # seeded
    assert mean_interval(np.full(8, 0.25)) == (0.25, 0.25)


def test_slopes_of_synthetic_runs_are_recovered_and_wrong_exponents_excluded():
    rng = np.random.default_rng(5)
    l = LOG_TIMES - np.log(10)
    positive = np.where(l > 0, l, 0.0)
    true = 1.03 + 0.02 * rng.normal(size=(16, 1))

    def margin_row(power):
        trajectory = runs(true * positive**power)
        (row,) = (
            row for row in fs.trained_slopes(trajectory)
            if (row.observable, row.regime) == ("margin", "saturated")
        )  # fmt: skip
        return row

    row = margin_row(1.0)
    assert row.law == "log t"
    assert (row.seeds, row.left_out, row.slope.law) == (16, 0, 1.0)
    assert row.slope.mean == pytest.approx(true.mean(), rel=1e-12)  # the slope of c l against l is c, for each seed
    assert row.slope.low < 1.03 < row.slope.high
    assert row.exponent is not None
    assert row.exponent.mean == pytest.approx(1.0, abs=1e-12)
    assert str(row).startswith("trained slope 1.0")
    assert str(row).endswith("], 16 seeds")
    for power in (0.8, 1.2):  # the wrong law: neither slope nor exponent of log t is in the intervals
        wrong = margin_row(power)
        assert not wrong.slope.low <= 1.03 <= wrong.slope.high
        assert wrong.exponent is not None
        assert not wrong.exponent.low <= 1.0 <= wrong.exponent.high
        assert wrong.exponent.mean == pytest.approx(power, abs=1e-12)


def test_the_flow_is_in_the_interval_of_runs_that_scatter_about_it_and_not_of_others():
    rng = np.random.default_rng(11)
    flow = fs.exact(TASK, ratio=RATIO, log_times=LOG_TIMES)
    margin, gap = np.asarray(flow.margin), np.asarray(flow.score_gap)
    scatter = 1 + 0.01 * rng.normal(size=(24, 1))
    scatter -= scatter.mean() - 1
    for factor, inside in ((1.0, True), (1.05, False)):
        rows = fs.trained_slopes(runs(factor * scatter * margin, np.tile(gap, (24, 1))), flow)
        (row,) = (row for row in rows if row.observable == "margin" and row.regime == "saturated")
        assert row.slope.has_flow is inside
        assert row.slope.flow == pytest.approx(row.slope.mean / factor, rel=1e-9)


def test_where_the_law_can_be_read_it_is_read_in_that_window():
    times = np.geomspace(5, 1e4, 200)
    flow = fs.exact(TASK, ratio=RATIO, log_times=times)
    tile = [np.tile(np.asarray(values), (6, 1)) for values in (flow.margin, flow.score_gap, flow.log_odds)]
    trajectory = runs(*tile, times=times)
    rows = {(row.observable, row.regime): row for row in fs.trained_slopes(trajectory, flow)}
    verdicts = {(row.observable, row.regime): row for row in fs.verify(flow).rows if row.kind == "exact-law"}
    odds = rows["odds", "saturated"]
    assert odds.readable
    assert odds.window == verdicts["odds", "saturated"].window
    assert odds.slope.mean == pytest.approx(RHO_HALF, rel=2e-3)
    assert odds.slope.low == odds.slope.high  # equal runs
    assert rows["margin", "saturated"].slope.mean == pytest.approx(1.0, rel=2e-3)


def test_diverged_seeds_are_left_out_and_counted():
    l = np.maximum(LOG_TIMES - np.log(10), 0.0)
    status = np.zeros(8, dtype=int)
    status[3] = int(fs.Status.DIVERGED)
    margins = np.linspace(0.9, 1.1, 8)[:, None] * l
    whole, cut = runs(margins), runs(margins)
    cut = dataclasses.replace(cut, status=status)
    (row,) = (row for row in fs.trained_slopes(cut) if (row.observable, row.regime) == ("margin", "saturated"))
    assert (row.seeds, row.left_out) == (7, 1)
    assert row.slope.mean == pytest.approx(np.delete(np.linspace(0.9, 1.1, 8), 3).mean())
    assert fs.trained_slopes(whole)[0].left_out == 0


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((1.03, 1.01, 1.05), "1.030 [1.010, 1.050]"),
        ((35.72, 25.21, 55.82), "35.72 [25.21, 55.82]"),
        ((1.0662e-6, 1.0661e-6, 1.0664e-6), "1.06620e-06 [1.06610e-06, 1.06640e-06]"),
        ((-2.5, -2.5, -2.5), "-2.50000 [-2.50000, -2.50000]"),
    ],
)
def test_an_interval_is_printed_with_the_digits_that_show_its_width(ends, text):
    estimate = Estimate(*ends, None, 1.0)
    assert str(estimate) == text
    assert estimate.has_flow is None
    assert Estimate(*ends, ends[1], 1.0).has_flow is True


def test_refusals_name_the_argument_and_the_fix():
    def flow(ratio, times=LOG_TIMES):
        margin = np.broadcast_to(times, (*np.shape(ratio), times.size))
        return fs.Trajectory.from_arrays(log_times=times, margin=margin, ratio=ratio, task=TASK)

    margins = np.ones((8, 1)) * LOG_TIMES
    eight = runs(margins)
    with pytest.raises(InvalidInput, match=r"has 4 seeds.*at least 5"):
        fs.trained_slopes(runs(margins[:4]))
    with pytest.raises(InvalidInput, match=r"no seed axis.*seeds=16"):
        fs.trained_slopes(flow(RATIO))
    with pytest.raises(InvalidInput, match="other times"):
        fs.trained_slopes(eight, flow(RATIO, LOG_TIMES + 1))
    with pytest.raises(InvalidInput, match="lacks a lane"):
        fs.trained_slopes(eight, flow([1.0, 3.0]))
    with pytest.raises(InvalidInput, match=r"level=1\.5"):
        fs.trained_slopes(eight, level=1.5)
    with pytest.raises(InvalidInput, match="not finite"):
        mean_interval(np.array([1.0, 2.0, np.nan, 3.0, 4.0]))
    with pytest.raises(InvalidInput, match="at least 5"):
        mean_interval(np.ones(3))
