r"""Symmetric matrices as blocks: orbits, unit vectors, entries (paper, section 6; Schur's lemma).

Permuting the $K$ classes, the types within a group and the outputs that are never the label leaves the population loss
unchanged. The tokens, the queries and the outputs split into *orbits* of these permutations. An orbit that carries the
class holds one copy of the trivial and one of the standard representation of $S_K$ that are constant over the types;
an orbit that does not carry it holds only the trivial one. A symmetric matrix maps each representation to itself, so
it is one number (a *block*) for each pair of orbits and representation.
"""

import dataclasses
import functools
from typing import Literal, NamedTuple

import sympy as sp

from flowsim.task import Structure
from flowsim.theory.symbols import CLASSES, OTHER_OUTPUTS, GroupSymbols, group_symbols

Circuit = Literal["qk", "ov"]
Irrep = Literal["standard", "trivial"]


class Orbit(NamedTuple):
    """A set of tokens, queries or outputs that the symmetry permutes among themselves.

    Attributes:
        tag: subscript in block names.
        types: how many members there are (for each class, if the orbit carries the class).
        carries_class: whether a member belongs to one class.
    """

    tag: str
    types: sp.Expr
    carries_class: bool

    def component(self, irrep: Irrep) -> sp.Expr:
        r"""Entry of the unit vector that is constant over the orbit's types.

        Trivial: constant over everything, $1/\sqrt{\text{size}}$. Standard: $1/\sqrt{\text{types}}$ times a unit
        vector over the classes that sums to zero.
        """
        size = CLASSES * self.types if self.carries_class and irrep == "trivial" else self.types
        return 1 / sp.sqrt(size)


class Block(NamedTuple):
    r"""One block of a symmetric matrix.

    Attributes:
        symbol: its name.
        family: `"qk_standard"`, `"qk_trivial"`, `"ov_standard"`, `"ov_trivial"` or `"ov_trivial_rest"`.
        circuit: `"qk"` or `"ov"`.
        irrep: `"standard"` or `"trivial"`.
        row: orbit of the matrix's rows.
        column: orbit of the matrix's columns.
        dimension: dimension $d_\rho$ of the representation: the metric of the full matrix counts the block so often.
    """

    symbol: sp.Symbol
    family: str
    circuit: Circuit
    irrep: Irrep
    row: Orbit
    column: Orbit
    dimension: sp.Expr


class Part(NamedTuple):
    """What a symmetric matrix does on one representation: the small matrix that a factorized circuit factorizes.

    Attributes:
        name: `"qk_standard"`, `"qk_trivial"`, `"ov_standard"` or `"ov_trivial"`.
        letter: of its blocks, `s`, `t`, `S` or `T`.
        dimension: dimension of the representation.
        blocks: its entries, one tuple for each row.
    """

    name: str
    letter: str
    dimension: sp.Expr
    blocks: tuple[tuple[Block, ...], ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return len(self.blocks), len(self.blocks[0])


@dataclasses.dataclass(frozen=True)
class SymmetricMatrix:
    """A matrix that commutes with the symmetry, as its blocks.

    Attributes:
        circuit: `"qk"` (keys x queries) or `"ov"` (outputs x tokens).
        rows: orbits of its rows.
        columns: orbits of its columns.
        blocks: standard blocks first, then trivial ones row by row.
    """

    circuit: Circuit
    rows: tuple[Orbit, ...]
    columns: tuple[Orbit, ...]
    blocks: tuple[Block, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The blocks as one small matrix for each representation; in the order of `blocks`, row by row."""
        parts = []
        for irrep in ("standard", "trivial"):
            here = [block for block in self.blocks if block.irrep == irrep]
            if here:
                rows = tuple(tuple(b for b in here if b.row == row) for row in self.rows)
                letter = here[0].symbol.name.split("_")[0]
                parts.append(Part(f"{self.circuit}_{irrep}", letter, here[0].dimension, tuple(r for r in rows if r)))
        return tuple(parts)

    def entry(self, row: Orbit, column: Orbit, *, same_class: bool) -> sp.Expr:
        r"""The matrix entry between a member of `row` and a member of `column`.

        Args:
            row: orbit of the row.
            column: orbit of the column.
            same_class: whether both belong to the same class (ignored unless both orbits carry the class). The
                projectors over the classes have entries $\delta - 1/K$ (standard) and $1/K$ (trivial).

        Returns:
            A linear expression in the blocks.
        """
        total = sp.Integer(0)
        for block in self.blocks:
            if (block.row, block.column) != (row, column):
                continue
            weight = row.component(block.irrep) * column.component(block.irrep)
            if block.irrep == "standard":
                weight *= (CLASSES - 1) / CLASSES if same_class else -1 / CLASSES
            total += weight * block.symbol
        return total


@dataclasses.dataclass(frozen=True)
class Reduction:
    """The two circuits of a structure in blocks.

    Attributes:
        structure: roles, query and head.
        groups: symbols of the groups.
        keys: orbit of each group's tokens (None for null groups), aligned with `groups`.
        query: orbit of the queries.
        labels: orbit of the outputs that can be the label.
        rest: orbit of the outputs that never are (None for the label head).
        qk: the query-key matrix, keys x queries.
        ov: the output-value matrix, outputs x tokens.
    """

    structure: Structure
    groups: tuple[GroupSymbols, ...]
    keys: tuple[Orbit | None, ...]
    query: Orbit
    labels: Orbit
    rest: Orbit | None
    qk: SymmetricMatrix
    ov: SymmetricMatrix

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks in the order of the state: $s, t, S, T_1, T_2$, groups in order within each."""
        return self.qk.blocks + self.ov.blocks

    @property
    def block_sizes(self) -> dict[str, int]:
        """Number of blocks of each family, in the order of the state."""
        sizes: dict[str, int] = {}
        for block in self.blocks:
            sizes[block.family] = sizes.get(block.family, 0) + 1
        return sizes

    def score(self, group: int, *, own_class: bool = True) -> sp.Expr:
        """Score of a token of the group under a query: of the query's own class, or of another."""
        key = self.keys[group]
        return sp.Integer(0) if key is None else self.qk.entry(key, self.query, same_class=own_class)

    def logit(self, group: int, output: Literal["own", "other", "rest"]) -> sp.Expr:
        """Logit that a token of the group gives to its own class's label, to another label, or to a never-label."""
        key = self.keys[group]
        orbit = self.rest if output == "rest" else self.labels
        if key is None or orbit is None:
            return sp.Integer(0)
        return self.ov.entry(orbit, key, same_class=output == "own")


@functools.cache
def reduce(structure: Structure) -> Reduction:
    """Splits the circuits of a structure into blocks.

    Args:
        structure: roles, query and head.

    Returns:
        The orbits and the two symmetric matrices.
    """
    groups = group_symbols(structure)
    keys = tuple(None if g.is_null else Orbit(g.tag, g.types, g.is_distinct) for g in groups)
    query = Orbit("query", sp.Integer(1), structure.query == "per-class")
    labels = Orbit("label", sp.Integer(1), True)
    rest = Orbit("rest", OTHER_OUTPUTS, False) if structure.vocabulary_head else None
    tokens = tuple(key for key in keys if key is not None)
    outputs = (labels,) if rest is None else (labels, rest)
    return Reduction(
        structure=structure,
        groups=groups,
        keys=keys,
        query=query,
        labels=labels,
        rest=rest,
        qk=_matrix("qk", tokens, (query,)),
        ov=_matrix("ov", outputs, tokens),
    )


def _matrix(circuit: Circuit, rows: tuple[Orbit, ...], columns: tuple[Orbit, ...]) -> SymmetricMatrix:
    standard, trivial = ("s", "t") if circuit == "qk" else ("S", "T")
    blocks = []
    for row in rows:
        for column in columns:
            if row.carries_class and column.carries_class:
                key = row if circuit == "qk" else column
                symbol = sp.Symbol(f"{standard}_{key.tag}", real=True)
                family = f"{circuit}_standard"
                blocks.append(Block(symbol, family, circuit, "standard", row, column, CLASSES - 1))
    for i, row in enumerate(rows):
        for column in columns:
            key, number = (row, "") if circuit == "qk" else (column, str(i + 1))
            symbol = sp.Symbol(f"{trivial}_{number}{key.tag}", real=True)
            family = f"{circuit}_trivial" + ("_rest" if circuit == "ov" and i == 1 else "")
            blocks.append(Block(symbol, family, circuit, "trivial", row, column, sp.Integer(1)))
    return SymmetricMatrix(circuit, rows, columns, tuple(blocks))
