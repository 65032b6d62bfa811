"""Checks of single values, without NumPy or JAX: each failure is one sentence with argument, value and fix."""

import difflib
import math
import numbers
from collections.abc import Sequence
from typing import Any

from flowsim.errors import InvalidInput


def real(name: str, value, *, minimum: float | None = None, above: float | None = None) -> float:
    """A finite number, optionally bounded below.

    Raises:
        InvalidInput: if `value` is no finite number or lies below the bound.
    """
    if getattr(value, "ndim", None) == 0:  # a scalar of NumPy or JAX
        value = value.item()
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


def whole(name: str, value, *, minimum: int) -> int:
    """A whole number of at least `minimum`.

    Raises:
        InvalidInput: if `value` is anything else.
    """
    number = real(name, value)
    if number != int(number) or number < minimum:
        raise InvalidInput(f"{name}={show(value)} must be a whole number, at least {minimum}.")
    return int(number)


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
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
