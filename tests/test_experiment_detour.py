"""The detour through common tokens, against ODEs of SciPy's and events whose place is known."""

import dataclasses

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from scipy.integrate import solve_ivp

import flowsim as fs
import flowsim.experiments as ex
from flowsim.errors import InvalidInput
from flowsim.experiments._detour import EXPERIMENT, DetourSettings
from flowsim.experiments._detour._excursion import Outcome, find_excursions
from flowsim.experiments._detour._flow import map_context, padded, ratios_of, solver, times_of
from flowsim.experiments._detour._plateau import Numbers, critical_gamma, curvature, learnt_while_leaving, plateau
from flowsim.experiments._detour._reversal import Kind, find_reversals
from flowsim.solve import ode
from tests.full_matrix import full_gradient, mean_counts

TINY = DetourSettings(
    distinct_positions=(12, 21, 32),
    ratio_max=10.0,
    ratios=7,
    horizon=1500.0,
    budgets=(300.0, 1500.0),
    accuracy=1e-3,
    trained_positions=(12,),
    trained_ratios=(1.0, 10.0),
    lr=1.0,
    trained_time=1200.0,
    batch_time=400.0,
    seeds=2,
)


def entries(log_t, x, ratio, numbers):
    """The flow of score gap, margin and both never-label logits, from the gradient on the entries of the matrices.

    Own label a, other label b, rest c of a distinct token, every label e and rest f of a common one: with p the
    probabilities of one class and a token's share of the attention, dW[o, token] = -share (p_o - [o = label]), averaged
    over the classes that see the token.
    """
    k, c, d, other, odds0 = numbers
    gap, margin, rest_d, rest_c = x
    a, b = 1 / (1 + np.exp(-gap) / odds0), 1 / (1 + np.exp(gap) * odds0)
    own, label, rest = 0.0, -a * margin, a * rest_d + b * rest_c
    p = np.exp(np.array([own, label, rest]))
    p /= p[0] + (k - 1) * p[1] + other * p[2]
    pull_d = (k - 1) * p[1] * margin - other * p[2] * rest_d
    pull_c = -other * p[2] * rest_c
    speed = np.array(
        [
            ratio / k * (1 / c + 1 / d) * a * b * (pull_d - pull_c),
            a / (c * k) * (1 - p[0] + p[1]),
            -a / (c * k) * (1 - p[0] + p[2]),
            -b / d * (p[2] + other * p[2] / k),
        ]
    )
    return np.exp(log_t) * speed


def reference(numbers, ratio, t_max, **options):
    """SciPy's solution of `entries` from zero matrices, on ln t."""
    begin = np.log(1e-6 / max(ratio, 1.0) ** 0.5)
    tiny = 1e-14 * min(1.0, ratio**-0.5)
    arguments = {"args": (ratio, numbers), "rtol": 1e-11, "atol": tiny, "method": "LSODA", **options}
    return solve_ivp(entries, (begin, np.log(t_max)), np.zeros(4), **arguments)


def back(log_t, x, *_):
    """Its zero with rising x is the return; the start is excluded."""
    return x[0] if log_t > 0 else -1.0


back.__dict__.update(terminal=True, direction=1)  # as SciPy wants it


@pytest.fixture(scope="module")
def mapped():
    return map_context(TINY, 12)


def test_the_reference_is_the_flow_of_the_full_matrices():
    task = TINY.task(12)
    sequences, shapes = mean_counts(task), ((50, 4), (54, 50))
    ratio = 3.0

    def full(_, flat):
        w_qk, w_ov = flat[:200].reshape(shapes[0]), flat[200:].reshape(shapes[1])
        for_qk, for_ov = full_gradient(w_qk, w_ov, sequences)
        return -np.concatenate([ratio * for_qk.ravel(), for_ov.ravel()])

    flat = solve_ivp(full, (0, 200.0), np.zeros(2900), method="DOP853", rtol=1e-9, atol=1e-11).y[:, -1]
    w_qk, w_ov = flat[:200].reshape(shapes[0]), flat[200:].reshape(shapes[1])
    seen = [w_qk[0, 0] - w_qk[40, 0], w_ov[0, 0] - w_ov[1, 0], w_ov[4, 0] - w_ov[0, 0], w_ov[4, 40] - w_ov[0, 40]]
    np.testing.assert_allclose(reference(Numbers.of(task), ratio, 200.0).y[:, -1], seen, rtol=1e-7)


def test_attention_dips_and_returns_as_known():
    task = TINY.task(12.6)
    times = np.array([300.0, 1000.0, 1e4])
    # as many ratios and times as the map has, so that nothing compiles for this alone
    ratios, grid = np.array([1.0] * 6 + [10.0]), padded(np.log(times), times_of(TINY))
    change = solver(task, 1e-8)(ratios, grid)[5:, -3:]
    attention = 1 / (1 + 4 * np.exp(-change))
    np.testing.assert_allclose(attention[0, :2], [0.08, 0.48], rtol=0.03)
    np.testing.assert_allclose(attention[1, 1:], [0.0064, 0.86], rtol=0.01)
    for row, ratio in zip(change, (1.0, 10.0), strict=True):
        truth = [reference(Numbers.of(task), ratio, t).y[0, -1] for t in times]
        np.testing.assert_allclose(row, truth, rtol=1e-6)


def test_length_depth_and_reversal_against_scipy(mapped):
    _, excursions, reversals = mapped
    numbers = Numbers.of(TINY.task(12))
    ratios = ratios_of(TINY)
    assert (excursions.outcome == Outcome.RETURNED).sum() == 6
    assert (excursions.outcome == Outcome.CENSORED).sum() == 1
    for i in (0, 3):
        path = reference(numbers, ratios[i], 1500.0, events=back, dense_output=True)
        assert abs(excursions.log_back[i] - path.t_events[0][0]) <= excursions.accuracy[i] + 1e-6
        assert excursions.accuracy[i] <= TINY.accuracy
        assert excursions.length[i] == pytest.approx(np.exp(path.t_events[0][0]), rel=2 * TINY.accuracy)
        fine = np.linspace(excursions.log_lowest[i] - 0.2, excursions.log_lowest[i] + 0.2, 4001)
        assert excursions.depth[i] == pytest.approx(path.sol(fine)[0].min(), rel=1e-5)
    assert (excursions.log_fall == -np.inf).all()
    assert excursions.length[-1] == pytest.approx(1500.0)  # the lower bound of a censored one

    assert reversals.kind.tolist() == [Kind.LESS, Kind.REVERSES]
    step = 0.02  # the slope at the reversal, by differences of order 4 of the reference
    around = reversals.log_ratio[1] + step * np.array([-2, -1, 0, 1, 2])
    values = [reference(numbers, np.exp(log_ratio), 1500.0).y[0, -1] for log_ratio in around]
    slope = np.dot([1, -8, 0, 8, -1], values) / (12 * step)
    curve = np.dot([-1, 16, -30, 16, -1], values) / (12 * step**2)
    assert curve < 0
    assert abs(slope / curve) < 1e-3
    assert reversals.accuracy[1] <= TINY.accuracy


def compiled():
    """How often the two stages of `integrate` were compiled."""
    stages = ode._fixed, ode._adaptive
    return [getattr(stage, "compiled")()._cache_size() for stage in stages]  # noqa: B009  pyright does not know it


@pytest.mark.usefixtures("mapped")
def test_another_context_compiles_nothing():
    before = compiled()
    map_context(dataclasses.replace(TINY, accuracy=1.0), 20)
    assert compiled() == before
    assert min(before) > 0


def test_events_in_known_places():
    grid = np.linspace(0.0, 10.0, 101)

    def value(times):
        l = np.asarray(times)
        rows = [
            (l[0] - 7.123456) * (l[0] + 1),  # below from the start, back once
            -(l[1] - 2.2) * (8.8 - l[1]),  # falls late
            0.1 + l[2],  # never
            -1 - l[3],  # never back
            np.tanh(200 * (l[4] - 5.4321)),  # back within a hundredth of the grid's step
            0 * l[5],
        ]
        return np.stack(rows)

    change = value(np.tile(grid, (6, 1)))
    change[5, 50] = np.nan
    found = find_excursions(grid, change, read=value, accuracy=1e-6)
    ends = [Outcome.RETURNED, Outcome.RETURNED, Outcome.NONE, Outcome.CENSORED, Outcome.RETURNED, Outcome.UNSOLVED]
    assert found.outcome.tolist() == ends
    np.testing.assert_allclose(found.log_back[[0, 1, 4]], [7.123456, 8.8, 5.4321], atol=1e-6)
    assert found.accuracy[[0, 1, 4]].max() <= 1e-6
    assert found.log_fall[0] == -np.inf
    assert found.log_fall[1] == pytest.approx(2.2, abs=1e-6)
    assert found.length[1] == pytest.approx(np.exp(8.8) - np.exp(2.2), rel=1e-5)
    assert found.length[2] == 0
    assert found.depth[2] == 0
    assert np.isnan(found.length[5])
    assert found.depth[0] == pytest.approx(-((8.123456 / 2) ** 2), abs=1e-6)
    rough = find_excursions(grid, change)  # without refinement the bracket is the grid's
    assert rough.accuracy[0] == pytest.approx(0.1)


def test_reversals_in_known_places():
    grid = np.linspace(-2.0, 3.0, 21)
    tops = np.array([0.777, 1.3])

    def value(log_ratios):
        return np.stack([-np.cosh(row - top) for row, top in zip(log_ratios, tops, strict=True)])

    found = find_reversals(grid, value(np.tile(grid, (2, 1))).T, answer=value, accuracy=1e-8)
    assert found.kind.tolist() == [Kind.REVERSES] * 2
    np.testing.assert_allclose(found.log_ratio, tops, atol=1e-7)
    np.testing.assert_allclose(found.peak, -1, atol=1e-9)
    monotone = np.stack([grid, -grid, grid**2, np.where(grid > 0, np.nan, grid)], axis=1)
    kinds = find_reversals(grid, monotone, answer=lambda x: np.full(x.shape, np.nan), accuracy=1e-8).kind
    assert kinds.tolist() == [Kind.MORE, Kind.LESS, Kind.MORE, Kind.UNSOLVED]


@pytest.mark.parametrize(("classes", "distinct", "common", "other"), [(4, 10, 10, 50), (3, 7, 12, 20)])
def test_the_sign_of_the_first_motion_in_closed_form(classes, distinct, common, other):
    gamma = critical_gamma(classes, distinct, common, other)
    for shift, sign in ((-1e-3, -1), (1e-3, 1)):
        numbers = Numbers(classes, distinct, common, other, (gamma + shift) / (1 - gamma - shift))
        assert np.sign(curvature(numbers)) == sign
    numbers = numbers._replace(odds0=0.3)
    for ratio in (0.1, 100.0):
        t = 1e-2 / np.sqrt(ratio)
        gap = reference(numbers, ratio, t).y[0, -1]
        assert gap / (ratio * t**2) == pytest.approx(curvature(numbers), rel=2e-3)


def test_theory_of_large_ratios_against_scipy():
    numbers = Numbers.of(TINY.task(12))
    ratios = np.array([1e4, 1e6, 1e8])
    theory = plateau(numbers, ratios)

    def off(theory):
        return np.abs(np.log(theory.back) - truth)

    truth, lowest = [], []
    for ratio, guess in zip(ratios, theory.back, strict=True):
        path = reference(numbers, ratio, 3 * guess, events=back)
        truth.append(path.t_events[0][0])
        lowest.append(path.y[0].min())
    assert (off(theory) * theory.level**2 < 10).all()
    assert (np.diff(off(theory)) < 0).all()
    assert (off(theory) < np.abs(np.log(theory.back_leading) - truth)).all()
    np.testing.assert_allclose(theory.depth, lowest, atol=0.02)
    wrong = plateau(numbers._replace(common=numbers.common * 1.1), ratios)  # the check can fail
    assert (off(wrong) * theory.level**2 > 10).any()
    assert np.isnan(plateau(numbers, np.array([1e-4])).back).all()  # no plateau there
    # what was learnt while attention was leaving does not depend on the ratio: read off at two ratios
    path = reference(numbers, 1e8, 0.3)
    rho = 1e8 * numbers.mobility * numbers.orbit
    assert np.sqrt(rho) * path.y[1, -1] == pytest.approx(learnt_while_leaving(numbers), rel=2e-2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"other_outputs": 0}, "other_outputs"),
        ({"ratio_max": 0.05}, "ratio_max"),
        ({"distinct_positions": (12.0, 70.0)}, "distinct_positions"),
        ({"budgets": (300.0, 1e6)}, "budgets"),
        ({"budgets": (600.0, 300.0)}, "budgets"),
        ({"trained_positions": (11,)}, "trained_positions"),
        ({"ratios": 3}, "ratios"),
    ],
)
def test_settings_are_refused_by_name(change, message):
    with pytest.raises(InvalidInput, match=message):
        dataclasses.replace(TINY, **change)


def made_up():
    """A dataset as `detour` returns it, of simple formulas: a larger ratio gives less attention below gamma_c."""
    gammas, ratios, log_time = np.array([0.2, 0.3, 0.6]), np.geomspace(0.1, 100, 7), np.linspace(-2, 8, 40)
    budgets = np.exp(log_time[[20, 30]])
    sign = np.array([-1.0, -1.0, 1.0])
    change = sign[:, None, None] * np.log1p(ratios)[:, None] * np.exp(log_time)
    outcome = np.where(sign[:, None] < 0, Outcome.RETURNED, Outcome.NONE) * np.ones(7, int)
    map_of = {
        "outcome": outcome,
        "length": 500.0 * (outcome == Outcome.RETURNED) * np.ones(7),
        "depth": -ratios * (outcome == Outcome.RETURNED),
        "log_back": np.where(outcome == Outcome.RETURNED, np.log(500.0), np.nan),
        "theory_back": np.full(outcome.shape, 510.0),
        "theory_depth": -ratios * np.ones(outcome.shape),
    }
    kind = np.array([[Kind.LESS, Kind.REVERSES]] * 2 + [[Kind.MORE] * 2])
    where = np.where(kind == Kind.REVERSES, 0.5, np.nan)
    batch = np.array([-1.0, -3.0])[None, :, None, None] * np.ones((1, 2, 3, 5))
    variables = {name: (("gamma", "ratio"), values) for name, values in map_of.items()}
    variables |= {
        "change": (("gamma", "ratio", "time"), change),
        "reversal_kind": (("gamma", "budget"), kind),
        "reversal_log_ratio": (("gamma", "budget"), where),
        "reversal_accuracy": (("gamma", "budget"), 1e-5 * np.ones(kind.shape)),
        "theory_curvature": ("gamma", sign),
        "trained_outcome": (("trained_gamma", "ratio"), outcome[:1]),
        "trained_depth": (("trained_gamma", "ratio"), map_of["depth"][:1]),
        "trained_log_back": (("trained_gamma", "ratio"), map_of["log_back"][:1] + 0.01),
        "trained_reversal_log_ratio": (("trained_gamma", "trained_budget"), where[:1]),
        "full_change": (("trained_gamma", "trained_ratio", "record"), batch[:, :, 0]),
        "flow_change": (("trained_gamma", "trained_ratio", "time"), change[:1, [1, 5]]),
        "batch_change": (("trained_gamma", "trained_ratio", "seed", "batch_record"), batch),
    }
    coords = {
        "gamma": gammas,
        "ratio": ratios,
        "budget": budgets,
        "log_time": ("time", log_time),
        "trained_gamma": gammas[:1],
        "trained_ratio": ratios[[1, 5]],
        "trained_budget": budgets,
        "record_log_time": ("record", log_time[:5]),
        "batch_log_time": ("batch_record", log_time[:5]),
        "seed": np.arange(3),
    }
    return xr.Dataset(variables, coords, {"critical_gamma": 0.4854, "lr": 1.0, "horizon": 1e4})


def test_findings_say_what_the_arrays_say_and_change_with_them():
    dataset = made_up()
    rows = EXPERIMENT.findings(dataset)
    assert [row.verdict for row in rows[:2]] == ["differs", "agrees"]
    assert rows[0].value == 1
    assert rows[3].verdict == "not stated there"
    assert rows[-1].verdict == "differs"
    planted = dataset.assign(change=-dataset.change)
    rows = EXPERIMENT.findings(planted)
    assert [row.verdict for row in rows[:2]] == ["agrees", "differs"]
    assert rows[3].verdict == "undecided"  # the closed form would be wrong everywhere
    assert EXPERIMENT.findings(dataset.assign(batch_change=-dataset.batch_change))[-1].verdict == "agrees"
    lost = dataset.assign(trained_outcome=0 * dataset.trained_outcome + int(Outcome.UNSOLVED))
    assert EXPERIMENT.findings(lost)[6].verdict == "undecided"


def test_the_figure_is_drawn_from_the_arrays_alone():
    figure = fs.plot.detour_map(made_up())
    assert isinstance(figure, Figure)
    assert len(figure.axes) == 6  # four panels and two colour bars


@pytest.mark.slow
def test_the_whole_experiment_in_small():
    dataset = ex.perform(EXPERIMENT, TINY)
    rows = EXPERIMENT.findings(dataset)
    assert rows[0].verdict == "differs"
    assert rows[1].verdict == "agrees"
    assert rows[3].value == 1
    # full matrices take the reduced steps: at a ratio that is trained and mapped, to rounding
    assert TINY.trained_ratios[1] == pytest.approx(dataset.ratio.values[-1])
    full, reduced = dataset.full_change.values[0, 1], dataset.trained_change.values[0, -1]
    np.testing.assert_allclose(full, reduced, atol=1e-8)
    assert isinstance(EXPERIMENT.figures["detour"](dataset), Figure)
