"""The blocks at time 0, from the arguments that every solver takes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim import _jax, _validate  # noqa: F401  float64 first
from flowsim.codegen import CompiledField, Parameters, compile
from flowsim.errors import InvalidInput
from flowsim.start import Start
from flowsim.task import Task
from flowsim.theory import Flow


def start_blocks(task: Task, flow: Flow, margin0, score_gap0, start: Start | None) -> Float[Array, " blocks"]:
    """The blocks at step 0.

    Args:
        task: the task.
        flow: its collapsed flow.
        margin0: margin at the start, on the line that the collapsed flow takes from zero matrices.
        score_gap0: score gap at the start, likewise.
        start: the blocks themselves, instead.

    Raises:
        InvalidInput: if both forms are given, a value is not finite, or the two numbers do not determine the start.
    """
    given = {
        name: value if _validate.is_traced(value) else _validate.real(name, value)
        for name, value in (("margin0", margin0), ("score_gap0", score_gap0))
    }
    moved = [name for name, value in given.items() if _validate.is_traced(value) or value != 0]
    sizes = flow.reduction.block_sizes
    if start is not None:
        if not isinstance(start, Start):
            raise InvalidInput(f"start={start!r} must be a flowsim.Start.")
        if moved:
            raise InvalidInput(f"start= was given together with {moved[0]}={given[moved[0]]}; give one of them only.")
        return jnp.asarray(start.vector(sizes), dtype=float)
    blocks = jnp.zeros(sum(sizes.values()))
    if not moved:
        return blocks
    if len(flow.coordinates.state) != 2:
        raise InvalidInput(
            f"{moved[0]}={given[moved[0]]} does not determine the start of this task ({task}): that takes one distinct "
            "and one background group, the label head and no attended query; give start=flowsim.Start(...)."
        )
    field = compile(flow)
    x = jnp.stack([jnp.asarray(given[name], dtype=float) for name in ("score_gap0", "margin0")])
    return _from_zero(field, x, blocks, field.parameters(task, 1.0))


def start_settings(margin0, score_gap0, start: Start | None) -> dict[str, Any]:
    """The start as plain values; None for what was traced and has none."""
    plain = {
        name: None if _validate.is_traced(value) else float(value)
        for name, value in (("margin0", margin0), ("score_gap0", score_gap0))
    }
    return {**plain, "start": None if start is None else dict(start.blocks)}


@functools.partial(jax.jit, static_argnums=0)
def _from_zero(field: CompiledField, x: Array, blocks: Array, parameters: Parameters) -> Float[Array, " blocks"]:
    return field.from_reduced(x, jnp.zeros_like(x), blocks, parameters)
