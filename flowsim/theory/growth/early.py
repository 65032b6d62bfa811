r"""Growth laws before attention saturates: the orbit as a series in the drive around the frozen gate.

With $\psi = \theta - \theta_0 \ll 1$ attention is $\alpha_0 (1 + (1-\alpha_0)\psi + ...)$, and the time is taken at its
upper end by integration by parts as after saturation.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportReturnType=false, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

import sympy as sp
from sympy.polys import ring_series as rs
from sympy.polys.rings import PolyElement, ring

from flowsim.theory.growth.law import (
    BEFORE,
    MARGIN,
    SCORE_GAP,
    GrowthLaw,
    alpha0,
    distinct_types,
    gate,
    imbalance,
    l,
    log_time,
    margin0,
    margin_l,
    rho,
    unattended0,
)
from flowsim.theory.growth.series import coefficient, majorant

# e marks powers of the drive, and of W = 1/x; x = alpha0 w, x0 = alpha0 w0, a = alpha0, b = 1 - a; p = rho/alpha0^2,
# with a factorized output rho/alpha0. After the inversion x stands for the x of the time, and W for its reciprocal.
_, _e, _x, _x0, _p, _a, _b, _W = ring("e x x_0 p a b W", sp.QQ)


def collapsed_laws() -> tuple[GrowthLaw, ...]:
    """Margin and score gap of CACO before saturation."""
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
        correction = scale * sp.factor(coefficient(series, _e, first).as_expr())
        remainder = scale * majorant(coefficient(series, _e, first + 1), _a, _b)
        clock = log_time + 2 * sp.log(alpha0) - sp.log(distinct_types)
        correction, remainder = correction.subs(value), remainder.subs(value)
        return GrowthLaw(observable, BEFORE, name, power, constant, l**power, offset, correction, remainder, clock)

    constant = unattended0 * rho / (2 * alpha0**2)
    return (
        law(MARGIN, "log t", 1, 1 / alpha0, sp.S.Zero, 1 / alpha0, margin, 1),
        law(SCORE_GAP, "log^2 t", 2, constant, -unattended0 * rho * margin0**2 / 2, sp.S.One, gap, 2),
    )


def _exp(series: PolyElement, order: int) -> PolyElement:
    return rs.rs_exp(series, _e, order) if series else _e**0


def factorized_output_laws() -> tuple[GrowthLaw, ...]:
    r"""Margin and score gap of CAFO before saturation: the score gap follows the margin, $\log t$.

    The orbit is $\psi + y_0 (e^\psi - 1) = \rho (w - w_0)$, the time $e^l = \int (\alpha_0/\alpha) e^\Delta dx/x$ with
    $l = \ln(2\alpha_0 t/\sqrt C)$, for a balanced output-value circuit.
    """
    order = 3
    force = _e * _p * (_x - _x0)  # rho (w - w0)
    psi = 0 * _e
    for upto in (2, 3):
        psi = rs.rs_trunc(_b * force - _a * (_exp(psi, upto) - 1 - psi), _e, upto)
    growth = _exp(psi, order)
    attended = rs.rs_mul(growth, rs.rs_series_inversion(1 + _a * (growth - 1), _e, order), _e, order)  # alpha/alpha0
    delta = _x * attended
    inverse = rs.rs_series_inversion(rs.rs_trunc(_along_x(delta), _e, order), _e, order)
    term = rs.rs_mul(rs.rs_series_inversion(attended, _e, order), inverse, _e, order)  # S_0 x
    prefactor = term
    for _ in range(4):  # every derivative of the drive lowers a power of x, 1/x raises the order
        term = rs.rs_mul(_e * _W * term - _along_x(term), inverse, _e, order)
        prefactor += term
    # l = x - ln x + excess is solved for x - x_l, where x_l - ln x_l = l.
    excess = delta - _x + rs.rs_log(rs.rs_trunc(prefactor, _e, order), _e, order)
    d = 0 * _e
    for upto in (2, 3):
        grown = 1 + _e * _W * d
        along = {_x: _x + d, _W: _W * rs.rs_series_inversion(grown, _e, upto)}
        inside = rs.rs_log(grown, _e, upto) if d else d
        d = rs.rs_trunc(inside - rs.rs_subs(excess, along, _e, upto), _e, upto)
    d = _cancelled(d)
    along = {_x: _x + d}
    gap = rs.rs_subs(psi, along, _e, 3)

    value = {_x: margin_l, _W: 1 / margin_l, _x0: alpha0 * margin0, _p: rho / alpha0, _a: alpha0, _b: unattended0}
    value = {generator.as_expr(): expression for generator, expression in value.items()}
    clock = log_time + sp.log(2) + sp.log(alpha0) - sp.log(distinct_types) / 2
    slope = unattended0 * rho / alpha0

    def upto_first(series: PolyElement) -> tuple[sp.Expr, sp.Expr]:
        first = coefficient(series, _e, 1).as_expr().subs(value)
        return first, majorant(coefficient(series, _e, 2), _a, _b).subs(value)

    margin, margin_rest = upto_first(d)
    lazy = imbalance**2 * alpha0**2 / margin_l**2 / 2  # sqrt(w^2 + nu^2) for w in the time
    gap_second = coefficient(gap, _e, 2).as_expr().subs(value)
    gap_rest = slope * (margin_rest + lazy + alpha0 * imbalance * (1 + imbalance * alpha0 / margin_l))
    gap_rest += majorant(coefficient(gap, _e, 2), _a, _b).subs(value) * slope * margin_l
    return (
        GrowthLaw(
            MARGIN, BEFORE, "log t", 1, 1 / alpha0, l, sp.S.Zero,
            (margin_l - l + margin) / alpha0, (margin_rest + lazy) / alpha0, clock,
        ),
        GrowthLaw(
            SCORE_GAP, BEFORE, "log t", 1, slope, l, -unattended0 * rho * margin0,
            slope * (margin_l - l) + gap_second, gap_rest, clock,
        ),
    )  # fmt: skip


def factorized_attention_laws(power: int) -> tuple[GrowthLaw, ...]:
    r"""The margin of FACO and FAFO before saturation; the score gap has no law in powers of $\log t$ there.

    While $\psi \ll 1$ it follows its own clock, $\theta_0 e^{2 F \tau_k}$ for a single balanced drive, with
    $\tau_k = (1 - \alpha_0) X$. What it does to the margin is left out, not corrected for.

    Args:
        power: the power of the margin in the drive: 2 for a collapsed output-value circuit, 1 for a factorized one.
    """
    psi, slope = gate
    balanced = 2 - power
    left_out = (
        unattended0 * (psi * (margin_l + 2) + slope * margin_l)
        + balanced * (4 + imbalance**2 * alpha0**2) / margin_l**2 / 2
    )
    clock = log_time + (2 * sp.log(alpha0) - sp.log(distinct_types) if power == 2 else
                        sp.log(2) + sp.log(alpha0) - sp.log(distinct_types) / 2)  # fmt: skip
    correction = (margin_l - l - balanced / margin_l) / alpha0
    return (
        GrowthLaw(
            MARGIN, BEFORE, "log t", 1, 1 / alpha0, l, sp.S.Zero, correction, left_out / alpha0, clock
        ),
    )  # fmt: skip


def _along_x(series: PolyElement) -> PolyElement:
    """d/dx, where W = 1/x."""
    return series.diff(_x) - _e * _W**2 * series.diff(_W)


def _cancelled(series: PolyElement) -> PolyElement:
    """Cancels x against 1/x, monomial by monomial; e counted the orders."""
    i, j = series.ring.gens.index(_x), series.ring.gens.index(_W)
    reduced = series.ring.zero
    for exponents, value in series.terms():
        both = min(exponents[i], exponents[j])
        kept = tuple(e - both if index in (i, j) else e for index, e in enumerate(exponents))
        reduced += series.ring.from_dict({kept: value})
    return reduced
