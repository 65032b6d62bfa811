r"""A parameterization in numbers: a pair of circuits, query-key and output-value, each with its own state.

The derivation (`flowsim.theory.circuits`) has the same pair in symbols, and the registry that names both. Here a
circuit is what a solver needs: which state stands for given blocks, which blocks a state stands for, and how the state
moves when the loss pulls on the blocks with the gradient $G$. States are flat vectors, part by part (`Shape`).
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.theory import circuits as symbolic
from flowsim.theory.flow import Flow


class Shape(NamedTuple):
    """The shape of one part of a circuit's matrix.

    Attributes:
        name: `"qk_standard"`, `"qk_trivial"`, `"ov_standard"` or `"ov_trivial"`.
        rows: number of rows.
        columns: number of columns.
        hidden: hidden size; 0 where there are no factors.
        driven: whether the loss pulls on it.
    """

    name: str
    rows: int
    columns: int
    hidden: int
    driven: bool


class Factors(NamedTuple):
    """The factors of one part, $B = P Q$."""

    p: Float[Array, "rows hidden"]
    q: Float[Array, "hidden columns"]


@dataclasses.dataclass(frozen=True)
class AbstractCircuit(abc.ABC):
    """How one circuit stores its symmetric blocks, and how it moves.

    Attributes:
        shapes: the parts of its matrix, in order.
    """

    shapes: tuple[Shape, ...]

    @property
    @abc.abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """Length of the state of each part."""

    @property
    def size(self) -> int:
        """Length of the state."""
        return sum(self.sizes)

    @abc.abstractmethod
    def blocks(self, state: Float[Array, " state"]) -> Float[Array, " blocks"]:
        """The blocks that a state stands for."""

    @abc.abstractmethod
    def moved(self, state: Float[Array, " state"], change: Float[Array, " state"]) -> Float[Array, " blocks"]:
        """By how much the blocks change with the state; a small change is not lost beside large blocks."""

    @abc.abstractmethod
    def velocity(
        self, state: Float[Array, " state"], gradient: Float[Array, " blocks"], rate: Any
    ) -> Float[Array, " state"]:
        r"""The time derivative of the state.

        Args:
            state: the state.
            gradient: $G_\rho = (1/d_\rho)\, \partial L/\partial B_\rho$ at its blocks, possibly times a rate.
            rate: the circuit's learning rate.
        """

    @abc.abstractmethod
    def violation(self, state: Float[Array, " state"], change: Float[Array, " state"]) -> Float[Array, ""] | None:
        r"""By how much a change of the state breaks the conservation laws of the factors; None if there are none.

        Args:
            state: the state before the change.
            change: the change.

        Returns:
            The largest change of an entry of $P^\top P - Q Q^\top$ over the parts that move, relative to the largest
            squared entry of the part's factors after the change.
        """


class Collapsed(AbstractCircuit):
    r"""A matrix trained entry by entry: the blocks are the state, and $\dot B = -\eta G$."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of blocks of each part."""
        return tuple(shape.rows * shape.columns for shape in self.shapes)

    def blocks(self, state: Float[Array, " state"]) -> Float[Array, " blocks"]:
        """The state itself."""
        return state

    def moved(self, state: Float[Array, " state"], change: Float[Array, " state"]) -> Float[Array, " blocks"]:
        """The change itself."""
        del state
        return change

    def velocity(
        self, state: Float[Array, " state"], gradient: Float[Array, " blocks"], rate: Any
    ) -> Float[Array, " state"]:
        """Down the gradient."""
        del state
        return -rate * gradient

    def violation(self, state: Float[Array, " state"], change: Float[Array, " state"]) -> None:
        """Nothing to violate."""
        del state, change


class Factorized(AbstractCircuit):
    r"""A product of two matrices on every part: $\dot P = -\eta\, G Q^\top$, $\dot Q = -\eta\, P^\top G$."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of the factors of each part."""
        return tuple(shape.hidden * (shape.rows + shape.columns) for shape in self.shapes)

    def factors(self, state: Float[Array, " state"]) -> list[Factors]:
        """The factors of each part."""
        factors, at = [], 0
        for shape in self.shapes:
            middle = at + shape.rows * shape.hidden
            end = middle + shape.hidden * shape.columns
            p = state[at:middle].reshape(shape.rows, shape.hidden)
            factors.append(Factors(p, state[middle:end].reshape(shape.hidden, shape.columns)))
            at = end
        return factors

    def blocks(self, state: Float[Array, " state"]) -> Float[Array, " blocks"]:
        """The entries of the products."""
        return _flat([p @ q for p, q in self.factors(state)])

    def moved(self, state: Float[Array, " state"], change: Float[Array, " state"]) -> Float[Array, " blocks"]:
        r"""$dP\,Q + (P + dP)\,dQ$."""
        pairs = zip(self.factors(state), self.factors(change), strict=True)
        return _flat([dp @ q + (p + dp) @ dq for (p, q), (dp, dq) in pairs])

    def velocity(
        self, state: Float[Array, " state"], gradient: Float[Array, " blocks"], rate: Any
    ) -> Float[Array, " state"]:
        """Each factor down the gradient that the chain rule gives it."""
        moves, at = [], 0
        for shape, (p, q) in zip(self.shapes, self.factors(state), strict=True):
            g = gradient[at : at + shape.rows * shape.columns].reshape(shape.rows, shape.columns)
            moves += [-rate * (g @ q.T), -rate * (p.T @ g)]
            at += shape.rows * shape.columns
        return _flat(moves)

    def violation(self, state: Float[Array, " state"], change: Float[Array, " state"]) -> Float[Array, ""]:
        """See `AbstractCircuit.violation`."""
        parts = zip(self.shapes, self.factors(state), self.factors(change), strict=True)
        worst = jnp.zeros(())
        for shape, (p, q), (dp, dq) in parts:
            if shape.driven:
                off = dp.T @ p + p.T @ dp + dp.T @ dp - (dq @ q.T + q @ dq.T + dq @ dq.T)
                size = jnp.maximum(jnp.max(jnp.abs(p + dp)), jnp.max(jnp.abs(q + dq)))
                worst = jnp.maximum(worst, jnp.max(jnp.abs(off)) / size**2)
        return worst

    def pack(self, factors: list[Factors]) -> Float[Array, " state"]:
        """The state from the factors of each part."""
        return _flat([array for pair in factors for array in pair])


class Pair(NamedTuple):
    """A pair of circuits; states and block vectors hold those of the query-key circuit first.

    Attributes:
        qk: the query-key circuit.
        ov: the output-value circuit.
        n_qk_blocks: number of query-key blocks.
    """

    qk: AbstractCircuit
    ov: AbstractCircuit
    n_qk_blocks: int

    @property
    def size(self) -> int:
        """Length of the state."""
        return self.qk.size + self.ov.size

    def blocks(self, state: Float[Array, " state"]) -> Float[Array, " blocks"]:
        """The blocks that a state stands for."""
        return self._join(lambda circuit, state: circuit.blocks(state), state)

    def moved(self, state: Float[Array, " state"], change: Float[Array, " state"]) -> Float[Array, " blocks"]:
        """By how much the blocks change with the state."""
        return self._join(lambda circuit, state, change: circuit.moved(state, change), state, change)

    def velocity(
        self,
        state: Float[Array, " state"],
        gradient: Float[Array, " blocks"],
        ratio: Any,
        rate: Any = 1.0,
    ) -> Float[Array, " state"]:
        """The velocity of the state at a learning rate of the output-value circuit, `ratio` times it of the other.

        With the rate 1 it is the derivative by time, with the learning rate it is a step of gradient descent.
        """
        n, m = self.qk.size, self.n_qk_blocks
        qk = self.qk.velocity(state[:n], gradient[:m], rate * ratio)
        return jnp.concatenate([qk, self.ov.velocity(state[n:], gradient[m:], rate)])

    def violation(self, state: Float[Array, " state"], change: Float[Array, " state"]) -> Float[Array, ""] | None:
        """The larger violation of the two circuits; None if no circuit has factors."""
        n = self.qk.size
        found = [self.qk.violation(state[:n], change[:n]), self.ov.violation(state[n:], change[n:])]
        known = [violation for violation in found if violation is not None]
        return jnp.max(jnp.stack(known)) if known else None

    def _join(self, function: Callable[..., Array], *states: Array) -> Array:
        n = self.qk.size
        qk, ov = function(self.qk, *(s[:n] for s in states)), function(self.ov, *(s[n:] for s in states))
        return jnp.concatenate([qk, ov])


def circuits_of(flow: Flow) -> Pair:
    """The circuits of a flow.

    Args:
        flow: the symbolic flow, which knows the shapes.

    Returns:
        Its circuits in numbers.
    """
    pair: list[AbstractCircuit] = []
    for letter, (matrix, circuit, _) in zip(flow.parameterization[::2], flow.sides, strict=True):
        shapes = tuple(Shape(p.name, *p.shape, circuit.width(p), flow.driven(p)) for p in matrix.parts)
        pair.append(globals()[symbolic.KINDS[letter].numeric](shapes))
    qk, ov = pair
    return Pair(qk, ov, len(flow.reduction.qk.blocks))


def split(singular: Float[ArrayLike, "..."], imbalance: Float[ArrayLike, ""]) -> tuple[Array, Array]:
    r"""Splits singular values (of either sign) into factors $p q$ with $p^2 - q^2 = \lambda$, without cancellation.

    Args:
        singular: $b$.
        imbalance: $\lambda$, of either sign.

    Returns:
        $p$ and $q$; the larger one is not negative.
    """
    b, imbalance = jnp.asarray(singular), jnp.asarray(imbalance)
    positive = imbalance >= 0
    size = jnp.where(positive, imbalance, -imbalance)
    larger = jnp.sqrt(size / 2 + jnp.hypot(size / 2, b))
    smaller = b / jnp.where(larger == 0, 1.0, larger)
    # balanced factors are equal up to the sign to the last bit, so that what decays to zero does not turn around
    off = jnp.where(size == 0, jnp.sign(b) * larger - smaller, 0.0)
    smaller = smaller + jax.lax.stop_gradient(off)
    return jnp.where(positive, larger, smaller), jnp.where(positive, smaller, larger)


def split_matrix(matrix: np.ndarray, hidden: int, imbalance: Float[ArrayLike, ""]) -> Factors:
    r"""Factors of a concrete matrix with $P^\top P - Q Q^\top = \lambda I$, from its singular values.

    Args:
        matrix: the matrix.
        hidden: at most the smaller of its sides.
        imbalance: $\lambda$.

    Returns:
        The factors.
    """
    u, singular, v = np.linalg.svd(matrix, full_matrices=False)
    # the sign of a singular pair is a convention; the larger entry of the row factor is positive
    signs = np.where(u[np.argmax(np.abs(u), axis=0), np.arange(u.shape[1])] < 0, -1.0, 1.0)
    p, q = split(singular[:hidden], imbalance)
    return Factors(jnp.asarray(u * signs)[:, :hidden] * p, q[:, None] * jnp.asarray(v * signs[:, None])[:hidden])


def _flat(arrays: list[Array]) -> Array:
    return jnp.concatenate([array.reshape(-1) for array in arrays])
