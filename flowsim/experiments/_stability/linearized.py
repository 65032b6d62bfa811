r"""What small perturbations of each isotypic type become along the symmetric trajectory.

Base and perturbations are integrated together on the clock $\ln(1 + t)$: the base by the full gradient field (the
derivative of the cross-entropy of the full matrices or factors), a perturbation by that field's Jacobian-vector
product. Nothing of the reduction is used, so that it is a result that types do not mix.
"""

import functools
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

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
        leakage: norm of what lies outside of all of them, relative to the whole.
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
    tol: float = 1e-8,
) -> Propagated:
    """Integrates base and perturbations.

    Args:
        start: the symmetric parameters at time 0.
        batch: the population.
        vectors: the perturbations, orthonormal.
        ratios: learning-rate ratios.
        times: gradient-flow times, increasing, 0 or more.
        tol: relative tolerance of a step.

    Returns:
        Base and perturbations at the times.
    """
    flat, unravel = ravel_pytree(start)

    def matrices(parameters: Array) -> Array:
        circuits = unravel(parameters)
        return jnp.concatenate([circuits.qk.matrix().ravel(), circuits.ov.matrix().ravel()])

    def one(ratio: Array) -> Propagated:
        def field(clock: Array, state: tuple[Array, Array], _: None) -> tuple[Array, Array]:
            base, tangents = state
            moves, push = jax.linearize(lambda y: ravel_pytree(velocity(unravel(y), batch, ratio))[0], base)
            return jnp.exp(clock) * moves, jnp.exp(clock) * jax.vmap(push)(tangents)

        clocks = jnp.log1p(times)
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),  # pyright: ignore[reportArgumentType]
            diffrax.Dopri8(),
            t0=0.0,
            t1=clocks[-1],
            dt0=1e-3,
            y0=(flat, vectors),
            saveat=diffrax.SaveAt(ts=clocks),
            stepsize_controller=diffrax.PIDController(rtol=tol, atol=tol * 1e-2),
            max_steps=_MAX_STEPS,
        )
        assert solution.ys is not None
        base, tangents = solution.ys
        coordinates = tangents @ vectors.T
        outside = jnp.linalg.norm(tangents - coordinates @ vectors, axis=-1)
        moved = jax.vmap(lambda y, ts: jax.vmap(lambda t: jax.jvp(matrices, (y,), (t,))[1])(ts))(base, tangents)
        return Propagated(
            jax.vmap(matrices)(base),
            jnp.linalg.norm(base, axis=-1),
            coordinates,
            outside / jnp.linalg.norm(tangents, axis=-1),
            moved,
        )

    return jax.vmap(one)(ratios)


def stacked(kinds: tuple[Kind, ...]) -> tuple[np.ndarray, list[slice]]:
    """All vectors, and which ones belong to which type."""
    ends = np.cumsum([len(kind.vectors) for kind in kinds])
    return np.concatenate([kind.vectors for kind in kinds]), [
        slice(int(end) - len(kind.vectors), int(end)) for kind, end in zip(kinds, ends, strict=True)
    ]


def growth(propagated: Propagated, part: slice) -> Float[np.ndarray, "ratio time"]:
    """Logarithm of the largest factor by which a perturbation of one type has grown: largest singular value."""
    small = np.asarray(propagated.coordinates)[..., part, part]
    return np.log(np.linalg.norm(small, ord=2, axis=(-2, -1)))
