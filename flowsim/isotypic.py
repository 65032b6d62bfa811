r"""Matrices split into their isotypic parts: how exactly they are not symmetric (paper, section 6; Schur's lemma).

The permutations of classes, of types within a group and of never-label outputs act on both matrices. Whatever commutes
with them maps each isotypic part to itself: the gradient field linearized at symmetric matrices, for one. The parts are
orthogonal, and with the symmetric part they make up the matrices:

- `class`: what tells one class from another (standard representation of $S_K$): class-dependent scores and logits,
  also those of common tokens on the average;
- `pair`: what tells one pair of different classes from another beyond that ($(K-2, 2)$ and $(K-2, 1, 1)$);
- `distinct`: what tells the tokens of one class of a distinct group from each other;
- `distinct_label`: the same, differently for each other class's label or query;
- `common`: what tells common tokens from each other, alike for all classes;
- `query_code`: which class goes with which common token (standard of $S_K$ times standard of $S_D$): the class coded in
  *which* common token each query attends to, and which label each common token speaks for;
- `outputs`: what tells the never-label outputs from each other.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.symmetric import Layout, Matrices

TYPES = ("class", "pair", "distinct", "distinct_label", "common", "query_code", "outputs")


def isotypic_parts(layout: Layout, matrices: Matrices) -> dict[str, Matrices]:
    """The isotypic parts of both matrices; the symmetric part is what they leave.

    Args:
        layout: where tokens, queries and outputs stand.
        matrices: any matrices of the layout's shapes.

    Returns:
        For each of `TYPES` that the layout can have, matrices whose sum is the asymmetric part.
    """
    qk = _split(layout, matrices.qk, 0 if layout.shared_query else layout.classes)
    ov = _split(layout, matrices.ov.T, layout.classes)
    return {name: Matrices(qk[name], ov[name].T) for name in existing(layout)}


def asymmetries(layout: Layout, matrices: Matrices) -> dict[str, Float[Array, ""]]:
    """Frobenius norm of each isotypic part, relative to that of both matrices; 0 for zero ones.

    The squares sum to the square of `flowsim.symmetric.asymmetry`.
    """
    size = sum(jnp.sum(matrix**2) for matrix in matrices)
    size = jnp.where(size > 0, size, 1.0)
    parts = isotypic_parts(layout, matrices)
    return {name: jnp.sqrt(sum(jnp.sum(matrix**2) for matrix in part) / size) for name, part in parts.items()}


def existing(layout: Layout) -> tuple[str, ...]:
    """Those of `TYPES` that matrices of a layout can have."""
    sizes = {"distinct": 1, "common": 1}
    for role, types in zip(layout.roles, layout.types, strict=True):
        sizes[role] = max(sizes[role], types)
    has = {
        "class": True,
        "pair": layout.classes > 2,
        "distinct": sizes["distinct"] > 1,
        "distinct_label": sizes["distinct"] > 1 and layout.classes > 2,
        "common": sizes["common"] > 1,
        "query_code": sizes["common"] > 1,
        "outputs": layout.other_outputs > 1,
    }
    return tuple(name for name in TYPES if has[name])


def _split(layout: Layout, table: Float[Array, "tokens partners"], carrying: int) -> dict[str, Array]:
    """The parts of a matrix of tokens and partners, of which the first `carrying` belong to one class each."""
    parts: dict[str, list[Array]] = {name: [] for name in TYPES}
    for role, types, rows in zip(layout.roles, layout.types, _slices(layout), strict=True):
        block = table[rows]
        if role == "distinct":
            found = _distinct(block.reshape(layout.classes, types, -1), carrying)
        else:
            found = _common(block, carrying)
        for name in TYPES:
            parts[name].append(found.get(name, jnp.zeros_like(block)).reshape(block.shape))
    return {name: jnp.concatenate(blocks) for name, blocks in parts.items()}


def _slices(layout: Layout) -> list[slice]:
    ends = np.cumsum(layout.sizes)
    return [slice(int(end - size), int(end)) for end, size in zip(ends, layout.sizes, strict=True)]


def _distinct(block: Float[Array, "classes types partners"], carrying: int) -> dict[str, Array]:
    level = block.mean(axis=1, keepdims=True)
    within = block - level
    if not carrying:
        every = jnp.broadcast_to(level - level.mean(axis=0), block.shape)
        return {"class": every, "distinct": within}
    k = carrying
    other = 1.0 - np.eye(k)[:, None, :]
    mean_other = (other * within[..., :k]).sum(axis=2, keepdims=True) / (k - 1)
    by_label = other * (within[..., :k] - mean_other)
    level_of_class, pair = _square(level[:, 0, :k])
    rest = block[..., k:]
    mean_rest = rest.mean(axis=2, keepdims=True) if rest.shape[2] else rest
    level_rest = mean_rest.mean(axis=1, keepdims=True)
    of_class = jnp.broadcast_to(level_rest - level_rest.mean(axis=0), rest.shape)
    zero = jnp.zeros_like(rest)

    def whole(labels: Array, others: Array) -> Array:
        return jnp.concatenate([jnp.broadcast_to(labels, (*block.shape[:2], k)), others], axis=2)

    return {
        "class": whole(level_of_class[:, None, :], of_class),
        "pair": whole(pair[:, None, :], zero),
        "distinct": whole(within[..., :k] - by_label, jnp.broadcast_to(mean_rest - level_rest, rest.shape)),
        "distinct_label": whole(by_label, zero),
        "outputs": whole(jnp.zeros(()), rest - mean_rest),
    }


def _square(table: Float[Array, "classes classes"]) -> tuple[Array, Array]:
    """The standard part of a table over two classes, and what is beyond it; own entries and others separately."""
    k = table.shape[0]
    own = jnp.diagonal(table)
    other = 1.0 - np.eye(k)
    off = other * (table - (other * table).sum() / (k * (k - 1)))
    if k == 2:  # two opposite entries: nothing beyond the standard part
        return jnp.diag(own - own.mean()) + off, jnp.zeros_like(table)
    # least squares fit of a_i + b_j to the entries off the diagonal
    rows, columns = off.sum(axis=1), off.sum(axis=0)
    a, b = (((k - 1) * x + y) / (k * (k - 2)) for x, y in ((rows, columns), (columns, rows)))
    fitted = other * (a[:, None] + b[None, :])
    return jnp.diag(own - own.mean()) + fitted, off - fitted


def _common(block: Float[Array, "types partners"], carrying: int) -> dict[str, Array]:
    mine, rest = block[:, : carrying or 1], block[:, carrying or 1 :]
    mean = mine.mean()
    of_token = mine.mean(axis=1, keepdims=True) - mean
    of_class = mine.mean(axis=0, keepdims=True) - mean
    mean_rest = rest.mean(axis=1, keepdims=True) if rest.shape[1] else rest
    zero = jnp.zeros_like(rest)

    def whole(labels: Array, others: Array) -> Array:
        return jnp.concatenate([jnp.broadcast_to(labels, mine.shape), jnp.broadcast_to(others, rest.shape)], axis=1)

    return {
        "class": whole(of_class, zero),
        "common": whole(of_token, mean_rest - mean_rest.mean(axis=0)),
        "query_code": whole(mine - mean - of_token - of_class, zero),
        "outputs": whole(jnp.zeros_like(mine), rest - mean_rest),
    }
