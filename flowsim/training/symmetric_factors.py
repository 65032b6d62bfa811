r"""Factors of symmetric matrices that are symmetric themselves (symmetric reduction; balancedness).

A symmetric matrix acts on the standard representation of the class permutations by one small matrix $B$ and on the
trivial one by another. Each is split as $B = P Q$ with $P^\top P - Q Q^\top = \lambda I$. The hidden units are the sum
of one copy of the permutation representation (one unit for each class: a standard and a trivial copy) and of trivial
ones, so that permuting the classes permutes the units, entrywise optimizers included. Units that are left over start
at zero and stay there.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.symmetric import Layout


class Split(NamedTuple):
    """A small matrix as a product; no hidden units where there is nothing to factorize.

    Attributes:
        p: rows x hidden.
        q: hidden x columns.
    """

    p: Float[Array, "rows hidden"]
    q: Float[Array, "hidden columns"]


class Parts(NamedTuple):
    """The small matrices of one circuit.

    Attributes:
        standard: on the standard representation; no rows or no columns where the circuit has none.
        trivial: on the trivial representation.
    """

    standard: Float[Array, "rows columns"]
    trivial: Float[Array, "rows columns"]


def parts_of_blocks(layout: Layout, blocks: Float[Array, " blocks"]) -> tuple[Parts, Parts]:
    """The small matrices of both circuits, query-key first, from the block vector $(s, t, S, T_1, T_2)$."""
    n, n_distinct = len(layout.roles), len(layout.distinct)
    has_standard, has_rest = not layout.shared_query, layout.other_outputs > 0
    sizes = [n_distinct * has_standard, n, n_distinct, n, n * has_rest]
    s, t, ov_s, t1, t2 = jnp.split(blocks, np.cumsum(sizes)[:-1])
    trivial = jnp.stack([t1, t2]) if has_rest else t1[None]
    return Parts(s[:, None], t[:, None]), Parts(ov_s[None], trivial)


def split(matrix: Float[Array, "rows columns"], imbalance) -> Split:
    """Balanced factors of a small matrix with one row or one column, or of any concrete one.

    Args:
        matrix: the matrix.
        imbalance: $P^T P - Q Q^T$ of every singular value, of either sign.

    Returns:
        The factors; of a zero matrix the larger factor points along the first axis.
    """
    rows, columns = matrix.shape
    if min(rows, columns) == 0:
        return Split(jnp.zeros((rows, 0)), jnp.zeros((0, columns)))
    if min(rows, columns) > 1:
        u, singular, v = np.linalg.svd(np.asarray(matrix), full_matrices=False)
        p, q = split_scalar(jnp.asarray(singular), imbalance)
        return Split(jnp.asarray(u) * p, q[:, None] * jnp.asarray(v))
    if rows == columns:
        p, q = split_scalar(matrix[0, 0], imbalance)
        return Split(jnp.reshape(p, (1, 1)), jnp.reshape(q, (1, 1)))
    vector = matrix.ravel()
    length = jnp.sqrt(jnp.sum(vector**2))
    unit = jnp.where(length > 0, vector / jnp.where(length > 0, length, 1.0), jnp.eye(1, vector.size)[0])
    p, q = split_scalar(length, imbalance)
    return Split((p * unit)[:, None], q.reshape(1, 1)) if columns == 1 else Split(p.reshape(1, 1), (q * unit)[None])


def along(direction: Float[Array, "rows columns"], amount, imbalance) -> Split:
    """Factors of `amount` times a small matrix; zeros if it is zero, since nothing moves there."""
    rows, columns = direction.shape
    width = min(rows, columns)
    if width == 0 or not np.any(np.asarray(direction)):
        return Split(jnp.zeros((rows, width)), jnp.zeros((width, columns)))
    length = jnp.sqrt(jnp.sum(direction**2))
    p, q = split_scalar(amount * length, imbalance)
    unit = direction / length
    return Split(p * unit, q.reshape(1, 1)) if columns == 1 else Split(p.reshape(1, 1), q * unit)


def split_scalar(b, imbalance) -> tuple[Array, Array]:
    r"""$p q = b$ with $p^2 - q^2 = \lambda$, without cancellation; the larger one is not negative."""
    b, imbalance = jnp.asarray(b), jnp.asarray(imbalance)
    size = jnp.abs(imbalance)
    larger = jnp.sqrt(size / 2 + jnp.hypot(size / 2, b))
    smaller = b / jnp.where(larger == 0, 1.0, larger)
    return jnp.where(imbalance >= 0, larger, smaller), jnp.where(imbalance >= 0, smaller, larger)


def hidden_needed(layout: Layout, circuit: str) -> int:
    """Hidden units that hold every symmetric matrix of a circuit."""
    trivial = 1 if circuit == "qk" else min(2 if layout.other_outputs else 1, len(layout.roles))
    standard = circuit == "ov" or not layout.shared_query
    return layout.classes - 1 + trivial if standard else trivial


def factors(
    layout: Layout, circuit: str, standard: Split, trivial: Split, hidden: int
) -> tuple[Float[Array, "rows hidden"], Float[Array, "hidden columns"]]:
    """Both factors of the full matrix.

    Args:
        layout: where tokens, queries and outputs stand.
        circuit: `"qk"` (tokens x queries) or `"ov"` (outputs x tokens).
        standard: the split on the standard representation.
        trivial: the split on the trivial representation.
        hidden: number of hidden units, at least `hidden_needed`.

    Returns:
        The left and the right factor.
    """
    sides = (_tokens(layout), _queries(layout)) if circuit == "qk" else (_outputs(layout), _tokens(layout))
    left = _expand(sides[0], standard.p, trivial.p, hidden)
    right = _expand(sides[1], standard.q.T, trivial.q.T, hidden)
    return left, right.T


class _Side(NamedTuple):
    """The members of one side of a matrix: their class (-1 for none) and their orbit, with the orbits' sizes."""

    owner: np.ndarray
    orbit: np.ndarray
    carries_class: np.ndarray  # of each orbit
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


def _expand(side: _Side, standard: Array, trivial: Array, hidden: int) -> Float[Array, "members hidden"]:
    """A factor, members x hidden units, from its small factors (orbits x copies).

    The permutation representation holds the standard copy and the first trivial one: unit $j$ is
    $e_j = (e_j - 1/K) + 1/K$. Without a standard copy every unit is trivial.
    """
    classes = int(side.owner.max()) + 1
    types, members = side.types[side.orbit], side.owner.size
    size = np.where(side.carries_class, side.types * max(classes, 1), side.types)[side.orbit]
    every = trivial[side.orbit] / np.sqrt(size)[:, None]  # members x trivial copies
    if standard.shape[1] == 0:
        return jnp.concatenate([every, jnp.zeros((members, hidden - every.shape[1]))], axis=1)
    # rows of the small standard factor are the orbits that carry the class
    number = np.cumsum(side.carries_class) - 1
    same = side.owner[:, None] == np.arange(classes)
    centred = np.where(side.owner[:, None] >= 0, same - 1 / classes, 0.0)
    own = jnp.where(side.owner >= 0, standard[number[side.orbit], 0], 0.0) / np.sqrt(types)
    units = own[:, None] * centred + every[:, :1] / np.sqrt(classes)
    left_over = hidden - classes - (every.shape[1] - 1)
    return jnp.concatenate([units, every[:, 1:], jnp.zeros((members, left_over))], axis=1)
