r"""The symmetric start that is nearest to a random one: the one whose flow the symmetric reduction predicts.

Collapsed matrices are averaged over the orbits. Of factors $W = L R$ the averages of $L L^\top$, $W$ and $R^\top R$ are
taken together: with $G$ the gradient by $W$,

$$ \frac{dW}{dt} = -\eta (L L^\top G + G R^\top R), \quad \frac{d\, L L^\top}{dt} = -\eta (G W^\top + W G^\top), \quad
   \frac{d\, R^\top R}{dt} = -\eta (G^\top W + W^\top G), $$

which is linear in the three and keeps averages as long as $G$ is symmetric. The averages are positive semidefinite
together and so have symmetric factors, of a hidden width of their own; the averaged $W$ alone would forget how large
the factors are, and with that how fast they move.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.circuits import Factors
from flowsim.models import AbstractCircuit, Circuits, CollapsedCircuit, FactorizedCircuit
from flowsim.symmetric import Layout, Matrices, averages_of_matrices, symmetric_matrices
from flowsim.task import Task
from flowsim.training import symmetric_factors, train


class Runs(NamedTuple):
    """What is kept of many runs.

    Attributes:
        time: gradient-flow times.
        attention: on the distinct tokens.
        margin: averaged over the classes and tokens.
        extra: further records of `flowsim.train`, asymmetries for instance.
    """

    time: Float[np.ndarray, " time"]
    attention: Float[np.ndarray, "runs time"]
    margin: Float[np.ndarray, "runs time"]
    extra: dict[str, Float[np.ndarray, "runs time"]]


def train_each(task: Task, parameterization: str, circuits: Circuits, lanes: int, **settings: Any) -> Runs:
    """Trains from each of many starts, a fixed number at a time, so that one compiled function serves them all.

    Args:
        task: what is learnt.
        parameterization: four letters.
        circuits: the starts, every array with a leading axis over them.
        lanes: how many at a time.
        settings: of `flowsim.train`: ratio, lr, steps, points.

    Returns:
        The runs in the order of their starts.
    """
    n = jax.tree.leaves(circuits)[0].shape[0]
    pieces = []
    for first in range(0, n, lanes):
        numbers = np.minimum(np.arange(first, first + lanes), n - 1)  # the last one again where fewer are left
        part = jax.tree.map(lambda array: array[numbers], circuits)  # noqa: B023
        run = train(
            task, parameterization, start=_as_start(part), seeds=lanes, progress=False, **_widths(part), **settings
        )
        kept = {"attention": run.attention, "margin": run.margin, **run.extra}
        pieces.append({name: np.asarray(array)[: n - first] for name, array in kept.items()})
    whole = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return Runs(np.exp(np.asarray(run.log_time)), whole.pop("attention"), whole.pop("margin"), whole)  # pyright: ignore[reportPossiblyUnboundVariable]


@functools.partial(jax.jit, static_argnums=0)
def symmetrized(layout: Layout, circuits: Circuits) -> Circuits:
    """Symmetric parameters with the averages of the given ones.

    Args:
        layout: with a query per class.
        circuits: every array with a leading axis over the seeds.

    Returns:
        The same with a leading axis; factors have their own hidden width, or what their symmetry takes if that is more.
    """
    return jax.vmap(lambda one: _one(layout, one))(circuits)


def _as_start(circuits: Circuits) -> dict[str, Array | tuple[Array, Array]]:
    """The arrays as `flowsim.train` takes them for its start."""

    def arrays(circuit: AbstractCircuit, turned: bool) -> Array | tuple[Array, Array]:
        if isinstance(circuit, CollapsedCircuit):
            return circuit.weight
        assert isinstance(circuit, FactorizedCircuit)
        return circuit.left, jnp.swapaxes(circuit.right, -1, -2) if turned else circuit.right

    return {"qk": arrays(circuits.qk, True), "ov": arrays(circuits.ov, False)}


def _widths(circuits: Circuits) -> dict[str, int]:
    """The hidden widths as `flowsim.train` takes them."""
    pairs = zip(("hidden_qk", "hidden_ov"), circuits, strict=True)
    return {name: circuit.left.shape[-1] for name, circuit in pairs if isinstance(circuit, FactorizedCircuit)}


def _one(layout: Layout, circuits: Circuits) -> Circuits:
    matrices = Matrices(circuits.qk.matrix(), circuits.ov.matrix())
    averaged = symmetric_matrices(layout, averages_of_matrices(layout, matrices))
    found: list[AbstractCircuit] = []
    for name, circuit, matrix in zip(("qk", "ov"), circuits, averaged, strict=True):
        if isinstance(circuit, FactorizedCircuit):
            parts = _averaged(layout, name, circuit)
            hidden = max(circuit.left.shape[1], symmetric_factors.hidden_needed(layout, parts))
            found.append(FactorizedCircuit(*symmetric_factors.full_factors(layout, name, parts, hidden)))
        else:
            found.append(CollapsedCircuit(matrix))
    return Circuits(*found)


def _averaged(layout: Layout, name: str, circuit: FactorizedCircuit) -> symmetric_factors.Parts:
    k = layout.classes
    tokens, first = [], 0
    for role, types in zip(layout.roles, layout.types, strict=True):
        carries = role == "distinct"
        size = types * k if carries else types
        tokens.append((slice(first, first + size), carries, types))
        first += size
    queries = [(slice(0, k), True, 1)]
    outputs = [(slice(0, k), True, 1)]
    if layout.other_outputs:
        outputs.append((slice(k, layout.outputs), False, layout.other_outputs))
    rows, columns = (tokens, queries) if name == "qk" else (outputs, tokens)
    standard, trivial, cut = [], [], []
    for side, factor in ((rows, circuit.left), (columns, circuit.right.T)):
        for members, carries, types in side:
            block = factor[members]
            trivial.append(block.sum(axis=0) / np.sqrt(block.shape[0]))
            if carries:
                each = block.reshape(k, types, -1).sum(axis=1) / np.sqrt(types)
                standard.append((each - each.mean(axis=0)).ravel() / np.sqrt(k - 1))
        cut.append((len(standard), len(trivial)))
    n_standard, n_trivial = cut[0]
    return symmetric_factors.Parts(_factors(jnp.stack(standard), n_standard), _factors(jnp.stack(trivial), n_trivial))


def _factors(copies: Float[Array, "copies hidden"], rows: int) -> Factors:
    """Small factors with the scalar products of the given vectors, of which the first ones are rows."""
    small = jnp.linalg.qr(copies.T, mode="r").T
    return Factors(small[:rows], small[rows:].T)
