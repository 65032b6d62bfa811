r"""What small perturbations of each isotypic type become along the symmetric trajectory.

Base and perturbations are integrated together on the clock $\ln(1 + t)$: the base by the full gradient field (the
derivative of the cross-entropy of the full matrices or factors), a perturbation by that field's Jacobian-vector
product. Nothing of the reduction is used: how far both lead out of their types is measured all along the way. What
leads out, which is rounding, is then left out, for it would grow like any other perturbation: by more than $10^{15}$
where the ratio is large, and the base would not be symmetric any more.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.data import Batch
from flowsim.experiments._stability.directions import Kind
from flowsim.models import Circuits, loss_and_gradient
from flowsim.solve.line_start import line_start
from flowsim.symmetric import Layout
from flowsim.task import Task
from flowsim.training.starts import Shapes, circuits_at_start

_MAX_STEPS = 100_000


class Propagated(NamedTuple):
    """Base and perturbations over time, with a leading axis over the ratios.

    Attributes:
        matrices: both matrices of the base, flattened, query-key first.
        sizes: norm of the base's parameters.
        coordinates: of what each direction has become, in all directions.
        leakage: how much of its velocity leads out of its type, relative to the fastest of all perturbations (per
            norm); never less than what leads the base out of the symmetric ones.
        moved: by how much each perturbation has moved the matrices, to first order.
    """

    matrices: Float[Array, "ratio time entries"]
    sizes: Float[Array, "ratio time"]
    coordinates: Float[Array, "ratio time directions directions"]
    leakage: Float[Array, "ratio time directions"]
    moved: Float[Array, "ratio time directions entries"]


def symmetric_start(task: Task, parameterization: str, hidden_qk: int | None, hidden_ov: int | None) -> Circuits:
    """The parameters of the symmetric start, `flowsim.train`'s default."""
    line = line_start(parameterization)._asdict()
    shapes = Shapes.of(Layout.of(task), parameterization, None, hidden_qk, hidden_ov)
    circuits, _ = circuits_at_start(
        task, parameterization, shapes, np.zeros(1, dtype=int), start=None, line=line, embedded=False, score_scale=1.0,
        dtype=np.dtype("float64"),
    )  # fmt: skip
    return jax.tree.map(lambda array: array[0], circuits)


def velocity(circuits: Circuits, batch: Batch, ratio: Float[Array, ""]) -> Circuits:
    """The gradient flow of the parameters."""
    _, gradient = loss_and_gradient(circuits, None, jnp.ones(()), batch)
    qk, ov = (
        jax.tree.map(lambda slope, rate=rate: -rate * slope, g) for g, rate in zip(gradient, (ratio, 1.0), strict=True)
    )
    return Circuits(qk, ov)


@functools.partial(jax.jit, static_argnames="tol")
def propagate(
    start: Circuits,
    batch: Batch,
    vectors: Float[Array, "directions parameters"],
    ratios: Float[Array, " ratio"],
    times: Float[Array, " time"],
    types: Int[Array, " directions"],
    tol: float = 1e-8,
) -> Propagated:
    """Integrates base and perturbations.

    Args:
        start: the symmetric parameters at time 0.
        batch: the population.
        vectors: the perturbations, orthonormal.
        ratios: learning-rate ratios.
        times: gradient-flow times, increasing, 0 or more.
        types: number of each perturbation's type; 0 is the symmetric one.
        tol: relative tolerance of a step.

    Returns:
        Base and perturbations at the times.
    """
    flat, unravel = ravel_pytree(start)

    def matrices(parameters: Array) -> Array:
        circuits = unravel(parameters)
        return jnp.concatenate([circuits.qk.matrix().ravel(), circuits.ov.matrix().ravel()])

    alike = types[:, None] == types[None, :]
    symmetric = types == 0

    def full_velocity(base: Array, ratio: Array) -> tuple[Array, Callable[[Array], Array]]:
        return jax.linearize(lambda y: ravel_pytree(velocity(unravel(y), batch, ratio))[0], base)

    def one(ratio: Array) -> Propagated:
        def field(clock: Array, state: tuple[Array, Array], _: None) -> tuple[Array, Array]:
            base, coordinates = state
            moves, push = full_velocity(base @ vectors, ratio)
            pushed = jax.vmap(push)(coordinates @ vectors) @ vectors.T
            return jnp.exp(clock) * jnp.where(symmetric, vectors @ moves, 0.0), jnp.exp(clock) * jnp.where(
                alike, pushed, 0.0
            )

        def leads_out(base: Array, coordinates: Array) -> Array:
            moves, push = full_velocity(base @ vectors, ratio)
            pushed = jax.vmap(push)(coordinates @ vectors)
            sizes = jnp.linalg.norm(coordinates, axis=-1)
            fastest = jnp.max(jnp.linalg.norm(pushed, axis=-1) / sizes)
            outside = jnp.linalg.norm(pushed - jnp.where(alike, pushed @ vectors.T, 0.0) @ vectors, axis=-1)
            asymmetric = moves - jnp.where(symmetric, vectors @ moves, 0.0) @ vectors
            return jnp.maximum(outside / (sizes * fastest), jnp.linalg.norm(asymmetric) / jnp.linalg.norm(moves))

        clocks = jnp.log1p(times)
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),  # pyright: ignore[reportArgumentType]
            diffrax.Dopri8(),
            t0=0.0,
            t1=clocks[-1],
            dt0=1e-3,
            y0=(vectors @ flat, jnp.eye(len(vectors))),
            saveat=diffrax.SaveAt(ts=clocks),
            stepsize_controller=diffrax.PIDController(rtol=tol, atol=tol * 1e-2),
            max_steps=_MAX_STEPS,
        )
        assert solution.ys is not None
        base, coordinates = solution.ys[0] @ vectors, solution.ys[1]
        moved = jax.vmap(lambda y, ts: jax.vmap(lambda t: jax.jvp(matrices, (y,), (t,))[1])(ts))(
            base, coordinates @ vectors
        )
        return Propagated(
            jax.vmap(matrices)(base),
            jnp.linalg.norm(base, axis=-1),
            coordinates,
            jax.vmap(leads_out)(solution.ys[0], coordinates),
            moved,
        )

    return jax.vmap(one)(ratios)


def stacked(kinds: tuple[Kind, ...]) -> tuple[np.ndarray, list[slice]]:
    """All vectors, and which ones belong to which type."""
    ends = np.cumsum([len(kind.vectors) for kind in kinds])
    return np.concatenate([kind.vectors for kind in kinds]), [
        slice(int(end) - len(kind.vectors), int(end)) for kind, end in zip(kinds, ends, strict=True)
    ]


def type_numbers(kinds: tuple[Kind, ...]) -> np.ndarray:
    """The number of the type of each of the stacked vectors."""
    return np.repeat(np.arange(len(kinds)), [len(kind.vectors) for kind in kinds])


def growth(propagated: Propagated, part: slice) -> Float[np.ndarray, "ratio time"]:
    """Logarithm of the largest factor by which a perturbation of one type has grown: largest singular value."""
    small = np.asarray(propagated.coordinates)[..., part, part]
    return np.log(np.linalg.norm(small, ord=2, axis=(-2, -1)))
