"""Flows as text and LaTeX: few lines, named intermediates, nothing that a reader must undo."""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false, reportReturnType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import sympy as sp

from flowsim.theory.symbols import TIME

if TYPE_CHECKING:
    from flowsim.theory.flow import Flow
    from flowsim.theory.symmetry import Part


def readable(flow: Flow) -> tuple[sp.Eq, ...]:
    r"""The closed system of a flow in the order a reader needs it.

    With two groups the second attention is written $1 - \alpha$ and the only score flux is put in place; with more, the
    attentions share a named partition $Z$.

    Args:
        flow: the symbolic flow.

    Returns:
        Definitions of the intermediates, then the time derivatives of the coordinates.
    """
    groups = flow.reduction.groups
    attentions = {g.attention for g in groups}
    fluxes = dict(flow.fluxes.values())
    lines: list[sp.Eq] = [_equation(*named) for named in _products(flow)]
    replace: dict[sp.Expr, sp.Expr] = {}
    if len(groups) == 2:
        lines.append(_equation(*flow.definitions[0]))
        replace[groups[1].attention] = 1 - groups[0].attention
        if groups[0].role != "distinct":
            lines[-1] = _equation(*flow.definitions[1])
            replace = {groups[0].attention: 1 - groups[1].attention}
    elif len(groups) == 1:
        replace[groups[0].attention] = sp.Integer(1)
    else:
        partition = sp.Symbol("Z", positive=True)
        weights = {
            g.attention: g.count * sp.exp(gap) for g, gap in zip(groups, flow.coordinates.gaps.values(), strict=True)
        }
        lines.append(_equation(partition, sp.Add(*weights.values())))
        lines += [_equation(symbol, weight / partition) for symbol, weight in weights.items()]
    if len(fluxes) == 1:
        replace = {name: flux.xreplace(replace) for name, flux in fluxes.items()} | replace
        fluxes = {}
    for symbol, definition in flow.definitions:
        if symbol in attentions or (symbol not in fluxes and symbol in dict(flow.fluxes.values())):
            continue
        lines.append(_equation(symbol, _tidy(definition.xreplace(replace))))
    pulls = {block: sp.Symbol(f"G_{block}", real=True) for part, _ in flow.factorized_parts for block in _blocks(part)}
    for block, name in pulls.items():
        lines.append(_equation(name, _tidy(flow.gradient[block].xreplace(replace))))
    velocities = dict(flow.velocity)
    for part, side in flow.factorized_parts:
        velocities.update(zip(side.circuit.state(part), side.circuit.velocity(part, pulls, side.rate), strict=True))
    for symbol, velocity in velocities.items():
        lines.append(_equation(sp.Derivative(symbol, TIME, evaluate=False), _tidy(velocity.xreplace(replace))))
    return tuple(lines)


def _products(flow: Flow) -> list[tuple[sp.Symbol, sp.Expr]]:
    """The blocks of factorized circuits as products of factors, and the coordinates as combinations of the blocks."""
    parts = flow.factorized_parts
    values = {block: flow.block_values[block] for part, _ in parts for block in _blocks(part)}
    places = flow.coordinates
    read = [
        (symbol, sp.factor_terms(expression))
        for symbol, expression in zip(places.state, places.in_blocks, strict=True)
        if symbol not in flow.velocity and expression.free_symbols & values.keys()
    ]
    return [*values.items(), *read]


def _blocks(part: Part) -> list[sp.Symbol]:
    return [block.symbol for row in part.blocks for block in row]


def flow_text(flow: Flow) -> str:
    """A flow as plain text: what it is, then its equations."""
    structure = flow.structure
    roles = [role for i, role in enumerate(structure.roles) if i != structure.query_group]
    query = f"{structure.query} query" + (", attended" if structure.query_group is not None else "")
    head = "head over labels and other outputs" if structure.vocabulary_head else "head over the labels"
    title = f"{flow.parameterization} flow: {', '.join(roles)} tokens; {query}; {head} (E: mean over compositions)"
    return "\n".join([title, *(f"  {equation_text(equation)}" for equation in flow.equations)])


def equation_text(equation: sp.Eq) -> str:
    """One equation as text, `dw/dt = ...`."""
    left, right = equation.args
    name = f"d{left.args[0]}/dt" if isinstance(left, sp.Derivative) else sp.sstr(left)
    return f"{name} = {sp.sstr(right)}"


def latex_lines(equations: Sequence[sp.Eq]) -> str:
    """Equations as one LaTeX `aligned` environment."""
    lines = (f"{_latex_left(eq.args[0])} &= {sp.latex(eq.args[1])}" for eq in equations)
    body = " \\\\\n".join(lines)
    return f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"


def _latex_left(left: sp.Expr) -> str:
    return rf"\dot{{{sp.latex(left.args[0])}}}" if isinstance(left, sp.Derivative) else sp.latex(left)


def _equation(left: sp.Expr, right: sp.Expr) -> sp.Eq:
    return sp.Eq(left, right, evaluate=False)


def _tidy(expression: sp.Expr) -> sp.Expr:
    r"""A rational function of one exponential with $e^{\Delta}$ rather than $e^{-\Delta}$; shared factors in front."""
    if len(expression.atoms(sp.exp)) == 1:
        numerator, denominator = expression.as_numer_denom()
        return numerator / denominator
    return expression if expression.has(sp.exp) else sp.factor_terms(expression)
