"""How the learning-rate ratio changes while training goes on."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _jax, _validate  # noqa: F401  float64 first
from flowsim.errors import InvalidInput


class AbstractSchedule(eqx.Module):
    """A factor of the ratio as a function of gradient-flow time."""

    @abc.abstractmethod
    def __call__(self, time: Float[Array, ""]) -> Float[Array, ""]:
        """The factor at a time.

        Args:
            time: gradient-flow time (learning rate times step number); infinite where it overflows.
        """

    @property
    @abc.abstractmethod
    def plain(self) -> dict[str, Any]:
        """The schedule as plain values, for a trajectory's settings."""


class Growing(AbstractSchedule):
    r"""A gradually increasing ratio: the factor rises from `begin` to 1 as a power of time, and stays there.

    $$ f(t) = b + (1 - b) \min(t/T, 1)^p . $$

    Args:
        until: $T > 0$, the time from which on the ratio has its full value.
        begin: $b \ge 0$, the factor at time 0.
        power: $p > 0$.

    Raises:
        InvalidInput: if a number is out of range.
    """

    until: Float[Array, ""]
    begin: Float[Array, ""]
    power: Float[Array, ""]

    def __init__(self, until: Any, *, begin: Any = 0.0, power: Any = 1.0):
        self.until = _number("until", until, above=0.0)
        self.begin = _number("begin", begin, minimum=0.0)
        self.power = _number("power", power, above=0.0)

    def __call__(self, time: Float[Array, ""]) -> Float[Array, ""]:
        """See the class."""
        return self.begin + (1 - self.begin) * jnp.minimum(time / self.until, 1.0) ** self.power

    @property
    def plain(self) -> dict[str, Any]:
        """The numbers."""
        return {"kind": "growing", **{name: _plain(getattr(self, name)) for name in ("until", "begin", "power")}}


class Tabulated(AbstractSchedule):
    """Factors at given times, straight lines between them, constant before the first and after the last.

    Args:
        times: gradient-flow times, 0 or more, strictly increasing.
        factors: factors of the ratio there, 0 or more.

    Raises:
        InvalidInput: if the lists differ in length or hold what cannot be used.
    """

    times: Float[Array, " knots"]
    factors: Float[Array, " knots"]

    def __init__(self, times: Any, factors: Any):
        self.times = jnp.asarray(_validate.increasing("times", _validate.numeric_array("times", times)))
        self.factors = jnp.asarray(_validate.lane_values("factors", factors, minimum=0.0)[0])
        if not np.all(np.isfinite(self.times)) or self.times[0] < 0:
            raise InvalidInput(f"times={times!r} of a schedule must be finite and 0 or more.")
        if self.times.shape != self.factors.shape:
            raise InvalidInput(
                f"factors has {self.factors.size} entries and times has {self.times.size}; give one factor for each "
                "time."
            )

    def __call__(self, time: Float[Array, ""]) -> Float[Array, ""]:
        """See the class."""
        return jnp.interp(time, self.times, self.factors)

    @property
    def plain(self) -> dict[str, Any]:
        """The table."""
        return {"kind": "tabulated", "times": self.times.tolist(), "factors": self.factors.tolist()}


class Given(AbstractSchedule):
    """Any function of time.

    Attributes:
        function: from gradient-flow time to a factor, in JAX.
    """

    function: Callable[[Array], Any] = eqx.field(static=True)

    def __call__(self, time: Float[Array, ""]) -> Float[Array, ""]:
        """See the class."""
        return jnp.asarray(self.function(time), dtype=float)

    @property
    def plain(self) -> dict[str, Any]:
        """The name of the function: it has no plain value."""
        return {"kind": "given", "function": getattr(self.function, "__qualname__", type(self.function).__name__)}


def schedule_of(value: Any) -> AbstractSchedule | None:
    """The schedule that an argument stands for.

    Raises:
        InvalidInput: if it is neither None, a schedule nor a function.
    """
    if value is None or isinstance(value, AbstractSchedule):
        return value
    if not callable(value):
        raise InvalidInput(
            f"schedule={_validate.show(value)} must be a flowsim.schedules object or a function from time to a factor "
            "of the ratio."
        )
    return Given(value)


def _number(name: str, value: Any, **bounds: float) -> Array:
    return jnp.asarray(value if _validate.is_traced(value) else _validate.real(name, value, **bounds), dtype=float)


def _plain(value: Any) -> float | None:
    return None if _validate.is_traced(value) else float(value)
