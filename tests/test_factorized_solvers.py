"""Integration and finite steps of factorized circuits: accuracy, starts, conservation, lanes, derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import flowsim as fs
from flowsim.circuits import split
from flowsim.solve import descent, ode, runge_kutta
from flowsim.status import Status
from tests import full_matrix as full
from tests.test_factorized_flow import RICH, factors_of
from tests.two_clock_reference import TwoClocks

PAPER = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
SHARED = fs.Task(classes=7, distinct=5, common=3, query="shared", context=fs.FixedContext(distinct=200, common=2))
PEER = fs.Task(classes=20, distinct=1, null=True, context=fs.FixedContext(distinct=5, null=50))
# One number of lanes and of times wherever possible, so that tests share compiled code.
RATIOS = np.geomspace(1e-3, 1e3, 4)
N_TIME = 40


def reference(task, name, ratios, log_times, got):
    """The two-clock equations at 1e-13 for each ratio, with the start that the trajectory says it had."""
    start = (got.settings[key] for key in ("margin0", "score_gap0", "imbalance_ov", "imbalance_qk"))
    clocks = TwoClocks(task, name, *start)
    return [clocks.solve(ratio, log_times) for ratio in np.atleast_1d(ratios)]


def errors(got, exact):
    """The largest error in the measure that the tolerance refers to."""
    margin, gap, odds = (np.array([getattr(lane, name) for lane in exact]) for name in exact[0]._fields)
    off = [
        np.abs(got.margin - margin) / np.maximum(1, np.abs(margin)),
        np.abs(got.log_odds - odds) / np.maximum(1, np.abs(odds)),
        np.abs(got.score_gap_change - gap) / np.abs(gap),
    ]
    return max(float(np.max(o)) for o in off)


# --- accuracy ---


@pytest.mark.parametrize(
    ("task", "name", "start"),
    [
        (PAPER, "FACO", {}),
        pytest.param(PAPER, "FAFO", {}, marks=pytest.mark.slow),
        (PAPER, "FAFO", {"margin0": 0, "score_gap0": 0, "imbalance_ov": -1.0, "imbalance_qk": 2.0}),
        pytest.param(SHARED, "FAFO", {"margin0": 0.5, "score_gap0": -1.0, "imbalance_qk": 3.0}, marks=pytest.mark.slow),
        pytest.param(PEER, "CAFO", {"imbalance_ov": 20.0}, marks=pytest.mark.slow),
        pytest.param(PEER, "FACO", {"score_gap0": -0.1, "imbalance_qk": -0.2}, marks=pytest.mark.slow),
    ],
)
def test_default_accuracy_against_the_two_clocks(task, name, start):
    log_times = np.linspace(-5, 30, N_TIME)
    got = fs.integrate(task, name, ratio=RATIOS, log_times=log_times, **start)
    assert (got.status == Status.OK).all()
    exact = reference(task, name, RATIOS, log_times, got)
    assert errors(got, exact) < 1e-8
    assert float(jnp.max(got.extra["imbalance_violation"])) < 1e-8
    # planted: what this asserts sees a margin that is off by 1e-7
    assert errors(got, [lane._replace(margin=lane.margin * (1 + 1e-7)) for lane in exact]) > 1e-8


@pytest.mark.parametrize(
    "name", ["FAFO", pytest.param("CAFO", marks=pytest.mark.slow), pytest.param("FACO", marks=pytest.mark.slow)]
)
def test_accuracy_at_a_late_time(name):
    log_times = np.linspace(-5, 1e4, N_TIME)
    got = fs.integrate(PAPER, name, ratio=RATIOS, log_times=log_times)
    assert (got.status == Status.OK).all()
    lane = got.lane(ratio=2)
    assert errors(lane, reference(PAPER, name, RATIOS[2], log_times, got)) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imbalance_ov", "imbalance_qk", "time", "margin", "score_gap", "attention"),
    [
        (0.01, 0.01, 64915.5, 15.025331, 5.539473, 0.962199),
        (200.0, 0.01, 7285.41, 40.429434, 1.716767, 0.357595),
        (40.0, 200.0, 39396.3, 14.490277, 8.387547, 0.997728),
    ],
)
def test_the_numbers_of_a_public_peer(imbalance_ov, imbalance_qk, time, margin, score_gap, attention):
    imbalance = {"margin0": 0, "score_gap0": 0, "imbalance_ov": imbalance_ov, "imbalance_qk": imbalance_qk}
    got = fs.integrate(PEER, "FAFO", ratio=1.0, times=[time], **imbalance)
    assert got.status == Status.OK
    printed = 6e-7  # half a unit of the sixth decimal, and the time is printed to six digits: dw/dlnt is about 1
    np.testing.assert_allclose(got.margin[0], margin, atol=printed + 1e-5)
    np.testing.assert_allclose(got.score_gap[0], score_gap, atol=printed + 1e-5)
    np.testing.assert_allclose(got.attention[0], attention, atol=printed + 1e-6)
    np.testing.assert_allclose(got.loss[0], 1e-5, rtol=2e-6)


def test_tiny_changes_keep_their_relative_accuracy():
    log_times = np.linspace(-20, 1, N_TIME)
    got = fs.integrate(PAPER, "FAFO", ratio=RATIOS, log_times=log_times, score_gap0=2.0)
    assert np.abs(got.score_gap_change).min() < 1e-13
    assert errors(got, reference(PAPER, "FAFO", RATIOS, log_times, got)) < 1e-8


def block_reference(task, name, start, ratio, times, **imbalance):
    """Observables of the compiled state flow (proved against autodiff elsewhere), integrated by SciPy."""
    from flowsim.solve.initial import begin

    begun = begin(task, name, start=start, **imbalance)
    field, parameters = begun.field, begun.parameters._replace(ratio=jnp.asarray(ratio))
    velocity = jax.jit(lambda state: field(0.0, state, parameters))
    path = solve_ivp(
        lambda _, y: np.asarray(velocity(y)), (0, times[-1]), begun.state, "DOP853", times, rtol=1e-12, atol=1e-14
    )
    blocks = [field.circuits.blocks(jnp.asarray(state)) for state in path.y.T]
    return jax.vmap(lambda b: field.observables(field.to_reduced(b, parameters), parameters))(jnp.stack(blocks)), field


RICH_START = fs.Start(
    qk_standard=[0.3, -0.2, 0.1],
    qk_trivial=[0.1, 0.2, -0.3, 0.2],
    ov_standard=[0.2, 0.1, -0.1],
    ov_trivial=[0.1, -0.2, 0.3, 0.1],
    ov_trivial_rest=[0.2, 0.1, -0.1, -0.3],
)


@pytest.mark.slow
def test_a_task_without_a_closed_form():
    name, imbalance = "FAFO", {"imbalance_ov": 0.4, "imbalance_qk": -0.3}
    times = np.geomspace(0.1, 200.0, 7)
    got = fs.integrate(RICH, name, ratio=2.0, times=times, start=RICH_START, **imbalance)
    assert got.status == Status.OK
    seen, _ = block_reference(RICH, name, RICH_START, 2.0, times, **imbalance)
    for observable in ("margin", "score_gap", "log_odds", "log_error", "log_loss", "margins", "scores"):
        np.testing.assert_allclose(getattr(got, observable), getattr(seen, observable), rtol=2e-8, atol=2e-8)


@pytest.mark.slow
def test_factors_of_any_hidden_size():
    rng = np.random.default_rng(3)
    factors = {
        "qk_standard": (rng.normal(size=(1, 3)), rng.normal(size=(3, 1))),
        "qk_trivial": (rng.normal(size=(2, 2)), rng.normal(size=(2, 1))),
    }
    start = fs.Start(ov_standard=[0.3], factors=factors)
    times = np.geomspace(0.1, 300.0, 7)
    got = fs.integrate(PAPER, "FACO", ratio=2.0, times=times, start=start)
    seen, field = block_reference(PAPER, "FACO", start, 2.0, times)
    assert dict(field.flow.hidden) == {"qk_standard": 3, "qk_trivial": 2}
    for observable in ("margin", "score_gap", "log_odds"):
        np.testing.assert_allclose(getattr(got, observable), getattr(seen, observable), rtol=2e-8)
    assert got.settings["start"]["factors"]["qk_trivial"][0] == tuple(map(tuple, factors["qk_trivial"][0]))


# --- starts ---


@pytest.mark.parametrize("b", [0.0, 1e-9, 0.3, -0.3, 1e5, -1e-12])
@pytest.mark.parametrize("imbalance", [0.0, 1e-8, 2.0, -2.0, 1e8])
def test_split(b, imbalance):
    p, q = (float(x) for x in split(b, imbalance))
    np.testing.assert_allclose(p * q, b, rtol=4e-16, atol=1e-300)
    larger = max(p * p, q * q)
    np.testing.assert_allclose(p * p - q * q, imbalance, rtol=0, atol=8e-16 * larger)
    if imbalance == 0:
        assert abs(p) == abs(q)


def test_split_is_differentiable_at_balance():
    for f in (lambda x: split(0.3, x)[0], lambda x: split(0.3, x)[1], lambda x: abs(split(-0.3, x)[1])):
        difference = (f(1e-4) - f(-1e-4)) / 2e-4
        assert float(jax.grad(f)(0.0)) == pytest.approx(float(difference), rel=1e-6)


@pytest.mark.parametrize("name", ["FACO", "CAFO", "FAFO"])
def test_the_start_is_where_it_says(name):
    start = {"margin0": -0.7, "score_gap0": 0.4}
    got = fs.integrate(PAPER, name, ratio=RATIOS[0], times=[0.0, 1e-6], **start)
    np.testing.assert_allclose(got.margin[0], -0.7, rtol=1e-15)
    np.testing.assert_allclose(got.score_gap[0], 0.4, rtol=1e-15)
    assert got.settings["imbalance_ov"] == 0.0
    default = fs.integrate(PAPER, name, ratio=RATIOS[0], times=[0.0, 1e-6])
    np.testing.assert_allclose(default.margin[0], 0.01 * (name[2] == "F"), rtol=1e-15)
    np.testing.assert_allclose(default.score_gap[0], 0.01 * (name[0] == "F"), rtol=1e-15)


def test_start_from_blocks_is_the_start_on_the_line():
    # the line of the collapsed flow: s, t_d, t_c in proportion to their drives, by hand for C = D = 10, K = 4
    tau = 0.3 / 0.2
    blocks = fs.Start(
        ov_standard=[0.5 * 10**0.5], qk_standard=[tau / 10**0.5], qk_trivial=[tau / 10**0.5, -tau * (4 / 10) ** 0.5]
    )
    options = {"ratio": RATIOS[1], "times": [10.0, 1000.0], "imbalance_ov": 0.3, "imbalance_qk": -0.2}
    one = fs.integrate(PAPER, "FAFO", start=blocks, **options)
    other = fs.integrate(PAPER, "FAFO", margin0=0.5, score_gap0=0.3, **options)
    np.testing.assert_allclose(one.margin, other.margin, rtol=1e-9)
    np.testing.assert_allclose(one.score_gap, other.score_gap, rtol=1e-9)


@pytest.mark.parametrize(
    ("task", "name", "changes", "words"),
    [
        (PAPER, "FAFO", {"margin0": 0}, ["margin0=0", "imbalance_ov=0", "never move"]),
        (PAPER, "FACO", {"score_gap0": 0}, ["score_gap0=0", "never move"]),
        (PAPER, "CAFO", {"imbalance_qk": 1.0}, ["imbalance_qk=1.0", "collapsed"]),
        (PAPER, "FAFO", {"imbalance_ov": np.nan}, ["imbalance_ov"]),
        (RICH, "FACO", {}, ["score_gap0", "start=flowsim.Start"]),
        (RICH, "FAFO", {"margin0": 0, "score_gap0": 0, "imbalance_ov": 1, "imbalance_qk": 1}, ["start=flowsim.Start"]),
        (RICH, "CAFO", {"start": fs.Start(ov_standard=[1, 1, 1])}, ["ov_trivial", "never move", "CAFO"]),
        (PAPER, "FACO", {"start": fs.Start(qk_standard=[1.0])}, ["qk_trivial", "never move"]),
        (
            PAPER,
            "FACO",
            {"start": fs.Start(qk_standard=[1.0]), "imbalance_qk": 1.0},
            ["qk_trivial", "does not say in which direction"],
        ),
        (PAPER, "FACO", {"start": fs.Start(qk_standard=[1.0]), "imbalance_ov": 1.0}, ["imbalance_ov", "collapsed"]),
        (PAPER, "FAFO", {"start": fs.Start(), "margin0": 0.5}, ["start=", "margin0=0.5"]),
        (
            PAPER,
            "CAFO",
            {"start": fs.Start(factors={"qk_standard": ([[1.0]], [[1.0]])})},
            ["qk_standard", "CAFO", "no such factorized part"],
        ),
        (
            PAPER,
            "CAFO",
            {"start": fs.Start(factors={"ov_standard": ([[1.0], [2.0]], [[1.0]])})},
            ["ov_standard", "2 x 1", "1 x 1"],
        ),
        (
            PAPER,
            "CAFO",
            {"start": fs.Start(factors={"ov_standard": ([[0.0]], [[0.0]])})},
            ["ov_standard", "never move"],
        ),
    ],
)
@pytest.mark.parametrize("solver", ["integrate", "descend"])
def test_refusals(task, name, changes, words, solver):
    more = {"times": [1.0]} if solver == "integrate" else {"lr": 0.1, "steps": 3}
    with pytest.raises(fs.InvalidInput) as caught:
        getattr(fs, solver)(task, name, ratio=1.0, **more, **changes)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ({"qk": ([[1.0]], [[1.0]])}, "'qk'"),
        ({"qk_standard": ([[1.0]],)}, r"pair \(P, Q\)"),
        ({"qk_standard": ([[1.0, 2.0]], [[1.0]])}, "hidden"),
        ({"qk_standard": ([[np.nan]], [[1.0]])}, "finite"),
        ([1.0], "map"),
    ],
)
def test_factors_that_cannot_be_used(factors, words):
    with pytest.raises(fs.InvalidInput, match=words):
        fs.Start(factors=factors)
    with pytest.raises(fs.InvalidInput, match="one of them"):
        fs.Start(ov_standard=[1.0], factors={"ov_standard": ([[1.0]], [[1.0]])})


# --- conservation ---


def test_the_violation_belongs_to_factors():
    got = fs.integrate(PAPER, "FACO", ratio=RATIOS, log_times=np.linspace(-5, 30, N_TIME), imbalance_qk=-0.5)
    assert got.extra["imbalance_violation"].shape == (len(RATIOS), N_TIME)
    assert 0 < float(jnp.max(got.extra["imbalance_violation"])) < 1e-10
    assert "imbalance_violation" not in fs.integrate(PAPER, ratio=1.0, times=[1.0]).extra


@pytest.mark.slow
def test_a_wrong_integrator_breaks_the_law_and_says_so(monkeypatch):
    log_times = np.linspace(-5, 30, N_TIME)
    right = runge_kutta.dopri8()
    one = 1e-4 * (np.arange(14) == 7) - 1e-4 * (np.arange(14) == 8)
    wrong = right._replace(stages=right.stages + np.outer(np.arange(14) == 13, one), solution=right.solution + one)
    monkeypatch.setattr(runge_kutta, "dopri8", lambda: wrong)
    jax.clear_caches()
    getattr(ode._fixed, "compiled").cache_clear()  # noqa: B009  pyright does not know it
    begun = ode.begin(PAPER, "FAFO", imbalance_ov=0.5, imbalance_qk=-0.5)
    shared = (begun.parameters, ode._motion(begun)[0], jnp.asarray(log_times), 1e-8, 10**6)
    solved = ode._fixed(begun.field, shared, jnp.asarray(RATIOS))
    assert float(jnp.max(solved.imbalance_violation)) > 1e-8
    assert (solved.status != Status.OK).all()
    monkeypatch.undo()
    jax.clear_caches()
    getattr(ode._fixed, "compiled").cache_clear()  # noqa: B009  pyright does not know it


def test_finite_steps_break_the_law_in_proportion_to_their_size():
    def violation(lr):
        run = fs.descend(
            PAPER, "FAFO", ratio=2.0, lr=lr, steps=round(64 / lr), points=20, imbalance_ov=0.5, imbalance_qk=0.3
        )
        return float(run.extra["imbalance_violation"][-1])

    lrs = [0.4, 0.2, 0.1, 0.05]
    slope = np.polyfit(np.log(lrs), np.log([violation(lr) for lr in lrs]), 1)[0]
    assert 0.9 < slope < 1.1


# --- finite steps ---


def test_steps_are_those_of_the_full_factors():
    ratio, lr, steps = 2.0, 0.3, 5
    run = fs.descend(
        RICH, "FAFO", ratio=ratio, lr=lr, steps=steps, points=5, start=RICH_START, imbalance_ov=0.4, imbalance_qk=-0.3
    )
    begun = descent.begin(RICH, "FAFO", start=RICH_START, imbalance_ov=0.4, imbalance_qk=-0.3)
    field, population = begun.field, full.mean_counts(RICH)
    factors = full.symmetric_factors(RICH, factors_of(field, begun.state))
    for step in range(steps):
        gradient = full.factor_gradient(factors, population)
        rates = (ratio * lr, ratio * lr, lr, lr)
        factors = full.Factors(*(w - rate * g for w, rate, g in zip(factors, rates, gradient, strict=True)))
        blocks = full.project(RICH, factors.key @ factors.query.T, factors.output @ factors.value)
        parameters = begun.parameters
        seen = field.observables(field.to_reduced(jnp.asarray(blocks), parameters), parameters)
        for name in ("margin", "score_gap", "log_odds", "log_loss"):
            np.testing.assert_allclose(getattr(run, name)[step], getattr(seen, name), rtol=1e-12, atol=1e-13)
    assert abs(float(run.margin[-1]) / float(run.margin[0]) - 1) > 1e-3  # five steps do move


@pytest.mark.parametrize("name", [*(pytest.param(n, marks=pytest.mark.slow) for n in ("FACO", "CAFO")), "FAFO"])
def test_descent_approaches_the_flow_with_order_one(name):
    time, ratio = 64.0, 5.0
    options = {"imbalance_ov": 0.3 * (name[2] == "F"), "imbalance_qk": 0.2 * (name[0] == "F")}
    flow = fs.integrate(PAPER, name, ratio=ratio, times=[time], tol=1e-11, **options)
    truth = np.array([flow.margin[0], flow.score_gap[0], flow.log_odds[0]])
    lrs = [0.4, 0.2, 0.1, 0.05]

    def off(ratio):
        ends = [fs.descend(PAPER, name, ratio=ratio, lr=lr, steps=round(time / lr), points=20, **options) for lr in lrs]
        return np.abs([np.array([r.margin[-1], r.score_gap[-1], r.log_odds[-1]]) - truth for r in ends])

    def orders(errors):
        return [np.polyfit(np.log(lrs), np.log(errors[:, i]), 1)[0] for i in range(3)]

    assert all(0.9 <= order <= 1.1 for order in orders(off(ratio)))
    assert any(not 0.9 <= order <= 1.1 for order in orders(off(ratio * 1.01)))  # planted


# --- lanes and transformations ---


def test_new_numbers_do_not_compile_again():
    def traces():
        return getattr(ode._fixed, "compiled")()._cache_size()  # noqa: B009  pyright does not know it

    grid = np.linspace(-5, 30, N_TIME)
    fs.integrate(PAPER, "CAFO", ratio=RATIOS, log_times=grid)
    count = traces()
    fs.integrate(PAPER, "CAFO", ratio=RATIOS * 2, log_times=grid, margin0=0.3, imbalance_ov=0.1)
    other = fs.Task(classes=9, distinct=2, common=7, context=fs.FixedContext(distinct=30, common=8))
    fs.integrate(other, "CAFO", ratio=RATIOS[:3], log_times=grid + 1)
    assert traces() == count > 0


@pytest.mark.slow
def test_derivatives_by_start_and_imbalance():
    names = ("ratio", "margin0", "score_gap0", "imbalance_ov")
    at = (5.0, 0.2, 0.3, 0.4)

    def end(*values):
        given = dict(zip(names, values, strict=True))
        got = fs.integrate(PAPER, "CAFO", log_times=[4.0], tol=1e-11, **given)
        return jnp.stack([got.margin[0], got.log_odds[0]])

    forward = jax.jacfwd(end, argnums=(0, 1, 2, 3))(*at)
    for i in range(4):
        h = 1e-3
        values = [end(*(x + k * h * (j == i) for j, x in enumerate(at))) for k in (-2, -1, 1, 2)]
        difference = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)
        np.testing.assert_allclose(forward[i], difference, rtol=1e-6, atol=1e-8)


def test_a_saved_run_comes_back(tmp_path):
    start = fs.Start(ov_standard=[0.3], factors={"qk_standard": ([[1.0]], [[0.5]]), "qk_trivial": ([[1], [2]], [[1]])})
    run = fs.descend(PAPER, "FAFO", ratio=[2.0], lr=0.1, steps=50, points=10, start=start)
    run.save(tmp_path / "x.nc")
    back = fs.Trajectory.load(tmp_path / "x.nc")
    assert back.parameterization == "FAFO"
    assert (back.extra["imbalance_violation"] == run.extra["imbalance_violation"]).all()
    assert back.settings == run.settings
