"""The equations of a flow as sections of a page."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from flowsim.html.math import equations, formula
from flowsim.html.page import Section

if TYPE_CHECKING:
    import sympy as sp

    from flowsim.theory.flow import Flow
    from flowsim.theory.invariants import Invariant


def flow_section(
    flow: "Flow",
    conserved: "Sequence[Invariant]",
    closed: "Sequence[tuple[str, Sequence[sp.Eq]]]",
    missing: str | None,
    prefix: str = "",
) -> Section:
    """Derived equations, conserved quantities and closed form, with the LaTeX of the equations.

    Args:
        flow: the flow.
        conserved: what the task conserves.
        closed: titles and equations of the closed form and of the growth laws; empty where there is none.
        missing: why there is no closed form, or None.
        prefix: of the anchors, where a page has several flows.
    """
    title, *_ = str(flow).splitlines()
    latex = f"<details><summary>as LaTeX</summary><pre>{escape(flow.latex())}</pre></details>"
    items = "\n".join(f"<li>{escape(item.meaning)}{formula(item.expression)}</li>" for item in conserved)
    parts = [
        Section(f"{prefix}flow", "Flow", f"<p>{escape(title)}</p>\n{equations(flow.equations)}\n{latex}"),
        Section(f"{prefix}conserved", "Conserved", f'<ul class="formulas">\n{items}\n</ul>'),
    ]
    for name, lines in closed:
        parts.append(Section(f"{prefix}{name.lower().replace(' ', '-')}", name, equations(lines)))
    if missing is not None:
        parts.append(Section(f"{prefix}closed-form", "Closed form", f"<p>{escape(missing)}</p>"))
    text = "<p>Derived from the softmax cross-entropy by differentiation; time is learning rate times steps.</p>"
    return Section(f"{prefix}equations", "Equations", text, tuple(parts))
