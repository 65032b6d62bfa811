"""Symmetric matrices: full matrices from their blocks, and the blocks of any matrices (symmetric reduction).

Rows of the query-key matrix and columns of the output-value matrix are tokens: the groups of `Task.all_groups` in
order, null groups left out, distinct groups class by class. Columns of the query-key matrix are the queries (one, when
it is shared); rows of the output-value matrix are the labels, then the outputs that are never the label.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.task import Role, Task


class Matrices(NamedTuple):
    """The matrices of both circuits.

    Attributes:
        qk: $W_{QK}$, tokens x queries.
        ov: $W_{OV}$, outputs x tokens.
    """

    qk: Float[Array, "tokens queries"]
    ov: Float[Array, "outputs tokens"]


class Averages(NamedTuple):
    """Averages of both matrices over the orbits of the symmetry: all that a symmetric matrix consists of.

    Attributes:
        qk: score of each token group (null ones left out) at its own class's query, and at another class's. Groups that
            every class sees, and shared queries, have only the first.
        ov: logit that each token group gives to its own class's label, to another label, and to a never-label output.
            Groups that every class sees have only the first and the last; the label head has no last.
    """

    qk: Float[Array, "groups 2"]
    ov: Float[Array, "groups 3"]

    @property
    def scores(self) -> Float[Array, " groups"]:
        """Score of each group's tokens at their own class's query."""
        return self.qk[:, 0]

    def margins(self, groups: Sequence[int]) -> Float[Array, " some"]:
        """Own-label minus other-label logit of the given (distinct) groups."""
        return (self.ov[:, 0] - self.ov[:, 1])[jnp.array(groups)]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which token, query and output stands where; hashable, so that compiled code can depend on it.

    Attributes:
        classes: number of classes $K$.
        roles: role of each group that has tokens.
        types: token types of each of these groups (per class for a distinct group).
        shared_query: whether one query serves all classes.
        other_outputs: number of outputs that are never the label.
    """

    classes: int
    roles: tuple[Role, ...]
    types: tuple[int, ...]
    shared_query: bool
    other_outputs: int

    @staticmethod
    def of(task: Task) -> "Layout":
        """The layout of a task."""
        groups = [group for group in task.all_groups if group.role != "null"]
        return Layout(
            task.classes,
            tuple(group.role for group in groups),
            tuple(group.types for group in groups),
            task.query == "shared",
            task.other_outputs,
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of tokens of each group."""
        pairs = zip(self.roles, self.types, strict=True)
        return tuple(types * self.classes if role == "distinct" else types for role, types in pairs)

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(self.sizes)

    @property
    def queries(self) -> int:
        """Number of queries."""
        return 1 if self.shared_query else self.classes

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.classes + self.other_outputs

    @property
    def owners(self) -> tuple[np.ndarray, np.ndarray]:
        """For each token its group and its class; class -1 for tokens that every class sees."""
        groups, classes = [], []
        for g, (role, types) in enumerate(zip(self.roles, self.types, strict=True)):
            owner = np.repeat(np.arange(self.classes), types) if role == "distinct" else np.full(types, -1)
            groups.append(np.full(owner.size, g))
            classes.append(owner)
        return np.concatenate(groups), np.concatenate(classes)

    @property
    def orbits(self) -> tuple[np.ndarray, np.ndarray]:
        """For each matrix entry the orbit that it belongs to, as an index into the flattened tables of `Averages`."""
        group, owner = self.owners
        query = np.arange(self.queries)
        other_query = (owner[:, None] != query) & (owner[:, None] >= 0) & (not self.shared_query)
        output = np.arange(self.outputs)[:, None]
        kind = np.where(output >= self.classes, 2, (owner != output) & (owner >= 0))
        return 2 * group[:, None] + other_query, 3 * group + kind

    @property
    def distinct(self) -> tuple[int, ...]:
        """Indices of the distinct groups."""
        return tuple(i for i, role in enumerate(self.roles) if role == "distinct")


def averages_of_blocks(layout: Layout, blocks: Float[Array, " blocks"]) -> Averages:
    """The entries of the symmetric matrices that have the given blocks.

    Args:
        layout: the layout of the task.
        blocks: $(s, t, S, T_1, T_2)$ in this order; $s$ only with a query per class, $T_2$ only with the vocabulary
            head.
    """
    n, k, r = len(layout.roles), layout.classes, layout.other_outputs
    is_distinct = np.array([role == "distinct" for role in layout.roles])
    n_distinct = int(is_distinct.sum())
    sizes = [0 if layout.shared_query else n_distinct, n, n_distinct, n, n if r else 0]
    s, t, ov_s, t1, t2 = jnp.split(blocks, np.cumsum(sizes)[:-1])
    zeros = jnp.zeros(n, dtype=blocks.dtype)
    s, ov_s = (zeros.at[np.flatnonzero(is_distinct)[: part.size]].set(part) for part in (s, ov_s))
    t2 = t2 if r else zeros

    # a trivial unit vector is constant over the orbit, a standard one over the types of a class
    types = np.sqrt(np.array(layout.types))
    token = types * np.where(is_distinct, np.sqrt(k), 1.0)
    label, query, rest = np.sqrt(k), np.sqrt(layout.queries), np.sqrt(max(r, 1))
    qk_own, qk_other = t / (token * query) + (k - 1) / k * s / types, t / (token * query) - s / (k * types)
    ov_own, ov_other = t1 / (token * label) + (k - 1) / k * ov_s / types, t1 / (token * label) - ov_s / (k * types)
    return Averages(jnp.stack([qk_own, qk_other], axis=1), jnp.stack([ov_own, ov_other, t2 / (token * rest)], axis=1))


def symmetric_matrices(layout: Layout, averages: Averages) -> Matrices:
    """The symmetric matrices with the given entries."""
    return Matrices(*(table.ravel()[orbits] for table, orbits in zip(averages, layout.orbits, strict=True)))


def averages_of_matrices(layout: Layout, matrices: Matrices) -> Averages:
    """Averages over the orbits, 0 for orbits without entries; the nearest symmetric matrices have the same averages."""
    tables = []
    for matrix, orbits, kinds in zip(matrices, layout.orbits, (2, 3), strict=True):
        n = kinds * len(layout.roles)
        entries = np.maximum(np.bincount(orbits.ravel(), minlength=n), 1).astype(matrix.dtype)
        sums = jax.ops.segment_sum(matrix.ravel(), orbits.ravel(), num_segments=n)
        tables.append((sums / entries).reshape(-1, kinds))
    return Averages(*tables)


def asymmetry(layout: Layout, matrices: Matrices) -> Float[Array, ""]:
    """Frobenius distance of both matrices from the nearest symmetric ones, relative to their size; 0 for zero ones."""
    nearest = symmetric_matrices(layout, averages_of_matrices(layout, matrices))
    distance = sum(jnp.sum((a - b) ** 2) for a, b in zip(matrices, nearest, strict=True))
    size = sum(jnp.sum(a**2) for a in matrices)
    return jnp.sqrt(distance / jnp.where(size > 0, size, 1.0))
