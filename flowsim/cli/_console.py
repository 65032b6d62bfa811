"""What commands print: results on standard output, everything else on standard error."""

import contextlib
import contextvars
import dataclasses
import json
import math
import os
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")

COMMAND_LINE: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("COMMAND_LINE", default=())
"""The words after `flowsim` of the command that runs."""

# Tables in a pipe or file are not folded: nobody's window is known there.
_PIPE_WIDTH = 200
_TEXT_WIDTH = 100


def write(text: str = "") -> None:
    """Prints a line or lines of results."""
    _emit(f"{text}\n")


def wrapped(text: str) -> str:
    """A long sentence, folded at spaces."""
    return textwrap.fill(text, width=_TEXT_WIDTH, subsequent_indent="  ", break_long_words=False)


def show(table: "Table", dispensable: Sequence[str] = ()) -> None:
    """Prints a rich table, in colour only on a terminal.

    Args:
        table: what to print.
        dispensable: headings of columns that go, in this order, when the terminal is too narrow for all of them.
    """
    from rich.console import Console
    from rich.measure import Measurement

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    colours = None if plain_text() else "auto"  # rich's own answer to NO_COLOR keeps bold and italic
    console = Console(file=sys.stdout, width=width, highlight=False, color_system=colours)
    unbounded = console.options.update(width=_PIPE_WIDTH)

    def fits() -> bool:
        return Measurement.get(console, unbounded, table).maximum <= console.width

    if not fits():
        table.padding = 0
    for heading in dispensable:
        if not fits():
            kept = [column for column in table.columns if column.header != heading]
            table.columns = [dataclasses.replace(column, _index=i) for i, column in enumerate(kept)]
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    _emit("".join(f"{line.rstrip()}\n" for line in lines))


def plain_text() -> bool:
    """Whether the user wants no escape codes at all (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def write_json(value: Any) -> None:
    """Prints one JSON object."""
    write(json_text(value))


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in which numbers that are not finite are null (JSON has no word for them)."""
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """Plain nested data from mappings, sequences, NumPy and JAX arrays; what is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays and NumPy scalars
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def note(text: str) -> None:
    """Prints one sentence on standard error."""
    with contextlib.suppress(BrokenPipeError):
        print(text, file=sys.stderr, flush=True)


def work(text: str | None, function: Callable[[], T]) -> T:
    """Calls a function that may take long, and shows what is being done on a terminal's standard error.

    The function runs in a thread of its own: compiled code does not look for signals, but a main thread that waits
    does, so that Ctrl-C is answered at once. (The process then ends without the thread, see `cli.main`.)

    Args:
        text: what is being done; None where something else shows it.
        function: does it.

    Returns:
        What the function returns; what it raises is raised.
    """
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def call() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=call, daemon=True)
    with _spinner(text):
        thread.start()
        thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _spinner(text: str | None) -> contextlib.AbstractContextManager[Any]:
    if text is None or not sys.stderr.isatty() or plain_text():
        return contextlib.nullcontext()
    from rich.console import Console

    return Console(file=sys.stderr).status(f"{text} ...")


def _emit(text: str) -> None:
    """Writes to standard output; when its reader has gone, the work goes on unseen and files are still written."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)
