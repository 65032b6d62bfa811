"""One run of training as a pure function, and all runs of a chunk as one compiled one."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.models import AttentionModel, Circuits, Embedding, loss_and_gradient
from flowsim.schedules import AbstractSchedule
from flowsim.solve.finite import Record
from flowsim.solve.stepping import Judge, Progress, Run, Seen, begin, conclude, stretch
from flowsim.training.examples import Examples, Source, of_seed
from flowsim.training.observe import Plan, drift, log_error_and_loss, observe, score_gap
from flowsim.training.optimizer import Optimizer
from flowsim.training.starts import stream


class Program(NamedTuple):
    """What the compiled training depends on: a change here recompiles.

    Attributes:
        plan: what to look at.
        source: where the sequences of a step come from.
        optimizer: how a gradient becomes a step.
        judge: how divergence is recognized.
    """

    plan: Plan
    source: Source
    optimizer: Optimizer
    judge: Judge


class Fixed(NamedTuple):
    """What all runs share.

    Attributes:
        examples: sequences.
        embedding: vectors of tokens and queries; None for orthonormal ones.
        score_scale: factor of the scores.
        decay: weight decay of both circuits; None for none.
        schedule: factor of the ratio over time; None for 1.
        starts: the parameters at step 0, with a leading axis over the seeds or of length 1.
    """

    examples: Examples
    embedding: Embedding | None
    score_scale: Float[Array, ""]
    decay: tuple[Float[Array, ""], Float[Array, ""]] | None
    schedule: AbstractSchedule | None
    starts: Circuits


class Lane(NamedTuple):
    r"""What tells one run from another.

    Attributes:
        ratio: $\eta_{QK}/\eta_{OV}$.
        lr: learning rate of the output-value circuit.
        seed: the seed.
        number: position of the seed among the seeds.
    """

    ratio: Float[ArrayLike, ""]
    lr: Float[ArrayLike, ""]
    seed: Int[ArrayLike, ""]
    number: Int[ArrayLike, ""]


class State(NamedTuple):
    """What a step changes.

    Attributes:
        circuits: the parameters.
        memory: what the optimizer remembers.
        step: number of steps taken.
        time: gradient-flow time.
    """

    circuits: Circuits
    memory: Any
    step: Int[Array, ""]
    time: Float[Array, ""]


class Carry(NamedTuple):
    """A run that can go on.

    Attributes:
        progress: state and divergence.
        gap0: score gap at the start.
        imbalances0: what the flow conserves in each circuit, at the start.
    """

    progress: Progress[State]
    gap0: Float[Array, ""]
    imbalances0: tuple[Array | None, Array | None]


def start_run(program: Program, fixed: Fixed, lane: Lane) -> Carry:
    """A run at step 0."""
    circuits = of_seed(fixed.starts, jnp.asarray(lane.number))
    memory = program.optimizer.direction.init(tuple(circuits))
    dtype = fixed.examples.evaluation.weights.dtype
    progress = begin(State(circuits, memory, jnp.asarray(0), jnp.zeros(())), program.plan.layout.outputs, dtype)
    gap0 = score_gap(program.plan, _model(fixed, circuits))
    return Carry(progress, gap0, (circuits.qk.imbalance(), circuits.ov.imbalance()))


def go_on(
    program: Program, fixed: Fixed, lane: Lane, carry: Carry, gaps: Int[Array, " grid"]
) -> tuple[Carry, Seen[Record]]:
    """Takes the steps of one stretch of a run.

    Args:
        program: what is compiled.
        fixed: what all runs share.
        lane: which run.
        carry: where it stands.
        gaps: steps to each point of the grid from the previous one.

    Returns:
        Where it stands then, and what was seen at the points.
    """
    source, examples = program.source, fixed.examples
    ratio, lr, number = jnp.asarray(lane.ratio), jnp.asarray(lane.lr), jnp.asarray(lane.number)
    whole = source.all(examples, number)
    evaluation = of_seed(examples.evaluation, number)
    key = stream(jnp.asarray(lane.seed), "steps")

    def advance(state: State) -> tuple[State, Float[Array, ""]]:
        batch = source.step(examples, whole, number, jax.random.fold_in(key, state.step))
        value, gradient = loss_and_gradient(state.circuits, fixed.embedding, fixed.score_scale, batch)
        circuits, memory, time = program.optimizer.step(
            state.circuits,
            gradient,
            state.memory,
            state.step,
            state.time,
            ratio,
            lr,
            fixed.decay,
            fixed.schedule,
        )
        return State(circuits, memory, state.step + 1, time), value

    def look(state: State) -> tuple[Record, Float[Array, ""]]:
        model = _model(fixed, state.circuits)
        record = observe(program.plan, evaluation, model, carry.gap0)
        for name, circuit, before in zip(("qk", "ov"), state.circuits, carry.imbalances0, strict=True):
            if before is not None:
                record.extra[f"drift_{name}"] = drift(circuit, before)
        if examples.test is not None:
            error, loss = log_error_and_loss(model, of_seed(examples.test, number))
            record.extra.update(log_test_error=error, log_test_loss=loss)
        return record, jnp.exp(record.log_loss)

    with jax.default_matmul_precision("highest"):  # GPUs would round products of float32 to 10 bits
        progress, seen = stretch(advance, look, carry.progress, gaps, program.judge)
    return carry._replace(progress=progress), seen


def whole_run(program: Program, fixed: Fixed, lane: Lane, gaps: Int[Array, " grid"]) -> Run[State, Record]:
    """A run from step 0 to the last point of the grid; a pure function, for transformations."""
    carry, seen = go_on(program, fixed, lane, start_run(program, fixed, lane), gaps)
    return conclude(carry.progress, seen, program.judge)


def chunk_start(program: Program, fixed: Fixed, lanes: Lane) -> Carry:
    """`start_run` for many lanes."""
    return jax.vmap(functools.partial(start_run, program, fixed))(lanes)


def chunk_go_on(
    program: Program, fixed: Fixed, lanes: Lane, carry: Carry, gaps: Int[Array, " grid"]
) -> tuple[Carry, Seen[Record]]:
    """`go_on` for many lanes that share a grid."""
    return jax.vmap(lambda lane, carry: go_on(program, fixed, lane, carry, gaps))(lanes, carry)


def _model(fixed: Fixed, circuits: Circuits) -> AttentionModel:
    return AttentionModel(circuits.qk, circuits.ov, fixed.embedding, fixed.score_scale)
