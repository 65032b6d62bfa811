"""Fixed attention against Lambert's function and the exponential integral, and the frozen gate."""

import mpmath as mp
import numpy as np
import pytest

import flowsim as fs

TASK = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
LOG_TIMES = [-2.0, 4.0, 9.0, 300.0]
ATTENTION = [0.01, 0.5, 1.0]


def test_collapsed_is_the_wright_omega_function():
    """$e^\\Delta + (K-1) \\Delta = X$ with X linear in time, at 40 digits."""
    run = fs.fixed_attention(TASK, attention=ATTENTION, log_times=LOG_TIMES, margin0=0.3)
    with mp.workdps(40):
        for i, alpha in enumerate(ATTENTION):
            for j, log_time in enumerate(LOG_TIMES):
                lead0 = mp.mpf(alpha) * mp.mpf(0.3)
                clock = mp.exp(lead0) + 3 * lead0 + mp.mpf(alpha) ** 2 * mp.exp(log_time) / 10
                lead = mp.findroot(lambda d, x=clock: mp.log((mp.exp(d) + 3 * d) / x), mp.log(clock))
                assert abs(float(run.lead[i, j]) - lead) <= 1e-13 * max(1, lead)
                loss = mp.log1p(3 * mp.exp(-lead))
                assert abs(float(run.log_loss[i, j]) - mp.log(loss)) <= 1e-12 * max(1, abs(mp.log(loss)))


def test_factorized_is_the_exponential_integral():
    """$Ei(\\Delta) + (K-1) \\ln \\Delta$ grows by $2 \\alpha t/\\sqrt C$, at 40 digits."""
    run = fs.fixed_attention(TASK, "CAFO", attention=ATTENTION, log_times=LOG_TIMES)
    with mp.workdps(40):
        for i, alpha in enumerate(ATTENTION):
            for j, log_time in enumerate(LOG_TIMES):
                lead0, lead = mp.mpf(alpha) * mp.mpf(0.01), mp.mpf(float(run.lead[i, j]))
                grown = mp.ei(lead) - mp.ei(lead0) + 3 * mp.log(lead / lead0)
                due = 2 * mp.mpf(alpha) * mp.exp(log_time) / mp.sqrt(10)
                by_lead = (mp.exp(lead) + 3) / lead
                assert abs(grown - due) / by_lead <= 1e-13 * max(1, lead)
                # planted error: a constant that is off by 1e-6
                assert abs(grown - due * (1 + mp.mpf(10) ** -6)) / by_lead > 1e-11 * lead


def test_shapes():
    for attention, times, shape in [(0.5, 1.0, ()), ([0.5], 1.0, (1,)), (0.5, [1.0, 2.0], (2,))]:
        run = fs.fixed_attention(TASK, attention=attention, times=times)
        assert run.margin.shape == run.loss.shape == shape
        incentive = fs.sharpening_incentive(TASK, attention=attention, times=times)
        assert incentive.shape == shape


def test_sharpening_incentive():
    """The difference of two losses; it pays to sharpen attention at any time, and most of all in between."""
    attention = np.asarray([0.3, 0.995])
    incentive = fs.sharpening_incentive(TASK, attention=attention, log_times=LOG_TIMES)
    blunt, sharp = (
        fs.fixed_attention(TASK, attention=at, log_times=LOG_TIMES).loss for at in (attention, attention + 0.005)
    )
    np.testing.assert_allclose(incentive, blunt - sharp, rtol=1e-9, atol=1e-15)
    assert (incentive > 0).all()


def test_the_gate_is_frozen():
    """CACO: theta - theta0 = rho (1 - alpha0)(w^2 - w0^2)/2, and the margin is that of fixed attention."""
    run = fs.frozen_gate(TASK, ratio=[0.1, 5.0], log_times=LOG_TIMES, margin0=0.2, score_gap0=-1.0)
    alpha0 = 1 / (1 + 31 / 32 * np.exp(1.0))
    rho = 1.5 * np.asarray([[0.1], [5.0]])
    np.testing.assert_allclose(run.score_gap_change, rho * (1 - alpha0) * (run.margin**2 - 0.04) / 2, rtol=1e-10)
    fixed = fs.fixed_attention(TASK, attention=alpha0, log_times=LOG_TIMES, margin0=0.2)
    np.testing.assert_allclose(run.margin[1], fixed.margin, rtol=1e-12)
    np.testing.assert_allclose(run.log_loss[0], fixed.log_loss, rtol=1e-12)
    assert run.method == "frozen-gate"


@pytest.mark.parametrize("name", ["CACO", "FAFO"])
def test_the_frozen_gate_is_exact_at_first(name):
    """The approximation errs by the square of the change, the exact solution saturates later."""
    changes = [
        [
            float(solve(TASK, name, ratio=5.0, margins=[margin], margin0=0.01).score_gap_change[0])
            for margin in (0.02, 9)
        ]
        for solve in (fs.frozen_gate, fs.exact)
    ]
    (first, later), (exact_first, exact_later) = changes
    assert abs(first / exact_first - 1) < 0.6 * exact_first
    assert later > 5 * exact_later


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ({"attention": 1.1}, ["attention=1.1", "up to 1"]),
        ({"attention": 0.0}, ["attention=0", "above 0"]),
        ({"attention": 0.5, "log_times": [1.0]}, ["times= and log_times="]),
    ],
)
def test_bad_input(arguments, fragments):
    with pytest.raises(fs.InvalidInput) as caught:
        fs.fixed_attention(TASK, **{"times": [1.0], **arguments})
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_attention_cannot_be_sharpened_beyond_one():
    with pytest.raises(fs.InvalidInput, match="1 - delta"):
        fs.sharpening_incentive(TASK, attention=0.996, times=1.0)


def test_a_gap_that_leaves_float64_says_so():
    task = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
    far = fs.frozen_gate(task, "FACO", ratio=[1e-6, 10.0], log_times=[1.0, 300.0])
    assert far.status.tolist() == [fs.Status.OK, fs.Status.NOT_FINITE]
    assert np.isinf(far.score_gap[1, 1])
