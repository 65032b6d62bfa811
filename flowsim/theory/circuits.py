r"""How a circuit moves when the loss pulls on its matrix: one object for each letter of a parameterization.

A parameterization is a pair of circuits, query-key first: CACO is collapsed attention with collapsed output. The rest
of the theory supplies the gradient on a matrix's blocks; the circuit turns it into velocities of its own state.

`KINDS` is the registry: a new kind of circuit is a class here, a class of the same name in `flowsim.circuits` (its
numeric side; no JAX is imported here), and one entry of the table.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false, reportReturnType=false

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sympy as sp

from flowsim._checks import one_of, show, whole
from flowsim.errors import InvalidInput
from flowsim.theory.symbols import RATIO
from flowsim.theory.symmetry import Part, SymmetricMatrix

Hidden = tuple[tuple[str, int], ...]


class AbstractCircuit(abc.ABC):
    """The symbolic side of a circuit: its state, the blocks it stands for, and the velocity of the state."""

    @property
    @abc.abstractmethod
    def closes(self) -> bool:
        """Whether what the loss reads off the matrix moves by itself, so that the state need not be followed."""

    @abc.abstractmethod
    def width(self, part: Part) -> int:
        """Hidden size of a part of the matrix; 0 where there is none."""

    @abc.abstractmethod
    def state(self, part: Part) -> tuple[sp.Symbol, ...]:
        """The symbols that the flow of this circuit moves, for one part of the matrix."""

    @abc.abstractmethod
    def blocks(self, part: Part) -> dict[sp.Symbol, sp.Expr]:
        """Block -> what it is in the state."""

    @abc.abstractmethod
    def velocity(self, part: Part, gradient: Mapping[sp.Symbol, sp.Expr], rate: sp.Expr) -> list[sp.Expr]:
        r"""The time derivative of the state of one part.

        Args:
            part: a part of the circuit's matrix.
            gradient: block -> $G = (1/d_\rho)\, \partial L/\partial B$, or a name for it.
            rate: the circuit's learning rate.

        Returns:
            One expression for each symbol of the state.
        """


@dataclasses.dataclass(frozen=True)
class Collapsed(AbstractCircuit):
    r"""A matrix trained entry by entry: $\dot B = -\eta G$."""

    @property
    def closes(self) -> bool:
        """True: the gradient depends on the blocks only through what the loss reads off them."""
        return True

    def width(self, part: Part) -> int:
        """No factors, no hidden size."""
        del part
        return 0

    def state(self, part: Part) -> tuple[sp.Symbol, ...]:
        """The blocks themselves."""
        return tuple(block.symbol for row in part.blocks for block in row)

    def blocks(self, part: Part) -> dict[sp.Symbol, sp.Expr]:
        """Every block is itself."""
        return {symbol: symbol for symbol in self.state(part)}

    def velocity(self, part: Part, gradient: Mapping[sp.Symbol, sp.Expr], rate: sp.Expr) -> list[sp.Expr]:
        """Down the gradient."""
        return [-rate * gradient[symbol] for symbol in self.state(part)]


@dataclasses.dataclass(frozen=True)
class Factorized(AbstractCircuit):
    r"""A product of two matrices, $B = P Q$ on every part: $\dot P = -\eta\, G Q^\top$, $\dot Q = -\eta\, P^\top G$.

    $P$ stands for $W_O$ or $W_K$, $Q$ for $W_V$ or $W_Q^\top$.

    Attributes:
        hidden: hidden sizes by the name of the part; where absent the smallest one that holds every matrix of the
            part's shape, the smaller of its sides.
    """

    hidden: Hidden = ()

    @property
    def closes(self) -> bool:
        """False: how fast a product moves depends on its factors."""
        return False

    def width(self, part: Part) -> int:
        """The hidden size of a part."""
        return dict(self.hidden).get(part.name, min(part.shape))

    def factors(self, part: Part) -> tuple[sp.Matrix, sp.Matrix]:
        r"""The symbols of $P$ (rows x hidden) and $Q$ (hidden x columns)."""
        rows, columns = part.shape
        width = self.width(part)

        def name(factor: str, tag: str, h: int) -> sp.Symbol:
            words = [factor, part.letter, tag, str(h + 1) if width > 1 else ""]
            return sp.Symbol("_".join(filter(None, words)), real=True)

        def tags(blocks: tuple, side: str) -> list[str]:
            # the query and a lone row of labels need no subscript
            orbits = [getattr(block, side).tag for block in blocks]
            return [{"label": "1", "rest": "2", "query": ""}.get(tag, tag) for tag in orbits]

        left = tags(tuple(row[0] for row in part.blocks), "row")
        left = [""] if left == ["1"] else left
        right = tags(part.blocks[0], "column")
        return (
            sp.Matrix(rows, width, lambda i, h: name("P", left[i], h)),
            sp.Matrix(width, columns, lambda h, j: name("Q", right[j], h)),
        )

    def state(self, part: Part) -> tuple[sp.Symbol, ...]:
        r"""The entries of $P$, then those of $Q$, row by row."""
        p, q = self.factors(part)
        return (*p, *q)

    def blocks(self, part: Part) -> dict[sp.Symbol, sp.Expr]:
        """The entries of the product."""
        p, q = self.factors(part)
        return dict(zip((b.symbol for row in part.blocks for b in row), p * q, strict=True))

    def velocity(self, part: Part, gradient: Mapping[sp.Symbol, sp.Expr], rate: sp.Expr) -> list[sp.Expr]:
        """Each factor down the gradient that the chain rule gives it."""
        p, q = self.factors(part)
        g = sp.Matrix([[gradient[block.symbol] for block in row] for row in part.blocks])
        return [-rate * entry for entry in (*(g * q.T), *(p.T * g))]


class Parameterization(NamedTuple):
    """A pair of circuits and their learning rates (time is counted in units of the output-value rate).

    Attributes:
        name: four letters, for instance `"CACO"`.
        qk: the query-key circuit.
        ov: the output-value circuit.
    """

    name: str
    qk: AbstractCircuit
    ov: AbstractCircuit

    @property
    def qk_rate(self) -> sp.Expr:
        r"""$\eta_{QK} = r$."""
        return RATIO

    @property
    def ov_rate(self) -> sp.Expr:
        r"""$\eta_{OV} = 1$."""
        return sp.Integer(1)

    def sides(self, qk: SymmetricMatrix, ov: SymmetricMatrix) -> tuple["Side", "Side"]:
        """Both circuits with their matrices and rates, query-key first."""
        return Side(qk, self.qk, self.qk_rate), Side(ov, self.ov, self.ov_rate)


class Side(NamedTuple):
    """A circuit, the matrix that it makes and its learning rate."""

    matrix: SymmetricMatrix
    circuit: AbstractCircuit
    rate: sp.Expr


class Kind(NamedTuple):
    """A kind of circuit.

    Attributes:
        word: its name in sentences.
        symbolic: makes the circuit from hidden sizes.
        numeric: name of its class in `flowsim.circuits`.
        degree: number of trained matrices whose product its matrix is.
    """

    word: str
    symbolic: Callable[[Hidden], AbstractCircuit]
    numeric: str
    degree: int


KINDS: Mapping[str, Kind] = {
    "C": Kind("collapsed", lambda _: Collapsed(), "Collapsed", 1),
    "F": Kind("factorized", Factorized, "Factorized", 2),
}


def parameterization(name: str, hidden: Hidden = ()) -> Parameterization:
    """The pair of circuits that a four-letter name stands for.

    Args:
        name: `"CACO"`, `"FACO"`, `"CAFO"` or `"FAFO"`.
        hidden: hidden sizes of the factorized circuits, from `hidden_sizes`.

    Returns:
        The circuits.

    Raises:
        InvalidInput: if the name is unknown.
    """
    known = [f"{qk}A{ov}O" for qk in KINDS for ov in KINDS]
    one_of("parameterization", name, known)
    return Parameterization(name, KINDS[name[0]].symbolic(hidden), KINDS[name[2]].symbolic(hidden))


def hidden_sizes(name: str, qk: SymmetricMatrix, ov: SymmetricMatrix, hidden: Any) -> Hidden:
    """The hidden sizes of the parts of factorized circuits, as far as they are not the default.

    Args:
        name: four letters.
        qk: the query-key matrix.
        ov: the output-value matrix.
        hidden: None for the default, one size for every part, or a mapping from the names of parts to sizes.

    Returns:
        Pairs of name and size, sorted.

    Raises:
        InvalidInput: if a size is no positive whole number, or no factorized part has the name.
    """
    parts = {
        part.name: side.circuit.width(part)
        for side in parameterization(name).sides(qk, ov)
        for part in side.matrix.parts
        if side.circuit.width(part)
    }
    if hidden is None:
        return ()
    given = hidden if isinstance(hidden, Mapping) else dict.fromkeys(parts, hidden)
    sizes = {}
    for part, size in given.items():
        if part not in parts:
            known = ", ".join(parts) or "none, as both circuits are collapsed"
            raise InvalidInput(f"hidden={show(hidden)} names {show(part)}; the factorized parts of {name} are {known}.")
        sizes[part] = whole(f"hidden size of {part}", size, minimum=1)
    return tuple(sorted((part, size) for part, size in sizes.items() if size != parts[part]))
