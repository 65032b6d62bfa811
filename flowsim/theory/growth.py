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

import functools
from typing import NamedTuple

import sympy as sp
from sympy.polys import ring_series as rs
from sympy.polys.rings import PolyElement, ring

MARGIN, ODDS, SCORE_GAP = "margin", "odds", "score_gap"
SATURATED, BEFORE = "saturated", "before saturation"

# What a law depends on.
l = sp.Symbol("l", positive=True)  # logarithm of time, see GrowthLaw.clock
rho = sp.Symbol("rho", positive=True)  # rho = g r C (K-1)/K
kappa = sp.Symbol("kappa", real=True)  # y0 + ln y0 - rho w0^2/2
alpha0 = sp.Symbol("alpha_0", positive=True)  # attention at the start
unattended0 = sp.Symbol("beta_0", positive=True)  # 1 - alpha0, a symbol of its own so that nothing cancels
margin0 = sp.Symbol("w_0", real=True)  # margin at the start
base_odds = sp.Symbol("y_b", positive=True)  # m/n, the odds at score gap 0
log_time = sp.Symbol("tau", real=True)  # ln t
distinct_types = sp.Symbol("C", positive=True)

# Truncated series are exact polynomials over the rationals (in this module only capital or one-letter private names).
# Saturated, along the orbit: v = 1/X, M = ln X, W = 1/w; along time: u = 1/E, L = ln E, z = 1/l, E = rho l^2/2 + kappa.
_, _v, _M, _W, _u, _L, _z, _kappa = ring("v M W u L z kappa", sp.QQ)
# Before saturation: e marks powers of the drive; x = alpha0 w, x0 = alpha0 w0, p = rho/alpha0^2, a = alpha0, b = 1 - a.
_, _e, _x, _x0, _p, _a, _b = ring("e x x_0 p a b", sp.QQ)


class GrowthLaw(NamedTuple):
    r"""One observable as a function of the logarithm of time: `leading + correction`, up to about `remainder`.

    Attributes:
        observable: `"margin"`, `"odds"` or `"score_gap"`.
        regime: `"saturated"` or `"before saturation"`.
        name: the law as one says it: `"log t"`, `"log^2 t"`, `"log log t"`.
        power: the observable grows as `constant * l**power + offset`; 0 stands for `constant * ln(l) + offset`.
        constant: coefficient of the leading term.
        offset: the constant beside it.
        correction: the next terms, exact to the order before `remainder`.
        remainder: the first terms left out, each taken positive.
        clock: $l$ in terms of $\tau = \ln t$.
    """

    observable: str
    regime: str
    name: str
    power: int
    constant: sp.Expr
    offset: sp.Expr
    correction: sp.Expr
    remainder: sp.Expr
    clock: sp.Expr

    @property
    def leading(self) -> sp.Expr:
        """The leading term as a function of $l$."""
        return self.constant * (l**self.power if self.power else sp.log(l)) + self.offset


@functools.cache
def growth_laws(parameterization: str = "CACO") -> tuple[GrowthLaw, ...]:
    """The growth laws of a parameterization.

    Args:
        parameterization: `"CACO"`. Other names have no derived laws and give an empty tuple.

    Returns:
        The laws of margin, odds and score gap in each regime in which they have one, saturated ones first.
    """
    return (*_saturated_laws(), *_early_laws()) if parameterization == "CACO" else ()


def crossing_margin() -> sp.Expr:
    r"""The margin where the two regimes of the score gap meet, in the symbols of this module.

    There the law before saturation, $\theta - \theta_0 = (1 - \alpha_0) \rho (w^2 - w_0^2)/2$, reaches a gap of 1: the
    attention gate closes.
    """
    squared = sp.Symbol("w^2", positive=True)
    (found,) = sp.solve(unattended0 * rho * (squared - margin0**2) / 2 - 1, squared)
    return sp.sqrt(sp.expand(found))


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
    return tuple(sp.factor(_coefficient(series, _v, k + 1).as_expr()) for k in range(1, order + 1))


def _omega_over_x(order: int) -> PolyElement:
    """The series of v omega(1/v), right up to the power order + 1 of v."""
    series = 1 - _v * _M
    for k in range(1, order + 1):
        # What omega + ln omega - X leaves at order v^k is exactly what the next coefficient has to cancel.
        defect = _shift(series - 1, _v, 1) + _M + rs.rs_log(series, _v, k + 1)
        series -= _coefficient(defect, _v, k) * _v ** (k + 1)
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
    slope = rs.rs_trunc(attended + _shift(_along_orbit(attended), _W, 1), _v, order + 1)
    inverse = rs.rs_series_inversion(slope, _v, order + 1)
    first = rs.rs_mul(rs.rs_series_inversion(attended, _v, order + 1), inverse, _v, order + 1)
    second = rs.rs_mul(-_along_orbit(first), inverse, _v, order + 1)
    return unattended, rs.rs_log(first + second, _v, order + 1)


def _along_orbit(series: PolyElement) -> PolyElement:
    """d/dw of a series in v, M and W: dX/dw = rho w = 2 (X - kappa) W."""
    rate = 2 * (1 - _kappa * _v) * _W
    return rate * (series.diff(_M) - _v * series.diff(_v)) - _W**2 * series.diff(_W)


def _saturated_laws() -> tuple[GrowthLaw, ...]:
    unattended, log_prefactor = orbit_series()
    # w = l (1 + u d): l = Delta + ln S is solved for d by substitution, one order of u in each round.
    d = _u**0
    for order in (1, 2):
        along = _orbit_in_time(d)
        loss = rs.rs_mul(1 + _u * d, rs.rs_subs(unattended, along, _u, order + 1), _u, order + 1)
        d = _shift(loss - _z * rs.rs_subs(log_prefactor, along, _u, order + 1), _u, 1)
        d = rs.rs_trunc(d, _u, order)
    along = _orbit_in_time(d)
    odds = rs.rs_subs(_omega_over_x(1), along, _u, 3)  # v y
    odds = rs.rs_mul(odds, rs.rs_series_inversion(_shift(along[_v], _u, 1), _u, 3), _u, 3)  # u y
    log_odds = rs.rs_log(odds, _u, 3)  # ln y - ln E

    energy = rho * l**2 / 2 + kappa
    value = {_u.as_expr(): 1 / energy, _L.as_expr(): sp.log(energy), _z.as_expr(): 1 / l, _kappa.as_expr(): kappa}

    def law(observable, name, power, constant, offset, scale, series, first, rest=sp.S.Zero):
        """The series from the power `first` of u on, times `scale`; `rest` joins the correction."""
        correction = rest + sp.cancel(scale / energy**first) * _coefficient(series, _u, first).as_expr()
        remainder = sp.cancel(scale / energy ** (first + 1)) * _majorant(_coefficient(series, _u, first + 1))
        clock = log_time - sp.log(distinct_types)
        return GrowthLaw(
            observable, SATURATED, name, power, constant, offset, correction.subs(value), remainder.subs(value), clock
        )

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


def _early_laws() -> tuple[GrowthLaw, ...]:
    drive = _e * _p * (_x**2 - _x0**2) / 2  # rho (w^2 - w0^2)/2
    # Orbit: psi + y0 (e^psi - 1) = drive with y0 = alpha0/(1 - alpha0) and psi = theta - theta0, times 1 - alpha0.
    psi = 0 * _e
    for order in (2, 3, 4):
        psi = rs.rs_trunc(_b * drive - _a * (_exp(psi, order) - 1 - psi), _e, order)
    growth = _exp(psi, 3)
    attended = rs.rs_mul(growth, rs.rs_series_inversion(1 + _a * (growth - 1), _e, 3), _e, 3)  # alpha/alpha0
    delta = _x * attended
    inverse = rs.rs_series_inversion(delta.diff(_x), _e, 3)
    term = rs.rs_mul(rs.rs_series_inversion(attended, _e, 3), inverse, _e, 3)
    prefactor = term
    for _ in range(4):  # by parts; psi is a polynomial in x, so the sum ends by itself
        term = rs.rs_mul(-term.diff(_x), inverse, _e, 3)
        prefactor += term
    # l = Delta + ln(alpha0^2 S) is solved for x = alpha0 w, one order of e in each round. From here on x stands for l.
    excess = delta - _x + rs.rs_log(prefactor, _e, 3)
    margin = _x
    for order in (2, 3):
        margin = _x - rs.rs_subs(excess, {_x: margin}, _e, order)
    gap = rs.rs_subs(psi, {_x: margin}, _e, 4)

    value = {_x.as_expr(): l, _x0.as_expr(): alpha0 * margin0, _p.as_expr(): rho / alpha0**2}
    value |= {_a.as_expr(): alpha0, _b.as_expr(): unattended0}

    def law(observable, name, power, constant, offset, scale, series, first):
        correction = scale * sp.factor(_coefficient(series, _e, first).as_expr())
        remainder = scale * _majorant(_coefficient(series, _e, first + 1), _a, _b)
        clock = log_time + 2 * sp.log(alpha0) - sp.log(distinct_types)
        return GrowthLaw(
            observable, BEFORE, name, power, constant, offset, correction.subs(value), remainder.subs(value), clock
        )

    constant = unattended0 * rho / (2 * alpha0**2)
    return (
        law(MARGIN, "log t", 1, 1 / alpha0, sp.S.Zero, 1 / alpha0, margin, 1),
        law(SCORE_GAP, "log^2 t", 2, constant, -unattended0 * rho * margin0**2 / 2, sp.S.One, gap, 2),
    )


def _exp(series: PolyElement, order: int) -> PolyElement:
    return rs.rs_exp(series, _e, order) if series else _e**0


def _coefficient(series: PolyElement, variable: PolyElement, power: int) -> PolyElement:
    """The polynomial that multiplies variable**power."""
    i = series.ring.gens.index(variable)
    return series.ring.from_dict({(*e[:i], 0, *e[i + 1 :]): c for e, c in series.terms() if e[i] == power})


def _shift(series: PolyElement, variable: PolyElement, power: int) -> PolyElement:
    """Divides a series by variable**power, exactly."""
    quotient, rest = divmod(series, variable**power)
    assert not rest, "the series does not start at this power"
    return quotient


def _majorant(series: PolyElement, *kept: PolyElement) -> sp.Expr:
    """The size of a series that no cancellation between its monomials makes small.

    Args:
        series: the terms left out.
        kept: variables that are pure numbers of the task; each coefficient, a polynomial in them, is taken as a whole.

    Returns:
        The sum of the absolute values of coefficient times monomial.
    """
    grouped: dict[tuple, PolyElement] = {}
    of_number = [generator in kept for generator in series.ring.gens]
    for exponents, value in series.terms():
        monomial = tuple(0 if number else e for e, number in zip(exponents, of_number, strict=True))
        rest = tuple(e if number else 0 for e, number in zip(exponents, of_number, strict=True))
        term = series.ring.from_dict({rest: value})
        grouped[monomial] = grouped.get(monomial, series.ring.zero) + term
    return sp.Add(
        *(
            sp.Abs(coefficient.as_expr()) * sp.Abs(series.ring.from_dict({monomial: sp.QQ(1)}).as_expr())
            for monomial, coefficient in grouped.items()
        )
    )
