r"""Interventions: what training changes about the plain gradient flow.

With the gradient flow $\dot B_c = -\eta_c\, G_c$ of each circuit $c$ (its factors, where it has some) there may be

- a *schedule*: $\eta_{QK} = r f(t)$ with a factor that depends on time;
- *weight decay*: $-\eta_c\, (G_c + \mu_c B_c)$, coupled to the circuit's learning rate;
- *gradient normalization*: $-\eta_c\, G_c / \lVert G_c \rVert$ with the Frobenius norm of the gradient of the circuit's
  full matrices (of both factors together); where the gradient is exactly 0 the circuit stays.

and, for the flow only, *finite steps*: the modified flow that steps of size $h$ follow to a higher order. A gradient
descent step does the first three in the same way, with the step in place of the derivative.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim import _jax, _validate  # noqa: F401  float64 first
from flowsim.circuits import AbstractCircuit
from flowsim.codegen import CompiledField, Parameters
from flowsim.errors import InvalidInput
from flowsim.schedules import AbstractSchedule, schedule_of
from flowsim.score_scale import ScoreScale

NORMALIZED = {"qk": (True, False), "ov": (False, True), "both": (True, True)}


class Interventions(eqx.Module):
    """What is changed about the plain flow.

    Attributes:
        schedule: factor of the ratio over time, or None.
        weight_decay_qk: decay rate of the query-key circuit in units of its learning rate.
        weight_decay_ov: the same of the output-value circuit.
        normalize: None, `"qk"`, `"ov"` or `"both"`.
    """

    schedule: AbstractSchedule | None
    weight_decay_qk: Float[Array, ""]
    weight_decay_ov: Float[Array, ""]
    normalize: str | None = eqx.field(static=True)
    decays: bool = eqx.field(static=True)

    @staticmethod
    def of(
        schedule: Any = None, weight_decay_qk: Any = 0.0, weight_decay_ov: Any = 0.0, normalize: Any = None
    ) -> "Interventions | None":
        """Checks the arguments that `integrate` and `descend` share.

        Returns:
            The interventions, or None if there are none.

        Raises:
            InvalidInput: naming the argument that cannot be used.
        """
        decay = {
            name: value if _validate.is_traced(value) else _validate.real(name, value, minimum=0.0)
            for name, value in (("weight_decay_qk", weight_decay_qk), ("weight_decay_ov", weight_decay_ov))
        }
        if normalize is not None:
            _validate.one_of("normalize", normalize, tuple(NORMALIZED))
        decays = any(_validate.is_traced(value) or value != 0 for value in decay.values())
        chosen = schedule_of(schedule)
        if chosen is None and not decays and normalize is None:
            return None
        numbers = {name: jnp.asarray(value, dtype=float) for name, value in decay.items()}
        return Interventions(chosen, **numbers, normalize=normalize, decays=decays)

    def scaled(self, scale: ScoreScale) -> "Interventions":
        """Those of the flow without scale, for scores that have one."""
        gain = gain_of(scale, self)
        return eqx.tree_at(lambda these: these.weight_decay_qk, self, self.weight_decay_qk / gain)

    @property
    def endless(self) -> bool:
        """Whether the velocity stays within float64 at any time: with a schedule alone it scales with the error."""
        return not self.decays and self.normalize is None

    @property
    def plain(self) -> dict[str, Any]:
        """The interventions as plain values, for a trajectory's settings."""
        return {
            "schedule": None if self.schedule is None else self.schedule.plain,
            **{
                name: None if _validate.is_traced(getattr(self, name)) else float(getattr(self, name))
                for name in ("weight_decay_qk", "weight_decay_ov")
            },
            "normalize": self.normalize,
        }


def gain_of(scale: ScoreScale, interventions: Interventions | None) -> Any:
    """What a scale of the scores multiplies the ratio by."""
    return scale.gain(interventions is not None and interventions.normalize in ("qk", "both"))


Driven = Callable[[Array, Array, Array], Array]


def driven_velocity(
    field: CompiledField,
    parameters: Parameters,
    interventions: Interventions | None,
    state0: Float[Array, " state"],
    lr: Any = 1.0,
) -> Driven:
    """The velocity of the state under interventions.

    Args:
        field: the compiled field.
        parameters: the task's numbers with the ratio.
        interventions: what is changed; None for the plain flow.
        state0: the state at time 0.
        lr: learning rate of the output-value circuit; 1 for the flow.

    Returns:
        A function of the logarithm of a rate, the time and the change of the state since time 0: the derivative of the
        state by time, times that rate.
    """
    pair = field.circuits
    blocks0 = pair.blocks(state0)
    n, m = pair.qk.size, pair.n_qk_blocks
    schedule = None if interventions is None else interventions.schedule
    normalized = NORMALIZED.get(interventions.normalize or "", (False, False)) if interventions else (False, False)

    def velocity(log_rate: Array, time: Array, change: Array) -> Array:
        state = state0 + change
        blocks = blocks0 + pair.moved(state0, change)
        factor = 1.0 if schedule is None else schedule(time)
        rates = lr * parameters.ratio * factor, lr
        plain = None if all(normalized) else field.gradient(blocks, log_rate, parameters)
        moves = []
        for circuit, here, there, rate, unit, kind in (
            (pair.qk, slice(0, n), slice(0, m), rates[0], normalized[0], "qk"),
            (pair.ov, slice(n, None), slice(m, None), rates[1], normalized[1], "ov"),
        ):
            if unit:
                scale = _log_size(field, parameters, blocks, kind)
                gradient = field.gradient(blocks, -scale, parameters)[there]
                move = jnp.exp(log_rate) * _unit(circuit, circuit.velocity(state[here], gradient, 1.0), parameters)
            else:
                assert plain is not None
                move = circuit.velocity(state[here], plain[there], 1.0)
            if interventions is not None and interventions.decays:
                decay = interventions.weight_decay_qk if kind == "qk" else interventions.weight_decay_ov
                move = move - jnp.exp(log_rate) * decay * state[here]
            moves.append(rate * move)
        return jnp.concatenate(moves)

    return velocity


def modified(velocity: Driven, step: Any, order: int) -> Driven:
    r"""The flow that gradient descent with a finite step follows (backward error analysis).

    A step of size $h$ follows $f - \frac{h}{2} f'f$ to $O(h^2)$ globally and, with
    $h^2 (\frac13 f'f'f + \frac1{12} f''(f, f))$ added, to $O(h^3)$. Where the velocity depends on time, time is one
    more coordinate that moves at rate 1.

    Args:
        velocity: $f$, as `driven_velocity` returns it.
        step: $h$, the learning rate.
        order: 0 for $f$ itself, 1 or 2.

    Returns:
        The modified velocity.
    """
    if order == 0:
        return velocity

    def along(log_rate: Array, time: Array, change: Array) -> Array:
        zero, one = jnp.zeros_like(log_rate), jnp.ones_like(time)

        def f(place: tuple[Array, Array]) -> tuple[Array, Array]:
            return one, velocity(zero, *place)

        def slope(place: tuple[Array, Array]) -> tuple[Array, Array]:  # f'f
            return jax.jvp(f, (place,), (f(place),))[1]

        place = (time, change)
        correction = -step / 2 * slope(place)[1]
        if order == 2:
            bend = jax.jvp(slope, (place,), (f(place),))[1]  # f''(f, f) + f'f'f
            twice = jax.jvp(f, (place,), (slope(place),))[1]  # f'f'f
            correction += step**2 * (twice[1] / 3 + (bend[1] - twice[1]) / 12)
        return velocity(log_rate, time, change) + jnp.exp(log_rate) * correction

    return along


def check_step(step: Any, order: Any) -> tuple[Any, int]:
    """Checks the arguments of the modified flow.

    Returns:
        Step and order; the order is 0 without a step.

    Raises:
        InvalidInput: if one of them cannot be used or the step is missing.
    """
    if step is None:
        if order is not None and order != 0:
            raise InvalidInput(f"order={order} was given without step=; give the learning rate of the steps.")
        return 0.0, 0
    order = _validate.whole("order", 1 if order is None else order, minimum=0)
    if order > 2:
        raise InvalidInput(f"order={order} is not derived; use 0, 1 or 2.")
    return (step if _validate.is_traced(step) else _validate.real("step", step, above=0.0)), order


def _unit(circuit: AbstractCircuit, velocity: Array, parameters: Parameters) -> Array:
    """A velocity divided by the Frobenius norm that it has in the full matrices; 0 stays 0."""
    weights = jnp.concatenate(
        [
            jnp.full(size, parameters.classes - 1 if shape.name.endswith("standard") else 1.0)
            for shape, size in zip(circuit.shapes, circuit.sizes, strict=True)
        ]
    )
    square = jnp.sum(weights * velocity**2)
    moves = square > 0
    return jnp.where(moves, velocity / jnp.sqrt(jnp.where(moves, square, 1.0)), 0.0)


def _log_size(field: CompiledField, parameters: Parameters, blocks: Array, kind: str) -> Array:
    """The order of magnitude of a circuit's gradient, so that it can be normalized where it underflows."""
    seen = field.observables(field.to_reduced(blocks, parameters), parameters)
    gate = jax.nn.log_sigmoid(seen.log_odds) + (jax.nn.log_sigmoid(-seen.log_odds) if kind == "qk" else 0.0)
    return jax.lax.stop_gradient(seen.log_error + gate)
