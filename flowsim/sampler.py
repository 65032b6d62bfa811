"""Random sequences of a task: a class, a composition, and a token for each position (paper, section 4)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.data import Batch, Sequences
from flowsim.errors import InvalidInput
from flowsim.symmetric import Layout
from flowsim.task import Role, Task


class Drawn(NamedTuple):
    """Random choices from which both forms of a sequence follow.

    Attributes:
        classes: class of each sequence.
        compositions: number of its composition.
        identities: for each group, which of its types (of its own class) stands at each slot.
        filled: for each group, which slots the composition fills.
    """

    classes: Int[Array, " rows"]
    compositions: Int[Array, " rows"]
    identities: tuple[Int[Array, "rows slots"], ...]
    filled: tuple[Array, ...]


def composition_law(task: Task) -> Float[Array, " compositions"]:
    """Probabilities of the compositions of a task, as `Sampler.draw` takes them."""
    return jnp.array([composition.probability for composition in task.compositions])


@dataclasses.dataclass(frozen=True)
class Sampler:
    """Draws sequences of a task; hashable, so that compiled code can depend on it.

    How likely the compositions are is no part of it, so that another mixture weight does not recompile.

    Attributes:
        layout: where tokens stand.
        roles: role of every group, nulls included.
        types: types of every group.
        counts: positions of every group in every composition.
        dtype: name of the type of counts and weights.
    """

    layout: Layout
    roles: tuple[Role, ...]
    types: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]
    dtype: str

    @staticmethod
    def of(task: Task, dtype: str = "float64") -> "Sampler":
        """The sampler of a task.

        Raises:
            InvalidInput: if a composition has a number of positions that is not whole.
        """
        compositions = task.compositions
        for composition in compositions:
            for group, count in zip(task.all_groups, composition.counts, strict=True):
                if count != int(count):
                    raise InvalidInput(
                        f"population='sampled-identities' fills positions with tokens, and the group {group.name!r} "
                        f"has {count:g} of them; give whole counts or population='mean-counts'."
                    )
        return Sampler(
            Layout.of(task),
            tuple(group.role for group in task.all_groups),
            tuple(group.types for group in task.all_groups),
            tuple(tuple(int(count) for count in composition.counts) for composition in compositions),
            dtype,
        )

    @property
    def slots(self) -> tuple[int, ...]:
        """For each group, the largest number of positions that a composition gives it."""
        return tuple(map(max, zip(*self.counts, strict=True)))

    @property
    def positions(self) -> int:
        """Length of a sequence, empty positions included."""
        return sum(self.slots)

    def draw(self, key: Array, rows: int, probabilities: Float[Array, " compositions"]) -> Drawn:
        r"""Independent sequences.

        Types are drawn as a 32-bit number modulo their number, which favours none by more than $2^{-32}$.

        Args:
            key: random key.
            rows: number of sequences.
            probabilities: of the compositions, from `composition_law`.
        """
        by_class, by_composition, by_token = jax.random.split(key, 3)
        classes = jax.random.randint(by_class, (rows,), 0, self.layout.classes)
        if len(self.counts) == 1:
            compositions = jnp.zeros(rows, dtype=int)
        else:
            below = jnp.cumsum(probabilities)[:-1]
            compositions = jnp.searchsorted(below, jax.random.uniform(by_composition, (rows,)), side="right")
        bits = jax.random.bits(by_token, (rows, self.positions), dtype=jnp.uint32)
        parts = jnp.split(bits, np.cumsum(self.slots)[:-1], axis=1)
        counts = jnp.asarray(self.counts)[compositions]
        return Drawn(
            classes,
            compositions,
            tuple((part % np.uint32(types)).astype(jnp.int32) for part, types in zip(parts, self.types, strict=True)),
            tuple(jnp.arange(n) < counts[:, g, None] for g, n in enumerate(self.slots)),
        )

    def counts_of(self, drawn: Drawn) -> Batch:
        """The sequences as token counts."""
        rows, dtype = drawn.classes.shape[0], np.dtype(self.dtype)
        own = jax.nn.one_hot(drawn.classes, self.layout.classes, dtype=dtype)
        counts, nulls = [], []
        for role, types, identity, filled in zip(self.roles, self.types, drawn.identities, drawn.filled, strict=True):
            if role == "null":
                nulls.append(jnp.sum(filled, axis=1, dtype=dtype))
                continue
            here = (identity[:, :, None] == jnp.arange(types)) & filled[:, :, None]
            each = jnp.sum(here, axis=1, dtype=dtype)
            counts.append((own[:, :, None] * each[:, None]).reshape(rows, -1) if role == "distinct" else each)
        log_nulls = jnp.log(jnp.stack(nulls, axis=1)) if nulls else jnp.zeros((rows, 0), dtype=dtype)
        return Batch(
            log_counts=jnp.log(jnp.concatenate(counts, axis=1)),
            log_nulls=log_nulls,
            queries=jnp.ones((rows, 1), dtype=dtype) if self.layout.shared_query else own,
            labels=self._labels(drawn),
            weights=self._weights(rows),
        )

    def sequences_of(self, drawn: Drawn) -> Sequences:
        """The sequences token by token, group after group."""
        first = 0
        tokens = []
        for role, types, identity in zip(self.roles, self.types, drawn.identities, strict=True):
            if role == "null":
                tokens.append(jnp.full_like(identity, self.layout.tokens))
                continue
            offset = drawn.classes[:, None].astype(identity.dtype) * types if role == "distinct" else 0
            tokens.append(first + offset + identity)
            first += types * (self.layout.classes if role == "distinct" else 1)
        return Sequences(
            tokens=jnp.concatenate(tokens, axis=1),
            present=jnp.concatenate(drawn.filled, axis=1),
            queries=jnp.zeros_like(drawn.classes) if self.layout.shared_query else drawn.classes,
            labels=self._labels(drawn),
            weights=self._weights(drawn.classes.shape[0]),
        )

    def _labels(self, drawn: Drawn) -> Array:
        return drawn.classes[:, None] == jnp.arange(self.layout.outputs)

    def _weights(self, rows: int) -> Float[Array, " rows"]:
        return jnp.full(rows, 1 / rows, dtype=np.dtype(self.dtype))
