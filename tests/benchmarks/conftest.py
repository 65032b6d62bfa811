"""Benchmarks print ratios of one run; nothing asserts a wall time.

`make bench` runs them. Optional peers (`pip install -e '.[bench]'`) that are not installed are named in the table.
"""

import pytest
from rich.console import Console
from rich.table import Table

ROWS: dict[str, list[tuple[str, ...]]] = {}
HEADERS: dict[str, tuple[str, ...]] = {}


class Comparison:
    """Collects the rows of one table; the first row is flowsim's."""

    def __init__(self, title: str, *columns: str):
        HEADERS[title] = columns
        self._rows = ROWS.setdefault(title, [])

    def add(self, *cells: object) -> None:
        self._rows.append(tuple(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells))


@pytest.fixture(scope="session")
def comparison():
    return Comparison


def pytest_terminal_summary():
    console = Console(width=120)
    for title, rows in ROWS.items():
        table = Table(title=title, title_justify="left")
        for number, column in enumerate(HEADERS[title]):
            table.add_column(column, justify="left" if number == 0 else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
