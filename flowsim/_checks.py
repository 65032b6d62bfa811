"""Checks of single values, without NumPy or JAX: each failure is one sentence with argument, value and fix."""

import difflib
import math
import numbers
from collections.abc import Mapping, Sequence, Set
from typing import Any

from flowsim.errors import InvalidInput


def real(name: str, value, *, minimum: float | None = None, above: float | None = None) -> float:
    """A finite number, optionally bounded below.

    Raises:
        InvalidInput: if `value` is no finite number or lies below the bound.
    """
    if getattr(value, "ndim", None) == 0:  # a scalar of NumPy or JAX
        value = "masked" if getattr(value, "mask", False) else value.item()  # item() of a masked scalar is 0
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidInput(f"{name}={show(value)} must be a number.")
    try:
        number = float(value)
    except OverflowError as error:
        raise InvalidInput(f"{name}={show(value)} is too large for a float; give a smaller number.") from error
    if not math.isfinite(number):
        raise InvalidInput(f"{name}={show(value)} must be finite.")
    if minimum is not None and number < minimum:
        raise InvalidInput(f"{name}={show(value)} is too small; give a number of at least {minimum:g}.")
    if above is not None and number <= above:
        raise InvalidInput(f"{name}={show(value)} is too small; give a number above {above:g}.")
    return number


def whole(name: str, value, *, minimum: int, maximum: int | None = None) -> int:
    """A whole number of at least `minimum`, and at most `maximum` when that is given.

    Raises:
        InvalidInput: if `value` is anything else.
    """
    number = real(name, value)
    if number != int(number) or number < minimum:
        raise InvalidInput(f"{name}={show(value)} must be a whole number, at least {minimum}.")
    exact = int(value) if isinstance(value, numbers.Integral) else int(number)  # a float rounds large integers
    if maximum is not None and exact > maximum:
        raise InvalidInput(f"{name}={show(value)} is too large; give a whole number of at most {maximum}.")
    return exact


def listing(name: str, value, wanted: str) -> list:
    """The items of a list, tuple or one-dimensional array, which have an order and are no text.

    Args:
        name: the argument's name, for messages.
        value: what was given.
        wanted: what should be given, after "must be a list of".

    Raises:
        InvalidInput: if `value` is anything else.
    """
    ordered = hasattr(value, "__iter__") and not isinstance(value, str | bytes | bytearray | Mapping | Set)
    if not ordered or getattr(value, "ndim", 1) == 0:
        raise InvalidInput(f"{name}={show(value)} must be a list of {wanted}.")
    return list(value)


def boolean(name: str, value) -> bool:
    """True or False, nothing that merely converts to them.

    Raises:
        InvalidInput: if `value` is no boolean.
    """
    if not isinstance(value, bool):
        raise InvalidInput(f"{name}={show(value)} must be True or False.")
    return value


def one_of(name: str, value, allowed: Sequence[str]) -> str:
    """One of a few words, with the nearest one suggested otherwise.

    Raises:
        InvalidInput: if `value` is not among `allowed`.
    """
    if isinstance(value, str) and value in allowed:
        return value
    words = {word.lower(): word for word in allowed}
    near = difflib.get_close_matches(value.lower(), words, n=1) if isinstance(value, str) else []
    hint = f" (did you mean {words[near[0]]!r}?)" if near else ""
    raise InvalidInput(f"{name}={show(value)} is unknown; use one of {', '.join(allowed)}{hint}.")


def show(value: Any) -> str:
    """A short text of a value for messages."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python writes no integers of more than 4300 digits
        text = f"<{type(value).__name__} too long to print>"
    return text if len(text) <= 60 else text[:57] + "..."
