"""Tables of a page, from rows of text or from the tables that the terminal shows."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[bool], caption: str = "") -> str:
    """A table that scrolls sideways when it is wider than the page.

    Args:
        headings: HTML of the first line.
        rows: HTML of every cell.
        numbers: which columns are set flush right.
        caption: HTML below the table.
    """
    kinds = ['class="n"' if number else "" for number in numbers]
    head = "".join(f'<th scope="col" {kind}>{text}</th>' for text, kind in zip(headings, kinds, strict=True))
    lines = ("".join(f"<td {kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) for row in rows)
    return scrolling(head, [f"<tr>{line}</tr>" for line in lines], caption)


def scrolling(head: str, rows: Sequence[str], caption: str = "") -> str:
    """A table from the cells of its head and its rows."""
    below = f"<caption>{caption}</caption>\n" if caption else ""
    body = "\n".join(rows)
    return (
        f'<div class="scroll" tabindex="0"><table>\n{below}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def from_rich(shown: "Table", caption: str = "") -> str:
    """A table of the terminal as a table of the page."""
    columns = shown.columns
    cells = [[_text(cell) for cell in column.cells] for column in columns]
    return table(
        [_text(column.header).replace("\n", "<br>") for column in columns],
        list(zip(*cells, strict=True)),
        numbers=[column.justify == "right" for column in columns],
        caption=caption,
    )


def definition_list(entries: Sequence[tuple[str, str]]) -> str:
    """Names and what they are, as HTML."""
    lines = (f"<dt>{name}</dt><dd>{value}</dd>" for name, value in entries)
    return "<dl>\n" + "\n".join(lines) + "\n</dl>"


def _text(cell: object) -> str:
    text = getattr(cell, "plain", None) or str(cell)
    return escape(text.replace("^2", "\u00b2"))  # log^2 t
