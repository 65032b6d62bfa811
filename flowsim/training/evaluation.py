"""What trained matrices do with each sequence, where a trajectory records only means."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.data import Batch
from flowsim.models import AttentionModel, Circuits, log_error_odds
from flowsim.task import Task
from flowsim.training.observe import Plan


class Evaluation(NamedTuple):
    """One number for each sequence, lane axes in front.

    Attributes:
        attention: mass on the distinct tokens, the query not counted.
        probability: of the label.
        correct: whether the label has the largest logit, alone.
    """

    attention: Float[Array, "*lanes rows"]
    probability: Float[Array, "*lanes rows"]
    correct: Bool[Array, "*lanes rows"]


def evaluate(task: Task, circuits: Circuits, sequences: Batch) -> Evaluation:
    """Attention and prediction of orthonormal models with scores of scale 1, for each sequence.

    Args:
        task: what was learnt.
        circuits: trained circuits with the lane axis `seed`, as `train(keep_circuits=True)` leaves them.
        sequences: of each seed, with the same leading axis.

    Returns:
        The numbers of each seed and sequence.
    """
    return _evaluate(Plan.of(task), circuits, sequences)


@functools.partial(jax.jit, static_argnums=0)
def _evaluate(plan: Plan, circuits: Circuits, sequences: Batch) -> Evaluation:
    roles = np.array(plan.structure.roles)
    counted = roles == "distinct"
    if plan.structure.query_group is not None:
        counted[plan.structure.query_group] = False
    relevant = np.any(plan.members[counted, : plan.layout.tokens], axis=0)

    def one(circuits: Circuits, batch: Batch) -> Evaluation:
        model = AttentionModel(circuits.qk, circuits.ov)
        logits = model(batch)
        others = jnp.max(jnp.where(batch.labels, -jnp.inf, logits), axis=1)
        own = jnp.sum(jnp.where(batch.labels, logits, 0), axis=1)
        attention = jnp.exp(model.log_attention(batch).tokens)
        return Evaluation(
            attention @ jnp.asarray(relevant, attention.dtype),
            jax.nn.sigmoid(-log_error_odds(logits, batch)),
            own > others,
        )

    return jax.vmap(one)(circuits, sequences)
