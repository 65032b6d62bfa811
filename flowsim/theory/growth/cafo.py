r"""Growth laws of collapsed attention with a factorized output-value circuit, after saturation.

With $\nu = |\lambda|/(2\sqrt C)$ the orbit and the time are

$$ y + \ln y = X, \quad X = \rho \sqrt{w^2 + \nu^2} + \kappa, \qquad
   t = \frac{\sqrt C}{2} \int \frac{e^\Delta + K - 1}{\alpha \sqrt{w^2 + \nu^2}}\, dw, \quad \Delta = \alpha w, $$

with $\rho = g c/(2\sqrt C)$. Now $w/(1+y)$ tends to $1/\rho$, not to 0: attention stays so far from saturation that
the lead $\Delta$ lags the margin by a constant. Formal series in $v = 1/X$ and $W = 1/w$, both of the same order.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportReturnType=false, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

import functools

import sympy as sp
from sympy.polys import ring_series as rs
from sympy.polys.rings import PolyElement, ring

from flowsim.theory.growth.law import (
    MARGIN,
    ODDS,
    SATURATED,
    SCORE_GAP,
    GrowthLaw,
    base_odds,
    imbalance,
    kappa,
    l,
    margin_l,
    output_clock,
    rho,
)
from flowsim.theory.growth.series import coefficient, majorant, shift

# e marks the order. Along the orbit: v = 1/X, M = ln X, W = 1/w. Along time, at the margin w_l that solves
# w_l - ln w_l = l + 1/rho: V = 1/E, L = ln E, Z = 1/w_l with E = rho sqrt(w_l^2 + nu^2) + kappa. r = rho, s = 1/rho,
# n = nu^2, k = kappa.
_, _e, _v, _M, _W, _V, _L, _Z, _k, _r, _s, _n = ring("e v M W V L Z kappa r s n", sp.QQ)
_ORDER = 3  # series are right below this power of e


@functools.cache
def lag_series() -> PolyElement:
    r"""$G$ in $w - \ln w = l + 1/\rho + G$ along the saturated orbit, a series in $v$ and $W$ without constant term.

    By parts, $\int h e^\Delta dw = e^\Delta (S_0 + S_1 + ...)$ with $h = 1/(\alpha \sqrt{w^2 + \nu^2})$,
    $S_0 = h/\Delta'$ and $S_{k+1} = -S_k'/\Delta'$; $S_k = W H_k$ with $H_k = O(e^k)$.
    """
    v = _e * _v
    omega = 1 - v * _M + v**2 * _M  # v omega(1/v)
    scaled = rs.rs_series_inversion(v + omega, _e, _ORDER)  # (1 - alpha)/v
    unattended = rs.rs_mul(v, scaled, _e, _ORDER + 1)
    # w v, from rho sqrt(w^2 + nu^2) = X - kappa
    lead = _s * (1 - _k * v) - _n * _e**2 * _W * _v / 2
    # d(alpha w)/dw = alpha - w v [d(1-alpha)/dw]/v
    rate = shift(shift(_along_orbit(unattended), _e, 1), _v, 1)
    slope = _reduced(1 - unattended - rs.rs_mul(lead, rate, _e, _ORDER))
    inverse = rs.rs_series_inversion(rs.rs_trunc(slope, _e, _ORDER), _e, _ORDER)
    weight = rs.rs_series_inversion(1 - unattended, _e, _ORDER) * (1 - _n * _e**2 * _W**2 / 2)
    term = rs.rs_mul(weight, inverse, _e, _ORDER)
    prefactor = term
    for _ in range(2):
        term = rs.rs_mul(_e * _W * term - _along_orbit(term), inverse, _e, _ORDER)
        prefactor += term
    log_prefactor = rs.rs_log(rs.rs_trunc(prefactor, _e, _ORDER), _e, _ORDER)
    return _reduced(rs.rs_mul(lead, scaled, _e, _ORDER) - _s - log_prefactor)


def saturated_laws() -> tuple[GrowthLaw, ...]:
    """Margin, odds and score gap of CAFO after saturation."""
    lag = lag_series()
    d = 0 * _e  # w - w_l, one order of e in each round
    for order in (2, 3):
        inside = rs.rs_log(1 + _e * _Z * d, _e, order) if d else d
        d = _reduced(rs.rs_trunc(inside + rs.rs_subs(lag, _orbit_in_time(d), _e, order), _e, order))
    along = _orbit_in_time(d)
    growth = 1 + _e * _r * _V * d  # X/E, up to order 3
    omega = 1 - _e * _v * _M + _e**2 * _v**2 * _M
    ratio = _reduced(rs.rs_mul(rs.rs_subs(omega, along, _e, 3), growth, _e, 3))  # y/E
    log_ratio = rs.rs_log(ratio, _e, 3)

    root = sp.sqrt(margin_l**2 + imbalance**2)
    energy = rho * root + kappa
    value = {_V: 1 / energy, _L: sp.log(energy), _Z: 1 / margin_l, _k: kappa, _r: rho, _s: 1 / rho, _n: imbalance**2}
    value = {generator.as_expr(): expression for generator, expression in value.items()}

    def law(observable, name, power, constant, offset, scale, series, rest):
        """The first order of a series times `scale`, and `rest`; the second order is what is left out."""
        basis = l**power if power else sp.log(l)
        correction = rest + scale * coefficient(series, _e, 1).as_expr().subs(value)
        remainder = scale * majorant(coefficient(series, _e, 2)).subs(value)
        return GrowthLaw(
            observable, SATURATED, name, power, constant, basis, offset, correction, remainder, output_clock(1)
        )

    one, zero = sp.S.One, sp.S.Zero
    offset = sp.log(rho) - sp.log(base_odds)
    return (
        law(MARGIN, "log t", 1, one, zero, one, d, margin_l - l),
        law(ODDS, "log t", 1, rho, zero, energy, ratio, energy - rho * l),
        law(SCORE_GAP, "log log t", 0, one, offset, one, log_ratio, sp.log(energy) - sp.log(rho * l)),
    )


def _along_orbit(series: PolyElement) -> PolyElement:
    """d/dw of a series: dX/dw = rho w/sqrt(w^2 + nu^2), dW/dw = -W^2; every derivative adds an order of e."""
    rate = _e * _v * _r * (1 - _n * _e**2 * _W**2 / 2)
    return _reduced(rate * (series.diff(_M) - _v * series.diff(_v)) - _e * _W**2 * series.diff(_W))


def _orbit_in_time(d: PolyElement) -> dict[PolyElement, PolyElement]:
    """Series of v, M and W in e, for w = w_l + d."""
    growth = 1 + _e * _r * _V * d
    return {
        _v: _V * rs.rs_series_inversion(growth, _e, _ORDER),
        _M: _L + (rs.rs_log(growth, _e, _ORDER) if d else d),
        _W: _Z * rs.rs_series_inversion(1 + _e * _Z * d, _e, _ORDER),
    }


def _reduced(series: PolyElement) -> PolyElement:
    """Cancels rho against 1/rho, monomial by monomial."""
    ring_ = series.ring
    i, j = ring_.gens.index(_r), ring_.gens.index(_s)
    reduced = ring_.zero
    for exponents, value in series.terms():
        both = min(exponents[i], exponents[j])
        kept = tuple(e - both if index in (i, j) else e for index, e in enumerate(exponents))
        reduced += ring_.from_dict({kept: value})
    return reduced
