r"""The deviation of random factors from the symmetric flow, to first order.

With $Z = (L; R^\top)$ the rows of both factors of $W = L R$, gradient flow closes in the Gram matrix
$\Gamma = Z Z^\top$, which holds $L L^\top$, $W$ and $R^\top R$:

$$ \frac{d\Gamma}{dt} = -\eta (N \Gamma + \Gamma N), \qquad N = \begin{pmatrix} 0 & G \\ G^\top & 0 \end{pmatrix}. $$

Hidden units do not appear in it, so a random start of any width is a symmetric Gram matrix and a perturbation of it.
The perturbation is carried along by the Jacobian-vector product of this flow, every seed its own, and read by isotypic
type at the end: types do not mix.
"""

import functools

import diffrax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.data import Batch
from flowsim.isotypic import isotypic_parts
from flowsim.models import Circuits, FactorizedCircuit, table_gradient
from flowsim.symmetric import Layout, Matrices

_MAX_STEPS = 100_000
Grams = tuple[Array, Array]


def grams(circuits: Circuits) -> Grams:
    """The Gram matrices of both circuits; leading axes stay."""

    def gram(circuit) -> Array:
        assert isinstance(circuit, FactorizedCircuit)
        rows = jnp.concatenate([circuit.left, jnp.swapaxes(circuit.right, -1, -2)], axis=-2)
        return rows @ jnp.swapaxes(rows, -1, -2)

    return gram(circuits.qk), gram(circuits.ov)


def velocity(layout: Layout, pair: Grams, batch: Batch, ratio: Float[Array, ""]) -> Grams:
    """The gradient flow of the Gram matrices."""
    _, gradient = table_gradient(_matrices(layout, pair), batch)

    def one(gram: Array, slope: Array, rate: Float[Array, ""] | float) -> Array:
        n = slope.shape[0]
        half = jnp.concatenate([slope @ gram[n:], slope.T @ gram[:n]])
        return -rate * (half + half.T)

    return one(pair[0], gradient.qk, ratio), one(pair[1], gradient.ov, 1.0)


@functools.partial(jax.jit, static_argnums=0)
def linearized(
    layout: Layout,
    symmetric: Grams,
    random: Grams,
    batch: Batch,
    ratio: Float[Array, ""],
    times: Float[Array, " time"],
) -> dict[str, Float[Array, "seeds time"]]:
    """Norms of the isotypic parts of both matrices, to first order in the asymmetry of the start.

    Args:
        layout: where tokens, queries and outputs stand.
        symmetric: Gram matrices of the symmetrized starts, with a leading axis over the seeds.
        random: those of the starts.
        batch: the population.
        ratio: learning-rate ratio.
        times: gradient-flow times, increasing.

    Returns:
        The Frobenius norm of each type.
    """

    def one(base: Grams, random: Grams) -> dict[str, Array]:
        off = jax.tree.map(jnp.subtract, random, base)

        def field(clock: Array, state: tuple[Grams, Grams], _: None) -> tuple[Grams, Grams]:
            moves = jax.jvp(lambda pair: velocity(layout, pair, batch, ratio), (state[0],), (state[1],))
            return jax.tree.map(lambda move: jnp.exp(clock) * move, moves)

        clocks = jnp.log1p(times)
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),  # pyright: ignore[reportArgumentType]
            diffrax.Tsit5(),
            t0=0.0,
            t1=clocks[-1],
            dt0=1e-3,
            y0=(base, off),
            saveat=diffrax.SaveAt(ts=clocks),
            stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-9),
            max_steps=_MAX_STEPS,
        )
        assert solution.ys is not None

        def norms(pair: Grams) -> dict[str, Array]:
            parts = isotypic_parts(layout, _matrices(layout, pair))
            return {name: jnp.sqrt(sum(jnp.sum(matrix**2) for matrix in part)) for name, part in parts.items()}

        return jax.vmap(norms)(solution.ys[1])

    return jax.vmap(one)(symmetric, random)


def _matrices(layout: Layout, pair: Grams) -> Matrices:
    n, m = layout.tokens, layout.outputs
    return Matrices(pair[0][:n, n:], pair[1][:m, m:])
