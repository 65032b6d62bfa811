"""Orbit, time map and inversion against mpmath at 40 digits, and their derivatives."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from flowsim.solve import inversion, time_map
from flowsim.solve.inversion import advance_at_lead, advance_at_log_time, log_time_at_advance
from flowsim.solve.orbit import Orbit
from flowsim.solve.output_clocks import CollapsedOutput
from flowsim.solve.progress import observe
from flowsim.solve.score_clocks import CollapsedScore, log_odds_after, log_odds_change
from flowsim.status import Status
from tests.closed_form_reference import DIGITS, Reference, judge

TOLERANCE = 1e-11
# The corners that random draws would rarely hit: frozen, huge and tiny ratios, odds at both extremes, long climbs.
CORNERS = [
    Reference(ratio=5.0),
    Reference(ratio=1e-6),
    Reference(ratio=1e6, classes=1000, distinct=1000, gain=1.001),
    Reference(ratio=1e6, classes=1000, distinct=1000, gain=1.001, margin0=50, score_gap0=-20),
    Reference(ratio=1e-6, score_gap0=-20, positions=(1, 1000)),
    Reference(ratio=1e-6, classes=2, distinct=1, gain=1.0, score_gap0=30),
    Reference(ratio=1.0, margin0=3.0, score_gap0=-3.0, positions=(0.01, 5000.0)),
    Reference(ratio=300.0, margin0=0.5, score_gap0=30.0, positions=(5000.0, 0.01)),
    Reference(ratio=0.01, margin0=50.0, score_gap0=2.0, classes=1000),
    Reference(ratio=1e3, score_gap0=-20.0),
]
NEGATIVE = [
    Reference(ratio=1.0, margin0=-1.0),
    Reference(ratio=5.0, margin0=-3.0, score_gap0=2.0),
    Reference(ratio=1e-6, margin0=-50.0, score_gap0=-3.0),
    Reference(ratio=40.0, margin0=-5.0),  # a climb of about 150, just below a leap
    Reference(ratio=1e5, margin0=-3.0, score_gap0=-3.0),  # a leap
    Reference(ratio=1e4, margin0=-0.5, score_gap0=30.0),
]
LOG_TIMES = [-10.0, -0.3, 5.0, 14.0, 40.0, 300.0, 1e4, 1e6]


def drawn(n, seed, negative=False):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        classes, distinct, other = rng.choice([2, 3, 4, 20, 1000]), rng.choice([1, 10, 1000]), rng.choice([1, 10, 1000])
        yield Reference(
            ratio=float(10 ** rng.uniform(-6, 6)),
            classes=float(classes),
            distinct=float(distinct),
            gain=float(rng.choice([1 / distinct, 1 / distinct + 1 / other, 1 / distinct + classes / other])),
            positions=tuple(10 ** rng.uniform(-2, 4, 2)),
            margin0=-float(10 ** rng.uniform(-2, 1.3)) if negative else float(rng.choice([0, 0, 0.5, 3, 50])),
            score_gap0=float(rng.choice([-20, -3, 0, 2, 30])),
        )


def collapsed(rho, margin0, log_odds0, log_wrong):
    """An orbit of CACO."""
    return Orbit(CollapsedOutput(margin0), CollapsedScore(log_odds0), rho, log_wrong)


def orbits(references):
    with mp.workdps(DIGITS):
        rows = [
            (float(r.rho), float(r.margin0), float(r.log_odds0), float(mp.log(mp.mpf(r.classes) - 1)))
            for r in references
        ]
    return collapsed(*(jnp.asarray(column) for column in zip(*rows, strict=True)))


def observe_all(orbit, scaled):
    return advance_at_log_time(orbit, scaled), observe("log_time", orbit, 0.0, 0.0, scaled)


_RUN = jax.jit(observe_all)
_LANES, _TIMES = 32, 8


def solve(references, log_times, run=_RUN):
    """Advances and observables of one batch; `log_times` has shape (lanes, times). One shape, so one compilation."""
    lanes, times = log_times.shape
    scaled = log_times - np.log([r.distinct for r in references])[:, None]
    scaled = np.pad(scaled, ((0, _LANES - lanes), (0, _TIMES - times)), mode="edge")
    orbit = orbits([*references, *[references[-1]] * (_LANES - lanes)])
    advance, observed = run(orbit, jnp.asarray(scaled))
    observed = {name: np.asarray(value)[:lanes] for name, value in observed._asdict().items()}
    return np.asarray(advance)[:lanes, :times], {k: v[:, :times] if v.ndim > 1 else v for k, v in observed.items()}


def worst_errors(references, log_times, changed=lambda reference: reference, run=_RUN):
    """The largest errors in units of what is allowed, over all lanes and times."""
    advance, observed = solve(references, log_times, run)
    errors = [
        judge(
            changed(reference),
            float(log_times[i, j]),
            float(advance[i, j]),
            float(observed["log_odds"][i, j]),
            float(observed["score_gap_change"][i, j]),
            TOLERANCE,
        )
        for i, reference in enumerate(references)
        for j in range(log_times.shape[1])
    ]
    return {name: max(getattr(e, name) for e in errors) for name in ("margin", "log_odds", "change")}, observed


def random_times(n, times, seed):
    rng = np.random.default_rng(seed)
    kinds = [rng.uniform(-10, 30, (n, times)), rng.uniform(0, 100, (n, times)), 10 ** rng.uniform(1, 6, (n, times))]
    return np.sort(np.choose(rng.integers(0, 3, (n, times)), kinds), axis=1)


def test_accuracy():
    references = CORNERS + list(drawn(20, seed=1))
    log_times = random_times(len(references), 1, seed=2)
    log_times[: len(CORNERS), 0] = np.resize(LOG_TIMES, len(CORNERS))
    worst, observed = worst_errors(references, log_times)
    assert max(worst.values()) < 0.1, worst  # ten times better than promised
    assert np.isin(observed["status"], (Status.OK, Status.ILL_CONDITIONED)).all()


def test_accuracy_of_negative_starts():
    references = NEGATIVE + list(drawn(10, seed=3, negative=True))
    worst, observed = worst_errors(references, random_times(len(references), 1, seed=4))
    assert max(worst.values()) < 0.1, worst
    assert np.isin(observed["status"], (Status.OK, Status.ILL_CONDITIONED)).all()


@pytest.mark.slow
@pytest.mark.parametrize("negative", [False, True])
def test_accuracy_of_many(negative):
    references = list(drawn(48, seed=5 + negative, negative=negative))
    log_times = random_times(len(references), 3, seed=7)
    for i in range(0, len(references), _LANES):
        worst, _ = worst_errors(references[i : i + _LANES], log_times[i : i + _LANES])
        assert max(worst.values()) < 0.2, worst


@pytest.mark.parametrize("name", ["gain", "ratio", "distinct", "classes", "margin0", "score_gap0"])
def test_an_altered_constant_is_seen(name):
    """Planted error: a relative 1e-6 in any one constant of the orbit (1e-6 absolute where it is 0)."""

    def changed(reference):
        value = getattr(reference, name)
        return Reference(**{**vars(reference), name: value * (1 + 1e-6) if value else 1e-6})

    worst, _ = worst_errors([CORNERS[0]], np.asarray([[7.0]]), changed)
    assert worst["log_odds"] > 1


def test_a_coarse_quadrature_is_seen(monkeypatch):
    """Planted error: every panel is accepted, and the next one is eight times wider."""

    def accept(coefficients, *_):
        yes = jnp.ones(coefficients.shape[-1], bool)
        return yes, ~yes, jnp.full(coefficients.shape[-1], 8.0)

    monkeypatch.setattr(time_map, "_judge", accept)
    fresh = jax.jit(lambda *arguments: observe_all(*arguments))
    worst, _ = worst_errors([CORNERS[0], CORNERS[6]], np.asarray([[2.0, 7.0], [5.0, 14.0]]), run=fresh)
    assert max(worst.values()) > 1


def test_a_short_end_of_the_integral_is_seen(monkeypatch):
    """Planted error: far out, only the last 15 units of the log rate are summed."""
    monkeypatch.setattr(time_map, "_REACH", 15.0)
    reference = CORNERS[0]
    fresh = jax.jit(lambda *arguments: observe_all(*arguments))
    short, _ = worst_errors([reference], np.asarray([[1000.0]]), run=fresh)
    monkeypatch.undo()
    whole, _ = worst_errors([reference], np.asarray([[1000.0]]))
    assert short["margin"] > 100 * whole["margin"] + 1e-3


@pytest.mark.parametrize("log_odds0", [-1000.0, -40.0, -20.0, -3.0, 0.0, 0.7, 10.0, 30.0, 60.0, 720.0, 2000.0])
def test_change_of_log_odds(log_odds0):
    """Relative accuracy from drives of 1e-30 to 1e13 of either sign, whether the odds over- or underflow."""
    drive = np.concatenate([np.geomspace(1e-30, 1e13, 60), np.linspace(0.01, 60, 20), -np.geomspace(1e-20, 1e3, 30)])
    change = np.asarray(log_odds_change(jnp.asarray(drive), log_odds0))
    after = np.asarray(log_odds_after(jnp.asarray(drive), log_odds0))
    with mp.workdps(60):
        y0 = mp.exp(mp.mpf(log_odds0))
        for d, d_drive, u in zip(change, drive, after, strict=True):
            exact = mp.mpf(float(d))
            for _ in range(6):  # Newton from the value itself, to 60 digits
                exact -= (exact + y0 * mp.expm1(exact) - mp.mpf(float(d_drive))) / (1 + y0 * mp.exp(exact))
            if abs(exact) > 1e-290:
                assert abs(mp.mpf(float(d)) - exact) <= 1e-15 * abs(exact), (d_drive, float(exact))
            if log_odds0 < 700:
                scale = max(abs(d_drive) / (1 + y0), abs(log_odds0), abs(log_odds0 + exact), 1)
                assert abs(u - (log_odds0 + exact)) <= 4e-16 * scale


def test_invariant_along_the_orbit():
    """$y + ln y - rho w^2/2$ stays what it was, to rounding."""
    references = [r for r in CORNERS if r.ratio < 1e4]
    log_times = np.broadcast_to(LOG_TIMES, (len(references), len(LOG_TIMES)))
    _, observed = solve(references, log_times)
    orbit = orbits(references)
    rho, w0, u0 = (np.asarray(field)[:, None] for field in (orbit.strength, orbit.margin0, orbit.log_odds0))

    def violation(log_odds):
        terms = np.broadcast_arrays(
            np.exp(log_odds), log_odds, -rho * (observed["margin"] ** 2 - w0**2) / 2, -np.exp(u0), -u0
        )
        return (np.abs(np.sum(terms, axis=0)) / np.maximum(1, np.max(np.abs(terms), axis=0))).max()

    assert violation(observed["log_odds"]) < 2e-14
    assert violation(observed["log_odds"] * (1 + 1e-12)) > 1e-13  # planted error


def test_frozen_attention():
    """r = 0: Delta = ln(K-1) + ln omega(X/(K-1) - ln(K-1)), with X linear in time."""
    references = [Reference(ratio=0.0, score_gap0=gap, margin0=w) for gap in (-5.0, 0.0, 2.0) for w in (0.0, 0.5, -2.0)]
    references.append(Reference(ratio=0.0, score_gap0=-34.0))
    log_times = np.broadcast_to([-10.0, 0.0, 5.0, 12.0, 30.0, 1000.0], (len(references), 6))
    advance, observed = solve(references, log_times)
    assert np.abs(observed["score_gap_change"]).max() == 0
    wrong = 3
    for reference, lane_advance in zip(references, advance, strict=True):
        with mp.workdps(2 * DIGITS):
            alpha = 1 / (1 + mp.exp(-reference.log_odds0))
            lead0 = alpha * mp.mpf(reference.margin0)
            for log_t, x in zip(log_times[0], lane_advance, strict=True):
                clock = mp.exp(lead0) + wrong * lead0 + alpha**2 * mp.exp(log_t) / 10
                lead = (
                    mp.log(wrong) + mp.log(mp.lambertw(mp.exp(clock / wrong - mp.log(wrong)))) if clock < 1e5 else None
                )
                if lead is None:  # the exponential of Lambert's argument is too long; iterate instead
                    lead = mp.log(clock)
                    for _ in range(60):
                        lead = mp.log(clock - wrong * lead)
                exact = (lead - lead0) / alpha
                assert abs(mp.mpf(float(x)) - exact) <= 3e-14 * max(abs(exact), mp.mpf(10) ** -300)


def test_there_and_back():
    """Time to advance to time, and lead to advance to lead."""
    references = CORNERS + NEGATIVE
    log_time = np.broadcast_to(LOG_TIMES, (len(references), _TIMES))
    advance, _ = solve(references, log_time)
    orbit = orbits(references)

    @jax.jit
    def back(orbit, advance):
        return log_time_at_advance(orbit, advance), advance_at_lead(orbit, orbit.spread().state(advance).lead)

    scaled, by_lead = back(orbit, jnp.asarray(advance))
    again = scaled + np.log([r.distinct for r in references])[:, None]
    np.testing.assert_allclose(again, log_time, rtol=1e-13, atol=1e-13)
    plain = np.asarray(jax.nn.sigmoid(orbit.log_odds0)) > 1e-3  # elsewhere the lead hardly says where one is
    plain &= np.asarray(orbit.margin0) >= 0
    np.testing.assert_allclose(by_lead[plain], advance[plain], rtol=1e-11, atol=1e-11)
    assert (back(orbit, jnp.zeros((len(references), _TIMES)))[0] == -jnp.inf).all()


def test_the_start():
    advance, observed = solve(CORNERS, np.full((len(CORNERS), 1), -np.inf))
    assert (advance == 0).all()
    assert (observed["score_gap_change"] == 0).all()
    assert (observed["status"] == Status.OK).all()


def test_small_times_keep_relative_accuracy():
    """At ln t = -600 the advance is t/(C rate), to all digits."""
    references = CORNERS[:8]
    advance, _ = solve(references, np.full((len(references), 1), -600.0))
    for reference, x in zip(references, advance[:, 0], strict=True):
        with mp.workdps(DIGITS):
            exact = mp.exp(-600) / reference.rate(0)
            assert abs(mp.mpf(float(x)) - exact) <= 1e-12 * exact


def test_ill_conditioned_lanes_say_so():
    """A jump of the margin within an ulp of the log time is marked, but only in lanes that ask for a time inside it."""
    jumping = Reference(ratio=1e3, margin0=-3.0)
    jump = float(jumping.log_time(5.0))  # the time of margin 2, and of nearly all others between 0 and 3000
    _, observed = solve([jumping] * 2, np.asarray([[1.0, jump], [1.0, 3 * jump]]))
    assert observed["status"].tolist() == [Status.ILL_CONDITIONED, Status.OK]


def test_cancelling_odds_say_so():
    """High attention that a long way through negative margins undoes: rho itself is not known well enough."""
    by_attention = jax.jit(lambda orbit: observe("attention", orbit, 0.0, 0.0, jnp.full((2, 1), 0.5)))
    orbit = orbits([Reference(ratio=1e7, margin0=-6.0, score_gap0=gap) for gap in (18.0, 2.0)])
    assert by_attention(orbit).status.tolist() == [Status.ILL_CONDITIONED, Status.OK]


def exact_slopes(reference, advance):
    """d advance / d (ratio, margin0, score_gap0, ln t) by differences of the reference, 15 digits."""
    with mp.workdps(DIGITS):
        rate = reference.rate(advance)
        time = reference.time(advance)
        slopes = []
        for name in ("ratio", "margin0", "score_gap0"):
            value, step = mp.mpf(getattr(reference, name)), mp.mpf(10) ** -8
            ahead, behind = (Reference(**{**vars(reference), name: value + sign * step}) for sign in (1, -1))
            slopes.append(float(-(ahead.time(advance) - behind.time(advance)) / (2 * step) / rate))
        return [*slopes, float(time / rate)]


DIFFERENTIATED = [
    (CORNERS[0], [-3.0, 7.0, 100.0]),
    (Reference(ratio=0.3, margin0=0.5, score_gap0=-1.0, positions=(3.0, 50.0)), [2.0, 12.0]),
    (Reference(ratio=1e-3, score_gap0=2.0), [1000.0]),
    (Reference(ratio=3.0, margin0=-1.5), [3.0, 30.0]),
    (Reference(ratio=500.0, margin0=-2.0), [250.0, 1500.0]),  # inside and beyond a leap
]


def advance_of(arguments, constants):
    ratio, margin0, score_gap0, log_time = (value * jnp.ones(1) for value in arguments)
    rho_per_ratio, log_base, log_wrong, log_types = constants
    orbit = collapsed(rho_per_ratio * ratio, margin0, log_base + score_gap0, log_wrong * jnp.ones(1))
    return advance_at_log_time(orbit, (log_time - log_types)[:, None])[0, 0]


def computed_slopes(differentiate, cases=DIFFERENTIATED):
    """Pairs of computed and exact derivatives."""
    for reference, log_times in cases:
        constants = (
            float(reference.rho) / reference.ratio,
            float(reference.log_odds0) - reference.score_gap0,
            math.log(reference.classes - 1),
            math.log(reference.distinct),
        )
        for log_time in log_times:
            arguments = (reference.ratio, reference.margin0, reference.score_gap0, log_time)
            value, slopes = differentiate(arguments, constants)
            yield jnp.stack(slopes), exact_slopes(reference, float(value))


REVERSE = jax.jit(jax.value_and_grad(advance_of))


def test_reverse_mode():
    for computed, exact in computed_slopes(REVERSE, [(CORNERS[0], [7.0]), DIFFERENTIATED[-1]]):
        np.testing.assert_allclose(computed, exact, rtol=1e-8)


@pytest.mark.slow
def test_reverse_mode_elsewhere():
    for computed, exact in computed_slopes(REVERSE):
        np.testing.assert_allclose(computed, exact, rtol=1e-8)


@pytest.mark.slow
def test_forward_mode():
    @jax.jit
    def differentiate(arguments, constants):
        return advance_of(arguments, constants), jax.jacfwd(advance_of)(arguments, constants)

    for computed, exact in computed_slopes(differentiate, DIFFERENTIATED[1:2]):
        np.testing.assert_allclose(computed, exact, rtol=1e-8)


@pytest.mark.slow
def test_dropped_sensitivities_are_seen(monkeypatch):
    """Planted error: the part of the derivative that comes from earlier panels is left out."""
    monkeypatch.setattr(inversion, "_means_at_edges", lambda *_: jnp.zeros((1, time_map.MAX_PANELS + 1)))
    differentiate = jax.jit(lambda *arguments: jax.value_and_grad(advance_of)(*arguments))
    for computed, exact in computed_slopes(differentiate, [(CORNERS[0], [7.0])]):
        assert np.abs(computed / np.asarray(exact) - 1).max() > 1e-3


@pytest.mark.slow
def test_derivatives_of_the_inverse_maps():
    """The three maps are inverse to each other, and so are their derivatives."""
    orbit = orbits([CORNERS[0]])

    def through(rho, log_time):
        moved = collapsed(rho, orbit.margin0, orbit.log_odds0, orbit.log_wrong)
        advance = advance_at_log_time(moved, log_time[None])
        by_lead = advance_at_lead(moved, moved.spread().state(advance).lead)
        return log_time_at_advance(moved, by_lead)[0]

    log_time = jnp.asarray([-4.0, 3.0, 9.0])
    by_rho, by_time = jax.jit(jax.jacobian(through, argnums=(0, 1)))(orbit.strength, log_time)
    np.testing.assert_allclose(by_time, np.eye(3), atol=1e-11)
    np.testing.assert_allclose(by_rho, np.zeros((3, 1)), atol=1e-11)


@pytest.mark.slow
def test_second_derivative():
    """Reverse over reverse against a difference of the first derivative; forward over reverse is tested elsewhere."""
    orbit = orbits([CORNERS[0]])

    def advance(rho):
        moved = collapsed(rho[None], orbit.margin0, orbit.log_odds0, orbit.log_wrong)
        return advance_at_log_time(moved, jnp.asarray([[5.0]]))[0, 0]

    rho, step = orbit.strength[0], 1e-4
    first = jax.jit(jax.grad(advance))
    difference = (first(rho + step) - first(rho - step)) / (2 * step)
    np.testing.assert_allclose(jax.jit(jax.grad(jax.grad(advance)))(rho), difference, rtol=1e-6)


@pytest.mark.slow
def test_second_derivative_at_time_0_is_0():
    orbit = orbits([CORNERS[0]])

    def advance(rho):
        moved = collapsed(rho[None], orbit.margin0, orbit.log_odds0, orbit.log_wrong)
        return advance_at_log_time(moved, jnp.array([[-jnp.inf, 1.0]]))[0]

    second = jax.jit(jax.jacrev(jax.jacrev(advance)))(orbit.strength[0])
    assert second[0] == 0
    assert np.isfinite(second[1])
    assert second[1] != 0
