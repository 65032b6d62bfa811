"""Numerical integration: its accuracy, its estimate of it, its lanes, its derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import flowsim as fs
from flowsim.solve import fixed_grid, lanes, measure, ode, reduced, runge_kutta
from flowsim.status import Status
from tests import full_matrix as full
from tests.closed_form_reference import Reference, judge

PAPER = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
CLOSED = {
    "paper": PAPER,
    "null background": fs.Task(classes=20, distinct=1, null=True, context=fs.FixedContext(distinct=5, null=50)),
    "two classes": fs.Task(classes=2, distinct=1, common=1, context=fs.FixedContext(distinct=1, common=1)),
    "faint": fs.Task(classes=100, distinct=3, common=50, context=fs.FixedContext(distinct=1, common=300)),
    "shared query": fs.Task(
        classes=7, distinct=5, common=3, query="shared", context=fs.FixedContext(distinct=200, common=2)
    ),
}
DETOUR = fs.Task(
    classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=12.6, common=50.4), other_outputs=50
)
MIXED = fs.Task(
    classes=3,
    groups=[
        fs.Group("topic", "distinct", 2),
        fs.Group("hint", "distinct", 1),
        fs.Group("filler", "common", 3),
        fs.Group("blank", "null"),
    ],
    context=fs.MixtureContext([(0.3, (4, 1, 5, 1)), (0.7, (2, 3, 1.5, 0))]),
    attend_query=True,
    other_outputs=4,
)
# One number of lanes and of times wherever possible, so that tests share compiled code.
RATIOS = np.geomspace(1e-4, 1e4, 8)
N_TIME = 60


def field_of(task):
    return fs.compile(fs.derive(task))


def errors(got, exact):
    """Errors in the measure that the tolerance refers to, one for each lane."""
    margin = np.abs(got.margin - exact.margin) / np.maximum(1, np.abs(exact.margin))
    odds = np.abs(got.log_odds - exact.log_odds) / np.maximum(1, np.abs(exact.log_odds))
    change = np.asarray(exact.score_gap_change)
    gap = np.abs(got.score_gap_change - change) / np.where(change == 0, 1, np.abs(change))
    return np.max([margin.max(-1), odds.max(-1), gap.max(-1)], axis=0)


# --- accuracy ---


@pytest.mark.parametrize("horizon", [30.0, 1e4])
@pytest.mark.parametrize(
    ("name", "margin0", "score_gap0"),
    [
        ("paper", 0.0, 0.0),
        ("paper", 30.0, -4.0),
        ("null background", 3.0, 0.0),
        ("two classes", 0.0, 2.0),
        pytest.param("faint", 0.0, 0.0, marks=pytest.mark.slow),
        ("shared query", 0.0, 0.0),
    ],
)
def test_default_accuracy_against_the_closed_form(name, margin0, score_gap0, horizon):
    grid = {"log_times": np.linspace(-5, horizon, N_TIME), "margin0": margin0, "score_gap0": score_gap0}
    got = fs.integrate(CLOSED[name], ratio=RATIOS, **grid)
    exact = fs.exact(CLOSED[name], ratio=RATIOS, **grid)
    assert (got.status == Status.OK).all()
    assert errors(got, exact).max() < 1e-8


@pytest.mark.parametrize(("ratio", "log_time"), [(1e-4, 12.0), (5.0, np.log(100.0)), (5.0, 1e4), (1e4, 0.5)])
def test_accuracy_against_forty_digits(ratio, log_time):
    got = fs.integrate(PAPER, ratio=ratio, log_times=log_time)
    values = (float(a[0]) for a in (got.margin, got.log_odds, got.score_gap_change))
    found = judge(Reference(ratio), log_time, *values, 1e-8)
    assert max(found.margin, found.log_odds, found.change) < 1


def test_the_numbers_of_the_reference_task():
    got = fs.integrate(PAPER, ratio=5.0, times=[1, 100, 1000])
    np.testing.assert_allclose(got.margin, [0.0126887863760, 1.4027299307, 4.4873384035], rtol=1e-9)
    np.testing.assert_allclose(got.score_gap, [0.00029707069, 1.8494678586, 4.2489929575], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(got.odds, [1.0325647637, 6.5614824260, 72.294037420], rtol=1e-8)


def test_tiny_changes_keep_their_relative_accuracy():
    grid = {"log_times": np.linspace(-20, 1, N_TIME), "score_gap0": 2.0}
    got, exact = (solve(PAPER, ratio=RATIOS, **grid) for solve in (fs.integrate, fs.exact))
    assert np.abs(exact.score_gap_change).min() < 1e-22
    np.testing.assert_allclose(got.score_gap_change, exact.score_gap_change, rtol=1e-8)


def test_a_jump_within_one_rounding_of_the_clock():
    # A negative margin stays below 0 for an age, then passes through hundreds of units at one float64 time.
    grid = {"log_times": np.linspace(0, 3000, N_TIME), "margin0": -20.0}
    got, exact = (solve(PAPER, ratio=np.geomspace(1, 5, 8), **grid) for solve in (fs.integrate, fs.exact))
    assert (got.status == Status.OK).all()
    assert np.diff(exact.margin).max() > 300
    assert errors(got, exact).max() < 1e-8


def test_tolerance_is_met_and_saved_work():
    exact = fs.exact(PAPER, ratio=RATIOS, log_times=np.linspace(-5, 30, N_TIME))
    steps = []
    for tol in (1e-4, 1e-6, 1e-10, 1e-11):
        got = fs.integrate(PAPER, ratio=RATIOS, log_times=np.linspace(-5, 30, N_TIME), tol=tol)
        assert errors(got, exact).max() < tol
        steps.append(int(got.n_steps.max()))
    assert steps[1] < steps[2] / 2 < steps[3] / 2


def test_time_zero_and_a_frozen_circuit():
    ratios = np.concatenate([[0.0], RATIOS[1:]])
    grid = {"times": np.concatenate([[0.0], np.geomspace(1, 1e5, N_TIME - 1)]), "margin0": 0.5, "score_gap0": -1.0}
    got, exact = (solve(PAPER, ratio=ratios, **grid) for solve in (fs.integrate, fs.exact))
    assert (got.status == Status.OK).all()
    assert (got.margin[:, 0] == 0.5).all()
    assert (got.score_gap[:, 0] == -1).all()
    assert (got.score_gap_change[0] == 0).all()
    assert errors(got, exact).max() < 1e-8
    only = fs.integrate(PAPER, ratio=1.0, times=0.0)
    assert only.margin.shape == (1,)
    assert only.status == Status.OK
    assert only.n_steps == 0


# --- tasks without a closed form ---


@pytest.mark.slow
def test_detour_through_common_tokens():
    got = fs.integrate(DETOUR, ratio=[1.0, 10.0], times=[300, 1000, 10_000])
    np.testing.assert_allclose(got.attention[0], [0.0820, 0.480, 0.865], rtol=2e-3)
    np.testing.assert_allclose(got.attention[1], [0.00887, 0.00641, 0.863], rtol=2e-3)
    for lane, ratio in enumerate((1.0, 10.0)):
        blocks = block_flow(DETOUR, ratio, [300, 1000, 10_000])
        np.testing.assert_allclose(got.margin[lane], blocks.margin, rtol=3e-8)
        np.testing.assert_allclose(got.log_odds[lane], blocks.log_odds, rtol=3e-8)


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(MIXED, id="several groups, mixture, attended query, vocabulary"),
        pytest.param(
            fs.Task(classes=3, distinct=2, common=3, context=fs.BinomialContext(length=5, gamma=0.4)),
            id="binomial",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_full_matrices_move_as_integrated(task):
    times, ratio = np.array([0.5, 3.0, 10.0]), 1.0
    got = fs.integrate(task, ratio=ratio, times=times)
    field, sequences = field_of(task), full.mean_counts(task)
    w_qk, w_ov = full.symmetric_matrices(task, np.zeros(field.n_blocks))

    def velocity(_, flat):
        qk, ov = np.split(flat, [w_qk.size])
        g_qk, g_ov = full.full_gradient(qk.reshape(w_qk.shape), ov.reshape(w_ov.shape), sequences)
        return -np.concatenate([ratio * g_qk.ravel(), g_ov.ravel()])

    start = np.concatenate([w_qk.ravel(), w_ov.ravel()])
    path = solve_ivp(velocity, (0, times[-1]), start, "DOP853", times, rtol=1e-11, atol=1e-12).y.T
    for i, flat in enumerate(path):
        qk, ov = np.split(flat, [w_qk.size])
        blocks = full.project(task, qk.reshape(w_qk.shape), ov.reshape(w_ov.shape))
        parameters = field.parameters(task, ratio)
        seen = field.observables(field.to_reduced(jnp.asarray(blocks), parameters), parameters)
        for name in ("margin", "score_gap", "log_odds", "log_error", "log_loss"):
            np.testing.assert_allclose(getattr(got, name)[i], getattr(seen, name), rtol=1e-7, err_msg=name)
        if got.margins is not None and got.scores is not None and got.log_attentions is not None:
            np.testing.assert_allclose(got.margins[i], seen.margins, rtol=1e-7)
            np.testing.assert_allclose(got.scores[i], seen.scores, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(got.log_attentions[i], seen.log_attentions, rtol=1e-7)


def block_flow(task, ratio, times):
    """The flow of the blocks, moved by the circuits, with SciPy."""
    field = field_of(task)
    parameters = field.parameters(task, ratio)

    @jax.jit
    def velocity(blocks):
        return field(0.0, blocks, parameters)

    start, span = np.zeros(field.n_blocks), (0, times[-1])
    solved = solve_ivp(lambda _, y: np.asarray(velocity(y)), span, start, "LSODA", times, rtol=1e-11, atol=1e-13)
    x = [field.to_reduced(jnp.asarray(blocks), parameters) for blocks in solved.y.T]
    return jax.vmap(lambda x: field.observables(x, parameters))(jnp.stack(x))


# --- the numerical method itself ---


def walk(task, spacings, end, start=(0.0, 0.0)):
    """All lanes along grids of the given spacings, without retries, and the log times of the readings."""
    field = field_of(task)
    paths, log_unit = [], None
    for spacing in spacings:
        readings = np.linspace(0.01, end, N_TIME)
        path, log_unit = _compiled_walk(field, field.parameters(task, RATIOS), start, readings, spacing)
        paths.append(path)
    return paths, log_unit + np.log(np.expm1(np.linspace(0.01, end, N_TIME)))


def _walk(field, parameters, start, readings, spacing):
    start = tuple(jnp.full(parameters.ratio.shape, x) for x in start)
    velocity = reduced.velocity_of(field, parameters)
    one = parameters._replace(ratio=1.0)
    log_error = jax.vmap(lambda *x: field.observables(jnp.stack(x), one).log_error)(*start)
    counts = measure.measure_of(field, parameters)
    clock = fixed_grid.clock_of(velocity, start, log_error, counts)
    return fixed_grid.walk(velocity, start, clock, readings, spacing, 10**6, counts), clock.log_unit


_compiled_walk = jax.jit(_walk, static_argnums=0)


def test_steps_have_order_eight():
    paths, log_times = walk(PAPER, [0.4, 0.3, 0.25, 0.2, 0.15], 8.0)
    exact = fs.exact(PAPER, ratio=RATIOS, log_times=log_times[-1])
    off = [np.abs(path.change[1][-1] - exact.margin[:, 0]).sum() for path in paths]
    order = np.polyfit(np.log([8.0 / path.n_steps[0] for path in paths]), np.log(off), 1)[0]
    assert 7.5 < order < 8.5


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("paper", (0.0, 0.0)),
        ("paper", (-2.0, 3.0)),
        ("two classes", (-4.0, 30.0)),
        ("null background", (0.0, 0.0)),
        ("shared query", (0.0, 0.0)),
    ],
)
def test_estimated_error_is_not_below_the_error(name, start):
    paths, log_times = walk(CLOSED[name], [0.06, 0.09, 0.115, 0.15], 25.0, start)
    exact = fs.exact(CLOSED[name], ratio=RATIOS, log_times=log_times, score_gap0=start[0], margin0=start[1])
    for path in paths:
        gap = np.abs(path.change[0].T / exact.score_gap_change - 1).max(1)
        margin = np.abs(start[1] + path.change[1].T - exact.margin) / np.maximum(1, np.abs(exact.margin))
        trusted = np.asarray(path.error) < 1e-5  # a larger one only says that the grid is too coarse
        assert trusted.any()
        assert (np.maximum(gap, margin.max(1)) <= path.error + 3e-11)[trusted].all()


def test_a_wrong_coefficient_is_noticed(monkeypatch):
    # What this file asserts of accuracy must be able to fail: one weight of the last stage off by 1e-6.
    right = runge_kutta.dopri8()
    one = 1e-6 * (np.arange(14) == 7)
    wrong = right._replace(stages=right.stages + np.outer(np.arange(14) == 13, one), solution=right.solution + one)
    monkeypatch.setattr(runge_kutta, "dopri8", lambda: wrong)
    field = field_of(PAPER)
    anew = jax.jit(lambda parameters: _walk(field, parameters, (0.0, 0.0), jnp.array([3.0]), 0.1))
    path, log_unit = anew(field.parameters(PAPER, RATIOS))
    exact = fs.exact(PAPER, ratio=RATIOS, log_times=log_unit + np.log(np.expm1(3.0)))
    assert np.abs(path.change[1][0] - exact.margin[:, 0]).max() > 1e-8


def test_interpolation_matches_polynomials_of_degree_eleven():
    nodes = np.array([0.0, 0.1, 0.3, 0.6, 1.0, 1.5])
    rng = np.random.default_rng(0)
    for at in (0.05, 0.45, 1.4):
        values, slopes = runge_kutta.hermite(jnp.asarray(nodes), jnp.asarray(at))
        doubt = runge_kutta.hermite_doubt(jnp.asarray(nodes), jnp.asarray(at))
        for degree in (5, 10, 11, 12):
            poly = np.polynomial.Polynomial(rng.normal(size=degree + 1))
            got = values @ poly(nodes) + slopes @ poly.deriv()(nodes)
            last = doubt[0] @ poly(nodes) + doubt[1] @ poly.deriv()(nodes)
            assert (abs(got - poly(at)) < 1e-11) == (degree < 12)
            assert (abs(last) < 1e-9) == (degree < 11)


def test_interpolation_keeps_the_relative_accuracy_of_small_values():
    nodes = jnp.linspace(0, 0.5, 6)
    for at in (1e-3, 1e-9, 1e-60):
        values, slopes = runge_kutta.hermite(nodes, jnp.asarray(at))
        assert abs(float(values @ nodes**2 + slopes @ (2 * nodes)) / at**2 - 1) < 1e-12


# --- lanes ---


def traces():
    return getattr(ode._fixed, "compiled")()._cache_size()  # noqa: B009  pyright does not know it


def test_new_numbers_do_not_compile_again():
    task, grid = CLOSED["paper"], np.linspace(-5, 30, N_TIME)
    fs.integrate(task, ratio=RATIOS, log_times=grid)
    count = traces()
    fs.integrate(task, ratio=RATIOS * 3, log_times=grid)
    fs.integrate(task, ratio=RATIOS[:5], log_times=grid)
    fs.integrate(task, ratio=RATIOS, log_times=np.linspace(0, 1000, N_TIME))
    fs.integrate(task, ratio=RATIOS, times=np.linspace(0, 10, N_TIME), tol=1e-6, max_steps=500)
    fs.integrate(task, ratio=RATIOS, log_times=grid, margin0=1.0, score_gap0=-1.0)
    other = fs.Task(classes=9, distinct=2, common=7, context=fs.FixedContext(distinct=3, common=8))
    fs.integrate(other, ratio=RATIOS, log_times=grid)
    assert traces() == count
    fs.integrate(task, ratio=RATIOS, log_times=grid[1:])  # a new shape does
    assert traces() == count + 1


def test_chunks_and_order_do_not_show(monkeypatch):
    monkeypatch.setattr(lanes, "CHUNK", 8)
    ratios = np.random.default_rng(1).permutation(np.geomspace(1e-2, 1e3, 21))
    grid = np.linspace(-5, 30, N_TIME)
    many = fs.integrate(PAPER, ratio=ratios, log_times=grid)
    assert many.margin.shape == (21, N_TIME)
    assert errors(many, fs.exact(PAPER, ratio=ratios, log_times=grid)).max() < 1e-8


def test_a_hard_lane_leaves_the_others_alone():
    grid = np.linspace(-5, 30, N_TIME)
    easy = fs.integrate(PAPER, ratio=RATIOS, log_times=grid, margin0=-2.0)
    assert len(set(np.asarray(easy.n_steps).tolist())) > 1  # some lanes needed a finer grid or adaptive steps
    assert errors(easy, fs.exact(PAPER, ratio=RATIOS, log_times=grid, margin0=-2.0)).max() < 1e-8


def test_a_traced_lane_that_cannot_be_used_spoils_no_other():
    grid = np.linspace(-5, 30, N_TIME)
    solve = jax.jit(lambda ratio: fs.integrate(PAPER, ratio=ratio, log_times=grid))
    good = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    for value in (np.nan, -1.0, np.inf):
        bad = np.where(good == 4, value, good)
        got, expected = solve(bad), solve(good)
        assert got.status[3] == Status.NOT_FINITE
        assert np.isnan(got.margin[3]).all()
        others = np.delete(np.arange(8), 3)
        assert (got.status[others] == Status.OK).all()
        np.testing.assert_allclose(got.margin[others], expected.margin[others], rtol=1e-9)


def test_too_few_steps_keep_what_they_reached():
    grid = np.linspace(-5, 1e4, N_TIME)
    got = fs.integrate(PAPER, ratio=RATIOS, log_times=grid, max_steps=500)
    assert (got.status == Status.MAX_STEPS).all()
    assert (got.n_steps == 500).all()
    reached = np.isfinite(got.margin[5])
    assert reached[0]
    assert not reached[-1]
    exact = fs.exact(PAPER, ratio=RATIOS[5], log_times=grid[reached])
    np.testing.assert_allclose(got.margin[5][reached], exact.margin, rtol=1e-8, atol=1e-8)


def test_unknown_or_missing_parameterizations_are_refused():
    for name, words in (("XACO", "unknown"), ("caco", "unknown")):
        with pytest.raises(fs.InvalidInput, match=words):
            fs.integrate(PAPER, name, ratio=1.0, times=[1.0])
    for changes in ({"tol": 0.0}, {"max_steps": 0}, {"margin0": np.nan}, {"start": 3}):
        with pytest.raises(fs.InvalidInput, match=next(iter(changes))):
            fs.integrate(PAPER, ratio=1.0, times=[1.0], **changes)
    with pytest.raises(fs.InvalidInput, match="margin0"):
        fs.integrate(DETOUR, ratio=1.0, times=[1.0], margin0=1.0)


def test_starts_from_blocks():
    blocks = fs.Start(ov_standard=[2.0], qk_trivial=[1.0, -0.5])
    by_blocks = fs.integrate(PAPER, ratio=2.0, times=[10.0], start=blocks)
    field = field_of(PAPER)
    gap, margin = field.to_reduced(jnp.asarray(blocks.vector(field.block_sizes)), field.parameters(PAPER, 1.0))
    exact = fs.exact(PAPER, ratio=2.0, times=[10.0], margin0=float(margin), score_gap0=float(gap))
    np.testing.assert_allclose(by_blocks.margin, exact.margin, rtol=1e-8)


# --- transformations ---


def test_derivatives_in_both_modes():
    at, names = (5.0, 0.5, -1.0, 4.0), ("margin", "log_odds", "score_gap_change", "log_loss")

    def observe(solve, *at):
        got = solve(PAPER, ratio=at[0], margin0=at[1], score_gap0=at[2], log_times=at[3])
        return jnp.stack([getattr(got, name)[0] for name in names])

    function = functools.partial(observe, fs.integrate)
    reverse = jax.jacrev(function, argnums=(0, 1, 2, 3))(*at)
    forward = jax.jacfwd(function, argnums=(0, 1, 2, 3))(*at)
    for i, h in enumerate((1e-3, 1e-3, 1e-3, 1e-3)):
        values = [observe(fs.exact, *(x + k * h * (j == i) for j, x in enumerate(at))) for k in (-2, -1, 1, 2)]
        difference = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)
        np.testing.assert_allclose(reverse[i], difference, rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(forward[i], difference, rtol=1e-7, atol=1e-8)


@pytest.mark.slow
def test_a_derivative_of_a_derivative():
    def slope(ratio):
        return jax.grad(lambda ratio: fs.integrate(PAPER, ratio=ratio, log_times=4.0).margin[0])(ratio)

    difference = (float(slope(5.001)) - float(slope(4.999))) / 2e-3
    assert abs(float(jax.jacfwd(slope)(5.0)) - difference) < 1e-7


@pytest.mark.slow
def test_vmap_and_jit_agree_with_the_batch():
    grid = np.linspace(-5, 30, N_TIME)
    batch = fs.integrate(PAPER, ratio=RATIOS, log_times=grid)
    mapped = jax.jit(jax.vmap(lambda ratio: fs.integrate(PAPER, ratio=ratio, log_times=grid)))(jnp.asarray(RATIOS))
    assert mapped.margin.shape == batch.margin.shape
    for name in ("margin", "log_odds", "log_error"):
        np.testing.assert_allclose(getattr(mapped, name), getattr(batch, name), rtol=2e-8, atol=2e-8)
    over_starts = jax.vmap(lambda w: fs.integrate(PAPER, ratio=1.0, log_times=grid, margin0=w).margin[-1])
    assert over_starts(jnp.array([0.0, 1.0])).shape == (2,)


@pytest.mark.slow
def test_a_million_units_of_log_time():
    grid = np.linspace(-5, 1e6, N_TIME)
    got, exact = (solve(PAPER, ratio=[0.01, 1.0], log_times=grid) for solve in (fs.integrate, fs.exact))
    assert (got.status == Status.OK).all()
    assert errors(got, exact).max() < 1e-8
