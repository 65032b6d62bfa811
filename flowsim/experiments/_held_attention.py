r"""Training of the output-value circuit while attention is held: multi-class classification (paper, section 5).

With attention $\alpha$ spread evenly over the distinct tokens of the class and $1 - \alpha$ over the common ones, every
sequence of class $k$ has the same effective input $\tilde x_k$, and the logits are $W_{OV} \tilde x_k$. The whole
population is then $K$ examples, one for each class.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.models import AbstractCircuit
from flowsim.solve.stepping import begin, run_steps
from flowsim.symmetric import Layout


class Lanes(NamedTuple):
    r"""The runs, each array with a leading axis over them.

    Attributes:
        attention: $\alpha$ from 0 to 1.
        lr: learning rate per step.
        circuit: the output-value circuit at step 0.
    """

    attention: Float[Array, " lanes"]
    lr: Float[Array, " lanes"]
    circuit: AbstractCircuit


def effective_inputs(layout: Layout, attention: Float[Array, ""]) -> Float[Array, "classes tokens"]:
    r"""$\tilde x_k$ of every class, for a layout with one distinct and one common group.

    Args:
        layout: where the tokens stand.
        attention: $\alpha$.
    """
    _, owner = layout.owners
    own = owner == np.arange(layout.classes)[:, None]
    common = owner < 0
    return attention * (own / own.sum(1, keepdims=True)) + (1 - attention) * (common / common.sum())


def held_loss(circuit: AbstractCircuit, inputs: Float[Array, "classes tokens"]) -> Float[Array, ""]:
    """The cross-entropy of the population; row $k$ has the label $k$.

    Args:
        circuit: the output-value circuit.
        inputs: the effective inputs.
    """
    logits = inputs @ circuit.matrix().T
    own = jnp.diagonal(logits)[:, None]
    label = jnp.eye(*logits.shape, dtype=bool)
    return jnp.mean(jax.nn.softplus(jax.nn.logsumexp(jnp.where(label, -jnp.inf, logits - own), axis=1)))


def train_held(
    layout: Layout, lanes: Lanes, gaps: Int[np.ndarray, " records"]
) -> tuple[Float[np.ndarray, "lanes records"], Int[np.ndarray, " lanes"]]:
    """Full-batch gradient descent of all runs, side by side in one compiled loop.

    Args:
        layout: where tokens and outputs stand.
        lanes: the runs.
        gaps: number of steps to each record from the previous one.

    Returns:
        The losses at the records, and the `flowsim.Status` of each run.
    """
    losses, status = _train(layout, lanes, jnp.asarray(gaps))
    return np.asarray(losses), np.asarray(status)


def _run(layout: Layout, lane: Lanes, gaps: Int[Array, " records"]):
    inputs = effective_inputs(layout, lane.attention)

    def advance(circuit: AbstractCircuit) -> tuple[AbstractCircuit, Array]:
        value, slope = jax.value_and_grad(held_loss)(circuit, inputs)
        return jax.tree.map(lambda weight, g: weight - lane.lr * g, circuit, slope), value

    def look(circuit: AbstractCircuit) -> tuple[Array, Array]:
        value = held_loss(circuit, inputs)
        return value, value

    run = run_steps(advance, look, begin(lane.circuit, layout.outputs), gaps)
    return run.records, run.status


@functools.partial(jax.jit, static_argnums=0)
def _train(layout: Layout, lanes: Lanes, gaps: Int[Array, " records"]):
    with jax.default_matmul_precision("highest"):
        return jax.vmap(lambda lane: _run(layout, lane, gaps))(lanes)
