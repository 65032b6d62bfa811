r"""A parameterization in numbers: a pair of circuits, query-key and output-value, each with its own state.

The derivation (`flowsim.theory.circuits`) has the same pair in symbols. Here a circuit is what an integrator needs:
which state stands for given blocks, which blocks a state stands for, and how the state moves when the loss pulls on the
blocks with the gradient $G$. A new kind of circuit is a class and one entry of `_CIRCUITS`.
"""

import abc
import dataclasses
from typing import NamedTuple

from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.theory import circuits as symbolic


class AbstractCircuit(abc.ABC):
    """How one circuit stores its symmetric blocks, and how it moves."""

    @abc.abstractmethod
    def state(self, blocks: Float[Array, " blocks"]) -> Float[Array, " state"]:
        """The state that stands for the given blocks."""

    @abc.abstractmethod
    def blocks(self, state: Float[Array, " state"]) -> Float[Array, " blocks"]:
        """The blocks that a state stands for."""

    @abc.abstractmethod
    def velocity(
        self, state: Float[Array, " state"], gradient: Float[Array, " blocks"], rate: Float[Array, ""]
    ) -> Float[Array, " state"]:
        r"""The time derivative of the state.

        Args:
            state: the state.
            gradient: $G_\rho = (1/d_\rho)\, \partial L/\partial B_\rho$ at its blocks, possibly times a rate.
            rate: the circuit's learning rate.
        """


@dataclasses.dataclass(frozen=True)
class Collapsed(AbstractCircuit):
    r"""A matrix trained entry by entry: the blocks are the state, and $\dot B = -\eta G$."""

    def state(self, blocks: Float[Array, " blocks"]) -> Float[Array, " state"]:
        """The blocks themselves."""
        return blocks

    def blocks(self, state: Float[Array, " state"]) -> Float[Array, " blocks"]:
        """The state itself."""
        return state

    def velocity(
        self, state: Float[Array, " state"], gradient: Float[Array, " blocks"], rate: Float[Array, ""]
    ) -> Float[Array, " state"]:
        """Down the gradient."""
        del state
        return -rate * gradient


class Parameterization(NamedTuple):
    """A pair of circuits.

    Attributes:
        name: four letters, for instance `"CACO"`.
        qk: the query-key circuit.
        ov: the output-value circuit.
    """

    name: str
    qk: AbstractCircuit
    ov: AbstractCircuit

    @property
    def closes(self) -> bool:
        """Whether the flow closes in the reduced coordinates that the loss sees: both circuits are collapsed."""
        return isinstance(self.qk, Collapsed) and isinstance(self.ov, Collapsed)


_CIRCUITS: dict[str, type[AbstractCircuit]] = {"C": Collapsed}


def parameterization(name: str) -> Parameterization:
    """The pair of circuits that a four-letter name stands for.

    Args:
        name: `"CACO"`, `"FACO"`, `"CAFO"` or `"FAFO"`; attention letter first, output letter second.

    Returns:
        The circuits.

    Raises:
        InvalidInput: if the name is unknown or one of its circuits has no derivation.
    """
    name = symbolic.parameterization(name).name  # refuses with a sentence what has no derivation
    return Parameterization(name, _CIRCUITS[name[0]](), _CIRCUITS[name[2]]())
