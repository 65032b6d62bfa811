"""The command line: `flowsim derive | integrate | train | verify | sweep | ratio-for | phase | reproduce | plot`.

Commands import JAX, SymPy and matplotlib only when they run, so that help is instant.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import typer

from flowsim import _cache
from flowsim.cli._console import COMMAND_LINE, note, plain_text
from flowsim.cli.app import app
from flowsim.errors import InvalidInput

BAD_INPUT, INTERRUPTED = 2, 130


def main() -> None:
    """Entry point of the `flowsim` script: runs the command line and exits with its code."""
    _cache.enable()
    signal.signal(signal.SIGTERM, _as_interrupt)
    code = run(sys.argv[1:])
    if code == INTERRUPTED:  # the thread that was at work may still be inside compiled code: do not wait for it
        os._exit(code)
    sys.exit(code)


def _as_interrupt(number: int, frame: Any) -> None:
    """What a batch system sends when time is up ends a command as Ctrl-C does, with nothing half-written left."""
    present = signal.getsignal(signal.SIGINT)  # ignored in commands that a shell starts in the background
    (present if callable(present) else signal.default_int_handler)(number, frame)


def run(arguments: Sequence[str]) -> int:
    """Runs one command.

    Args:
        arguments: the words after `flowsim`.

    Returns:
        0 done; 1 an exact-law row failed or a lane diverged; 2 bad input; 130 interrupted.
    """
    if plain_text():
        from typer import rich_utils

        rich_utils.COLOR_SYSTEM = None  # of the help texts
    COMMAND_LINE.set(tuple(arguments))
    try:
        code = typer.main.get_command(app).main(args=list(arguments), prog_name="flowsim", standalone_mode=False)
    except InvalidInput as error:
        note(f"flowsim: {_one_line(str(error))}")
        return BAD_INPUT
    except OSError as error:  # a full disk, a folder that vanished meanwhile
        note(f"flowsim: the operating system refused: {_one_line(str(error))}; check the paths and the free space.")
        return BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        if isinstance(error, MemoryError) or str(error).startswith("RESOURCE_EXHAUSTED"):  # the latter is XLA's word
            note(f"flowsim: the memory does not suffice ({_one_line(str(error)) or 'no more is there'}); ask for less.")
            return BAD_INPUT
        if not hasattr(error, "format_message"):
            raise
        # typer's usage errors share no public base class over its versions, but all have this method
        message = _one_line(error.format_message()).rstrip(".?")  # pyright: ignore[reportAttributeAccessIssue]
        note(f"flowsim: {message}; see {_command_path(error)} --help.")
        return BAD_INPUT
    code = int(code or 0)
    if code == INTERRUPTED:
        note("flowsim: interrupted; nothing half-written was left behind.")
    return code


def _command_path(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return "flowsim" if context is None else context.command_path


def _one_line(text: str) -> str:
    return " ".join(text.split())
