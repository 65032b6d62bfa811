"""The state at time 0, from the arguments that every solver takes."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _jax, _validate  # noqa: F401  float64 first
from flowsim.circuits import AbstractCircuit, Factorized, Factors, Shape, split, split_matrix
from flowsim.codegen import CompiledField, Parameters, compile
from flowsim.errors import InvalidInput
from flowsim.score_scale import ScoreScale
from flowsim.solve.line_start import imbalances, line_start
from flowsim.start import Start
from flowsim.task import Task
from flowsim.theory import Flow, derive


class Beginning(NamedTuple):
    """Where a solver begins.

    Attributes:
        field: the compiled field; its hidden sizes are those of the start.
        parameters: the task's numbers, ratio 1.
        state: blocks and factors at time 0, of the flow without scale.
        scale: of the scores.
        given: observed coordinates that were given as numbers and are exact; empty with `start=`.
        settings: the arguments as plain values.
    """

    field: CompiledField
    parameters: Parameters
    state: Float[Array, " state"]
    scale: ScoreScale
    given: dict[str, Any]
    settings: dict[str, Any]


def begin(
    task: Task,
    parameterization: str,
    *,
    margin0: Any = None,
    score_gap0: Any = None,
    imbalance_ov: Any = None,
    imbalance_qk: Any = None,
    start: Start | None = None,
    score_scale: Any = 1.0,
) -> Beginning:
    """The state at time 0.

    Args:
        task: the task.
        parameterization: four letters.
        margin0: margin at the start, on the line that the collapsed flow takes from zero matrices; None for the
            default of the circuit.
        score_gap0: score gap at the start, likewise.
        imbalance_ov: imbalance of the factors of the output-value circuit; None for 0.
        imbalance_qk: imbalance of the factors of the query-key circuit; None for 0.
        start: blocks or factors, instead of margin and score gap.
        score_scale: factor of the scores.

    Returns:
        The field, its parameters and the state.

    Raises:
        InvalidInput: if both forms are given, a number cannot be used, the numbers do not determine the start, or a
            factorized part would never move.
    """
    scale = ScoreScale.of(score_scale, parameterization, task)
    if start is not None:
        begun = _from_start(task, parameterization, margin0, score_gap0, imbalance_ov, imbalance_qk, start)
        n = begun.field.circuits.qk.size
        scaled = jnp.concatenate([scale.state * begun.state[:n], begun.state[n:]])
        return begun._replace(state=scaled, scale=scale, settings={**begun.settings, **scale.plain})
    line = line_start(
        parameterization, margin0=margin0, score_gap0=score_gap0, imbalance_ov=imbalance_ov, imbalance_qk=imbalance_qk
    )
    flow = derive(task, parameterization)
    field = compile(flow)
    parameters = field.parameters(task, 1.0)
    settings = {**line.plain, "start": None, **scale.plain}
    if len(flow.coordinates.state) != 2:
        _refuse_line(task, flow, {"margin0": line.margin0, "score_gap0": line.score_gap0})
        return Beginning(field, parameters, jnp.zeros(field.n_state), scale, {}, settings)
    numbers = tuple(jnp.asarray(number, dtype=float) for number in scale.line(line))
    given = {"score_gap": line.score_gap0, "margin": line.margin0}
    return Beginning(field, parameters, _on_line(field, parameters, *numbers), scale, given, settings)


def _refuse_line(task: Task, flow: Flow, numbers: dict[str, Any]) -> None:
    """Refuses numbers for tasks that they do not start, unless they start all matrices at zero."""
    for name, value in numbers.items():
        if _validate.is_traced(value) or value != 0:
            raise InvalidInput(
                f"{name}={value} does not determine the start of this task ({task}) with {flow.parameterization}: that "
                "takes one distinct and one background group, the label head and no attended query; give "
                "start=flowsim.Start(...)."
            )
    if not flow.closes:
        raise InvalidInput(
            f"{flow.parameterization} has factors, and an imbalance alone does not determine their start for this task "
            f"({task}); give start=flowsim.Start(...)."
        )


@functools.partial(jax.jit, static_argnums=0)
def _on_line(
    field: CompiledField, parameters: Parameters, margin0: Array, score_gap0: Array, imbalance_ov: Array, imbalance_qk
) -> Float[Array, " state"]:
    """The line of the collapsed flow, scaled in each circuit, and the factors of what it meets there."""
    zero = jnp.zeros(2)
    line = field.from_reduced(jnp.ones(2), zero, jnp.zeros(field.n_blocks), parameters)
    pair = field.circuits
    states = []
    for circuit, direction, amount, imbalance in (
        (pair.qk, line[: pair.n_qk_blocks], score_gap0, imbalance_qk),
        (pair.ov, line[pair.n_qk_blocks :], margin0, imbalance_ov),
    ):
        if not isinstance(circuit, Factorized):
            states.append(amount * direction)
            continue
        factors = []
        for shape, part in zip(circuit.shapes, _parts(circuit, direction), strict=True):
            factors.append(_along(shape, part, amount, imbalance))
        states.append(circuit.pack(factors))
    return jnp.concatenate(states)


def _along(shape: Shape, direction: Array, amount: Array, imbalance: Array) -> Factors:
    r"""Width-1 factors of `amount` times a matrix with one row or one column; zeros where nothing moves."""
    if not shape.driven:
        return Factors(jnp.zeros((shape.rows, 1)), jnp.zeros((1, shape.columns)))
    length = jnp.sqrt(jnp.sum(direction**2))
    p, q = split(amount * length, imbalance)
    if shape.columns == 1:
        return Factors(p * direction / length, q[None, None])
    return Factors(p[None, None], q * direction / length)


def _parts(circuit: AbstractCircuit, blocks: Any) -> list[Any]:
    """The matrices of all parts."""
    parts, at = [], 0
    for shape in circuit.shapes:
        parts.append(blocks[at : at + shape.rows * shape.columns].reshape(shape.rows, shape.columns))
        at += shape.rows * shape.columns
    return parts


def _from_start(task, parameterization, margin0, score_gap0, imbalance_ov, imbalance_qk, start) -> Beginning:
    """The state from blocks or factors."""
    if not isinstance(start, Start):
        raise InvalidInput(f"start={_validate.show(start)} must be a flowsim.Start.")
    for name, value in (("margin0", margin0), ("score_gap0", score_gap0)):
        if value is not None and (_validate.is_traced(value) or _validate.real(name, value) != 0):
            raise InvalidInput(f"start= was given together with {name}={value}; give one of them only.")
    imbalance_ov, imbalance_qk = imbalances(parameterization, imbalance_ov, imbalance_qk)
    factors = dict(start.factors)
    flow = derive(task, parameterization)
    named = {part.name for side in flow.sides if not side.circuit.closes for part in side.matrix.parts}
    for name in factors.keys() - named:
        raise InvalidInput(
            f"start= gives factors of {name!r}, and {parameterization} has no such factorized part for this task; give "
            "its blocks."
        )
    flow = derive(task, parameterization, hidden={name: len(q) for name, (_, q) in factors.items()})
    field = compile(flow)
    pair = field.circuits
    blocks = np.asarray(start.vector(flow.reduction.block_sizes))
    states = []
    for circuit, here, imbalance, argument in (
        (pair.qk, blocks[: pair.n_qk_blocks], imbalance_qk, "imbalance_qk"),
        (pair.ov, blocks[pair.n_qk_blocks :], imbalance_ov, "imbalance_ov"),
    ):
        if not isinstance(circuit, Factorized):
            states.append(jnp.asarray(here))
            continue
        packed = []
        for shape, matrix in zip(circuit.shapes, _parts(circuit, here), strict=True):
            if shape.name in factors:
                packed.append(_explicit(shape, *factors[shape.name]))
            else:
                packed.append(_split(parameterization, shape, matrix, imbalance, argument))
        states.append(circuit.pack(packed))
    settings = {
        "margin0": None,
        "score_gap0": None,
        **{
            name: None if _validate.is_traced(value) else float(value)
            for name, value in (("imbalance_ov", imbalance_ov), ("imbalance_qk", imbalance_qk))
        },
        "start": start.plain,
    }
    return Beginning(field, field.parameters(task, 1.0), jnp.concatenate(states), ScoreScale(), {}, settings)


def _explicit(shape: Shape, p: Any, q: Any) -> Factors:
    given = Factors(jnp.asarray(p, dtype=float), jnp.asarray(q, dtype=float))
    if given.p.shape[0] != shape.rows or given.q.shape[1] != shape.columns:
        raise InvalidInput(
            f"Start factors[{shape.name!r}] make a {given.p.shape[0]} x {given.q.shape[1]} matrix; the task needs "
            f"{shape.rows} x {shape.columns}."
        )
    if shape.driven and not (np.any(p) or np.any(q)):
        raise InvalidInput(
            f"Start factors[{shape.name!r}] are both zero, so that they would never move; give another value."
        )
    return given


def _split(parameterization: str, shape: Shape, matrix: np.ndarray, imbalance: Any, argument: str) -> Factors:
    """The balanced (or imbalanced) factors of blocks, refused where they are stuck or not determined."""
    if shape.driven and not _validate.is_traced(imbalance) and not matrix.any():
        if imbalance == 0:
            raise InvalidInput(
                f"start= leaves {shape.name} at 0 with {argument}=0, where it would never move: {parameterization} "
                f"factorizes it and its factors are both zero; give the block or {argument} another value."
            )
        side = shape.rows if imbalance > 0 else shape.columns
        if side > shape.hidden:
            raise InvalidInput(
                f"start= leaves {shape.name} at 0, and {argument}={imbalance} does not say in which direction its "
                f"{side} x 1 factor points; give the block another value or give factors=."
            )
    if not shape.driven and not matrix.any():
        return Factors(jnp.zeros((shape.rows, shape.hidden)), jnp.zeros((shape.hidden, shape.columns)))
    return split_matrix(matrix, shape.hidden, imbalance)
