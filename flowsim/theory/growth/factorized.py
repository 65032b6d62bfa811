r"""Growth laws of a factorized query-key circuit, after saturation (FACO and FAFO).

The orbit is $\int (1 + y)\, d\tau_k = X$ with $X = c\,w^2/2$ (FACO) or $c\,w/(2\sqrt C)$ (FAFO) plus what the start
adds. With $p = d\theta/d\tau_k$, which grows like $2F\theta$, integration by parts at the upper end gives

$$ \int y\, d\tau_k = \int \frac{y}{p}\, d\theta = \frac{y}{p}\,B, \qquad B = 1 + n_1 + (3 n_1^2 - n_2) + ...,
   \qquad n_k = \frac{d^{k+1}\theta/d\tau_k^{k+1}}{p^{k+1}} \to \theta^{-k}, $$

so that $y = p X/B$: the odds carry the score gap itself, a $\log\log t$, as a factor. The leading odds $Y$ solve
$Y = p X$ at the margin $w_l$ that the output-value circuit has under full attention. What $\tau_k$ and the start add to
$X$ is smaller by $e^{-\theta}$, up to powers of $\theta$.
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
    drive,
    imbalance,
    l,
    loglog,
    margin_l,
    odds_l,
    odds_rate,
    output_clock,
    start_share,
    tower,
)
from flowsim.theory.growth.series import coefficient, majorant

# e marks the order. n, m2, m3: n_1 and what n_2, n_3 differ from its powers by. a = w_l/Y, W = 1/w (after the first
# step 1/w_l), z = 1/y along the orbit, g = X without its start over X, x = relative change of X.
_, _e, _n, _m2, _m3, _a, _W, _z, _g = ring("e n m2 m3 a W z g", sp.QQ)
_N1, _N2, _N3 = _e * _n, _e**2 * (_n**2 + _m2), _e**3 * (_n**3 + _m3)


def _along_gap(series: PolyElement) -> PolyElement:
    """d/d theta of a series: n_k' = n_{k+1} - (k+1) n_k n_1, each derivative an order higher."""
    first = _N2 - 2 * _N1**2  # n_1'
    second = _N3 - 3 * _N2 * _N1  # n_2'
    d_n, d_m2 = first, second - 2 * _N1 * first  # with the orders that the generators themselves do not carry
    # n = n_1/e and m2 = (n_2 - n_1^2)/e^2; derivatives of m3 belong to orders that are left out.
    return series.diff(_n) * _drop(d_n, 1) + series.diff(_m2) * _drop(d_m2, 2)


def _drop(series: PolyElement, order: int) -> PolyElement:
    """Divides by e**order, exactly."""
    quotient, rest = divmod(series, _e**order)
    assert not rest, "every term has this order"
    return quotient


@functools.cache
def parts_series(order: int = 3) -> PolyElement:
    r"""$B$ with $\int y\,d\tau_k = (y/p) B$: $B_{k+1} = n_1 B_k - B_k'$, since $(1/p)' = -n_1/p$.

    Args:
        order: the highest power kept.

    Returns:
        The polynomial in $e$ (the order), $n_1$ and the deviations $m_2$, $m_3$.
    """
    term = _e**0
    total = term
    for _ in range(order):
        term = rs.rs_trunc(_N1 * term - _along_gap(term), _e, order + 1)
        total += term
    return rs.rs_trunc(total, _e, order + 1)


@functools.cache
def gap_series() -> PolyElement:
    r"""$\delta = \theta - \ln(Y n/m)$ to third order: $\delta = \ln(p(\hat\theta + \delta)/p(\hat\theta)) - \ln B$."""
    log_parts = rs.rs_log(parts_series(), _e, 4)
    slope = _N1  # d ln p/d theta
    delta = 0 * _e
    for order in (2, 3, 4):
        delta = rs.rs_trunc(_taylor(slope, delta, order, integrate=True) - _taylor(log_parts, delta, order), _e, order)
    return delta


def _taylor(series: PolyElement, delta: PolyElement, order: int, *, integrate: bool = False) -> PolyElement:
    """f(theta + delta), or the integral of f from theta to theta + delta."""
    power = delta if integrate else _e**0
    total, k = 0 * _e, 1 if integrate else 0
    for _ in range(order):
        total += rs.rs_mul(series, power, _e, order) / sp.factorial(k)
        series, power, k = _along_gap(series), rs.rs_mul(power, delta, _e, order), k + 1
    return rs.rs_trunc(total, _e, order)


def _along_orbit(series: PolyElement, power: int, parts: PolyElement) -> PolyElement:
    r"""d/dw: $\theta_w = j g W B/(1 + z)$, $z_w = -z \theta_w$, $W_w = -W^2$, $g_w = j W g (1 - g)$."""
    gap = power * _e * _W * _g * rs.rs_mul(parts, rs.rs_series_inversion(1 + _e * _z, _e, 3), _e, 3)
    total = -_e * _W**2 * series.diff(_W) + power * _e * _W * _g * (1 - _g) * series.diff(_g)
    return total + rs.rs_mul(gap, _along_gap(series) - _z * series.diff(_z), _e, 3)


@functools.cache
def margin_series(power: int) -> PolyElement:
    r"""$w - w_l$ to second order, for the drive $X \propto w^j$ with $j$ = `power`.

    $l = w - w/(1+y) - (2-j)\ln w + \ln S$ where $S$ is the time integral by parts, as for CACO.
    """
    parts = parts_series(2)
    z = _e * _z
    attended = rs.rs_series_inversion(1 + z, _e, 3)
    gate_ = power * _g * z * rs.rs_mul(parts, rs.rs_mul(attended, attended, _e, 3), _e, 3)
    slope = rs.rs_mul(attended, 1 + gate_, _e, 3)  # d(alpha w)/dw
    inverse = rs.rs_series_inversion(slope, _e, 3)
    term = rs.rs_mul(1 + z, inverse, _e, 3)  # S_0 w^(2-j)
    prefactor = term
    for _ in range(2):
        term = rs.rs_mul((2 - power) * _e * _W * term - _along_orbit(term, power, parts), inverse, _e, 3)
        prefactor += term
    log_prefactor = rs.rs_log(rs.rs_trunc(prefactor, _e, 3), _e, 3)

    delta = gap_series()
    d = _a  # order 0 in e: w_l/Y need not be small for a factorized output, only against w_l
    for order in (2, 3):
        grown = 1 + _e * _W * d  # w/w_l
        log_grown = rs.rs_log(grown, _e, order + 1)
        # A larger margin drives the odds on: X grows as w^j, the start apart, and theta as (1 + n_1 + ...) ln X.
        pushed = power * _g * log_grown + power**2 * _g * (1 - _g) * log_grown**2 / 2
        pushed = rs.rs_mul(pushed, 1 + _N1, _e, order + 1)
        log_odds = rs.rs_trunc(delta + pushed, _e, order)  # ln(y/Y)
        fallen = rs.rs_exp(-log_odds, _e, order) if log_odds else _e**0
        reciprocal = _a * _W * fallen  # 1/y without its order
        share = rs.rs_series_inversion(1 + _e * reciprocal, _e, order)
        lag = rs.rs_mul(rs.rs_mul(_a * fallen, grown, _e, order), share, _e, order)  # w/(1+y)
        shrunk = rs.rs_series_inversion(grown, _e, order)
        share_of_start = _g + power * _g * (1 - _g) * log_grown
        outer = rs.rs_subs(log_prefactor, {_z: reciprocal, _W: _W * shrunk, _g: share_of_start}, _e, order)
        d = rs.rs_trunc(lag + (2 - power) * log_grown - outer, _e, order)
    return d


def saturated_laws(power: int) -> tuple[GrowthLaw, ...]:
    """Margin, odds and score gap after saturation.

    Args:
        power: the power of the margin in the drive: 2 for a collapsed output-value circuit, 1 for a factorized one.
    """
    delta, d = gap_series(), margin_series(power)
    value = {_n: tower[0], _m2: tower[1], _m3: tower[2], _a: margin_l / odds_l, _W: 1 / margin_l, _g: start_share}
    value = {generator.as_expr(): expression for generator, expression in value.items()}

    def upto(series: PolyElement, order: int) -> sp.Expr:
        return sp.Add(*(coefficient(series, _e, k).as_expr() for k in range(order + 1))).subs(value)

    def beyond(series: PolyElement, order: int) -> sp.Expr:
        # Factorials: each order is up to (order + 2) n_1 times the one before, so the sum exceeds its first term.
        return majorant(coefficient(series, _e, order)).subs(value) * (1 + (order + 2) * sp.Abs(tower[0]))

    # The drive is read at w_l and without tau_k: what that leaves out moves theta by (1 + n_1 + ...) times its share.
    moved = sp.Abs(upto(d, 1)) / margin_l
    left_out = beyond(delta, 3) + (1 + 2 * sp.Abs(tower[0])) * (drive + power * start_share * moved)
    odds = sp.exp(upto(delta, 2)) * odds_l
    log_basis = sp.log(l) + sp.log(loglog) / power
    offset = sp.log(odds_rate) - sp.log(base_odds)
    leading = odds_rate * l**power * loglog
    # A factorized output with an imbalance: sqrt(w^2 + nu^2) for w in the time, of second order.
    balanced = (2 - power) * imbalance**2 / margin_l**2 / 2
    clock = output_clock(power)
    many = "log^2 t log log t" if power == 2 else "log t log log t"
    return (
        GrowthLaw(
            MARGIN, SATURATED, "log t", 1, sp.S.One, l, sp.S.Zero,
            margin_l - l + upto(d, 1), beyond(d, 2) + balanced + margin_l / odds_l * (sp.exp(left_out) - 1), clock,
        ),
        GrowthLaw(
            ODDS, SATURATED, many, power, odds_rate, l**power * loglog, sp.S.Zero,
            odds - leading, odds * (sp.exp(left_out) - 1), clock,
        ),
        GrowthLaw(
            SCORE_GAP, SATURATED, "log log t", 0, sp.Integer(power), log_basis, offset,
            sp.log(odds_l) - sp.log(leading) + upto(delta, 2), left_out, clock,
        ),
    )  # fmt: skip
