r"""One direction of parameter space for each copy of each isotypic type (paper, section 6; Schur's lemma).

Tokens, queries, outputs and hidden units split into orbits of the symmetry. An orbit of $K$ classes with some types
each holds the trivial and the standard representation of $S_K$ and, within the classes, the types' differences; an
orbit that no class owns holds the trivial one and the differences of its members. Products of these make up the
matrices that are trained. A linear map that commutes with the symmetry maps copies of one irreducible representation
to each other by one small matrix: it is known once it is known on one vector of each copy, the *same* vector of the
representation for all copies.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from flowsim.symmetric import Layout

SYMMETRIC = "symmetric"


class Orbit(NamedTuple):
    """Members that the symmetry permutes among themselves.

    Attributes:
        name: role of the members.
        classes: $K$ if each class owns members, else 0.
        types: members of each class, or of all.
    """

    name: str
    classes: int
    types: int

    @property
    def size(self) -> int:
        """Number of members."""
        return self.types * (self.classes or 1)


Side = tuple[Orbit, ...]


class Kind(NamedTuple):
    """An irreducible representation in the space of parameters.

    Attributes:
        name: what a perturbation of this type distinguishes.
        dimension: of the representation.
        vectors: orthonormal, one for each copy; the rest of a copy follows by symmetry.
    """

    name: str
    dimension: int
    vectors: Float[np.ndarray, "copies parameters"]


def sides(layout: Layout, hidden_qk: int | None, hidden_ov: int | None) -> list[tuple[Side, Side]]:
    """Rows and columns of the matrices that are trained, in the order of the circuits' arrays.

    Args:
        layout: with a query per class and the label head.
        hidden_qk: hidden units of the query-key circuit, the first one of each class, the others of none; None if the
            circuit is collapsed.
        hidden_ov: the same of the output-value circuit.
    """
    k = layout.classes
    tokens = tuple(
        Orbit(role, k if role == "distinct" else 0, types)
        for role, types in zip(layout.roles, layout.types, strict=True)
    )
    classes = (Orbit("class", k, 1),)
    found: list[tuple[Side, Side]] = []
    for name, rows, columns, hidden in (("qk", tokens, classes, hidden_qk), ("ov", classes, tokens, hidden_ov)):
        if hidden is None:
            found.append((rows, columns))
        else:
            units = (*classes, Orbit(f"hidden_{name}", 0, hidden - k)) if hidden > k else classes
            found += [(rows, units), (units, columns)]
    return found


def kinds(layout: Layout, hidden_qk: int | None = None, hidden_ov: int | None = None) -> tuple[Kind, ...]:
    """All isotypic types of the trained matrices, the symmetric one first; arguments as in `sides`."""
    tables = sides(layout, hidden_qk, hidden_ov)
    sizes = [tuple(sum(orbit.size for orbit in side) for side in pair) for pair in tables]
    ends = np.cumsum([rows * columns for rows, columns in sizes])
    collected: dict[tuple[str, int], list[np.ndarray]] = {}
    for (rows, columns), shape, end in zip(tables, sizes, ends, strict=True):
        for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
            top, left = (sum(orbit.size for orbit in side[:n]) for side, n in ((rows, i), (columns, j)))
            for name, dimension, block in _blocks(row, column):
                table = np.zeros(shape)
                table[top : top + row.size, left : left + column.size] = block
                vector = np.zeros(ends[-1])
                vector[end - table.size : end] = table.ravel()
                collected.setdefault((name, dimension), []).append(vector / np.linalg.norm(vector))
    order = sorted(collected, key=lambda key: key[0] != SYMMETRIC)
    return tuple(Kind(*key, np.array(collected[key])) for key in order)


def _blocks(row: Orbit, column: Orbit) -> Iterator[tuple[str, int, np.ndarray]]:
    """Type, dimension and one vector of every irreducible representation in the block of two orbits."""
    if row.classes and column.classes:
        yield from _of_classes(row, column)
    elif row.classes or column.classes:
        carrier, plain = (row, column) if row.classes else (column, row)
        for name, dimension, block in _mixed(carrier, plain):
            yield name, dimension, block if row.classes else block.T
    else:
        yield SYMMETRIC, 1, np.ones((row.size, column.size))
        if row.size > 1:
            yield row.name, row.size - 1, np.outer(_difference(row.size), np.ones(column.size))
        if column.size > 1:
            yield column.name, column.size - 1, np.outer(np.ones(row.size), _difference(column.size))
        if row.size > 1 and column.size > 1:
            names = "+".join(sorted((row.name, column.name)))
            dimension = (row.size - 1) * (column.size - 1)
            yield names, dimension, np.outer(_difference(row.size), _difference(column.size))


def _of_classes(row: Orbit, column: Orbit) -> Iterator[tuple[str, int, np.ndarray]]:
    k = row.classes
    constant = np.ones((row.types, column.types))

    def over_types(table: np.ndarray) -> np.ndarray:
        return np.kron(table, constant)

    other = 1.0 - np.eye(k)
    e = _difference(k)
    yield SYMMETRIC, 1, over_types(np.eye(k))
    yield SYMMETRIC, 1, over_types(other)
    yield "class", k - 1, over_types(np.diag(e))
    if k > 2:
        yield "class", k - 1, over_types(other * (e[:, None] + e[None, :]))
    yield "class", k - 1, over_types(e[:, None] - e[None, :])
    if k > 3:  # zero sums, symmetric, none on the diagonal
        table = np.zeros((k, k))
        for a, b, sign in ((0, 1, 1), (2, 3, 1), (0, 2, -1), (1, 3, -1)):
            table[a, b] = table[b, a] = sign
        yield "pair", k * (k - 3) // 2, over_types(table)
    if k > 2:  # zero sums, antisymmetric
        table = np.zeros((k, k))
        for a, b in ((0, 1), (1, 2), (2, 0)):
            table[a, b], table[b, a] = 1, -1
        # rows against columns: tokens come first here, so that both circuits have one orientation
        turned = table if row.name != "class" or column.name == "class" else table.T
        yield "pair_cyclic", (k - 1) * (k - 2) // 2, over_types(turned)
    for orbit, across in ((row, False), (column, True)):
        if orbit.types > 1:
            within = np.zeros((k, orbit.types))
            within[0] = _difference(orbit.types)
            partner = np.eye(k)[0]
            for name, share, dimension in (
                ("", partner, 1),
                ("", 1 - partner, 1),
                ("_label", np.pad(_difference(k - 1), (1, 0)) if k > 2 else None, k - 2),
            ):
                if share is not None:
                    table = np.outer(within.ravel(), share)
                    yield orbit.name + name, k * (orbit.types - 1) * dimension, table.T if across else table


def _mixed(carrier: Orbit, plain: Orbit) -> Iterator[tuple[str, int, np.ndarray]]:
    k, n = carrier.classes, plain.size
    every, same = np.ones(carrier.types), np.ones(n)
    standard = np.kron(_difference(k), every)
    within = np.kron(np.eye(k)[0], _difference(carrier.types)) if carrier.types > 1 else None
    yield SYMMETRIC, 1, np.ones((carrier.size, n))
    yield "class", k - 1, np.outer(standard, same)
    if within is not None:
        yield carrier.name, k * (carrier.types - 1), np.outer(within, same)
    if n > 1:
        code = "query_code" if plain.name == "common" else f"{plain.name}+class"
        yield plain.name, n - 1, np.outer(np.ones(carrier.size), _difference(n))
        yield code, (n - 1) * (k - 1), np.outer(standard, _difference(n))
        if within is not None:
            name = "+".join(sorted((carrier.name, plain.name)))
            yield name, k * (carrier.types - 1) * (n - 1), np.outer(within, _difference(n))


def _difference(n: int) -> np.ndarray:
    """The first member against the second."""
    return np.eye(n)[0] - np.eye(n)[1]
