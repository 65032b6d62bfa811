"""Options that several commands share, written once as a dataclass."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command in which every parameter whose type is a dataclass stands for that dataclass's fields.

    typer reads a command's signature, so shared options would otherwise be repeated in every command.

    Args:
        command: its dataclass parameters have fields of type `Annotated[..., typer.Option(...)]`, all with defaults.

    Returns:
        A function of the flat options that calls `command` with the dataclasses built.
    """
    hints = get_type_hints(command, include_extras=True)
    hints.pop("return", None)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        field_hints = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field_hints[field.name]
            )
            for field in dataclasses.fields(groups[name])
        ]

    def flat(**values):
        arguments = dict(values)
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            arguments[name] = group(**{field: arguments.pop(field) for field in fields})
        return command(**arguments)

    flat.__name__, flat.__doc__, flat.__module__ = command.__name__, command.__doc__, command.__module__
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    flat.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]  typer reads it
    return flat
