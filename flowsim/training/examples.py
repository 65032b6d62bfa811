"""Which sequences a step sees, and which ones the records are taken over."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flowsim import _jax, _validate, data  # noqa: F401  float64 first
from flowsim.data import Batch, Sequences
from flowsim.errors import InvalidInput
from flowsim.sampler import Sampler, composition_law
from flowsim.task import Task
from flowsim.training.starts import stream

FORMS = ("counts", "sequences")
HELD_OUT = 1024
"""Sequences that the records are taken over when every step has fresh ones and `test` says nothing."""


class Source(NamedTuple):
    """Where the sequences of a step come from; hashable, so that compiled code can depend on it.

    Attributes:
        sampler: draws fresh sequences; None for sequences out of a fixed list.
        batch: number of sequences of a step; None for all of the list.
        form: `"counts"` or `"sequences"`.
        weighted: whether the list is a population with probabilities, rather than a sample.
    """

    sampler: Sampler | None
    batch: int | None
    form: str
    weighted: bool

    @property
    def noisy(self) -> bool:
        """Whether the loss of a step is one of a minibatch."""
        return self.batch is not None

    def all(self, examples: "Examples", seed: Int[Array, ""]) -> Batch | Sequences | None:
        """The whole list of one run, where steps use it; taken once, before the loop."""
        training = examples.training
        return None if self.batch is not None or training is None else of_seed(training, seed)

    def step(
        self, examples: "Examples", whole: Batch | Sequences | None, seed: Int[Array, ""], key: Array
    ) -> Batch | Sequences:
        """The sequences of one step.

        Args:
            examples: what does not change during training.
            whole: what `all` gave.
            seed: number of the run's seed.
            key: random key of the step.
        """
        if whole is not None:
            return whole
        assert self.batch is not None
        if self.sampler is not None:
            assert examples.law is not None
            return _in_form(self.sampler, self.form, key, self.batch, examples.law)
        training = examples.training
        assert training is not None
        if self.weighted:
            below = jnp.cumsum(of_seed(training.weights, seed))[:-1]
            index = jnp.searchsorted(below, jax.random.uniform(key, (self.batch,)), side="right")
        else:
            index = jax.random.randint(key, (self.batch,), 0, training.weights.shape[1])
        return training.rows((jnp.minimum(seed, training.weights.shape[0] - 1), index))


class Examples(NamedTuple):
    """Sequences that do not change during training, every array with a leading axis over the seeds, or of length 1.

    Attributes:
        training: the list that steps draw from; None if every step has fresh sequences.
        evaluation: what the records are taken over, as counts.
        test: held-out sequences beside them, as counts; None if there are none.
        law: probabilities of the compositions, where sequences are drawn at every step.
    """

    training: Batch | Sequences | None
    evaluation: Batch
    test: Batch | None
    law: Float[Array, " compositions"] | None = None


def of_seed(batch: Any, seed: Int[Array, ""]) -> Any:
    """The part of one seed."""
    shared = jax.tree.leaves(batch)[0].shape[0] == 1
    return jax.tree.map(lambda array: array[0] if shared else array[seed], batch)


def examples_of(
    task: Task,
    seeds: np.ndarray,
    dtype: np.dtype,
    *,
    population: str,
    form: Any,
    examples: Any,
    test: Any,
    batch: Any,
) -> tuple[Source, Examples, dict[str, Any]]:
    """Checks the arguments of `train` about data, and draws what is drawn beforehand.

    Args:
        task: the task.
        seeds: the seeds.
        dtype: of counts and weights.
        population: `"mean-counts"` or `"sampled-identities"`.
        form: `"counts"` or `"sequences"`.
        examples: size of the fixed data set; None for none.
        test: number of held-out sequences; None for the default.
        batch: size of a minibatch; None for all.

    Returns:
        Where a step's sequences come from, the fixed ones, and the settings as plain values.

    Raises:
        InvalidInput: naming the argument, its value and the fix.
    """
    _validate.one_of("population", population, data.POPULATIONS)
    _validate.one_of("form", form, FORMS)
    sizes = {
        name: None if value is None else _validate.whole(name, value, minimum=1)
        for name, value in (("examples", examples), ("test", test), ("batch", batch))
    }
    settings = {"population": population, "form": form, **sizes}
    if population == "mean-counts":
        for name in ("examples", "test"):
            if sizes[name] is not None:
                raise InvalidInput(
                    f"{name}={sizes[name]} was given, but population='mean-counts' is a whole population; use "
                    "population='sampled-identities'."
                )
        if form != "counts":
            raise InvalidInput(
                "form='sequences' needs tokens, and population='mean-counts' has mean counts; use "
                "population='sampled-identities'."
            )
        whole = jax.tree.map(lambda array: array[None], data.population(task, population, dtype))
        return Source(None, sizes["batch"], form, True), Examples(whole, whole, None), settings
    if sizes["examples"] is None and sizes["batch"] is None:
        data.population(task, population)  # refuses, with the choices there are
    sampler, law = Sampler.of(task, dtype.name), composition_law(task)
    training = evaluation = test_set = None
    if sizes["test"] is not None or sizes["examples"] is None:
        settings["test"] = sizes["test"] or HELD_OUT
        test_set = _draw(sampler, "counts", "test", settings["test"], jnp.asarray(seeds), law)
    if sizes["examples"] is not None:
        training = _draw(sampler, form, "examples", sizes["examples"], jnp.asarray(seeds), law)
        evaluation = _draw(sampler, "counts", "examples", sizes["examples"], jnp.asarray(seeds), law)
    elif test_set is not None:
        evaluation, test_set = test_set, None
    assert evaluation is not None
    source = Source(None if training is not None else sampler, sizes["batch"], form, False)
    return source, Examples(training, evaluation, test_set, law if training is None else None), settings


def held_out(task: Task, seeds: np.ndarray, rows: int, dtype: np.dtype) -> Batch:
    """The sequences that `train(test=rows)` holds out, as counts, every array with a leading axis over the seeds."""
    sampler = Sampler.of(task, dtype.name)
    return _draw(sampler, "counts", "test", rows, jnp.asarray(seeds), composition_law(task))


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _draw(sampler: Sampler, form: str, purpose: str, rows: int, seeds: Array, law: Array) -> Any:
    return jax.vmap(lambda seed: _in_form(sampler, form, stream(seed, purpose), rows, law))(seeds)


def _in_form(sampler: Sampler, form: str, key: Array, rows: int, law: Array) -> Batch | Sequences:
    drawn = sampler.draw(key, rows, law)
    return sampler.counts_of(drawn) if form == "counts" else sampler.sequences_of(drawn)
