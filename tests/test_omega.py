"""The Wright omega function against mpmath, in ulp, and its derivatives."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy.special import wrightomega

from flowsim.solve.omega import correction, log_omega_guess, log_wright_omega, wright_omega, wright_omega_pair
from tests.closed_form_reference import omega

# (lowest, highest, logarithmic): together [-700, 1e12], with both sides of every change of formula
RANGES = [
    (-700.0, -30.0, False),
    (-30.0, -1.0, False),
    (-1.0, 0.4, False),
    (0.4, 3.0, False),
    (3.0, 50.0, False),
    (50.0, 1e6, True),
    (1e6, 1e12, True),
]
SPECIAL = [0.0, 1.0, 0.4, np.nextafter(0.4, 0), 1e-300, -1e-300, 1e-17, 1 + 1e-15, 1 - 1e-15, 700.0, 1e300]


def samples(lowest, highest, logarithmic, n=400):
    rng = np.random.default_rng(7)
    return np.exp(rng.uniform(np.log(lowest), np.log(highest), n)) if logarithmic else rng.uniform(lowest, highest, n)


def ulps(z):
    """Errors of omega in ulp, and of its log in ulp of max(1, |log|)."""
    y, log_y = (np.asarray(value) for value in wright_omega_pair(jnp.asarray(z)))
    errors = []
    with mp.workdps(40):
        for a, b, c in zip(z, y, log_y, strict=True):
            u = omega(float(a))
            exact = mp.exp(u)
            by_value = abs(mp.mpf(float(b)) - exact) / np.spacing(float(exact))
            by_log = abs(mp.mpf(float(c)) - u) / np.spacing(max(1.0, abs(float(u))))
            errors.append((float(by_value), float(by_log)))
    return np.max(errors, axis=0)


@pytest.mark.parametrize(("lowest", "highest", "logarithmic"), RANGES)
def test_within_two_ulp(lowest, highest, logarithmic):
    assert (ulps(samples(lowest, highest, logarithmic)) <= (2, 1)).all()


def test_special_points():
    assert (ulps(np.asarray(SPECIAL)) <= (2, 1)).all()
    assert wright_omega(1.0) == 1.0
    assert log_wright_omega(1.0) == 0.0


def test_the_log_where_the_function_underflows():
    z = jnp.asarray([-720.0, -745.0, -1e4, -1e300])
    np.testing.assert_array_equal(log_wright_omega(z), z)
    np.testing.assert_array_equal(wright_omega(z), np.zeros(4))


def test_infinities_and_nan():
    y, log_y = wright_omega_pair(jnp.asarray([-jnp.inf, jnp.inf, jnp.nan]))
    np.testing.assert_array_equal(y, [0, np.inf, np.nan])
    np.testing.assert_array_equal(log_y, [-np.inf, np.inf, np.nan])


def test_against_scipy():
    z = np.linspace(-50, 1e3, 2000)
    np.testing.assert_allclose(wright_omega(z), wrightomega(z), rtol=4e-15)


def test_the_guess_leaves_to_the_second_step_what_it_can_do():
    """The two error bounds of the module's text, which together make the accuracy."""
    z = np.concatenate([np.linspace(-40, 40, 20_001), np.geomspace(40, 1e12, 2000)])
    guess = np.asarray(log_omega_guess(jnp.asarray(z)))
    assert np.abs(guess - log_wright_omega(z)).max() < 3e-4
    with mp.workdps(40):
        for a in (0.0, 0.1, 0.5, 0.9, 1.0):
            for delta in (3e-4, -3e-4):
                s = float(delta + a * (mp.expm1(delta) - delta))
                assert abs(correction(jnp.asarray(s), jnp.asarray(a)) - delta) < 3e-16 * abs(delta)


def test_a_step_too_few_is_seen(monkeypatch):
    """Planted error: the guess alone, or a guess from a wrong series, fails the ulp test."""
    monkeypatch.setattr("flowsim.solve.omega.correction", lambda s, a: s - a * s**2 / 2 * (1 + 1e-3))
    assert not (ulps(samples(-1.0, 3.0, False)) <= (2, 1)).all()


@pytest.mark.parametrize("function", [wright_omega, log_wright_omega])
def test_derivatives(function):
    """Both modes and a second derivative against mpmath, in relative accuracy."""
    z = jnp.asarray([-600.0, -20.0, -1.0, 0.3, 0.7, 5.0, 1e3, 1e10])
    forward = jax.jvp(function, (z,), (jnp.ones_like(z),))[1]
    reverse = jax.vmap(jax.grad(function))(z)
    second = jax.vmap(jax.grad(jax.grad(function)))(z)
    with mp.workdps(40):
        first_exact, second_exact = [], []
        for value in np.asarray(z):
            y = mp.exp(omega(float(value)))
            log_slope = 1 / (1 + y)
            first_exact.append(float(y * log_slope if function is wright_omega else log_slope))
            curvature = y * log_slope**3
            second_exact.append(float(curvature if function is wright_omega else -curvature))
    np.testing.assert_allclose(forward, first_exact, rtol=1e-14)
    np.testing.assert_array_equal(forward, reverse)
    np.testing.assert_allclose(second, second_exact, rtol=1e-13)


def test_derivatives_at_infinity_are_finite():
    slope = jax.vmap(jax.grad(lambda z: wright_omega_pair(z)[0]))(jnp.asarray([-jnp.inf, jnp.inf]))
    np.testing.assert_array_equal(slope, [0.0, 1.0])
