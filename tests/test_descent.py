"""Finite steps in the reduced blocks: the loop, its grid and its verdicts, and the way to the flow."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

import flowsim as fs
from flowsim.solve import descent
from flowsim.solve.stepping import EXPLOSION, begin, record_steps, run_steps
from tests import full_matrix as full

MIXTURE = fs.Task(
    classes=3,
    groups=[fs.Group("topic", "distinct", 2), fs.Group("filler", "common", 3), fs.Group("blank", "null")],
    context=fs.MixtureContext([(0.3, (4, 5, 1)), (0.7, (2, 1.5, 0))]),
    other_outputs=4,
)


POINTS = 100  # one shape for most tests, so that they share compiled code


# --- the grid of steps ---


@given(st.integers(1, 10**12), st.integers(1, 300))
def test_record_steps_are_distinct_and_end_at_the_last(steps, points):
    grid = record_steps(steps, points)
    assert len(grid) == min(steps, points)
    assert grid[-1] == steps
    assert (np.diff(grid) > 0).all()
    assert grid[0] == (1 if points > 1 else steps)


def test_record_steps_are_even_in_the_logarithm():
    grid = record_steps(10**8, 100)
    ratios = np.diff(np.log(grid[grid > 1000]))
    assert ratios.max() / ratios.min() < 1.01


# --- the loop, on a problem whose every step is known: f(x) = x^2/2, x -> (1 - rate) x ---


def quadratic(rates, steps, points=10**6, start=1.0, outputs=1):
    gaps = jnp.asarray(np.diff(record_steps(steps, points), prepend=0))

    def lane(rate):
        def advance(x):
            return x - rate * x, x**2 / 2

        return run_steps(advance, lambda x: (x, x**2 / 2), begin(jnp.asarray(start), outputs), gaps)

    return jax.vmap(lane)(jnp.asarray(rates))


def test_every_step_is_taken_and_recorded():
    run = quadratic([0.3, 1.9], steps=40)
    np.testing.assert_allclose(run.records, np.power.outer([0.7, -0.9], np.arange(1, 41)), rtol=1e-13)
    assert run.status.tolist() == [fs.Status.OK] * 2
    assert run.n_steps.tolist() == [40, 40]


def test_a_sparse_record_is_a_selection_of_the_full_one():
    every, some = quadratic([0.1], steps=300), quadratic([0.1], steps=300, points=17)
    assert some.records.shape == (1, 17)
    assert (some.records[0] == every.records[0, record_steps(300, 17) - 1]).all()


def test_going_on_from_progress_is_going_on():
    gaps = jnp.asarray([3, 4])

    def advance(x):
        return 0.9 * x, x**2 / 2

    def look(x):
        return x, x**2 / 2

    first = run_steps(advance, look, begin(jnp.asarray(1.0), 1), gaps)
    second = run_steps(advance, look, first.progress, gaps)
    whole = run_steps(advance, look, begin(jnp.asarray(1.0), 1), jnp.asarray([3, 4, 3, 4]))
    assert (jnp.concatenate([first.records, second.records]) == whole.records).all()
    assert second.n_steps == whole.n_steps == 14


@pytest.mark.parametrize(
    ("rate", "start", "outputs"),
    [(2.5, 1.0, 1), (2.1, 1.0, 1), (4.0, 1e-3, 1), (4.0, 1e-3, 5), (1e200, 1.0, 1), (np.inf, 1.0, 1), (np.nan, 1.0, 1)],
)
def test_an_explosion_is_caught_at_its_step_and_spoils_no_other_lane(rate, start, outputs):
    steps = 60
    run = quadratic([rate, 0.5], steps, start=start, outputs=outputs)
    x, last = start, 0
    with np.errstate(all="ignore"):
        while last < steps:  # in plain Python: which step is the last sound one?
            x = x - np.float64(rate) * x
            if not (np.isfinite(x) and x**2 / 2 <= EXPLOSION * max(start**2 / 2, np.log(outputs))):
                break
            last += 1
    assert last < steps
    assert run.status.tolist() == [fs.Status.DIVERGED, fs.Status.OK]
    assert run.n_steps.tolist() == [last, steps]
    assert np.isfinite(run.records[0, :last]).all()
    assert np.isnan(run.records[0, last:]).all()
    alone = quadratic([0.5], steps, start=start, outputs=outputs)
    assert (run.records[1] == alone.records[0]).all()


def test_a_run_that_ends_above_its_start_has_diverged_where_it_left_for_good():
    # grows by 1 % in x per step: far from an explosion after 20 steps, and no descent
    run = quadratic([2.01, 2.0, 1.99], steps=20, outputs=2)
    assert run.status.tolist() == [fs.Status.DIVERGED, fs.Status.OK, fs.Status.OK]
    assert run.n_steps.tolist() == [0, 20, 20]
    assert np.isnan(run.records[0]).all()


def test_a_loss_that_rises_and_comes_back_is_no_divergence():
    gaps = jnp.ones(9, dtype=int)
    losses = jnp.asarray([1.0, 5.0, 8.0, 3.0, 1.5, 0.9, 2.0, 4.0, 1.2, 1.1])

    def run(last):
        def loss(step):
            return losses.at[9].set(last)[step.astype(int)]

        return run_steps(lambda s: (s + 1, loss(s)), lambda s: (s, loss(s)), begin(jnp.asarray(0.0), 2), gaps)

    back, away = run(0.7), run(1.1)
    assert (back.status, back.n_steps) == (fs.Status.OK, 9)
    assert (away.status, away.n_steps) == (fs.Status.DIVERGED, 5)
    np.testing.assert_array_equal(away.records, [1, 2, 3, 4, 5, np.nan, np.nan, np.nan, np.nan])


# --- descend ---


def plain_descent(ratio, lr, steps, w=0.0, theta=0.0):
    """The two equations of the paper-size task, stepped in plain Python."""
    k, c, d, m, n = 4, 10, 10, 32, 31
    for _ in range(steps):
        alpha = 1 / (1 + n / m * np.exp(-theta))
        q = (k - 1) / (np.exp(alpha * w) + k - 1)
        dw = alpha * q / (c * (k - 1))
        dtheta = ratio * (1 / c + 1 / d) / k * alpha * (1 - alpha) * q * w
        w, theta = w + lr * dw, theta + lr * dtheta
    return w, theta


@pytest.mark.parametrize(("margin0", "score_gap0"), [(0.0, 0.0), (0.3, -1.0), (-0.5, 0.7)])
def test_steps_are_those_of_the_closed_equations(reference_task, margin0, score_gap0):
    ours = fs.descend(
        reference_task, ratio=5.0, lr=0.7, steps=500, margin0=margin0, score_gap0=score_gap0, points=POINTS
    )
    w, theta = plain_descent(5.0, 0.7, 500, margin0, score_gap0)
    assert float(ours.margin[-1]) == pytest.approx(w, rel=1e-12)
    assert float(ours.score_gap[-1]) == pytest.approx(theta, rel=1e-12)
    assert float(ours.score_gap_change[-1]) == pytest.approx(theta - score_gap0, rel=1e-11)
    assert float(ours.log_time[-1]) == pytest.approx(np.log(350), rel=1e-15)
    wrong, _ = plain_descent(5.0 * (1 + 1e-6), 0.7, 500, margin0, score_gap0)
    assert float(ours.margin[-1]) != pytest.approx(wrong, rel=1e-12)


def tight_flow(time):
    """Margin, score gap and log odds of the paper-size task's flow, by an independent solver."""
    k, c, d, m, n = 4, 10, 10, 32, 31

    def flow(_, state):
        w, theta = state
        alpha = 1 / (1 + n / m * np.exp(-theta))
        q = (k - 1) / (np.exp(alpha * w) + k - 1)
        return alpha * q / (c * (k - 1)), 5.0 * (1 / c + 1 / d) / k * alpha * (1 - alpha) * q * w

    w, theta = solve_ivp(flow, (0, time), (0.0, 0.0), method="DOP853", rtol=1e-13, atol=1e-15).y[:, -1]
    return np.array([w, theta, np.log(m / n) + theta])


def mixture_flow(time):
    """The same of the mixture task, from the autodiff gradient of its full matrices (ratio 2)."""
    population = full.mean_counts(MIXTURE)
    n_qk = 3  # s and two t

    def flow(_, blocks):
        gradient = full.project(MIXTURE, *full.full_gradient(*full.symmetric_matrices(MIXTURE, blocks), population))
        return -np.where(np.arange(blocks.size) < n_qk, 2.0, 1.0) * gradient

    zero = full.project(MIXTURE, *(np.zeros_like(w) for w in full.symmetric_matrices(MIXTURE, np.zeros(8))))
    blocks = solve_ivp(flow, (0, time), zero, method="DOP853", rtol=1e-11, atol=1e-13).y[:, -1]
    qk, ov = full.symmetric_matrices(MIXTURE, blocks)
    # the first token belongs to class 0, the last ones are common; log odds from the two compositions by hand
    counts = np.array([[4, 5, 1], [2, 1.5, 0]])
    mass = counts * np.exp([qk[0, 0], qk[-1, 0], 0.0])
    alpha = np.array([0.3, 0.7]) @ (mass[:, 0] / mass.sum(axis=1))
    return np.array([ov[0, 0] - ov[1, 0], qk[0, 0] - qk[-1, 0], np.log(alpha / (1 - alpha))])


def fitted_order(lrs, errors):
    return np.polyfit(np.log(lrs), np.log(errors), 1)[0]


@pytest.mark.parametrize(
    ("task", "ratio", "time", "lrs", "flow"),
    [
        ("reference", 5.0, 100.0, [0.8, 0.4, 0.2, 0.1, 0.05], tight_flow),
        (MIXTURE, 2.0, 16.0, [0.16, 0.08, 0.04, 0.02, 0.01], mixture_flow),
    ],
    ids=["paper-size", "mixture"],
)
def test_descent_approaches_the_flow_with_order_one(reference_task, task, ratio, time, lrs, flow, capsys):
    task = reference_task if task == "reference" else task

    def end(lr, ratio):
        run = fs.descend(task, ratio=ratio, lr=lr, steps=round(time / lr), points=POINTS)
        return np.array([run.margin[-1], run.score_gap[-1], run.log_odds[-1]])

    truth = flow(time)
    errors = np.abs([end(lr, ratio) - truth for lr in lrs])
    orders = [fitted_order(lrs, errors[:, i]) for i in range(3)]
    with capsys.disabled():
        print(
            f"\norder of descend in lr: margin, score gap, log odds = {', '.join(f'{o:.4f}' for o in orders)}", end=" "
        )
    assert all(0.9 <= order <= 1.1 for order in orders), orders
    # planted: a ratio that is off by 1 % leaves an error that does not vanish with lr
    planted = np.abs([end(lr, ratio * 1.01) - truth for lr in lrs])
    assert any(not 0.9 <= fitted_order(lrs, planted[:, i]) <= 1.1 for i in range(3))


def test_descent_approaches_the_closed_form_at_every_time(reference_task):
    lrs = [0.4, 0.2, 0.1, 0.05, 0.025]
    runs = [fs.descend(reference_task, ratio=5.0, lr=lr, steps=round(1000 / lr), points=POINTS) for lr in lrs]
    exact = [fs.exact(reference_task, ratio=5.0, log_times=run.log_time) for run in runs]
    late = [int(np.searchsorted(run.log_time, np.log(10))) for run in runs]
    for name in ("margin", "score_gap", "log_odds", "log_loss"):
        pairs = zip(runs, exact, late, strict=True)
        errors = [float(jnp.max(jnp.abs(getattr(a, name) - getattr(b, name))[i:])) for a, b, i in pairs]
        assert 0.9 <= fitted_order(lrs, errors) <= 1.1
    # extrapolated to step 0 it gives the numbers of the closed form in high precision, at t = 1000
    margins, gaps = ([float(getattr(run, name)[-1]) for run in runs[-2:]] for name in ("margin", "score_gap"))
    np.testing.assert_allclose([2 * b - a for a, b in (margins, gaps)], [4.4873384035, 4.2489929575], rtol=1e-8)


def test_a_change_far_below_the_rounding_of_the_score_gap_is_kept(reference_task):
    ours = fs.descend(reference_task, ratio=1.0, lr=1e-12, steps=100, points=POINTS, margin0=0.1, score_gap0=50.0)
    with mpmath.workdps(40):
        w, y = mpmath.mpf(0.1), mpmath.mpf(32) / 31 * mpmath.exp(50)
        alpha = y / (1 + y)
        slope = mpmath.mpf("0.2") / 4 * alpha / (1 + y) * 3 / (mpmath.exp(alpha * w) + 3) * w
        change = float(slope * mpmath.mpf(1e-12) * 100)
    assert float(ours.score_gap_change[-1]) == pytest.approx(change, rel=1e-9, abs=0)
    lost = float(ours.score_gap[-1]) - 50.0  # planted: the difference itself
    assert lost != pytest.approx(change, rel=0.5, abs=0)


def test_axes(reference_task):
    def run(ratio, lr):
        return fs.descend(reference_task, ratio=ratio, lr=lr, steps=120, points=POINTS)

    both = run([1.0, 5.0], [0.1, 0.2])
    assert both.axes == ("ratio", "lr")
    assert both.margin.shape == both.log_time.shape == (2, 2, POINTS)
    assert both.status.shape == (2, 2)
    assert run(5.0, 0.2).margin.shape == (POINTS,)
    assert run([5.0], 0.2).log_time.shape == (POINTS,)
    assert run([5.0], 0.2).axes == ("ratio",)
    assert run(5.0, [0.2]).axes == ("lr",)
    picked, alone = both.lane(ratio=1, lr=1), run(5.0, 0.2)
    assert (picked.margin == alone.margin).all()
    assert (picked.log_time == alone.log_time).all()
    np.testing.assert_allclose(alone.time, 0.2 * record_steps(120, POINTS), rtol=1e-15)
    assert alone.method == "descent"
    assert alone.coords == {"ratio": 5.0, "lr": 0.2}
    assert alone.settings["steps"] == 120


def test_a_saved_run_comes_back(tmp_path):
    start = fs.Start(ov_standard=[0.1])
    run = fs.descend(MIXTURE, ratio=[2.0], lr=0.1, steps=120, points=POINTS, start=start)
    run.save(tmp_path / "x.nc")
    back = fs.Trajectory.load(tmp_path / "x.nc")
    assert (back.margins == run.margins).all()
    assert back.settings == run.settings


def test_one_trace_for_all_numbers(reference_task, monkeypatch):
    traces = []
    original = descent.run_steps
    monkeypatch.setattr(descent, "run_steps", lambda *args: (traces.append(1), original(*args))[1])
    for k, m, ratio, lr, steps in [(4, 32, 5.0, 0.1, 10_000), (4, 3.5, 7.0, 0.3, 123), (7, 1.0, 0.0, 2.0, 99_999)]:
        task = fs.Task(classes=k, distinct=k, common=3, context=fs.FixedContext(distinct=m, common=31))
        fs.descend(task, ratio=ratio, lr=lr, steps=steps, points=71, margin0=0.1 * k)
    assert len(traces) == 1
    fs.descend(reference_task, ratio=1.0, lr=0.1, steps=100, points=72)
    assert len(traces) == 2  # another shape is another trace


def test_starts(reference_task):
    short = fs.descend(reference_task, ratio=5.0, lr=1e-300, steps=100, points=POINTS, margin0=1.25, score_gap0=-0.5)
    assert float(short.margin[0]) == pytest.approx(1.25, rel=1e-14)
    assert float(short.score_gap[0]) == pytest.approx(-0.5, rel=1e-14)
    # margin = S/sqrt(C), gap = t_d/(K sqrt(C)) + (K-1) s/(K sqrt(C)) - t_c/sqrt(K D)
    blocks = fs.Start(ov_standard=[1.25 * 10**0.5], qk_standard=[0.2], qk_trivial=[0.3, 0.4])
    given_blocks = fs.descend(reference_task, ratio=5.0, lr=1e-300, steps=100, points=POINTS, start=blocks)
    assert float(given_blocks.margin[0]) == pytest.approx(1.25, rel=1e-14)
    gap = (3 * 0.2 + 0.3) / (4 * 10**0.5) - 0.4 / 40**0.5
    assert float(given_blocks.score_gap[0]) == pytest.approx(gap, rel=1e-14)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameterization": "CACA"}, ["CACA", "CACO"]),
        ({"start": fs.Start(ov_standard=[1.0]), "margin0": 0.5}, ["start=", "margin0=0.5"]),
        ({"start": [1.0]}, ["start=", "flowsim.Start"]),
        ({"start": fs.Start(ov_standard=[1.0, 2.0])}, ["ov_standard", "2 entries"]),
        ({"margin0": np.nan}, ["margin0"]),
        ({"score_gap0": "wide"}, ["score_gap0"]),
    ],
)
@pytest.mark.parametrize("function", [fs.descend, fs.train])
def test_refusals(reference_task, function, changes, words):
    with pytest.raises(fs.InvalidInput) as caught:
        function(reference_task, **{"ratio": 1.0, "lr": 0.1, "steps": 5, **changes})
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("function", [fs.descend, fs.train])
def test_a_margin_does_not_start_other_tasks(function):
    with pytest.raises(fs.InvalidInput, match=r"margin0=0\.5 does not determine .*flowsim\.Start"):
        function(MIXTURE, ratio=1.0, lr=0.1, steps=5, margin0=0.5)


@pytest.mark.parametrize("function", [fs.descend, pytest.param(fs.train, marks=pytest.mark.slow)])
def test_forward_derivatives(reference_task, function):
    def end(ratio, margin0):
        run = function(reference_task, ratio=ratio, lr=0.5, steps=200, points=1, margin0=margin0)
        return run.log_odds[-1]

    direction = (1.0, 0.3)
    slope = jax.jvp(end, (5.0, 0.2), direction)[1]
    difference = (end(5.0 + 1e-5, 0.2 + 0.3e-5) - end(5.0 - 1e-5, 0.2 - 0.3e-5)) / 2e-5
    assert float(slope) == pytest.approx(float(difference), rel=1e-7)
    one_sided = (end(5.0 + 1e-3, 0.2) - end(5.0, 0.2)) / 1e-3  # planted: another direction
    assert float(slope) != pytest.approx(float(one_sided), rel=1e-7)


def test_traced_numbers(reference_task):
    def run(ratio):
        return fs.descend(reference_task, ratio=ratio, lr=0.5, steps=20, points=7)

    traced = jax.jit(run)(jnp.asarray([-1.0, 2.0]))
    assert traced.status.tolist() == [fs.Status.NOT_FINITE, fs.Status.OK]
    assert np.isnan(traced.margin[0]).all()
    np.testing.assert_allclose(traced.margin[1], run(2.0).margin, rtol=1e-14)
