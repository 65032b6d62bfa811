"""What a trajectory records of a model, symmetric or not."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.data import Batch
from flowsim.isotypic import asymmetries
from flowsim.models import AbstractCircuit, AttentionModel, FactorizedCircuit, log_error_odds, log_softplus
from flowsim.solve.finite import Record
from flowsim.symmetric import Averages, Layout, asymmetry, averages_of_matrices
from flowsim.task import Structure, Task
from flowsim.theory.coordinates import coordinates
from flowsim.theory.observables import first_background, first_distinct


class Plan(NamedTuple):
    """What there is to look at; hashable, so that compiled code can depend on it.

    Attributes:
        layout: where tokens, queries and outputs stand.
        structure: roles of all groups, nulls included.
        reference: group whose score the other scores are measured from.
        background: group that the score gap is measured from.
    """

    layout: Layout
    structure: Structure
    reference: int
    background: int

    @staticmethod
    def of(task: Task) -> "Plan":
        """The plan of a task."""
        reference = coordinates(task.structure).reference
        return Plan(Layout.of(task), task.structure, reference, first_background(task.structure, reference))

    @property
    def members(self) -> np.ndarray:
        """Which token (in the layout's order), then which null column, belongs to which group (the first axis)."""
        roles = np.array(self.structure.roles)
        with_tokens = np.flatnonzero(roles != "null")
        owners = np.concatenate([with_tokens[self.layout.owners[0]], np.flatnonzero(roles == "null")])
        return np.arange(roles.size)[:, None] == owners


def group_scores(plan: Plan, averages: Averages) -> Float[Array, " groups"]:
    """Score of each group's tokens at their own class's query; 0 for null groups."""
    tokens = np.array([role != "null" for role in plan.structure.roles])
    return jnp.zeros(tokens.size, dtype=averages.qk.dtype).at[np.flatnonzero(tokens)].set(averages.scores)


def score_gap(plan: Plan, model: AttentionModel) -> Float[Array, ""]:
    """Mean score of the first distinct group minus that of the first background group."""
    scores = group_scores(plan, averages_of_matrices(plan.layout, model.matrices()))
    return scores[first_distinct(plan.structure)] - scores[plan.background]


def observe(plan: Plan, batch: Batch, model: AttentionModel, gap0: Float[Array, ""]) -> Record:
    """What a trajectory records of a model.

    Args:
        plan: what to look at.
        batch: the sequences over which attention, error and loss are averaged.
        model: the model.
        gap0: its score gap at the start.

    Returns:
        The observables.
    """
    matrices = model.matrices()
    averages = averages_of_matrices(plan.layout, matrices)
    scores = group_scores(plan, averages)
    margins = averages.margins(plan.layout.distinct)
    first = first_distinct(plan.structure)
    gap = scores[first] - scores[plan.background]

    attention = jnp.concatenate(model.log_attention(batch), axis=1)
    belongs = jnp.asarray(plan.members)[:, None, :]
    log_weights = jnp.log(batch.weights)
    log_attentions = jax.nn.logsumexp(jnp.where(belongs, attention + log_weights[:, None], -jnp.inf), axis=(1, 2))
    others = jnp.where(jnp.arange(log_attentions.size) == first, -jnp.inf, log_attentions)
    log_error, log_loss = log_error_and_loss(model, batch)
    return Record(
        margin=margins[0],
        score_gap=gap,
        score_gap_change=gap - gap0,
        log_odds=log_attentions[first] - jax.nn.logsumexp(others),
        log_error=log_error,
        log_loss=log_loss,
        margins=margins,
        scores=scores - scores[plan.reference],
        log_attentions=log_attentions,
        extra={
            "size": jnp.sqrt(sum(jnp.sum(matrix**2) for matrix in matrices)),
            "asymmetry": asymmetry(plan.layout, matrices),
            **{f"asymmetry_{name}": part for name, part in asymmetries(plan.layout, matrices).items()},
        },
    )


def log_error_and_loss(model: AttentionModel, batch: Batch) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Log of the mean error and of the mean cross-entropy, finite however small they are."""
    odds = log_error_odds(model(batch), batch)
    logs = jnp.stack([-jax.nn.softplus(-odds), log_softplus(odds)])
    log_error, log_loss = jax.nn.logsumexp(jnp.log(batch.weights) + logs, axis=1)
    return log_error, log_loss


def drift(circuit: AbstractCircuit, imbalance0: Float[Array, "hidden hidden"]) -> Float[Array, ""]:
    r"""How far steps have moved what the flow conserves, relative to the squared size of the factors.

    $\| W_O^\top W_O - W_V W_V^\top - (\ldots)_0 \| / (\|W_O\|^2 + \|W_V\|^2)$ in Frobenius norms, and likewise for the
    query-key circuit.
    """
    assert isinstance(circuit, FactorizedCircuit)
    size = jnp.sum(circuit.left**2) + jnp.sum(circuit.right**2)
    return jnp.linalg.norm(circuit.imbalance() - imbalance0) / size
