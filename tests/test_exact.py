"""`exact` and `time_to`: published numbers, grids, refusals, transformations."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import flowsim as fs
from flowsim.solve import exact as module
from flowsim.solve import ode
from flowsim.solve.closed_form import closed_form_parameters
from tests.closed_form_reference import DIGITS, Reference

FIXED = fs.FixedContext(distinct=32, common=31)
TASK = fs.Task(classes=4, distinct=10, common=10, context=FIXED)
OBSERVABLES = ("margin", "score_gap", "score_gap_change", "log_odds", "log_error", "log_loss")
# K=4, C=D=10, m=32, n=31, r=5, zero start: time, margin, score gap, odds, as an independent program computed them
PRINTED = [
    (1.0, "0.0126887863764", "0.00029707069738", "1.03256476369"),
    (100.0, "1.40272993086", "1.84946785880", "6.56148242674"),
    (1000.0, "4.48733840395", "4.24899295754", "72.2940374254"),
]
GAINS = [  # task, gain g of the closed form
    (TASK, 1 / 10 + 1 / 10),
    (fs.Task(classes=4, distinct=10, common=5, context=FIXED, query="shared"), 1 / 10 + 4 / 5),
    (fs.Task(classes=4, distinct=10, null=True, context=fs.FixedContext(distinct=32, null=31)), 1 / 10),
    (fs.Task(classes=4, distinct=7, null=True, context=fs.FixedContext(distinct=3, null=31), query="shared"), 1 / 7),
    (
        fs.Task(
            classes=5,
            groups=[fs.Group("filler", "common", 3), fs.Group("topic", "distinct", 2)],
            context=fs.FixedContext(counts=(0.5, 7.25)),
        ),
        1 / 2 + 1 / 3,
    ),
]


def agrees_to_printed_digits(value, text):
    places = len(text.split(".")[1])
    return abs(float(value) - float(text)) <= 0.51 * 10.0**-places


def test_printed_numbers():
    run = fs.exact(TASK, ratio=5.0, times=[row[0] for row in PRINTED])
    for i, (_, margin, gap, odds) in enumerate(PRINTED):
        assert agrees_to_printed_digits(run.margin[i], margin)
        assert agrees_to_printed_digits(run.score_gap[i], gap)
        assert agrees_to_printed_digits(run.odds[i], odds)
    altered = fs.exact(TASK, ratio=5.0 * (1 + 1e-6), times=[1000.0])  # planted error
    assert not agrees_to_printed_digits(altered.margin[0], PRINTED[2][1])


@pytest.mark.parametrize(("task", "gain"), GAINS)
def test_every_observable(task, gain):
    """Against 40 digits, for every kind of query and background; the gain is typed in by hand here."""
    numbers = closed_form_parameters(task)
    assert numbers.gain == pytest.approx(gain, rel=1e-15)
    start = {"margin0": 0.25, "score_gap0": -1.5}
    run = fs.exact(task, ratio=3.0, log_times=[-2.0, 6.0, 200.0], **start)
    counts = (numbers.distinct_count, numbers.background_count)
    reference = Reference(3.0, task.classes, numbers.distinct_types, gain, counts, **start)
    with mp.workdps(DIGITS):
        for i, log_time in enumerate((-2, 6, 200)):
            advance = mp.mpf(float(run.margin[i])) - mp.mpf(0.25)
            advance += (log_time - reference.log_time(advance)) * reference.time(advance) / reference.rate(advance)
            change = reference.change(advance)
            exact = {
                "margin": advance + 0.25,
                "score_gap": change - 1.5,
                "score_gap_change": change,
                "log_odds": reference.log_odds(advance),
                "log_error": reference.log_error(advance),
                "log_loss": reference.log_loss(advance),
            }
            for name, value in exact.items():
                assert abs(float(getattr(run, name)[i]) - value) <= 2e-13 * max(1, abs(value)), (name, log_time)


def test_the_ways_to_index_agree():
    run = fs.exact(TASK, ratio=[0.01, 5.0, 300.0], log_times=np.linspace(-8, 60, 40), score_gap0=1.0)
    for i in range(3):
        lane, ratio = run.lane(ratio=i), float(run.coords["ratio"][i])
        by_margin = fs.exact(TASK, ratio=ratio, margins=lane.margin, score_gap0=1.0)
        by_loss = fs.exact(TASK, ratio=ratio, log_losses=lane.log_loss, score_gap0=1.0)
        by_plain_loss = fs.exact(TASK, ratio=ratio, losses=lane.loss, score_gap0=1.0)
        np.testing.assert_allclose(by_margin.log_time, lane.log_time, rtol=1e-12, atol=1e-12)
        for name in OBSERVABLES:
            np.testing.assert_allclose(getattr(by_margin, name), getattr(lane, name), rtol=1e-12, atol=1e-14)
            for other in (by_loss, by_plain_loss):
                np.testing.assert_allclose(getattr(other, name), getattr(lane, name), rtol=2e-11, atol=2e-11)


def test_losses_far_beyond_float64():
    run = fs.exact(TASK, ratio=5.0, log_losses=[-1.0, -700.0, -1e6])
    np.testing.assert_allclose(run.log_loss, [-1.0, -700.0, -1e6], rtol=1e-13)
    np.testing.assert_allclose(run.log_time[2] - 1e6, np.log(10 * 3), atol=1e-4)  # loss * t tends to C (K-1)


def test_time_to():
    attention = [0.6, 0.9, 0.999]
    times = fs.time_to(TASK, ratio=5.0, attention=attention)
    run = fs.exact(TASK, ratio=5.0, log_times=times)
    np.testing.assert_allclose(run.attention, attention, rtol=1e-12)
    by_margin = fs.time_to(TASK, ratio=5.0, margin=[0.0, float(PRINTED[2][1]), 30.0])
    np.testing.assert_allclose(by_margin[:2], [-np.inf, np.log(1000)], rtol=1e-11)
    np.testing.assert_allclose(fs.time_to(TASK, ratio=5.0, loss=run.loss), times, rtol=1e-11)


def test_shapes_of_time_to():
    for ratio, attention, shape in [
        (5.0, 0.9, ()),
        ([5.0], 0.9, (1,)),
        (5.0, [0.9], (1,)),
        ([5.0, 1.0, 2.0], [0.6, 0.8, 0.9], (3, 3)),
    ]:
        assert fs.time_to(TASK, ratio=ratio, attention=attention).shape == shape


def test_time_to_from_a_negative_start():
    """Attention falls to its lowest value at margin 0; what is asked for is the first time."""
    start = {"margin0": -1.0, "score_gap0": 1.0}
    run = fs.exact(TASK, ratio=5.0, margins=[-0.9, 0.0, 2.0], **start)
    falling, lowest, rising = np.asarray(run.attention)
    assert lowest < falling < rising
    times = fs.time_to(TASK, ratio=5.0, attention=[falling, lowest * (1 + 1e-9), rising], **start)
    np.testing.assert_allclose(times[jnp.asarray([0, 2])], run.log_time[jnp.asarray([0, 2])], rtol=1e-11)
    with pytest.raises(fs.InvalidInput, match="never reached"):
        fs.time_to(TASK, ratio=5.0, attention=[0.5 * lowest, 0.9, 0.99], **start)


def test_axes_and_shapes():
    for ratio, times, shape, axes in [
        (5.0, 1.0, (1,), ()),
        (5.0, [1.0, 2.0, 3.0], (3,), ()),
        ([5.0], [1.0, 2.0, 3.0], (1, 3), ("ratio",)),
        ([5.0, 1.0, 2.0], [1.0, 2.0, 3.0], (3, 3), ("ratio",)),
    ]:
        run = fs.exact(TASK, ratio=ratio, times=times)
        assert run.margin.shape == shape
        assert run.axes == axes
        assert run.log_time.shape == shape[-1:]
        assert run.status.shape == shape[:-1]
        assert run.method == "exact"
    assert fs.exact(TASK, ratio=[5.0, 1.0, 2.0], margins=[1.0, 2.0, 3.0]).log_time.shape == (3, 3)


def test_time_zero_is_the_start():
    run = fs.exact(TASK, ratio=[0.0, 5.0, 1.0], times=[0.0, 1.0, 2.0], margin0=0.5, score_gap0=-1.0)
    assert (run.margin[:, 0] == 0.5).all()
    assert (run.score_gap[:, 0] == -1.0).all()
    assert (run.score_gap_change[:, 0] == 0.0).all()
    assert (run.status == 0).all()


def test_lanes_do_not_depend_on_each_other():
    """A lane is the same alone, in a block and in a sweep of many blocks and threads, up to rounding."""
    ratios = np.geomspace(1e-6, 1e6, 1500)
    times = np.geomspace(1e-3, 1e12, 3)
    sweep = fs.exact(TASK, ratio=ratios, times=times)
    for i in (0, 700, 1499):
        alone = fs.exact(TASK, ratio=float(ratios[i]), times=times)
        for name in OBSERVABLES:
            np.testing.assert_allclose(getattr(alone, name), getattr(sweep, name)[i], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("task", "fragment"),
    [
        (fs.Task(classes=4, distinct=10, common=10, context=FIXED, other_outputs=50), "other_outputs=50"),
        (fs.Task(classes=4, distinct=10, common=10, context=FIXED, attend_query=True), "attend_query=True"),
        (
            fs.Task(
                classes=4, distinct=10, common=10, null=True, context=fs.FixedContext(distinct=3, common=2, null=1)
            ),
            "null (null)",
        ),
        (fs.Task(classes=4, distinct=10, context=fs.FixedContext(distinct=3)), "distinct (distinct)"),
        (fs.Task(classes=4, distinct=10, common=10, context=fs.BinomialContext(8, 0.5)), "9 compositions"),
        (
            fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=3, common=0)),
            "common group has 0",
        ),
        (
            fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=0, common=3)),
            "distinct group has",
        ),
    ],
)
def test_no_closed_form(task, fragment):
    for call in (lambda: fs.exact(task, ratio=1.0, times=1.0), lambda: fs.time_to(task, ratio=1.0, margin=1.0)):
        with pytest.raises(fs.NoClosedForm) as caught:
            call()
        message = str(caught.value)
        assert fragment in message
        assert message.startswith("No closed form: ")
        assert message.endswith("use flowsim.integrate.")


def test_an_unknown_parameterization_is_refused():
    with pytest.raises(fs.InvalidInput, match=r"'caco'.*CACO"):
        fs.exact(TASK, "caco", ratio=1.0, times=1.0)


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ({}, ["exactly one of", "none"]),
        ({"times": [1.0], "margins": [1.0]}, ["times= and margins="]),
        ({"margins": [-0.1, 1.0, 2.0]}, ["-0.1", "margin0"]),
        ({"margins": [1.0, 0.5]}, ["margins[1]=0.5", "increasing"]),
        ({"margins": [1.0, np.inf]}, ["margins", "infinite"]),
        ({"margins": "far"}, ["margins='far'"]),
        ({"losses": [0.1, 0.2]}, ["losses[1]", "decreasing"]),
        ({"losses": [2.0, 0.2, 0.1]}, ["2", "start"]),
        ({"losses": [0.2, 0.0]}, ["losses[1]=0", "above 0"]),
        ({"losses": [0.2, -1.0]}, ["losses[1]=-1"]),
        ({"log_losses": [1.0, -1.0, -2.0]}, ["log_losses holds 1.0", "start"]),
    ],
)
def test_bad_grids(arguments, fragments):
    with pytest.raises(fs.InvalidInput) as caught:
        fs.exact(TASK, ratio=1.0, **arguments)
    for fragment in fragments:
        assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ({}, ["exactly one of", "none"]),
        ({"attention": 0.9, "loss": 0.1}, ["attention= and loss="]),
        ({"attention": 1.0}, ["attention=1", "below 1"]),
        ({"attention": [0.9, 0.0]}, ["attention=0", "above 0"]),
        ({"attention": [0.6, 0.3, 0.9]}, ["attention=0.2999", "never reached"]),
        ({"attention": [0.9, 0.6, 0.7], "ratio": 0.0}, ["never reached", "ratio=0"]),
        ({"loss": [0.5, 2.0, 0.2]}, ["loss=", "never reached"]),
        ({"loss": -1.0}, ["loss=-1"]),
        ({"margin": [2.0, -1.0, 1.0]}, ["margin=-1", "never reached"]),
        ({"margin": np.nan}, ["margin=nan"]),
    ],
)
def test_bad_targets(arguments, fragments):
    with pytest.raises(fs.InvalidInput) as caught:
        fs.time_to(TASK, **{"ratio": 1.0, **arguments})
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_traced_bad_values_set_the_status():
    """Under a transformation nothing can be raised: the lane says what is wrong, and other lanes are kept."""

    def status(ratio, margin0, grid, way):
        run = fs.exact(TASK, ratio=ratio, margin0=margin0, **{way: grid})
        return run.status, run.margin

    run = jax.jit(status, static_argnames="way")
    ratios = jnp.asarray([1.0, -1.0, jnp.nan])
    codes, margins = run(ratios, 0.0, jnp.asarray([1.0, 2.0]), way="times")
    assert codes.tolist() == [fs.Status.OK, fs.Status.NOT_FINITE, fs.Status.NOT_FINITE]
    assert jnp.isfinite(margins[0]).all()
    codes, margins = run(ratios, 1.0, jnp.asarray([0.5, 2.0]), way="margins")
    assert codes[0] == fs.Status.UNREACHABLE
    assert jnp.isnan(margins[0, 0])
    assert margins[0, 1] == 2.0
    codes, _ = run(ratios, jnp.inf, jnp.asarray([1.0, 2.0]), way="times")
    assert (codes == fs.Status.NOT_FINITE).all()


def test_transformations():
    """vmap over starts, gradients through the public function, and values equal to the plain call."""

    def margin(ratio, margin0, score_gap0):
        return fs.exact(TASK, ratio=ratio, times=100.0, margin0=margin0, score_gap0=score_gap0).margin[0]

    plain = [float(margin(2.0, w, 0.5)) for w in (0.0, 0.7)]
    mapped = jax.jit(jax.vmap(margin, in_axes=(None, 0, None)))(2.0, jnp.asarray([0.0, 0.7]), 0.5)
    np.testing.assert_allclose(mapped, plain, rtol=1e-13)
    slopes = jax.jit(jax.grad(margin, argnums=(0, 1, 2)))(2.0, 0.7, 0.5)
    step = 1e-5
    for i, slope in enumerate(slopes):
        ends = [
            margin(*(value + sign * step * (i == k) for k, value in enumerate((2.0, 0.7, 0.5)))) for sign in (1, -1)
        ]
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-7)


@pytest.mark.slow
def test_gradient_of_a_time():
    """d ln t/d ratio at fixed attention is negative: faster query-key learning gets there sooner."""

    def log_time(ratio):
        return fs.time_to(TASK, ratio=ratio, attention=0.9)

    slope, step = jax.jit(jax.grad(log_time))(5.0), 1e-4
    np.testing.assert_allclose(slope, (log_time(5.0 + step) - log_time(5.0 - step)) / (2 * step), rtol=1e-7)
    assert slope < 0


def test_no_new_trace_for_new_values():
    """One trace for each shape and kind of grid, however many ratios, starts and horizons."""
    times = np.geomspace(1.0, 1e6, 11)  # a shape that no other test has

    def traces():
        return getattr(module._solve, "_cache_size")()  # noqa: B009  pyright does not know it

    before = traces()
    for ratio, horizon, gap in [(1.0, 1.0, 0.0), (20.0, 1e3, -3.0), (1e-5, 1e200, 2.0)]:
        fs.exact(TASK, ratio=ratio, times=times * horizon, score_gap0=gap)
    assert traces() - before == 1


@pytest.mark.parametrize(
    ("solver", "compiled", "rtol"),
    [(fs.exact, lambda: module._solve, 1e-12), (fs.integrate, lambda: vars(ode._fixed)["compiled"](), 1e-7)],
)
def test_few_lanes_and_times_share_a_program(solver, compiled, rtol):
    """One to four of either, each with the numbers that it has among the others."""
    ratios, times = [1.0, 2.0, 5.0, 0.3], [1.0, 10.0, 100.0, 1e3]
    whole = solver(TASK, ratio=ratios, times=times)
    before = compiled()._cache_size()
    for lanes, n in ((1, 1), (2, 3), (3, 2), (4, 1)):
        few = solver(TASK, ratio=ratios[:lanes], times=times[:n])
        assert few.margin.shape == (lanes, n)
        assert few.status.shape == few.n_steps.shape == (lanes,)
        for name in OBSERVABLES:
            np.testing.assert_allclose(getattr(few, name), getattr(whole, name)[:lanes, :n], rtol=rtol)
    assert compiled()._cache_size() == before


@pytest.mark.parametrize(
    ("ratio", "margin0", "score_gap0", "advance"),
    [(1e3, 500.0, -3.0, 1.0), (1e5, 400.0, -3.0, 0.5), (10.0, 700.0, 0.0, 2.0), (1e5, 2000.0, -3.0, 100.0)],
)
def test_attention_that_jumps_at_a_large_margin(ratio, margin0, score_gap0, advance):
    """The log rate rises by hundreds within a tiny advance, then bends: the end of the integral must not reach back."""
    run = fs.exact(TASK, ratio=ratio, margins=[margin0 + advance], margin0=margin0, score_gap0=score_gap0)
    reference = Reference(ratio=ratio, margin0=margin0, score_gap0=score_gap0)
    np.testing.assert_allclose(run.log_time, [float(reference.log_time(advance))], rtol=4 * 2.0**-52)


@pytest.mark.parametrize("ratio", [1e-40, 1e-25])
def test_margins_as_large_as_attention_is_small(ratio):
    """Attention of e^-34: the margin reaches 1e17, or 1e13 where attention jumps at last."""
    log_times = [500.0, 1e3, 1e4]
    run = fs.exact(TASK, ratio=ratio, log_times=log_times, score_gap0=-34.0)
    assert run.status == fs.Status.OK
    reference = Reference(ratio=ratio, score_gap0=-34.0)
    for margin, log_time in zip(run.margin, log_times, strict=True):
        found = float(reference.log_time(float(margin)))
        by_margin = float(reference.time(float(margin)) / reference.rate(float(margin)))
        assert abs(found - log_time) * by_margin <= 1e-11 * margin


def test_inversion_does_not_go_to_and_fro():
    # attention is far from the distinct token: the time is gentle, then bends where Newton's method jumps over it
    task = fs.Task(classes=2, distinct=1, common=10, context=fs.FixedContext(distinct=0.5, common=1e9))
    found = fs.exact(task, "CAFO", ratio=[1e-12, 1e-3], log_times=[1e6], margin0=1.0, score_gap0=-3.0)
    back = fs.time_to(task, "CAFO", ratio=1e-12, margin=float(found.margin[0, 0]), margin0=1.0, score_gap0=-3.0)
    np.testing.assert_allclose(back, 1e6, rtol=1e-11)
    np.testing.assert_allclose(found.log_error, -1e6, rtol=1e-4)  # the lead is the log of the time, to leading order


def test_inversion_in_a_panel_that_bends():
    # attention jumps within the panel that holds the time; the time of that margin, by quadrature, is the time again
    far = fs.Task(classes=12, distinct=17, common=1, context=fs.FixedContext(distinct=0.00147, common=51023.7))
    large = fs.Task(classes=356594, distinct=27, common=3, context=fs.FixedContext(distinct=0.000745, common=0.00778))
    for task, ratio, log_time, start in (
        (far, 1e-3, 102.83, {"margin0": 2.2e-6, "score_gap0": -77.344}),
        (large, 1.0, 13.2958, {"margin0": 38.254, "score_gap0": -0.03948}),
    ):
        margin = float(fs.exact(task, ratio=ratio, log_times=log_time, **start).margin[0])
        np.testing.assert_allclose(fs.time_to(task, ratio=ratio, margin=margin, **start), log_time, rtol=1e-9)
