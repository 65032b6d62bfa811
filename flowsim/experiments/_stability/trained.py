"""Small perturbations in finite-step training, against what the linearized flow says of them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from flowsim.experiments._stability.directions import SYMMETRIC, Kind
from flowsim.experiments._stability.linearized import Propagated
from flowsim.experiments._symmetrized import train_each
from flowsim.models import Circuits
from flowsim.task import Task

_VISIBLE = 1e-8
_POINTS = 200


class Check(NamedTuple):
    """Growth of one perturbation of each type, predicted and trained, on a common grid of times.

    Attributes:
        types: which ones: those that move the matrices to first order.
        predicted: ln of the distance from the symmetric matrices, for a perturbation of norm 1.
        trained: the same of training: with the given step and size, half the step, half the size.
    """

    types: tuple[str, ...]
    predicted: Float[np.ndarray, "types time"]
    trained: Float[np.ndarray, "runs types time"]


def check(
    task: Task,
    parameterization: str,
    start: Circuits,
    kinds: tuple[Kind, ...],
    which: list[slice],
    propagated: Propagated,
    times: Float[np.ndarray, " time"],
    compared: slice,
    *,
    ratio: float,
    lr: float,
    epsilon: float,
    lanes: int,
) -> Check:
    """Trains the symmetric start with a perturbation of each type.

    Args:
        task: what is learnt.
        parameterization: four letters.
        start: the symmetric start.
        kinds: the types.
        which: directions of each type.
        propagated: the linearized flow of one ratio (no leading axis).
        times: its times.
        compared: at which of them to compare.
        ratio: the learning-rate ratio.
        lr: the learning rate; half of it is tried as well.
        epsilon: norm of the perturbation in parameter space; half of it is tried as well.
        lanes: how many runs go side by side.

    Returns:
        The growth.
    """
    flat, unravel = ravel_pytree(start)
    grid = times[compared]
    names, chosen, lines = [], [], []
    for kind, part in zip(kinds, which, strict=True):
        moved = np.asarray(propagated.moved)[compared, part]
        if kind.name == SYMMETRIC or np.linalg.norm(moved[-1]) < _VISIBLE:
            continue
        weights = np.linalg.svd(moved[-1].T)[2][0]  # the combination that moves the matrices most
        names.append(kind.name)
        chosen.append(weights @ kind.vectors)
        lines.append(np.log(np.linalg.norm(np.einsum("tdn,d->tn", moved, weights), axis=-1)))
    predicted = np.stack(lines)

    sizes = np.array([epsilon, epsilon / 2])
    perturbed = np.asarray(flat) + (sizes[:, None, None] * np.stack(chosen)).reshape(-1, flat.size)
    circuits = jax.vmap(unravel)(jnp.asarray(perturbed))
    found = []
    for step in (lr, lr / 2):
        steps = round(float(grid[-1]) / step)
        run = train_each(task, parameterization, circuits, lanes, ratio=ratio, lr=step, steps=steps, points=_POINTS)
        parts = [f"asymmetry_{name.partition('_cyclic')[0]}" for name in names] * sizes.size
        distance = np.stack([run.extra[part][i] * run.extra["size"][i] for i, part in enumerate(parts)])
        at = np.stack([np.interp(np.log(grid), np.log(run.time), line) for line in np.log(distance)])
        found.append(at.reshape(sizes.size, len(names), -1) - np.log(sizes)[:, None, None])
    return Check(tuple(names), predicted, np.stack([found[0][0], found[1][0], found[0][1]]))


def slopes(log_time: np.ndarray, lines: np.ndarray, span: int) -> np.ndarray:
    """Slopes over stretches of `span` points of the grid."""
    return (lines[..., span:] - lines[..., :-span]) / (log_time[span:] - log_time[:-span])
