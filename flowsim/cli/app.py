"""The commands under one roof."""

from typing import Annotated

import typer

import flowsim
from flowsim.cli import derive, device_check, integrate, phase, plot, ratio_for, reproduce, sweep, train, verify
from flowsim.cli._console import write
from flowsim.cli._spread import spread

_HELP = (
    "Exact gradient-flow dynamics of attention: derive, solve, train and judge.\n\n"
    "Every command takes the same task options. Without any the task has 4 classes, 10 distinct token types per class, "
    "10 common ones, and 32 distinct and 31 common positions in each sequence."
)

app = typer.Typer(
    help=_HELP,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _flowsim(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", metavar="", help="Print the version and stop.")] = False,
) -> None:
    if version:
        write(f"flowsim {flowsim.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        write(context.get_help())


for _module in (derive, integrate, train, verify, sweep, ratio_for, phase, reproduce, plot, device_check):
    app.command(_module.__name__.rpartition(".")[2].replace("_", "-"))(spread(_module.command))
