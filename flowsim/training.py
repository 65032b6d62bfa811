"""Training of the full matrices by gradient descent, many runs at once."""

import functools
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flowsim import _checks, _jax, data
from flowsim.errors import InvalidInput
from flowsim.models import AbstractCircuit, AttentionModel, CollapsedCircuit, log_error_odds, log_softplus, loss
from flowsim.solve.finite import Lanes, Record, collapsed_only
from flowsim.solve.initial import start_blocks, start_settings
from flowsim.solve.stepping import Run, begin, run_steps
from flowsim.start import Start
from flowsim.symmetric import Averages, Layout, asymmetry, averages_of_blocks, averages_of_matrices, symmetric_matrices
from flowsim.task import Structure, Task
from flowsim.theory import derive
from flowsim.theory.coordinates import coordinates
from flowsim.theory.observables import first_background, first_distinct
from flowsim.trajectory import Trajectory

DTYPES = ("float64", "float32")


def train(
    task: Task,
    parameterization: str = "CACO",
    *,
    ratio,
    lr,
    steps: int,
    seeds: Any = None,
    points: int = 200,
    population: str = "mean-counts",
    margin0: Any = 0.0,
    score_gap0: Any = 0.0,
    start: Start | None = None,
    dtype: Any = "float64",
) -> Trajectory:
    r"""Trains the full matrices $W_{QK}$, $W_{OV}$ by full-batch gradient descent from a symmetric start.

    Every ratio is trained with every learning rate, all runs side by side in one compiled loop. The gradient is the
    automatic derivative of the mean cross-entropy over the whole population; the reduced equations have no part in it.

    Args:
        task: what is learnt.
        parameterization: `"CACO"`.
        ratio: $\eta_{QK}/\eta_{OV}$, 0 or more; a number or a list.
        lr: learning rate of the output-value circuit per step, above 0; a number or a list. The query-key circuit has
            `ratio * lr`.
        steps: number of steps; gradient-flow time is `lr` times the step number.
        seeds: only None: from a symmetric start on the whole population nothing is random.
        points: number of steps to record, logarithmically spaced from step 1 to the last.
        population: `"mean-counts"`: each token of a group stands in every sequence count/types times.
        margin0: margin at the start, on the line that the collapsed flow takes.
        score_gap0: score gap at the start, likewise.
        start: blocks of the symmetric start, instead of the two arguments before.
        dtype: `"float64"` or `"float32"`, the precision of the matrices and of the arithmetic.

    Returns:
        A trajectory with lane axes (ratio, lr) as far as they were lists. `log_odds`, `log_error`, `log_loss` and
        `log_attentions` are those of the matrices on the population; margins and scores are averages over the orbits of
        the symmetry; `extra["asymmetry"]` is the relative Frobenius distance from the symmetric matrices. A run that
        diverged has status `Status.DIVERGED`, its records are NaN from the divergence on, and `n_steps` is the number
        of steps before the one that diverged.

    Raises:
        InvalidInput: naming the argument, its value and the fix.
    """
    collapsed_only(parameterization, "train")
    flow = derive(task, parameterization)
    lanes = Lanes.of(ratio, lr, steps, points)
    if seeds is not None:
        raise InvalidInput(
            f"seeds={seeds!r} was given, but a full batch from a symmetric start has nothing random; leave seeds out."
        )
    precision = _precision(dtype)
    _check_memory(task, lanes)
    batch = data.population(task, population, precision)
    blocks = start_blocks(task, flow, margin0, score_gap0, start)
    plan = Plan.of(task)
    run = _train(plan, batch, blocks, *lanes.rates, lanes.gaps)
    settings = {"population": population, "dtype": precision.name, **start_settings(margin0, score_gap0, start)}
    return lanes.trajectory(run, task, parameterization, "training", settings)


class Plan(NamedTuple):
    """What the compiled training depends on: a change here recompiles.

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


def symmetric_model(
    layout: Layout, blocks: Float[Array, " blocks"], dtype: jax.typing.DTypeLike = np.float64
) -> AttentionModel:
    """The collapsed model whose matrices have the given blocks."""
    qk, ov = symmetric_matrices(layout, averages_of_blocks(layout, blocks))
    return AttentionModel(CollapsedCircuit(qk.astype(dtype)), CollapsedCircuit(ov.astype(dtype)))


@functools.partial(jax.jit, static_argnums=0)
def _train(
    plan: Plan,
    batch: data.Batch,
    blocks: Float[Array, " blocks"],
    ratio: Float[Array, " lanes"],
    lr: Float[Array, " lanes"],
    gaps: Int[Array, " time"],
) -> Run[AttentionModel, Record]:
    model = symmetric_model(plan.layout, blocks, batch.weights.dtype)
    return jax.vmap(lambda ratio, lr: train_model(plan, batch, model, ratio, lr, gaps))(ratio, lr)


def _check_memory(task: Task, lanes: Lanes) -> None:
    """Refuses, before anything is allocated, a training that this machine's memory cannot hold."""
    layout = Layout.of(task)
    rows = len(task.compositions) * task.classes
    queries = 1 if layout.shared_query else task.classes
    matrices = layout.tokens * (queries + layout.outputs)
    activations = rows * (layout.tokens + layout.outputs)
    # Of each run: state, gradient, new state and projections of the matrices, and what the gradient keeps of the batch.
    runs = lanes.ratio.size * lanes.lr.size
    needed = 8 * runs * (5 * matrices + 6 * activations) / 2**30
    present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    if needed > present:
        raise InvalidInput(
            f"classes={task.classes} makes {layout.tokens} tokens, and training (runs: {runs}) would take about "
            f"{needed:.3g} GiB of the machine's {present:.3g}; use fewer runs, classes or types, or flowsim.descend, "
            "which trains the symmetric blocks."
        )


def train_model(
    plan: Plan,
    batch: data.Batch,
    model: AttentionModel,
    ratio: Float[Array, ""],
    lr: Float[Array, ""],
    gaps: Int[Array, " time"],
) -> Run[AttentionModel, Record]:
    r"""Gradient descent on a batch from any model, symmetric or not.

    Args:
        plan: what to look at.
        batch: the sequences of every step.
        model: the start.
        ratio: $\eta_{QK}/\eta_{OV}$.
        lr: learning rate of the output-value circuit.
        gaps: steps to each record from the previous one.

    Returns:
        One run.
    """
    dtype = batch.weights.dtype
    rate_qk, rate_ov = (ratio * lr).astype(dtype), lr.astype(dtype)

    def advance(model: AttentionModel) -> tuple[AttentionModel, Float[Array, ""]]:
        value, slope = jax.value_and_grad(loss)(model, batch)
        return AttentionModel(_down(model.qk, slope.qk, rate_qk), _down(model.ov, slope.ov, rate_ov)), value

    scores0 = group_scores(plan, averages_of_matrices(plan.layout, model.matrices()))
    gap0 = scores0[first_distinct(plan.structure)] - scores0[plan.background]

    def look(model: AttentionModel) -> tuple[Record, Float[Array, ""]]:
        record = observe(plan, batch, model, gap0)
        return record, jnp.exp(record.log_loss)

    return run_steps(advance, look, begin(model, plan.layout.outputs, dtype), gaps)


def group_scores(plan: Plan, averages: Averages) -> Float[Array, " groups"]:
    """Score of each group's tokens at their own class's query; 0 for null groups."""
    tokens = np.array([role != "null" for role in plan.structure.roles])
    return jnp.zeros(tokens.size, dtype=averages.qk.dtype).at[np.flatnonzero(tokens)].set(averages.scores)


def observe(plan: Plan, batch: data.Batch, model: AttentionModel, gap0: Float[Array, ""]) -> Record:
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

    log_weights = jnp.log(batch.weights)
    attention = jnp.concatenate(model.log_attention(batch), axis=1)
    belongs = jnp.asarray(plan.members)[:, None, :]
    log_attentions = jax.nn.logsumexp(jnp.where(belongs, attention + log_weights[:, None], -jnp.inf), axis=(1, 2))
    others = jnp.where(jnp.arange(log_attentions.size) == first, -jnp.inf, log_attentions)

    odds = log_error_odds(model(batch), batch)
    logs = jnp.stack([-jax.nn.softplus(-odds), log_softplus(odds)])
    log_error, log_loss = jax.nn.logsumexp(log_weights + logs, axis=1)
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
        extra={"asymmetry": asymmetry(plan.layout, matrices)},
    )


def _down(circuit: AbstractCircuit, slope: AbstractCircuit, rate: Float[Array, ""]) -> AbstractCircuit:
    """One step of a circuit against its gradient."""
    return jax.tree.map(lambda parameter, derivative: parameter - rate * derivative, circuit, slope)


def _precision(dtype) -> np.dtype:
    try:
        precision = np.dtype(dtype)
    except TypeError as error:
        raise InvalidInput(f"dtype={dtype!r} must be one of {', '.join(DTYPES)}.") from error
    _checks.one_of("dtype", precision.name, DTYPES)
    if precision.name == "float64":
        _jax.require_x64()
    return precision
