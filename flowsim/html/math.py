"""Equations as MathML, which browsers set without script or fonts of ours."""

# SymPy's printers have no annotations.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

import re
from collections.abc import Sequence

import sympy as sp
from sympy.printing.mathml import MathMLPresentationPrinter

# SymPy asks for upright double-struck letters, which look like another alphabet beside italics, and for a hyphen where
# a minus is meant; a space between the two indices of one symbol would vanish.
_BETTER = {
    "&ExponentialE;": "e",
    "<mo>&dd;</mo>": "<mi>d</mi>",
    "&InvisibleTimes;": "&#8290;",
    "<mo>-</mo>": "<mo>&#8722;</mo>",
    "<mo> </mo>": "<mo>,</mo>",
}
_FUNCTION_AFTER_FACTOR = re.compile(r"(<mo>&#8290;</mo>)((?:<mrow>)*<mi>(?:log|sinh|cosh|sqrt)</mi>)")


class _Printer(MathMLPresentationPrinter):
    """SymPy's printer with a paper's habits: plain derivatives, E[...] for means."""

    def _print_Derivative(self, e):
        name, *rest = e.args
        fraction = self.dom.createElement("mfrac")
        for symbol in (name, rest[0][0]):
            row = self.dom.createElement("mrow")
            row.appendChild(self._token("mi", "d"))
            row.appendChild(self._print(symbol))
            fraction.appendChild(row)
        return fraction

    def _print_Mean(self, expression):
        row = self.dom.createElement("mrow")
        row.appendChild(self._token("mi", "\U0001d53c"))
        row.appendChild(self._token("mo", "["))
        row.appendChild(self._print(expression.args[0]))
        row.appendChild(self._token("mo", "]"))
        return row

    def _token(self, kind: str, text: str):
        element = self.dom.createElement(kind)
        element.appendChild(self.dom.createTextNode(text))
        return element


def _mathml(expression: sp.Expr) -> str:
    text = _Printer().doprint(expression)
    for old, new in _BETTER.items():
        text = text.replace(old, new)
    return _FUNCTION_AFTER_FACTOR.sub(r'\1<mspace width="0.17em"></mspace>\2', text)


def formula(expression: sp.Expr) -> str:
    """One expression on a line of its own, beside nothing."""
    return f'<math display="block">{_mathml(expression)}</math>'


def equations(lines: Sequence[sp.Eq]) -> str:
    """Equations one below the other in a box that scrolls when they are long.

    They are aligned at their equality signs where all left sides are short.
    """
    short = all(isinstance(line.args[0], sp.Symbol | sp.Derivative) for line in lines)
    gap = "</mtd><mtd>" if short else ""
    rows = (f"<mtr><mtd>{_mathml(line.args[0])}{gap}<mo>=</mo>{_mathml(line.args[1])}</mtd></mtr>" for line in lines)
    table = "\n".join(rows)
    return (
        f'<div class="math" tabindex="0"><math display="block"><mtable displaystyle="true">\n{table}\n</mtable></math>'
        "</div>"
    )
