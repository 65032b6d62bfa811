"""Checks of the arguments that every solver shares: each failure is one sentence with argument, value and fix."""

from collections.abc import Iterator

import jax
import numpy as np
from jax.core import Tracer

from flowsim import _jax  # noqa: F401  float64 first
from flowsim._checks import one_of, real, show, whole
from flowsim.errors import InvalidInput

__all__ = [
    "increasing",
    "is_traced",
    "lane_values",
    "log_time_grid",
    "numeric_array",
    "one_of",
    "parameterization",
    "ratios",
    "real",
    "show",
    "whole",
]

MOST_STEPS = 2**53
"""Step numbers are multiplied by learning rates: beyond this a float64 no longer tells one from the next."""
MOST_RECORDS = 10**7
PARAMETERIZATIONS = ("CACO", "FACO", "CAFO", "FAFO")


def is_traced(*values) -> bool:
    """Whether any of the values is being traced by JAX, so that its numbers cannot be looked at."""
    # An iterator is no input, and JAX warns where it looks for leaves in one.
    leaves = jax.tree.leaves(values, is_leaf=lambda value: isinstance(value, Iterator))
    return any(isinstance(leaf, Tracer) for leaf in leaves)


def lane_values(
    name: str, value, *, above: float | None = None, minimum: float | None = None
) -> tuple[np.ndarray, bool]:
    """A scalar or a one-dimensional list of finite numbers, as a lane axis.

    Args:
        name: the argument's name, for messages.
        value: a number, or a non-empty list or array of numbers. Concrete only.
        above: exclusive lower bound.
        minimum: inclusive lower bound.

    Returns:
        The values as a float64 array of shape `(n,)`, and whether a scalar was given.

    Raises:
        InvalidInput: naming the first value that cannot be used.
    """
    array = numeric_array(name, value)
    scalar = array.ndim == 0
    if array.ndim > 1:
        raise InvalidInput(f"{name} has shape {array.shape}; give a number or a one-dimensional list.")
    if array.size == 0:
        raise InvalidInput(f"{name}={show(value)} is empty; give at least one number.")
    values = np.atleast_1d(array)
    good = np.isfinite(values)
    good &= values >= minimum if minimum is not None else True
    good &= values > above if above is not None else True
    if not good.all():
        real(name, float(values[np.argmin(good)]), minimum=minimum, above=above)  # says what is wrong with it
    return values, scalar


def ratios(value) -> tuple[np.ndarray, bool]:
    """Learning-rate ratios: finite, 0 (frozen query-key circuit) or more. As `lane_values`.

    Raises:
        InvalidInput: naming the first ratio that cannot be used.
    """
    return lane_values("ratio", value, minimum=0.0)


def numeric_array(name: str, value) -> np.ndarray:
    """A real array from numbers, refusing strings, booleans, complex numbers and ragged lists.

    Raises:
        InvalidInput: if `value` is not numeric.
    """
    masked = np.ma.is_masked(value) or (isinstance(value, list | tuple) and any(x is np.ma.masked for x in value))
    if masked:
        raise InvalidInput(f"{name}={show(value)} has masked entries; leave them out or fill them with numbers.")
    if isinstance(value, bytearray | memoryview):  # NumPy reads their bytes as numbers
        raise InvalidInput(f"{name}={show(value)} must be a number or a list of numbers.")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"{name}={show(value)} must be a number or a list of numbers.") from error
    if array.dtype == object:
        try:
            array = array.astype(np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidInput(f"{name}={show(value)} must be a number or a list of numbers.") from error
    if array.dtype.kind not in "iuf":
        raise InvalidInput(f"{name}={show(value)} must be a number or a list of numbers.")
    return array.astype(np.float64)


def increasing(name: str, array: np.ndarray, *, decreasing: bool = False) -> np.ndarray:
    """A one-dimensional, strictly monotone grid without NaN.

    Raises:
        InvalidInput: naming the first entry that breaks the order.
    """
    if array.ndim > 1:
        raise InvalidInput(f"{name} has shape {array.shape}; give a number or a one-dimensional list.")
    array = np.atleast_1d(array)
    if array.size == 0:
        raise InvalidInput(f"{name} is empty; give at least one number.")
    if np.isnan(array).any():
        raise InvalidInput(f"{name} holds NaN at index {int(np.argmax(np.isnan(array)))}; remove it.")
    word = "decreasing" if decreasing else "increasing"
    wrong = np.flatnonzero(np.diff(array) >= 0 if decreasing else np.diff(array) <= 0)
    if wrong.size:
        i = int(wrong[0])
        problem = "repeats" if array[i] == array[i + 1] else "breaks the order of"
        raise InvalidInput(
            f"{name}[{i + 1}]={array[i + 1]:.17g} {problem} {name}[{i}]={array[i]:.17g}; give strictly {word} values."
        )
    return array


def log_time_grid(times=None, log_times=None) -> tuple[np.ndarray, bool]:
    """The grid of log times from `times` or `log_times`.

    Args:
        times: gradient-flow times, 0 or more, strictly increasing; or a scalar.
        log_times: natural logarithms of the times, strictly increasing (`-inf` is time 0); or a scalar.

    Returns:
        Log times of shape `(n_time,)` (the first may be `-inf`) and whether a scalar was given.

    Raises:
        InvalidInput: if both or neither are given, or the grid cannot be used.
    """
    if (times is None) == (log_times is None):
        given = "neither" if times is None else "both"
        raise InvalidInput(f"give times= or log_times=, exactly one of them; got {given}.")
    if times is not None:
        array = numeric_array("times", times)
        grid = increasing("times", array)
        if np.isinf(grid).any():
            raise InvalidInput("times holds an infinite value; use log_times= for horizons beyond float64.")
        if grid[0] < 0:
            raise InvalidInput(f"times[0]={grid[0]:g} is negative; gradient-flow time starts at 0.")
        with np.errstate(divide="ignore"):  # ln 0 = -inf is time 0
            return np.log(grid), array.ndim == 0
    array = numeric_array("log_times", log_times)
    grid = increasing("log_times", array)
    if np.isposinf(grid).any():
        raise InvalidInput("log_times holds +inf; give finite values (or -inf for time 0).")
    return grid, array.ndim == 0


def parameterization(value) -> str:
    """The name of a parameterization.

    Raises:
        InvalidInput: if it is unknown.
    """
    return one_of("parameterization", value, PARAMETERIZATIONS)
