"""Reports as single HTML pages that need nothing else: no script, no network, equations in MathML."""

from flowsim.html.page import Section, figure, page
from flowsim.html.tables import from_rich, table
from flowsim.html.verdicts import verdict_sections

__all__ = ["Section", "figure", "from_rich", "page", "table", "verdict_sections"]
