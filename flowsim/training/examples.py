"""Which sequences a step sees, and which ones the records are taken over."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from flowsim import _jax, _validate, data  # noqa: F401  float64 first
from flowsim.data import Batch, Sequences
from flowsim.errors import InvalidInput
from flowsim.sampler import Sampler
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

    def all(self, examples: Batch | Sequences | None, seed: Int[Array, ""]) -> Batch | Sequences | None:
        """The whole list of one run, where steps use it; taken once, before the loop."""
        return None if self.batch is not None or examples is None else of_seed(examples, seed)

    def step(
        self, examples: Batch | Sequences | None, whole: Batch | Sequences | None, seed: Int[Array, ""], key: Array
    ) -> Batch | Sequences:
        """The sequences of one step.

        Args:
            examples: the fixed list of each seed.
            whole: what `all` gave.
            seed: number of the run's seed.
            key: random key of the step.
        """
        if whole is not None:
            return whole
        assert self.batch is not None
        if self.sampler is not None:
            return _in_form(self.sampler, self.form, key, self.batch)
        assert examples is not None
        own = of_seed(examples, seed)
        if self.weighted:
            below = jnp.cumsum(own.weights)[:-1]
            return own.rows(jnp.searchsorted(below, jax.random.uniform(key, (self.batch,)), side="right"))
        return own.rows(jax.random.randint(key, (self.batch,), 0, own.weights.shape[0]))


class Examples(NamedTuple):
    """Sequences that do not change during training, every array with a leading axis over the seeds, or of length 1.

    Attributes:
        training: the list that steps draw from; None if every step has fresh sequences.
        evaluation: what the records are taken over, as counts.
        test: held-out sequences beside them, as counts; None if there are none.
    """

    training: Batch | Sequences | None
    evaluation: Batch
    test: Batch | None


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
    sampler = Sampler.of(task, dtype.name)
    training = evaluation = held_out = None
    if sizes["test"] is not None or sizes["examples"] is None:
        settings["test"] = sizes["test"] or HELD_OUT
        held_out = _draw(sampler, "counts", "test", settings["test"], jnp.asarray(seeds))
    if sizes["examples"] is not None:
        training = _draw(sampler, form, "examples", sizes["examples"], jnp.asarray(seeds))
        evaluation = _draw(sampler, "counts", "examples", sizes["examples"], jnp.asarray(seeds))
    elif held_out is not None:
        evaluation, held_out = held_out, None
    assert evaluation is not None
    source = Source(None if training is not None else sampler, sizes["batch"], form, False)
    return source, Examples(training, evaluation, held_out), settings


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _draw(sampler: Sampler, form: str, purpose: str, rows: int, seeds: Array) -> Any:
    return jax.vmap(lambda seed: _in_form(sampler, form, stream(seed, purpose), rows))(seeds)


def _in_form(sampler: Sampler, form: str, key: Array, rows: int) -> Batch | Sequences:
    drawn = sampler.draw(key, rows)
    return sampler.counts_of(drawn) if form == "counts" else sampler.sequences_of(drawn)
