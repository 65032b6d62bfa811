r"""Optimizers: a direction from the gradient, a learning rate for each circuit, schedules and weight decay.

The direction comes from an optax transformation *without* learning rate (`scale_by_adam`, not `adam`). A step is

$$ W \leftarrow W - \eta_c\, f(n)\, (\text{direction} + \lambda_c W), \qquad \eta_{OV} = \text{lr},\quad
   \eta_{QK} = \text{ratio} \cdot g(t) \cdot \text{lr}, $$

with the schedules $f$ (of both rates, at step $n$) and $g$ (of the ratio, at the time of that step). That is weight
decay coupled to the circuit's learning rate. Independent of it, $\lambda_c W$ has the factor $\text{lr}\, f(n)$ in both
circuits, so that the decay per unit of gradient-flow time does not depend on the ratio.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from flowsim import _jax, _validate  # noqa: F401  float64 first
from flowsim.errors import InvalidInput
from flowsim.models import Circuits
from flowsim.schedules import AbstractSchedule

Schedule = Callable[[Any], Any]

# name -> direction
_DIRECTIONS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": optax.identity,
    "momentum": functools.partial(optax.trace, decay=0.9),
    "adam": optax.scale_by_adam,
    "adamw": optax.scale_by_adam,
}
_DEFAULT_DECAY = {"adamw": 1e-4}
COUPLINGS = ("coupled", "independent")


class Optimizer(NamedTuple):
    """How a gradient becomes a step; hashable, so that compiled code can depend on it.

    Attributes:
        direction: from the gradient to the direction of descent, without learning rate.
        lr_schedule: factor of both learning rates at a step, or None.
        independent: whether weight decay does without the ratio.
    """

    direction: optax.GradientTransformation
    lr_schedule: Schedule | None
    independent: bool

    def remembers(self, circuits: Circuits) -> bool:
        """Whether the direction depends on more than the gradient: numbers that may cease to be finite by themselves.

        Args:
            circuits: the parameters.
        """
        memory = jax.eval_shape(self.direction.init, tuple(circuits))
        return any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(memory))

    def step(
        self,
        circuits: Circuits,
        gradient: Circuits,
        state: optax.OptState,
        number: Int[Array, ""],
        time: Float[Array, ""],
        ratio: Float[Array, ""],
        lr: Float[Array, ""],
        decay: tuple[Any, Any] | None,
        schedule: AbstractSchedule | None,
    ) -> tuple[Circuits, optax.OptState, Float[Array, ""]]:
        """One step.

        Args:
            circuits: the parameters.
            gradient: the derivative of the loss by them.
            state: what the direction remembers.
            number: of the step, from 0.
            time: gradient-flow time of the step.
            ratio: learning-rate ratio.
            lr: learning rate of the output-value circuit.
            decay: weight decay of both circuits; None for none.
            schedule: factor of the ratio over time; None for 1.

        Returns:
            The new parameters, what the direction remembers, and the time after the step.
        """
        # optax reads NamedTuples as states of its own, plain tuples as parameters
        directions: Any
        slopes: Any = tuple(gradient)
        directions, state = self.direction.update(slopes, state, tuple(circuits))  # pyright: ignore[reportArgumentType]
        if self.lr_schedule is not None:
            lr = lr * self.lr_schedule(number)
        if schedule is not None:
            ratio = ratio * schedule(time)
        moved = []
        for i, rate in enumerate((ratio * lr, lr)):
            shrink = None if decay is None else decay[i] * (lr if self.independent else rate)

            def down(parameter: Array, direction: Array, rate=rate, shrink=shrink) -> Array:
                step = rate.astype(parameter.dtype) * direction
                if shrink is not None:
                    step += shrink.astype(parameter.dtype) * parameter
                return parameter - step

            moved.append(jax.tree.map(down, circuits[i], directions[i]))
        return Circuits(*moved), state, time + lr


def optimizer(
    given: Any, lr_schedule: Any, weight_decay_qk: Any, weight_decay_ov: Any, decay: Any
) -> tuple[Optimizer, tuple[float, float] | None, dict[str, Any]]:
    """Checks the arguments of `train` about optimization.

    Args:
        given: a name or an optax transformation.
        lr_schedule: factor of both learning rates by step number, or None.
        weight_decay_qk: weight decay of the query-key circuit; None for the optimizer's default.
        weight_decay_ov: the same of the output-value circuit.
        decay: `"coupled"` or `"independent"`.

    Returns:
        The optimizer, the weight decay of both circuits (None if there is none), and the settings as plain values.

    Raises:
        InvalidInput: naming the argument, its value and the fix.
    """
    if isinstance(given, optax.GradientTransformation):
        name, direction = "given", given
    elif isinstance(given, str):
        name = _validate.one_of("optimizer", given, tuple(_DIRECTIONS))
        direction = _direction(name)
    else:
        raise InvalidInput(
            f"optimizer={given!r} must be one of {', '.join(_DIRECTIONS)} or an optax.GradientTransformation."
        )
    if lr_schedule is not None and not callable(lr_schedule):
        raise InvalidInput(
            f"lr_schedule={lr_schedule!r} must be a function of the step number, an optax schedule for instance."
        )
    decays = _decay("weight_decay_qk", weight_decay_qk, name), _decay("weight_decay_ov", weight_decay_ov, name)
    independent = _validate.one_of("decay", decay, COUPLINGS) == "independent"
    settings = {
        "optimizer": name,
        "lr_schedule": _name(lr_schedule),
        "weight_decay_qk": decays[0],
        "weight_decay_ov": decays[1],
        "decay": decay,
    }
    chosen = Optimizer(direction, lr_schedule, independent)
    return chosen, decays if any(decays) else None, settings


def clock(schedule: Schedule | None, steps: Any) -> Any:
    r"""Gradient-flow time after given numbers of steps, in units of lr: $\sum_{i<n} f(i)$.

    Args:
        schedule: the factor $f$; None for 1.
        steps: increasing numbers of steps, shape `(time,)`.

    Returns:
        Times, shape `(time,)`.

    Raises:
        InvalidInput: if a factor is negative or not finite, or time never begins.
    """
    if schedule is None:
        return jnp.asarray(steps, dtype=float)
    factors = jnp.broadcast_to(jax.vmap(schedule)(jnp.arange(int(steps[-1]))), (int(steps[-1]),)).astype(float)
    if not bool(jnp.all(jnp.isfinite(factors) & (factors >= 0))):
        i = int(jnp.argmin(jnp.isfinite(factors) & (factors >= 0)))
        raise InvalidInput(f"lr_schedule gives {factors[i]:g} at step {i}; its factors must be finite and at least 0.")
    if float(factors[0]) == 0:
        raise InvalidInput("lr_schedule gives 0 at step 0, so that no time passes; let it begin above 0.")
    return jnp.cumsum(factors)[jnp.asarray(steps) - 1]


def _decay(argument: str, value: Any, name: str) -> float:
    return _DEFAULT_DECAY.get(name, 0.0) if value is None else _validate.real(argument, value, minimum=0.0)


@functools.cache
def _direction(name: str) -> optax.GradientTransformation:
    """One object for each name: compiled code is found again by it."""
    return _DIRECTIONS[name]()


def _name(schedule: Schedule | None) -> str | None:
    return None if schedule is None else getattr(schedule, "__qualname__", type(schedule).__name__)
