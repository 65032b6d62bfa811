"""Truncated series as exact polynomials over the rationals: the tools that SymPy's ring series leave to us."""

# SymPy's annotations are wider than what it returns.
# pyright: reportReturnType=false, reportArgumentType=false

import sympy as sp
from sympy.polys.rings import PolyElement


def coefficient(series: PolyElement, variable: PolyElement, power: int) -> PolyElement:
    """The polynomial that multiplies variable**power."""
    i = series.ring.gens.index(variable)
    return series.ring.from_dict({(*e[:i], 0, *e[i + 1 :]): c for e, c in series.terms() if e[i] == power})


def shift(series: PolyElement, variable: PolyElement, power: int) -> PolyElement:
    """Divides a series by variable**power, exactly."""
    quotient, rest = divmod(series, variable**power)
    assert not rest, "the series does not start at this power"
    return quotient


def majorant(series: PolyElement, *kept: PolyElement) -> sp.Expr:
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
