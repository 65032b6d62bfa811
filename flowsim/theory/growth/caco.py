r"""Growth laws of the collapsed flow, derived by asymptotic series (never by fitting).

The closed form gives the odds $y$ as a Wright omega function of the margin $w$, and the time as an integral over $w$:

$$ y + \ln y = X, \quad X = \tfrac{\rho}{2} w^2 + \kappa, \qquad
   t = C \int_{w_0}^{w} \frac{e^{\Delta} + K - 1}{\alpha}\, dw, \quad \Delta = \alpha w, \; \alpha = \frac{y}{1+y}, $$

with $\kappa = y_0 + \ln y_0 - \rho w_0^2/2$. Two limits give laws in the logarithm of time:

* *saturated* ($X \gg 1$): the series of the Wright omega function at infinity, in $l = \ln(t/C)$;
* *before saturation* ($\theta - \theta_0 \ll 1$): the series of the orbit in $\rho$, in $l = \ln(\alpha_0^2 t/C)$.

In both, the time integral is taken at its upper end by integration by parts; what this leaves out, the start and the
$K - 1$ term, is smaller than the rest by a factor $e^{-l}$ (up to powers of $l$).
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportReturnType=false, reportArgumentType=false

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
    distinct_types,
    kappa,
    l,
    log_time,
    rho,
)
from flowsim.theory.growth.series import coefficient, majorant, shift

# Truncated series are exact polynomials over the rationals (in this module only capital or one-letter private names).
# Saturated, along the orbit: v = 1/X, M = ln X, W = 1/w; along time: u = 1/E, L = ln E, z = 1/l, E = rho l^2/2 + kappa.
_, _v, _M, _W, _u, _L, _z, _kappa = ring("v M W u L z kappa", sp.QQ)


def omega_series(order: int) -> tuple[sp.Expr, ...]:
    r"""Coefficients of the Wright omega function at infinity.

    $\omega(X) = X - M + \sum_{k \ge 1} c_k(M) X^{-k}$ with $M = \ln X$; the $c_k$ follow from $\omega + \ln\omega = X$
    order by order.

    Args:
        order: how many coefficients.

    Returns:
        The polynomials $c_1, ..., c_{order}$ in the symbol `M`.
    """
    series = _omega_over_x(order)
    return tuple(sp.factor(coefficient(series, _v, k + 1).as_expr()) for k in range(1, order + 1))


def _omega_over_x(order: int) -> PolyElement:
    """The series of v omega(1/v), right up to the power order + 1 of v."""
    series = 1 - _v * _M
    for k in range(1, order + 1):
        # What omega + ln omega - X leaves at order v^k is exactly what the next coefficient has to cancel.
        defect = shift(series - 1, _v, 1) + _M + rs.rs_log(series, _v, k + 1)
        series -= coefficient(defect, _v, k) * _v ** (k + 1)
    return series


def orbit_series(order: int = 2) -> tuple[PolyElement, PolyElement]:
    r"""$1 - \alpha$ and $\ln S$, where $t/C = S e^\Delta$, as series in $v = 1/X$ along the saturated orbit.

    By parts, $\int h e^\Delta dw = e^\Delta (S_0 + S_1 + ...)$ with $h = 1/\alpha$, $S_0 = h/\Delta'$ and
    $S_{k+1} = -S_k'/\Delta'$. $S_0 = 1 + O(v^2)$, $S_k = O(v^2 W^k)$ with $W = 1/w$; two terms are kept.

    Args:
        order: the highest power of $v$ kept.

    Returns:
        The two series, polynomials in $v$, $M = \ln X$, $W$ and $\kappa$.
    """
    n = order + 2
    unattended = rs.rs_mul(_v, rs.rs_series_inversion(_v + _omega_over_x(n), _v, n), _v, n)
    attended = 1 - unattended
    # d(alpha w)/dw = alpha + w dalpha/dw, and dalpha/dw carries a factor W = 1/w.
    slope = rs.rs_trunc(attended + shift(_along_orbit(attended), _W, 1), _v, order + 1)
    inverse = rs.rs_series_inversion(slope, _v, order + 1)
    first = rs.rs_mul(rs.rs_series_inversion(attended, _v, order + 1), inverse, _v, order + 1)
    second = rs.rs_mul(-_along_orbit(first), inverse, _v, order + 1)
    return unattended, rs.rs_log(first + second, _v, order + 1)


def _along_orbit(series: PolyElement) -> PolyElement:
    """d/dw of a series in v, M and W: dX/dw = rho w = 2 (X - kappa) W."""
    rate = 2 * (1 - _kappa * _v) * _W
    return rate * (series.diff(_M) - _v * series.diff(_v)) - _W**2 * series.diff(_W)


def saturated_laws() -> tuple[GrowthLaw, ...]:
    """Margin, odds and score gap of CACO after saturation."""
    unattended, log_prefactor = orbit_series()
    # w = l (1 + u d): l = Delta + ln S is solved for d by substitution, one order of u in each round.
    d = _u**0
    for order in (1, 2):
        along = _orbit_in_time(d)
        loss = rs.rs_mul(1 + _u * d, rs.rs_subs(unattended, along, _u, order + 1), _u, order + 1)
        d = shift(loss - _z * rs.rs_subs(log_prefactor, along, _u, order + 1), _u, 1)
        d = rs.rs_trunc(d, _u, order)
    along = _orbit_in_time(d)
    odds = rs.rs_subs(_omega_over_x(1), along, _u, 3)  # v y
    odds = rs.rs_mul(odds, rs.rs_series_inversion(shift(along[_v], _u, 1), _u, 3), _u, 3)  # u y
    log_odds = rs.rs_log(odds, _u, 3)  # ln y - ln E

    energy = rho * l**2 / 2 + kappa
    value = {_u.as_expr(): 1 / energy, _L.as_expr(): sp.log(energy), _z.as_expr(): 1 / l, _kappa.as_expr(): kappa}

    def law(observable, name, power, constant, offset, scale, series, first, rest=sp.S.Zero):
        """The series from the power `first` of u on, times `scale`; `rest` joins the correction."""
        correction = rest + sp.cancel(scale / energy**first) * coefficient(series, _u, first).as_expr()
        remainder = sp.cancel(scale / energy ** (first + 1)) * majorant(coefficient(series, _u, first + 1))
        clock = log_time - sp.log(distinct_types)
        correction, remainder = correction.subs(value), remainder.subs(value)
        basis = l**power if power else sp.log(l)
        return GrowthLaw(observable, SATURATED, name, power, constant, basis, offset, correction, remainder, clock)

    zero, offset = sp.S.Zero, sp.log(rho / 2) - sp.log(base_odds)
    leftover = sp.log(energy) - sp.log(rho * l**2 / 2)  # of ln E, from the start
    return (
        law(MARGIN, "log t", 1, sp.S.One, zero, l, 1 + _u * d, 1),
        law(ODDS, "log^2 t", 2, rho / 2, zero, energy, odds, 1, kappa),
        law(SCORE_GAP, "log log t", 0, sp.Integer(2), offset, sp.S.One, log_odds, 1, leftover),
    )


def _orbit_in_time(d: PolyElement) -> dict[PolyElement, PolyElement]:
    """Series of v = 1/X, M = ln X and W = 1/w in u = 1/E, for w = l (1 + u d)."""
    shift = (1 - _kappa * _u) * (2 * d + _u * d**2)  # X - E = rho (w^2 - l^2)/2
    return {
        _v: _u * rs.rs_series_inversion(1 + _u * shift, _u, 3),
        _M: _L + rs.rs_log(1 + _u * shift, _u, 4),
        _W: _z * rs.rs_series_inversion(1 + _u * d, _u, 4),
    }
