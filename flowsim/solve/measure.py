r"""What is integrated and what counts: the motion of a flow, and the observed coordinates that its tolerance refers to.

A flow of collapsed circuits is integrated in the coordinates that are observed. Factors are observed through their
products $B = P Q$, and besides what their error does to the observed coordinates it counts relative to their size,
because an error of growing factors grows with them. Conservation of $P^\top P - Q Q^\top$ is a check that no
integrator knows of: its violation, relative to the squared size of the factors, counts as an error too.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.codegen import CompiledField, Parameters
from flowsim.solve.runge_kutta import State


class Factored(NamedTuple):
    """Where the factors of one part stand in the motion.

    Attributes:
        p: positions of the columns of $P$, one tuple for each hidden unit.
        q: positions of the rows of $Q$, likewise.
    """

    p: tuple[tuple[int, ...], ...]
    q: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Measure:
    """How changes and errors of the motion count; arrays have any (equal) shape, one for each coordinate.

    Attributes:
        gaps: how many observed coordinates, the first ones, are score gaps.
        displaced: base and change of the motion -> change of the observed coordinates, without cancellation.
        parts: factorized parts; if there are none, the motion is what is observed.
        straight: whether the output-value circuit is integrated in its logits.
    """

    gaps: int
    displaced: Callable[[State, State], State]
    parts: tuple[Factored, ...]
    straight: bool

    def position(self, y: State) -> State:
        """The observed coordinates of a motion."""
        return self.displaced(tuple(map(jnp.zeros_like, y)), y)

    def tangent(self, y: State, velocity: State) -> State:
        """The velocity of the observed coordinates."""
        if not self.parts:
            return velocity
        zero = tuple(map(jnp.zeros_like, y))
        return jax.jvp(functools.partial(self.displaced, y), (zero,), (velocity,))[1]

    def pace(self, y: State, velocity: State) -> State:
        """Velocities by which a clock is set: of what is observed, and of factors relative to their size."""
        if not self.parts:
            return velocity
        factors = []
        for part in self.parts:
            size = _size(part, y)
            factors += [velocity[i] / size for i in _all(part)]
        return (*self.tangent(y, velocity), *factors)

    def relative(self, y: State, error: State) -> tuple[Array, ...]:
        """The error of each factorized part relative to its size."""
        return tuple(_size(part, error) / _size(part, y) for part in self.parts)

    def broken(self, y: State, change: State) -> tuple[Array, ...]:
        r"""The change of $P^\top P - Q Q^\top$, relative to the squared size of the part after the change."""
        worst = []
        for part in self.parts:
            off = [_gram(part.p, y, change, i, j) - _gram(part.q, y, change, i, j) for i, j in _pairs(len(part.p))]
            size = _size(part, tuple(a + b for a, b in zip(y, change, strict=True)))
            worst.append(functools.reduce(jnp.maximum, map(jnp.abs, off)) / size**2)
        return tuple(worst)


def measure_of(field: CompiledField, parameters: Parameters) -> Measure:
    """How the motion of a flow counts.

    Args:
        field: the compiled field.
        parameters: the task's numbers; what is observed of a motion does not depend on the ratio, so lanes share it.

    Returns:
        The measure.
    """
    flow = field.flow
    gaps = sum(kind == "score" for kind, _ in flow.coordinates.keys)
    position = {symbol: i for i, symbol in enumerate(flow.velocity)}
    parts = []
    for part, side in flow.factorized_parts:
        where = [position[symbol] for symbol in side.circuit.state(part)]
        (rows, columns), hidden = part.shape, side.circuit.width(part)
        p, q = where[: rows * hidden], where[rows * hidden :]
        parts.append(
            Factored(
                tuple(tuple(p[h::hidden]) for h in range(hidden)),
                tuple(tuple(q[h * columns : (h + 1) * columns]) for h in range(hidden)),
            )
        )
    return Measure(gaps, functools.partial(_displaced, field, parameters), tuple(parts), flow.sides[1].circuit.closes)


def largest(values: tuple[Array, ...] | list[Array], like: Array) -> Float[Array, "..."]:
    """The largest of some arrays, 0 if there are none."""
    return functools.reduce(jnp.maximum, values, jnp.zeros_like(like))


def _displaced(field: CompiledField, parameters: Parameters, base: State, change: State) -> State:
    return field.displacement(base, change, parameters)


def _all(part: Factored) -> list[int]:
    return [i for vectors in part for vector in vectors for i in vector]


def _pairs(n: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(n) for j in range(i, n)]


def _size(part: Factored, y: State) -> Array:
    return functools.reduce(jnp.maximum, [jnp.abs(y[i]) for i in _all(part)])


def _gram(vectors: tuple[tuple[int, ...], ...], y: State, change: State, i: int, j: int) -> Array:
    """The change of the inner product of two columns of P, or of two rows of Q."""
    terms = [y[a] * change[b] + (y[b] + change[b]) * change[a] for a, b in zip(vectors[i], vectors[j], strict=True)]
    return functools.reduce(jnp.add, terms)
