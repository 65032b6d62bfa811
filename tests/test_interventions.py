"""Schedules, weight decay, gradient normalization and the modified flow, against descent and the full matrices."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import flowsim as fs
from flowsim.solve import descent, ode
from flowsim.solve.interventions import Interventions, driven_velocity
from tests import full_matrix

TWO_CLOCK = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
MIXED = fs.Task(
    classes=3,
    groups=[fs.Group("topic", "distinct", types=4), fs.Group("filler", "common", types=5)],
    context=fs.MixtureContext([(0.3, (8, 10)), (0.7, (12, 5))]),
    other_outputs=5,
)
GROWING = {"schedule": fs.schedules.Growing(60.0, begin=0.1, power=0.5)}
DECAY = {"weight_decay_qk": 0.02, "weight_decay_ov": 0.003}
NORMAL = {"normalize": "both"}


def ends(trajectory):
    return np.array([float(trajectory.margin[-1]), float(trajectory.score_gap[-1])])


def orders(parameterization, end, lrs, *, flow, descent):
    """Fitted order in the learning rate of the distance between descent and a flow, of margin and score gap.

    What agrees to rounding with every step (a gap that moves at constant speed) has no order: NaN.
    """
    errors = []
    for lr in lrs:
        steps = round(end / lr)
        stepped = fs.descend(TWO_CLOCK, parameterization, ratio=5.0, lr=lr, steps=steps, points=1, **descent)
        errors.append(np.abs(ends(stepped) - ends(flow(lr))))
    found = np.polyfit(np.log(lrs), np.log(errors), 1)[0]
    return np.where(np.max(errors, axis=0) < 1e-11, np.nan, found)


@pytest.mark.parametrize(
    ("parameterization", "intervention", "end", "lrs"),
    [
        ("CACO", GROWING, 200.0, (0.4, 0.2, 0.1, 0.05)),
        # each intervention with each kind of either circuit
        *(
            pytest.param(p, kind, end, lrs, marks=pytest.mark.slow)
            for names, kind, end, lrs in (
                (("FAFO",), GROWING, 200.0, (0.4, 0.2, 0.1, 0.05)),
                (("CACO", "FAFO"), DECAY, 200.0, (0.4, 0.2, 0.1, 0.05)),
                (("FACO", "CAFO"), {"normalize": "qk"}, 2.0, (0.02, 0.01, 0.005, 0.0025)),
            )
            for p in names
        ),
    ],
)
def test_descent_goes_to_the_flow_with_order_one(parameterization, intervention, end, lrs):
    flow = fs.integrate(TWO_CLOCK, parameterization, ratio=5.0, times=[end], **intervention)
    assert bool(flow.ok)
    found = orders(parameterization, end, lrs, flow=lambda _: flow, descent=intervention)
    assert np.all(((found > 0.9) & (found < 1.1)) | np.isnan(found)), found
    assert not np.all(np.isnan(found))


# Order 2 contains the term of order 1, and order 0 is the flow itself, which descent approaches in its own tests.
@pytest.mark.parametrize(
    ("parameterization", "order"),
    [
        *(("CACO", order) for order in (0, 1, 2)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("FACO", 2), ("CAFO", 2), ("FAFO", 2), ("FAFO", 1))),
    ],
)
def test_modified_flow_leaves_one_order_more_for_each_of_its_own(parameterization, order):
    lrs = (4.0, 2.0, 1.0, 0.5) if parameterization == "CACO" else (1.0, 0.5, 0.25)
    end = 100.0 if parameterization == "CAFO" else 200.0  # at 200 the error of CAFO's margin changes its sign

    def flow(lr):
        return fs.integrate(TWO_CLOCK, parameterization, ratio=5.0, times=[end], step=lr, order=order, tol=1e-10)

    found = orders(parameterization, end, lrs, flow=flow, descent={})
    assert np.all(np.abs(found - (order + 1)) < 0.15), found


@pytest.mark.slow
def test_new_numbers_do_not_compile_again():
    def run(value):
        times = [value, 10 * value]
        fs.integrate(TWO_CLOCK, ratio=value, times=times, step=0.01 * value, schedule=fs.schedules.Growing(value))
        fs.integrate(TWO_CLOCK, ratio=value, times=times, weight_decay_ov=value)
        fs.descend(TWO_CLOCK, ratio=value, lr=0.1 * value, steps=3, weight_decay_qk=value)
        return [getattr(function, "_cached")._cache_size() for function in (ode._driven, descent._descend)]  # noqa: B009

    assert run(1.0) == run(1.5)


def test_a_constant_schedule_is_a_ratio():
    times = np.geomspace(1e-3, 1e3, 7)
    plain = fs.integrate(TWO_CLOCK, ratio=[2.0, 6.0], times=times)
    scheduled = fs.integrate(TWO_CLOCK, ratio=[1.0, 3.0], times=times, schedule=fs.schedules.Tabulated([0.0], [2.0]))
    np.testing.assert_allclose(scheduled.margin, plain.margin, rtol=0, atol=2e-8 * np.max(plain.margin))
    np.testing.assert_allclose(scheduled.score_gap_change, plain.score_gap_change, rtol=2e-8)


@pytest.mark.slow
def test_a_schedule_of_ones_keeps_the_horizon_of_the_log_domain():
    log_times = [10.0, 1000.0, 5000.0]
    scheduled = fs.integrate(TWO_CLOCK, ratio=1.0, log_times=log_times, schedule=fs.schedules.Growing(1.0))
    late = fs.exact(TWO_CLOCK, ratio=1.0, log_times=log_times)
    assert bool(scheduled.ok)
    # another ratio before t = 1 shifts the orbit by less than theta(1) = 1e-4 in the drive of 1e6 and more
    np.testing.assert_allclose(scheduled.margin[1:], late.margin[1:], rtol=1e-6)


@pytest.mark.parametrize("task", [TWO_CLOCK, MIXED])
def test_normalized_velocity_is_that_of_the_full_matrices(task):
    field = fs.compile(fs.derive(task))
    parameters = field.parameters(task, 3.0)
    blocks = jnp.asarray(np.random.default_rng(1).normal(size=field.n_blocks))
    velocity = driven_velocity(field, parameters, Interventions.of(normalize="both"), blocks)
    ours = velocity(jnp.zeros(()), jnp.zeros(()), jnp.zeros_like(blocks))

    qk, ov = full_matrix.full_gradient(*full_matrix.symmetric_matrices(task, blocks), full_matrix.mean_counts(task))
    theirs = full_matrix.project(task, -3.0 * qk / np.linalg.norm(qk), -ov / np.linalg.norm(ov))
    np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)
    # the check sees a norm that forgets how often a block stands in the matrix
    plain = -np.where(field.is_qk, 3.0, 1.0) * np.asarray(field.gradient(blocks, 0.0, parameters))
    naive = plain / np.where(field.is_qk, np.linalg.norm(plain[: sum(field.is_qk)]) / 3, np.linalg.norm(plain))
    assert np.max(np.abs(naive - theirs)) > 1e-3


def test_normalization_survives_an_error_that_underflows():
    field = fs.compile(fs.derive(TWO_CLOCK))
    parameters = field.parameters(TWO_CLOCK, 1.0)

    def unit(w):
        blocks = field.from_reduced(jnp.array([2000.0, w]), jnp.zeros(2), jnp.zeros(field.n_blocks), parameters)
        velocity = driven_velocity(field, parameters, Interventions.of(normalize="both"), blocks)
        return velocity(jnp.zeros(()), jnp.zeros(()), jnp.zeros_like(blocks))

    np.testing.assert_allclose(unit(5000.0), unit(50.0), rtol=1e-10)
    assert np.linalg.norm(unit(5000.0)) > 0.5


@pytest.mark.parametrize("task", [TWO_CLOCK, pytest.param(MIXED, marks=pytest.mark.slow)])
def test_equilibrium_balances_decay_and_gradient_in_the_full_matrices(task):
    found = fs.equilibrium(task, weight_decay_qk=2e-3, weight_decay_ov=1e-3, ratio=2.0)
    matrices = full_matrix.symmetric_matrices(task, found.state)
    gradients = full_matrix.full_gradient(*matrices, full_matrix.mean_counts(task))
    for matrix, gradient, decay in zip(matrices, gradients, (2e-3, 1e-3), strict=True):
        np.testing.assert_allclose(gradient, -decay * matrix, rtol=0, atol=1e-11 * np.max(np.abs(gradient)))
        assert np.max(np.abs(gradient)) > 1e-4
    assert found.rate < 0
    assert found.residual < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("parameterization", ["CACO", "FACO", "CAFO", "FAFO"])
def test_descent_ends_in_the_equilibrium(parameterization):
    decay = {"weight_decay_qk": 1e-3, "weight_decay_ov": 1e-3}
    found = fs.equilibrium(TWO_CLOCK, parameterization, ratio=5.0, **decay)
    stepped = fs.descend(TWO_CLOCK, parameterization, ratio=5.0, lr=1.0, steps=40_000, points=1, **decay)
    np.testing.assert_allclose(ends(stepped), [found.margin, found.score_gap], rtol=1e-8)  # e^-40 is far below


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ({"schedule": 3.0}, ("schedule=3.0", "function")),
        ({"weight_decay_qk": -1.0}, ("weight_decay_qk", "-1")),
        ({"normalize": "all"}, ("normalize", "both")),
        ({"order": 1}, ("order=1", "step=")),
        ({"step": 0.1, "order": 3}, ("order=3", "0, 1 or 2")),
        ({"step": 0.0}, ("step", "0")),
        ({"weight_decay_ov": 0.1, "times": None, "log_times": [800.0]}, ("log_times[0]=800", "earlier")),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(arguments, fragments):
    with pytest.raises(fs.InvalidInput) as refusal:
        fs.integrate(TWO_CLOCK, ratio=1.0, **{"times": [1.0], **arguments})
    message = str(refusal.value)
    assert message.endswith(".")
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (functools.partial(fs.schedules.Growing, 0.0), "until"),
        (functools.partial(fs.schedules.Growing, 1.0, begin=-1.0), "begin"),
        (functools.partial(fs.schedules.Tabulated, [0.0, 1.0], [1.0]), "factors"),
        (functools.partial(fs.schedules.Tabulated, [1.0, 0.0], [1.0, 1.0]), "times"),
        (functools.partial(fs.equilibrium, TWO_CLOCK, weight_decay_qk=0.0, weight_decay_ov=1.0), "weight_decay_qk"),
    ],
)
def test_schedules_and_equilibria_name_what_they_refuse(make, fragment):
    with pytest.raises(fs.InvalidInput, match=fragment):
        make()


def test_interventions_are_kept_in_the_settings(tmp_path):
    trajectory = fs.descend(TWO_CLOCK, ratio=1.0, lr=0.1, steps=10, **GROWING, **DECAY, **NORMAL)
    trajectory.save(tmp_path / "run.nc")
    loaded = fs.Trajectory.load(tmp_path / "run.nc").settings
    assert loaded["schedule"]["until"] == 60.0
    assert loaded["weight_decay_qk"] == 0.02
    assert loaded["normalize"] == "both"
