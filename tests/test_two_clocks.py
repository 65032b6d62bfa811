"""The closed form of all four parameterizations against 40 digits, a public peer, and the flow itself."""

import dataclasses

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import flowsim as fs
from flowsim.solve import score_table
from flowsim.solve.closed_form import closed_form_parameters
from flowsim.status import Status
from tests.closed_form_reference import DIGITS
from tests.two_clocks_reference import TwoClocks

TOLERANCE = 1e-11
LOG_TIMES = (-3.0, 7.0, 1e4)
# queries, backgrounds, imbalances of either sign, starts at 0, attention that decays before it grows, extreme ratios
CASES = [
    TwoClocks("FACO", 5.0, margin0=0.0),
    TwoClocks("CAFO", 5.0, score_gap0=0.0),
    TwoClocks("FAFO", 5.0),
    TwoClocks("FAFO", 5.0, shared=True, common=None, imbalance_ov=-2.0, imbalance_qk=3.0),
    TwoClocks("FACO", 1e6, classes=20, distinct=1, common=None, score_gap0=-3.0, margin0=0.0, imbalance_qk=-0.01),
    TwoClocks("FACO", 1e-6, shared=True, positions=(0.05, 800.0), score_gap0=2.0, margin0=0.5),
    TwoClocks("FAFO", 40.0, score_gap0=-34.0, margin0=0.5, imbalance_qk=1e-4, imbalance_ov=200.0),
    TwoClocks("CAFO", 1e5, classes=2, score_gap0=-3.0, margin0=0.0, imbalance_ov=-0.01),
    TwoClocks("FAFO", 1e-3, common=1000, margin0=1e-10, score_gap0=1e-8, positions=(300.0, 0.02)),
    TwoClocks("FAFO", 300.0, score_gap0=0.0, margin0=0.0, imbalance_qk=200.0, imbalance_ov=1.0),
]


def task_of(case):
    background = "null" if case.common is None else "common"
    return fs.Task(
        classes=int(case.classes),
        distinct=int(case.distinct),
        common=None if case.common is None else int(case.common),
        null=case.common is None,
        query="shared" if case.shared else "per-class",
        context=fs.FixedContext(**{"distinct": case.positions[0], background: case.positions[1]}),
    )


def start_of(case):
    start = {"margin0": case.margin0, "score_gap0": case.score_gap0}
    if case.parameterization[0] == "F":
        start["imbalance_qk"] = case.imbalance_qk
    if case.parameterization[2] == "F":
        start["imbalance_ov"] = case.imbalance_ov
    return start


def solved(case, **grid):
    return fs.exact(task_of(case), case.parameterization, ratio=case.ratio, **start_of(case), **grid)


def worst(case, run):
    """Errors of margin, change of the score gap and log odds in units of what is allowed, the largest."""
    errors = []
    with mp.workdps(DIGITS):
        for i, log_time in enumerate(np.asarray(run.log_time)):
            start, margin = mp.mpf(case.margin0), mp.mpf(float(run.margin[i]))
            if margin - start < mp.mpf(10) ** -12 * start:  # rounded away: the rate of the start gives it back
                margin = start + mp.exp(log_time) / case.rate_at_start()
            error, step = mp.mpf(0), mp.inf
            change = slope = by_margin = mp.mpf(0)
            for _ in range(8):
                if abs(step) < mp.mpf(10) ** -9 * (margin - start):  # the next step would be its square
                    break
                found, change, slope, by_margin = case.at_margin(margin)
                step = (mp.mpf(float(log_time)) - found) * slope
                margin, error = margin + step, error + step
            change += step * by_margin
            ulps = 4 * mp.mpf(float(np.spacing(abs(log_time)))) * slope
            allowed = TOLERANCE * max(1, abs(margin)) + ulps
            errors.append(abs(error) / allowed)
            allowed = TOLERANCE * abs(change) + ulps * abs(by_margin)
            errors.append(abs(float(run.score_gap_change[i]) - change) / allowed)
            log_odds = case.log_odds0 + change
            allowed = TOLERANCE * max(1, abs(log_odds)) + ulps * abs(by_margin)
            errors.append(abs(float(run.log_odds[i]) - log_odds) / allowed)
    return float(max(errors))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parameterization}-{case.ratio:g}")
def test_accuracy(case):
    run = solved(case, log_times=LOG_TIMES)
    assert run.status == Status.OK
    assert worst(case, run) < 0.05


@pytest.mark.parametrize(
    "name", ["ratio", "margin0", "score_gap0", "imbalance_ov", "imbalance_qk", "distinct", "common", "classes"]
)
def test_an_altered_constant_is_seen(name):
    """Planted error: a relative 1e-6 in any one constant (imbalances from 1)."""
    case = dataclasses.replace(CASES[2], imbalance_ov=1.0, imbalance_qk=1.0)
    run = solved(case, log_times=[-3.0, 7.0, 8.0])
    assert worst(dataclasses.replace(case, **{name: getattr(case, name) * (1 + 1e-6)}), run) > 1


def draw(rng):
    name = str(rng.choice(["FACO", "CAFO", "FAFO", "FAFO"]))
    imbalances = [0, 0, 1e-4, -1e-4, 0.01, -0.01, 1, -1, 200, -30]
    imbalance_qk, imbalance_ov = (
        float(rng.choice(imbalances)) if letter == "F" else 0.0 for letter in (name[0], name[2])
    )
    gaps, margins = [-34, -3, -0.1, 0, 0.01, 0.01, 1e-8, 2, 30], [0, 1e-10, 1e-3, 0.01, 0.01, 0.5, 3, 50]
    score_gap0, margin0 = float(rng.choice(gaps)), float(rng.choice(margins))
    if name[0] == "F" and score_gap0 < 0 and imbalance_qk == 0:  # decays for ever, which takes the reference as long
        imbalance_qk = 1e-4
    return TwoClocks(
        name,
        float(10 ** rng.uniform(-6, 6)),
        int(rng.choice([2, 4, 20, 1000])),
        int(rng.choice([1, 10, 1000])),
        rng.choice([None, 1, 10, 1000]),
        bool(rng.integers(2)),
        tuple(float(n) for n in 10 ** rng.uniform(-2, 3.5, 2)),
        margin0=0.01 if name[2] == "F" and margin0 == imbalance_ov == 0 else margin0,
        score_gap0=0.01 if name[0] == "F" and score_gap0 == imbalance_qk == 0 else score_gap0,
        imbalance_ov=imbalance_ov,
        imbalance_qk=imbalance_qk,
    )


@pytest.mark.slow
def test_accuracy_of_many():
    rng = np.random.default_rng(8)
    for _ in range(12):
        case = draw(rng)
        log_times = sorted([rng.uniform(-10, 30), rng.uniform(0, 100), 10 ** rng.uniform(1, 4)])
        assert worst(case, solved(case, log_times=log_times)) < 0.2, case


def test_a_public_peer():
    """Three runs printed elsewhere, with speeds sqrt(lambda^2 + 4 w^2) and sqrt(lambda^2 + 4 theta^2): FAFO, C = 1."""
    task = fs.Task(classes=20, distinct=1, null=True, context=fs.FixedContext(distinct=5, null=50))
    rows = [
        ((0.01, 0.01), "64915.5", "15.025331", "5.539473", "0.962199"),
        ((200.0, 0.01), "7285.41", "40.429434", "1.716767", "0.357595"),
        ((40.0, 200.0), "39396.3", "14.490277", "8.387547", "0.997728"),
    ]
    for (imbalance_ov, imbalance_qk), *printed in rows:
        start = {"margin0": 0.0, "score_gap0": 0.0, "imbalance_ov": imbalance_ov, "imbalance_qk": imbalance_qk}
        run = fs.exact(task, "FAFO", ratio=1.0, losses=[1e-1, 1e-3, 1e-5], **start)
        values = (run.time, run.margin, run.score_gap, run.attention)
        for value, text in zip(values, printed, strict=True):
            places = len(text.split(".")[1])
            assert f"{float(value[-1]):.{places}f}" == text


def test_drives():
    """Weights and speeds of the query-key blocks: the gain is the same, and b0 = F tau0 gives back the score gap."""
    for query in ("per-class", "shared"):
        for background in ({"common": 7}, {"null": True}):
            context = fs.FixedContext(distinct=3, **{next(iter(background)): 4})
            task = fs.Task(classes=5, distinct=2, query=query, context=context, **background)
            numbers = closed_form_parameters(task, "FAFO")
            assert sum(weight * speed for weight, speed in numbers.drives) == pytest.approx(numbers.gain, rel=1e-14)
            assert len(numbers.drives) == (2 if query == "per-class" else 1)
            assert numbers.drives[0][1] == max(speed for _, speed in numbers.drives)


def ways_to_index_agree(name):
    for ratio in (0.01, 300.0):
        run = fs.exact(reference(), name, ratio=ratio, log_times=[3.0, 8.0, 60.0], score_gap0=0.7)
        for grid in ({"margins": run.margin}, {"losses": run.loss}):
            other = fs.exact(reference(), name, ratio=ratio, score_gap0=0.7, **grid)
            for observable in ("log_time", "margin", "score_gap_change", "log_odds", "log_loss"):
                expected = getattr(run, observable)
                np.testing.assert_allclose(getattr(other, observable), expected, rtol=2e-11, atol=2e-11)
        times = fs.time_to(reference(), name, ratio=ratio, score_gap0=0.7, attention=run.attention)
        np.testing.assert_allclose(times, run.log_time, rtol=2e-9 if ratio > 1 else 2e-11)


def test_the_ways_to_index_agree():
    ways_to_index_agree("FAFO")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CACO", "FACO", "CAFO"])
def test_the_ways_to_index_agree_for_others(name):
    ways_to_index_agree(name)


def reference():
    return fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))


def test_frozen_attention():
    """With ratio 0 the score gap stays, and FACO and CACO agree."""
    runs = [
        fs.exact(reference(), name, ratio=0.0, log_times=[1.0, 50.0, 60.0], margin0=0.3, score_gap0=-2.0)
        for name in ("CACO", "FACO")
    ]
    assert (runs[1].score_gap_change == 0).all()
    np.testing.assert_allclose(runs[0].margin, runs[1].margin, rtol=1e-12)


def test_a_decaying_score_gap_never_crosses_zero():
    run = fs.exact(reference(), "FACO", ratio=5.0, log_times=[2.0, 1e3, 1e4], score_gap0=-3.0)
    assert (run.score_gap < 1e-300).all()
    np.testing.assert_allclose(run.score_gap[-1], 0.0, atol=1e-12)
    with pytest.raises(fs.InvalidInput, match="never reached"):
        fs.time_to(reference(), "FACO", ratio=5.0, attention=0.6, score_gap0=-3.0)


def test_the_margin_of_a_large_imbalance_is_lazy():
    """With a large imbalance a factorized circuit is a collapsed one whose rate is lambda."""
    lazy = fs.exact(
        reference(), "CAFO", ratio=5e6, times=[1e-4, 1e-3, 1e-2], margin0=0.0, score_gap0=0.0, imbalance_ov=1e6
    )
    collapsed = fs.exact(reference(), "CACO", ratio=5.0, times=[1e2, 1e3, 1e4])
    np.testing.assert_allclose(lazy.margin, collapsed.margin, rtol=1e-8)
    np.testing.assert_allclose(lazy.score_gap, collapsed.score_gap, rtol=1e-8)


@pytest.mark.parametrize(
    ("name", "start", "fragments"),
    [
        ("FACO", {"margin0": -0.1}, ["margin0=-0.1", "FACO", "flowsim.integrate"]),
        ("FAFO", {"margin0": -0.1, "imbalance_ov": 1.0}, ["margin0=-0.1", "flowsim.integrate"]),
        ("CAFO", {"margin0": -0.1}, ["margin0=-0.1", "imbalance_ov", "flowsim.integrate"]),
        ("FAFO", {"margin0": 0.0}, ["margin0=0", "imbalance_ov=0"]),
        ("CACO", {"imbalance_ov": 1.0}, ["imbalance_ov=1", "collapsed"]),
    ],
)
def test_refused_starts(name, start, fragments):
    with pytest.raises(fs.InvalidInput) as caught:
        fs.exact(reference(), name, ratio=1.0, times=1.0, **start)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_a_negative_margin_crosses_zero_with_an_imbalance():
    """CAFO against the time reversed: w -> -w is the same orbit, so the way back to |w0| ends at the old attention."""
    run = fs.exact(reference(), "CAFO", ratio=2.0, margins=[-0.3, 0.0, 0.3, 0.5], margin0=-0.5, imbalance_ov=0.4)
    np.testing.assert_allclose(run.score_gap_change[0], run.score_gap_change[2], rtol=1e-12)
    np.testing.assert_allclose(run.score_gap_change[3], 0.0, atol=1e-15)
    assert run.score_gap_change[1] < run.score_gap_change[0] < 0


def test_several_parameterizations_in_one_call():
    names = ["CACO", "FACO", "CAFO", "FAFO"]
    run = fs.exact(reference(), names, ratio=[5.0], times=[1.0, 100.0, 1e3])
    assert run.axes == ("parameterization", "ratio")
    assert run.margin.shape == (4, 1, 3)
    for i, name in enumerate(names):
        alone = fs.exact(reference(), name, ratio=[5.0], times=[1.0, 100.0, 1e3])
        lane = run.lane(parameterization=i)
        np.testing.assert_allclose(lane.margin, alone.margin, rtol=1e-13)
        assert (lane.parameterization, dict(lane.settings)) == (name, dict(alone.settings))
    assert fs.exact(reference(), ["FAFO"], ratio=1.0, times=[1.0, 2.0, 3.0]).axes == ("parameterization",)
    with pytest.raises(fs.InvalidInput, match="empty"):
        fs.exact(reference(), [], ratio=1.0, times=1.0)


def test_settings_carry_the_start():
    run = fs.exact(reference(), "FAFO", ratio=1.0, times=[1.0, 2.0, 3.0], imbalance_qk=0.5)
    start = {"margin0": 0.01, "score_gap0": 0.01, "imbalance_ov": 0.0, "imbalance_qk": 0.5}
    assert dict(run.settings) == {**start, "score_scale": 1.0}


def margin_of(ratio, start, log_time=7.0, name="FAFO"):
    margin0, score_gap0, imbalance_ov, imbalance_qk = start
    start = {"margin0": margin0, "score_gap0": score_gap0}
    start |= {"imbalance_ov": imbalance_ov, "imbalance_qk": imbalance_qk}
    log_times = log_time + jnp.arange(3.0)
    run = fs.exact(reference(), name, ratio=ratio, log_times=log_times, **start)
    return jnp.stack([run.margin[0], run.log_odds[0]])


def test_derivatives():
    """Forward and reverse, with respect to ratio, start and time, against differences."""
    point = jnp.asarray([5.0, 0.02, 0.1, 0.3, -0.2, 6.0])

    def both(point):
        return margin_of(point[0], point[1:5], point[5])

    exact = jax.jit(jax.jacrev(both))(point)
    step = 1e-5
    for i in range(6):
        ends = [both(point.at[i].add(sign * step)) for sign in (1, -1)]
        np.testing.assert_allclose(exact[:, i], (ends[0] - ends[1]) / (2 * step), rtol=2e-7, atol=1e-8)


@pytest.mark.slow
def test_forward_and_second_derivatives():
    """By all but the start of the query-key factors: the docstring of `exact` says so."""
    point = jnp.asarray([5.0, 0.02, 0.3, 6.0])

    def log_odds(point):
        return margin_of(point[0], (point[1], 0.1, point[2], -0.2), point[3])[1]

    first = jax.jit(jax.grad(log_odds))
    forward, second = jax.jit(jax.jacfwd(jax.value_and_grad(log_odds)))(point)  # one program: it shares the solution
    np.testing.assert_allclose(forward, first(point), rtol=1e-10)
    step = 1e-4
    for i in range(4):
        ends = [first(point.at[i].add(sign * step)) for sign in (1, -1)]
        np.testing.assert_allclose(second[:, i], (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("number", ["score_gap0", "imbalance_qk"])
def test_a_second_derivative_that_is_not_there_is_refused(number):
    """While tracing, so that nothing is compiled; the first ones, and the second by the ratio, are there."""
    task = task_of(CASES[0])

    def score_gap(value, ratio=5.0):
        start = {"score_gap0": 0.1, "imbalance_qk": -0.2, number: value}
        return fs.exact(task, "FACO", ratio=ratio, **start, log_times=[3.0]).score_gap[0]

    for outer in (jax.grad, jax.jacfwd):
        with pytest.raises(fs.InvalidInput, match="no second derivative"):
            jax.eval_shape(outer(jax.grad(score_gap)), 0.3)
    jax.eval_shape(jax.grad(lambda ratio: jax.grad(score_gap)(0.3, ratio)), 5.0)


@pytest.mark.slow
def test_a_dropped_partial_is_seen(monkeypatch):
    """Planted error: the table is taken to depend on nothing."""
    import flowsim.solve.score_clocks as clocks

    build = score_table.build
    monkeypatch.setattr(clocks.score_table, "build", lambda *args: jax.lax.stop_gradient(build(*args)))

    def log_odds(gap):
        return margin_of(5.0, (0.02, gap, 0.3, -0.2))[1]

    slope = jax.grad(log_odds)(0.1)
    monkeypatch.undo()
    difference = (log_odds(0.1 + 1e-5) - log_odds(0.1 - 1e-5)) / 2e-5
    assert abs(slope / difference - 1) > 1e-3


def test_a_coarse_table_is_seen(monkeypatch):
    """Planted error: every panel of the table is accepted."""
    monkeypatch.setattr(score_table, "_TOLERANCE", 1e-3)
    case = CASES[5]
    fresh = jax.jit(lambda *args: score_table.build(*args))
    drives = closed_form_parameters(task_of(case)).drives
    drives = score_table.Drives(*(jnp.asarray(column) for column in zip(*drives, strict=True)))
    start = score_table.ScoreStart(*(jnp.asarray(float(x)) for x in (case.log_odds0, case.score_gap0, 0.0)))
    coarse = fresh(drives, start)
    monkeypatch.undo()
    fine = jax.jit(score_table.build)(drives, start)
    scaled = jnp.geomspace(1e-3, 1e6, 50)
    values = [score_table.evaluate(table, scaled) for table in (coarse, fine)]
    assert jnp.max(jnp.abs(values[0] / values[1] - 1)) > 1e-10
