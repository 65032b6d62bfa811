"""Settings of an experiment as the kinds of values that their defaults are."""

import dataclasses
from collections.abc import Collection
from typing import Any

from flowsim import _checks
from flowsim.errors import InvalidInput

MOST = 10**6
"""Counts beyond this are refused: they are slips of the pen, and arrays of that size fit nowhere."""


def typed(settings: Any, empty: Collection[str] = ()) -> None:
    """Replaces every field of frozen settings by the same value as the kind that its default is.

    Whole numbers come out as int, numbers as float, lists as tuples of what the default's items are (float if any of
    them is one), so that what comes after may rely on it and a file gives back equal settings.

    Args:
        settings: an instance of a dataclass whose fields all have defaults.
        empty: names of the lists that may be empty.

    Raises:
        InvalidInput: naming the first field that holds something else.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        default = field.default
        if isinstance(default, tuple):
            items = _checks.listing(field.name, value, "texts" if isinstance(default[0], str) else "numbers")
            if not items and field.name not in empty:
                raise InvalidInput(f"{field.name}={_checks.show(value)} is empty; give at least one value.")
            kind = item_kind(default)
            value = tuple(_one(field.name, item, kind) for item in items)
        else:
            value = _one(field.name, value, type(default))
        object.__setattr__(settings, field.name, value)


def item_kind(values: tuple) -> type:
    """What the items of a list are: float as soon as one of them is."""
    return float if any(isinstance(item, float) for item in values) else type(values[0])


def _one(name: str, value: Any, kind: type) -> Any:
    if kind is bool:
        return _checks.boolean(name, value)
    if kind is int:
        return _checks.whole(name, value, minimum=0, maximum=MOST)
    if kind is float:
        return _checks.real(name, value)
    if not isinstance(value, str):
        raise InvalidInput(f"{name}={_checks.show(value)} must be a text.")
    return value
