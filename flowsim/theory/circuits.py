"""How a circuit moves when the loss pulls on its matrix: one object for each letter of a parameterization.

A parameterization is a pair of circuits, query-key first: CACO is collapsed attention with collapsed output. The rest
of the theory supplies the gradient on a matrix's blocks; the circuit turns it into velocities of its own state.
"""

import abc
import dataclasses
from typing import NamedTuple

import sympy as sp

from flowsim.errors import InvalidInput
from flowsim.theory.symbols import RATIO
from flowsim.theory.symmetry import SymmetricMatrix


class AbstractCircuit(abc.ABC):
    """The symbolic side of a circuit: its state, and the velocity of that state."""

    @abc.abstractmethod
    def state(self, matrix: SymmetricMatrix) -> tuple[sp.Symbol, ...]:
        """The symbols that the flow of this circuit moves."""

    @abc.abstractmethod
    def velocity(self, matrix: SymmetricMatrix, gradient: dict[sp.Symbol, sp.Expr], rate: sp.Expr) -> list[sp.Expr]:
        r"""The time derivative of the state.

        Args:
            matrix: the circuit's matrix, in blocks.
            gradient: block -> $G = (1/d_\rho)\, \partial L/\partial B$.
            rate: the circuit's learning rate.

        Returns:
            One expression for each symbol of the state.
        """


@dataclasses.dataclass(frozen=True)
class Collapsed(AbstractCircuit):
    r"""A matrix trained entry by entry: $\dot B = -\eta G$."""

    def state(self, matrix: SymmetricMatrix) -> tuple[sp.Symbol, ...]:
        """The blocks themselves."""
        return tuple(block.symbol for block in matrix.blocks)

    def velocity(self, matrix: SymmetricMatrix, gradient: dict[sp.Symbol, sp.Expr], rate: sp.Expr) -> list[sp.Expr]:
        """Down the gradient."""
        return [-rate * gradient[block.symbol] for block in matrix.blocks]


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


_CIRCUITS: dict[str, type[AbstractCircuit]] = {"C": Collapsed}
_WORDS = {"C": "collapsed", "F": "factorized"}


def parameterization(name: str) -> Parameterization:
    """The pair of circuits that a four-letter name stands for.

    Args:
        name: `"CACO"`, `"FACO"`, `"CAFO"` or `"FAFO"`.

    Returns:
        The circuits.

    Raises:
        InvalidInput: if the name is unknown or one of its circuits has no derivation.
    """
    known = [f"{qk}A{ov}O" for qk in _WORDS for ov in _WORDS]
    if name not in known:
        raise InvalidInput(f"parameterization={name!r} is unknown; use one of {', '.join(known)}.")
    for letter, circuit in ((name[0], "query-key"), (name[2], "output-value")):
        if letter not in _CIRCUITS:
            raise InvalidInput(
                f"parameterization={name!r} is not available yet: its {circuit} circuit is {_WORDS[letter]}, and only "
                "collapsed circuits have a derivation; use 'CACO'."
            )
    return Parameterization(name, _CIRCUITS[name[0]](), _CIRCUITS[name[2]]())
