"""Option texts to numbers; each failure is one sentence naming option, value and fix."""

import itertools
import math
from collections.abc import Sequence

from flowsim.errors import InvalidInput


def number(option: str, text: str, *, minimum: float | None = None, above: float | None = None) -> float:
    """A finite number, optionally bounded below.

    Raises:
        InvalidInput: if `text` is no finite number or lies below the bound.
    """
    try:
        value = float(text)
    except ValueError:
        raise InvalidInput(f"{option} {text!r} is not a number; give {_wanted(minimum, above)}.") from None
    if not math.isfinite(value):
        raise InvalidInput(f"{option} {text} is not finite; give {_wanted(minimum, above)}.")
    if (minimum is not None and value < minimum) or (above is not None and value <= above):
        raise InvalidInput(f"{option} {text} is too small; give {_wanted(minimum, above)}.")
    return value


def whole(option: str, text: str, *, minimum: int) -> int:
    """A whole number of at least `minimum`; `1e4` is accepted.

    Raises:
        InvalidInput: if `text` is anything else.
    """
    wanted = f"give a whole number of at least {minimum}"
    try:
        value = float(text)
    except ValueError:
        raise InvalidInput(f"{option} {text!r} is not a number; {wanted}.") from None
    if not math.isfinite(value) or value != int(value) or value < minimum:
        raise InvalidInput(f"{option} {text} cannot be used; {wanted}.")
    return int(value)


def numbers(
    option: str, texts: Sequence[str], *, minimum: float | None = None, above: float | None = None
) -> list[float]:
    """Numbers from a repeated option; each text may also hold several, separated by commas.

    Raises:
        InvalidInput: naming the first that cannot be used.
    """
    parts = [part.strip() for text in texts for part in text.split(",")]
    return [number(option, part, minimum=minimum, above=above) for part in parts]


def increasing(option: str, values: Sequence[float]) -> None:
    """Refuses a grid that is not strictly increasing.

    Raises:
        InvalidInput: naming the first value out of order.
    """
    for before, after in itertools.pairwise(values):
        if after == before:
            raise InvalidInput(f"{option} {after:g} is given twice; give each value once.")
        if after < before:
            raise InvalidInput(f"{option} {after:g} comes after {option} {before:g}; give them in increasing order.")


def different(option: str, values: Sequence[float]) -> list[float]:
    """Refuses a list that names a value twice.

    Raises:
        InvalidInput: naming the first such value.
    """
    for i, value in enumerate(values):
        if value in values[:i]:
            raise InvalidInput(f"{option} {value:g} is given twice; give each value once.")
    return list(values)


def _wanted(minimum: float | None, above: float | None) -> str:
    if minimum is not None:
        return f"a finite number of at least {minimum:g}"
    return "a finite number" if above is None else f"a finite number above {above:g}"
