"""Training of a transformer on labelled texts: many runs, early stopping, the best state of each, checkpoints."""

import concurrent.futures
import functools
import os
import pathlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from flowsim import _checks, _jax  # noqa: F401  float64 first
from flowsim.errors import InvalidInput
from flowsim.models import Circuits
from flowsim.solve.lanes import cores, on_cores
from flowsim.status import Status
from flowsim.text_training.batches import Order, Texts, in_order, shuffled, side_by_side, words
from flowsim.text_training.epoch import Lane, Program, Progress, Seen, begin, run_epoch, whole
from flowsim.training import checkpoint as checkpoints
from flowsim.training.loop import interruptible
from flowsim.training.optimizer import COUPLINGS, optimizer
from flowsim.transformer import Transformer

_EVALUATION = 256  # texts that are judged side by side if they are short
_SAVE_SECONDS = 20.0

Report = Callable[[int, int], None]
"""Is told how many run-epochs are done, stopped runs counted as a whole, and how many there are."""


class Run(NamedTuple):
    r"""One training.

    Attributes:
        lr: learning rate of everything but the query-key circuits, above 0.
        ratio: factor of the query-key circuits' learning rate, $\eta_{QK}/\eta$, 0 or more.
        seed: of the weights and of the order of the batches.
        decay: `"coupled"`: the query-key circuits shrink with their own learning rate; `"independent"`: with `lr`.
    """

    lr: float
    ratio: float = 1.0
    seed: int = 0
    decay: str = "coupled"


class Fitted(NamedTuple):
    """What came of it, each array with a leading axis over the runs.

    Attributes:
        parameters: of each run after the epoch with the least validation loss.
        training_loss: mean over each epoch, shape (runs, epochs); NaN after a run's stop.
        validation_loss: after each epoch, likewise.
        validation_accuracy: likewise.
        best_epoch: the epoch, from 1, that `parameters` are from; 0 if there is none.
        status: OK, DIVERGED, or INTERRUPTED.
    """

    parameters: Circuits
    training_loss: np.ndarray
    validation_loss: np.ndarray
    validation_accuracy: np.ndarray
    best_epoch: np.ndarray
    status: np.ndarray

    @property
    def best_loss(self) -> np.ndarray:
        """The validation loss at the best epoch; NaN for a run that diverged or never began."""
        usable = np.isfinite(self.validation_loss).any(axis=1) & (self.status != Status.DIVERGED)
        least = np.min(np.where(np.isnan(self.validation_loss), np.inf, self.validation_loss), axis=1, initial=np.inf)
        return np.where(usable, least, np.nan)

    def model(self, run: int) -> Transformer:
        """The best model of one run."""
        return whole(jax.tree.map(lambda leaf: jnp.asarray(leaf[run]), self.parameters))


def fit(
    start: Callable[[Any], Transformer],
    train: Texts,
    val: Texts,
    runs: Sequence[Run],
    *,
    optimizer_name: str = "adamw",
    weight_decay: float = 0.01,
    batch: int = 32,
    max_epochs: int = 40,
    patience: int = 5,
    checkpoint: str | os.PathLike | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    report: Report | None = None,
) -> Fitted:
    r"""Trains a transformer with several learning rates, ratios and seeds, and keeps the best state of each run.

    A step is that of `flowsim.train`: the optimizer's direction, times `lr`, and for the query-key circuits times
    `ratio` as well, plus weight decay. Every run sees every text once in an epoch. It stops when the validation loss
    has not fallen for `patience` epochs. Ctrl-C stops after the present epoch.

    Args:
        start: from a random key to the model at the start; its precision is that of the training.
        train: texts to learn from.
        val: texts whose loss chooses the best epoch and the stop; of the same length as `train`.
        runs: what is trained.
        optimizer_name: as in `flowsim.train`.
        weight_decay: of all parameters, as in AdamW; see `Run.decay` for the query-key circuits.
        batch: texts of a step.
        max_epochs: most epochs of a run.
        patience: epochs without a smaller validation loss before a run stops.
        checkpoint: an `.npz` file that holds all that is needed to go on, replaced atomically; it is removed by nobody.
        resume: go on from the checkpoint, with the numbers that an uninterrupted training would have.
        settings: plain values that a training must share with the checkpoint besides those above, the model's sizes
            for instance.
        report: is told about the progress after each epoch of each run.

    Returns:
        The best state and the losses of each run.

    Raises:
        InvalidInput: naming the argument, its value and the fix.
        FileProblem: if the checkpoint cannot be written or read.
    """
    runs = _checked(runs)
    for name, value in (("batch", batch), ("max_epochs", max_epochs), ("patience", patience)):
        _checks.whole(name, value, minimum=1)
    decay = _checks.real("weight_decay", weight_decay, minimum=0.0)
    chosen, _, plain = optimizer(optimizer_name, None, decay, decay, "coupled")
    if train.tokens.shape[1] != val.tokens.shape[1]:
        raise InvalidInput(
            f"train has rows of {train.tokens.shape[1]} tokens and val of {val.tokens.shape[1]}; make both with one "
            "length."
        )
    _fitting(jax.eval_shape(start, jax.random.key(0)), train, val)
    path = checkpoints.checked_path(checkpoint, _checks.boolean("resume", resume))
    widths = tuple(sorted({*train.widths, train.tokens.shape[1]}))
    program = Program(chosen, widths)
    binding = {
        **plain,
        **(settings or {}),
        "runs": [list(run) for run in runs],
        "batch": batch,
        "max_epochs": max_epochs,
        "patience": patience,
        "texts": checkpoints.digest([*train, *val]),
    }
    before = checkpoints.arrays_of(path, binding) if path is not None and resume else None
    trainer = _Trainer(program, start, train, val, runs, decay, batch, max_epochs, patience)
    if path is not None and before is not None:
        trainer.restore(before, path)
    saved = time.monotonic()
    with interruptible() as stop:
        while trainer.waiting and not stop.is_set():
            trainer.go_on(stop, report)
            if path is not None and (time.monotonic() > saved + _SAVE_SECONDS or not trainer.waiting or stop.is_set()):
                checkpoints.write_arrays(path, trainer.arrays(), binding)
                saved = time.monotonic()
    return trainer.fitted()


def _fitting(model: Transformer, *parts: Texts) -> None:
    """Refuses texts that the model cannot read."""
    for name, texts in zip(("train", "val"), parts, strict=True):
        longest, most = texts.tokens.shape[1], model.positions.shape[0]
        if longest > most:
            raise InvalidInput(f"{name} has rows of {longest} tokens; this model reads up to {most}.")
        words(f"{name}.tokens", texts.tokens, model.tokens.shape[0])
        words(f"{name}.labels", texts.labels, model.head.shape[0])


class _Trainer:
    """All runs between two epochs: chunks of one run on a CPU's cores, all runs side by side elsewhere."""

    def __init__(
        self,
        program: Program,
        start: Callable[[Any], Transformer],
        train: Texts,
        val: Texts,
        runs: Sequence[Run],
        decay: float,
        batch: int,
        max_epochs: int,
        patience: int,
    ):
        self._program, self._runs = program, runs
        self._sizes, self._batch, self._most, self._patience = train.sizes, batch, max_epochs, patience
        together = min(side_by_side(_EVALUATION, val.tokens.shape[1]), len(val.sizes))
        evaluation = in_order(val.sizes, program.widths, together)
        self._fixed: Any = jax.tree.map(jnp.asarray, (train, val, evaluation._replace(rows=evaluation.rows[0])))
        size = 1 if on_cores() else len(runs)
        self._chunks = [range(i, min(i + size, len(runs))) for i in range(0, len(runs), size)]
        dtype = jax.tree.leaves(jax.eval_shape(start, jax.random.key(0)))[0].dtype
        self._lanes = [
            jax.tree.map(lambda *values: jnp.asarray(values, dtype), *(_lane(runs[i], decay) for i in chunk))
            for chunk in self._chunks
        ]
        self._progress: list[Progress] = [
            _begin(program, start, np.array([runs[i].seed for i in chunk])) for chunk in self._chunks
        ]
        self._seen = np.full((3, len(runs), max_epochs), np.nan)

    @property
    def waiting(self) -> list[int]:
        """Numbers of the chunks that have a run which goes on."""
        return [number for number, chunk in enumerate(self._chunks) if not self._stopped[list(chunk)].all()]

    @property
    def _stopped(self) -> np.ndarray:
        epoch, best, finite = (self._column(name) for name in ("epoch", "best_epoch", "finite"))
        return (epoch >= self._most) | (epoch - best >= self._patience) | ~finite

    def _column(self, name: str) -> np.ndarray:
        return np.concatenate([np.asarray(getattr(progress, name)) for progress in self._progress])

    def go_on(self, stop: threading.Event, report: Report | None) -> None:
        """Takes every run that goes on through one epoch."""
        one_at_a_time = threading.Lock()

        def work(number: int) -> None:
            if stop.is_set():
                return
            progress, chunk = self._progress[number], list(self._chunks[number])
            epoch = int(np.max(np.asarray(progress.epoch)))
            seeds = [self._runs[i].seed for i in chunk]
            order = shuffled(self._sizes, self._program.widths, self._batch, seeds, epoch)
            with one_at_a_time:  # the first call compiles, the others find it done
                after, seen = _go_on(self._program, *self._fixed, order, self._lanes[number], progress)
            after, seen = jax.block_until_ready((after, seen))
            stopped = self._stopped[chunk]
            if stopped.any():  # beside others that have not, a run that has stopped stays as it was
                after = jax.tree.map(lambda new, old: jnp.where(_like(stopped, new), old, new), after, progress)
            with one_at_a_time:
                for row, values in zip(self._seen, seen, strict=True):
                    row[chunk, epoch] = np.where(stopped, np.nan, np.asarray(values))
                self._progress[number] = after
                if report is not None:
                    done = np.where(self._stopped, self._most, self._column("epoch"))
                    report(int(done.sum()), self._most * len(self._runs))

        with concurrent.futures.ThreadPoolExecutor(cores() if on_cores() else 1) as pool:
            list(pool.map(work, self.waiting))

    def arrays(self) -> dict[str, np.ndarray]:
        """All that is needed to go on."""
        leaves = jax.tree.leaves(jax.tree.map(lambda *parts: np.concatenate(parts), *self._progress))
        return {"seen": self._seen, **{f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}}

    def restore(self, arrays: Mapping[str, np.ndarray], path: pathlib.Path) -> None:
        """Goes back to what `arrays` returned."""
        leaves, tree = jax.tree.flatten(self._progress[0])
        wanted = {
            f"leaf_{i}": ((len(self._runs), *leaf.shape[1:]), np.dtype(leaf.dtype)) for i, leaf in enumerate(leaves)
        }
        wanted["seen"] = self._seen.shape, self._seen.dtype
        if {name: (array.shape, array.dtype) for name, array in arrays.items()} != wanted:
            raise checkpoints.damaged(path)
        self._seen = arrays["seen"]
        self._progress = [
            jax.tree.unflatten(tree, [jnp.asarray(arrays[f"leaf_{i}"][list(chunk)]) for i in range(len(leaves))])
            for chunk in self._chunks
        ]

    def fitted(self) -> Fitted:
        """The best states and the losses."""
        best = jax.tree.map(
            lambda *parts: np.concatenate([np.asarray(part) for part in parts]),
            *(progress.best for progress in self._progress),
        )
        finite, epoch = self._column("finite"), self._column("epoch")
        status = np.where(self._stopped, int(Status.OK), int(Status.INTERRUPTED))
        status = np.where(finite, status, int(Status.DIVERGED))
        training, validation, accuracy = self._seen[:, :, : max(1, int(epoch.max()))]
        return Fitted(best, training, validation, accuracy, self._column("best_epoch"), status)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _begin(program: Program, start: Callable[[Any], Transformer], seeds: Array) -> Progress:
    return jax.vmap(lambda seed: begin(program, start(jax.random.key(seed))))(seeds)


@functools.partial(jax.jit, static_argnums=0)
def _go_on(
    program: Program, train: Texts, val: Texts, evaluation: Order, order: Order, lanes: Lane, progress: Progress
) -> tuple[Progress, Seen]:
    each = Order(None, 0, None)  # pyright: ignore[reportArgumentType]  # only the rows differ between runs
    run = functools.partial(run_epoch, program, train, val, evaluation)
    return jax.vmap(run, in_axes=(each, 0, 0))(order, lanes, progress)


def _lane(run: Run, decay: float) -> Lane:
    # decay that does not follow the ratio is decay that is divided by it, except where the ratio is 0
    if run.decay == "independent":
        return Lane(run.lr, run.ratio, decay / run.ratio, decay)
    return Lane(run.lr, run.ratio, decay, decay)


def _like(flags: np.ndarray, leaf: Any) -> np.ndarray:
    return flags.reshape(-1, *[1] * (leaf.ndim - 1))


def _checked(runs: Sequence[Run]) -> tuple[Run, ...]:
    if not runs:
        raise InvalidInput("runs is empty; give one Run at least.")
    checked = []
    for i, run in enumerate(runs):
        if not isinstance(run, Run):
            raise InvalidInput(f"runs[{i}]={_checks.show(run)} must be a Run.")
        decay = _checks.one_of("decay", run.decay, COUPLINGS)
        above = {"above": 0.0} if decay == "independent" else {"minimum": 0.0}
        checked.append(
            Run(
                _checks.real("lr", run.lr, above=0.0),
                _checks.real("ratio", run.ratio, **above),
                _checks.whole("seed", run.seed, minimum=0),
                decay,
            )
        )
    return tuple(checked)
