"""One epoch of one run as a pure function: the steps, the look at the validation texts, the best state so far."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.models import Circuits
from flowsim.text_training.batches import Order, Texts
from flowsim.training.optimizer import Optimizer
from flowsim.transformer import Transformer


class Program(NamedTuple):
    """What the compiled epoch depends on: a change here recompiles.

    Attributes:
        optimizer: how a gradient becomes a step.
        widths: lengths that rows are cut to.
    """

    optimizer: Optimizer
    widths: tuple[int, ...]


class Lane(NamedTuple):
    r"""What tells one run from another, besides its weights and its batches.

    Attributes:
        lr: learning rate of everything but the query-key circuits.
        ratio: factor of the query-key circuits' learning rate.
        decay_qk: weight decay of the query-key circuits, coupled to their own learning rate.
        decay_rest: the same of everything else.
    """

    lr: Float[ArrayLike, ""]
    ratio: Float[ArrayLike, ""]
    decay_qk: Float[ArrayLike, ""]
    decay_rest: Float[ArrayLike, ""]


class Progress(NamedTuple):
    """A run between two epochs.

    Attributes:
        parameters: of the query-key circuits (`qk`) and everything else (`ov`).
        memory: what the optimizer remembers.
        step: number of steps taken.
        best: parameters after the epoch with the least validation loss.
        best_loss: that loss; infinite before the first epoch.
        best_epoch: number of that epoch, from 1; 0 before the first.
        epoch: number of epochs trained.
        finite: whether every loss so far was finite.
    """

    parameters: Circuits
    memory: PyTree
    step: Int[Array, ""]
    best: Circuits
    best_loss: Float[Array, ""]
    best_epoch: Int[Array, ""]
    epoch: Int[Array, ""]
    finite: Array


class Seen(NamedTuple):
    """What an epoch shows.

    Attributes:
        training_loss: mean cross-entropy over the epoch's steps, each before its update.
        validation_loss: mean cross-entropy after the epoch.
        validation_accuracy: share of the validation texts whose label is the most probable class.
    """

    training_loss: Float[Array, ""]
    validation_loss: Float[Array, ""]
    validation_accuracy: Float[Array, ""]


def parted(model: Transformer) -> Circuits:
    """The parameters of the query-key circuits and all others, which have learning rates of their own."""
    nothing: Any = jax.tree.map(lambda _: False, model)
    chosen = eqx.tree_at(
        lambda tree: [block.qk for block in tree.blocks],
        nothing,
        [jax.tree.map(lambda _: True, block.qk) for block in model.blocks],
    )
    return Circuits(*eqx.partition(model, chosen))  # pyright: ignore[reportArgumentType]


def whole(parameters: Circuits) -> Transformer:
    """The model that was parted."""
    model: Any = eqx.combine(*parameters)
    return model


def begin(program: Program, model: Transformer) -> Progress:
    """A run before its first epoch."""
    parameters = parted(model)
    both: Any = tuple(parameters)  # optax reads NamedTuples as states of its own
    memory = program.optimizer.direction.init(both)
    zero = jnp.asarray(0)
    return Progress(
        parameters, memory, zero, parameters, jnp.asarray(jnp.inf, model.tokens.dtype), zero, zero, jnp.asarray(True)
    )


def run_epoch(
    program: Program, train: Texts, val: Texts, evaluation: Order, order: Order, lane: Lane, progress: Progress
) -> tuple[Progress, Seen]:
    """Trains for an epoch and looks at the validation texts.

    Args:
        program: what is compiled.
        train: texts to learn from.
        val: texts to choose the best epoch by.
        evaluation: batches of the validation texts, one run.
        order: batches of the epoch, one run.
        lane: learning rates and decays.
        progress: where the run stands.

    Returns:
        Where it stands then, and what was seen.
    """
    lr, ratio = jnp.asarray(lane.lr), jnp.asarray(lane.ratio)
    decay = jnp.asarray(lane.decay_qk), jnp.asarray(lane.decay_rest)

    def advance(state: Any, batch: Any) -> Any:
        parameters, memory, step = state
        width, rows, weights = batch
        choices = [functools.partial(_slope, train, size) for size in program.widths]
        loss, gradient = _switch(width, choices, parameters, rows, weights)
        moved, memory, _ = program.optimizer.step(
            parameters, gradient, memory, step, jnp.zeros(()), ratio, lr, decay, None
        )
        return (moved, memory, step + 1), loss

    with jax.default_matmul_precision("highest"):  # GPUs would round products of float32 to 10 bits
        start = progress.parameters, progress.memory, progress.step
        (parameters, memory, step), losses = jax.lax.scan(advance, start, tuple(order))
        loss, accuracy = _judged(program, val, evaluation, parameters)
    training = jnp.mean(losses)
    epoch = progress.epoch + 1
    better = loss < progress.best_loss
    best = jax.tree.map(functools.partial(jnp.where, better), parameters, progress.best)
    after = Progress(
        parameters,
        memory,
        step,
        best,
        jnp.where(better, loss, progress.best_loss),
        jnp.where(better, epoch, progress.best_epoch),
        epoch,
        progress.finite & jnp.isfinite(training) & jnp.isfinite(loss),
    )
    return after, Seen(training, loss, accuracy)


def _judged(program: Program, texts: Texts, order: Order, parameters: Circuits) -> tuple[Array, Array]:
    """Mean cross-entropy and accuracy."""

    def add(_: None, batch: Any) -> Any:
        width, rows, weights = batch
        choices = [functools.partial(_sums, texts, size) for size in program.widths]
        return None, _switch(width, choices, parameters, rows, weights)

    _, (losses, right) = jax.lax.scan(add, None, tuple(order))
    count = jnp.sum(order.weights)
    return jnp.sum(losses) / count, jnp.sum(right) / count


def _switch(number: Any, choices: list[Callable[..., Any]], *args: Any) -> Any:
    return choices[0](*args) if len(choices) == 1 else jax.lax.switch(number, choices, *args)


def _slope(texts: Texts, width: int, parameters: Circuits, rows: Array, weights: Array) -> tuple[Array, Circuits]:
    """Mean loss of a batch and its derivative."""

    def mean(parameters: Circuits) -> Array:
        return _sums(texts, width, parameters, rows, weights)[0] / jnp.sum(weights)

    return jax.value_and_grad(mean)(parameters)


def _sums(texts: Texts, width: int, parameters: Circuits, rows: Array, weights: Array) -> tuple[Array, Array]:
    """Sums over a batch of cross-entropy and of right answers."""
    tokens, sizes, labels = (jnp.asarray(array)[rows] for array in texts)
    logits = jax.vmap(whole(parameters))(tokens[:, tokens.shape[1] - width :], sizes).logits
    logarithms = jax.nn.log_softmax(logits)
    entropy = -jnp.take_along_axis(logarithms, labels[:, None], axis=1)[:, 0]
    return jnp.sum(weights * entropy), jnp.sum(weights * (logits.argmax(axis=1) == labels))
