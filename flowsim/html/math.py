"""Equations as MathML, which browsers set without script or fonts of ours."""

# SymPy's printers have no annotations.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from collections.abc import Sequence

import sympy as sp
from sympy.printing.mathml import MathMLPresentationPrinter

from flowsim.theory.symbols import TIME

# SymPy asks for upright double-struck letters, which look like another alphabet beside italics.
_LETTERS = {"&ExponentialE;": "e", "&dd;": "d", "&InvisibleTimes;": "&#8290;"}


class _Printer(MathMLPresentationPrinter):
    """SymPy's printer with a paper's habits: dots for time derivatives, E[...] for means, commas between indices."""

    def _print_Derivative(self, expression):
        name, *rest = expression.args
        if len(rest) == 1 and rest[0][0] == TIME:
            over = self.dom.createElement("mover")
            over.setAttribute("accent", "true")
            over.appendChild(self._print(name))
            over.appendChild(self._token("mo", "\u02d9"))
            return over
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
    for entity, letter in _LETTERS.items():
        text = text.replace(entity, letter)
    return text.replace("<mo> </mo>", "<mo>,</mo>")  # between the two indices of one symbol


def formula(expression: sp.Expr) -> str:
    """One expression within a line of text."""
    return f"<math>{_mathml(expression)}</math>"


def equations(lines: Sequence[sp.Eq]) -> str:
    """Equations one below the other, aligned at their equality signs, in a box that scrolls when they are long."""
    rows = (
        f"<mtr><mtd>{_mathml(line.args[0])}</mtd><mtd><mo>=</mo></mtd><mtd>{_mathml(line.args[1])}</mtd></mtr>"
        for line in lines
    )
    table = "\n".join(rows)
    return (
        f'<div class="math" tabindex="0"><math display="block"><mtable displaystyle="true">\n{table}\n</mtable></math>'
        "</div>"
    )
