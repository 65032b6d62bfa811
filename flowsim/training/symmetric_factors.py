r"""Factors of symmetric matrices that are symmetric themselves (symmetric reduction; balancedness).

A symmetric matrix acts on the standard representation of the class permutations by one small matrix $B = P Q$, and on
the trivial one by another. The hidden units are copies of the permutation representation (one unit for each class: a
standard and a trivial copy) and further trivial ones, so that permuting the classes permutes the units, entrywise
optimizers included. Units that are left over start at zero and stay there.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.circuits import Factors, Shape
from flowsim.symmetric import Layout


class Parts(NamedTuple):
    """The small factors of one circuit.

    Attributes:
        standard: on the standard representation; None where the circuit has none.
        trivial: on the trivial representation.
    """

    standard: Factors | None
    trivial: Factors

    @staticmethod
    def of(shapes: Sequence[Shape], factors: Sequence[Factors]) -> "Parts":
        """The factors of all parts of a circuit, sorted by their names."""
        named = {shape.name.partition("_")[2]: pair for shape, pair in zip(shapes, factors, strict=True)}
        return Parts(named.get("standard"), named["trivial"])

    @property
    def copies(self) -> tuple[int, int]:
        """Number of standard copies, and of trivial ones."""
        return 0 if self.standard is None else self.standard.p.shape[1], self.trivial.p.shape[1]


def hidden_needed(layout: Layout, parts: Parts) -> int:
    """Number of hidden units that hold the given copies."""
    standard, trivial = parts.copies
    return layout.classes * standard + max(trivial - standard, 0)


def full_factors(
    layout: Layout, circuit: str, parts: Parts, hidden: int
) -> tuple[Float[Array, "rows hidden"], Float[Array, "hidden columns"]]:
    """Both factors of the full matrix.

    Args:
        layout: where tokens, queries and outputs stand.
        circuit: `"qk"` (tokens x queries) or `"ov"` (outputs x tokens).
        parts: the small factors.
        hidden: number of hidden units, at least `hidden_needed`.

    Returns:
        The left and the right factor.
    """
    sides = (_tokens(layout), _queries(layout)) if circuit == "qk" else (_outputs(layout), _tokens(layout))
    standard = None if parts.standard is None else (parts.standard.p, parts.standard.q.T)
    trivial = parts.trivial.p, parts.trivial.q.T
    left, right = (
        _expand(layout, side, None if standard is None else standard[i], trivial[i], hidden)
        for i, side in enumerate(sides)
    )
    return left, right.T


class _Side(NamedTuple):
    """The members of one side of a matrix: class (-1 for none) and orbit, and for each orbit what it is like."""

    owner: np.ndarray
    orbit: np.ndarray
    carries_class: np.ndarray
    types: np.ndarray


def _tokens(layout: Layout) -> _Side:
    orbit, owner = layout.owners
    return _Side(owner, orbit, np.array([role == "distinct" for role in layout.roles]), np.array(layout.types))


def _queries(layout: Layout) -> _Side:
    owner = np.full(1, -1) if layout.shared_query else np.arange(layout.classes)
    return _Side(owner, np.zeros(owner.size, int), np.array([not layout.shared_query]), np.ones(1))


def _outputs(layout: Layout) -> _Side:
    k, r = layout.classes, layout.other_outputs
    owner = np.concatenate([np.arange(k), np.full(r, -1)])
    return _Side(owner, (owner < 0).astype(int), np.array([True, False][: 2 if r else 1]), np.array([1, r or 1]))


def _expand(
    layout: Layout,
    side: _Side,
    standard: Float[Array, "orbits copies"] | None,
    trivial: Float[Array, "orbits copies"],
    hidden: int,
) -> Float[Array, "members hidden"]:
    """A factor, members x hidden units, from its small factors; unit $j$ of a copy is $e_j = (e_j - 1/K) + 1/K$."""
    k = layout.classes
    types = side.types[side.orbit]
    size = np.where(side.carries_class[side.orbit], types * k, types)
    every = trivial[side.orbit] / np.sqrt(size)[:, None]
    units = []
    if standard is not None:
        # rows of the small standard factor are the orbits that carry the class
        number = np.maximum(np.cumsum(side.carries_class) - 1, 0)[side.orbit]
        own = np.where(side.owner >= 0, 1 / np.sqrt(types), 0.0)[:, None] * standard[number]
        centred = np.where(side.owner[:, None] >= 0, (side.owner[:, None] == np.arange(k)) - 1 / k, 0.0)
        for copy in range(standard.shape[1]):
            unit = own[:, copy, None] * centred
            units.append(unit + every[:, copy, None] / np.sqrt(k) if copy < trivial.shape[1] else unit)
    units.append(every[:, len(units) :])
    used = sum(unit.shape[1] for unit in units)
    return jnp.concatenate([*units, jnp.zeros((side.owner.size, hidden - used))], axis=1)
