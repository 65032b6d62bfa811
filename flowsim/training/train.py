"""`flowsim.train`: its arguments, and the trajectory that comes of them."""

import functools
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flowsim import _checks, _jax, _validate
from flowsim.errors import InvalidInput
from flowsim.models import Embedding
from flowsim.schedules import schedule_of
from flowsim.score_scale import ScoreScale
from flowsim.solve.finite import Lanes, Record
from flowsim.solve.stepping import LOOSE, STRICT, Run
from flowsim.start import Start
from flowsim.status import Status
from flowsim.symmetric import Layout
from flowsim.task import Task
from flowsim.training import checkpoint as checkpoints
from flowsim.training.examples import examples_of
from flowsim.training.loop import Journal, lost_to_nan, run_lanes
from flowsim.training.machine import refuse_too_large
from flowsim.training.observe import Plan
from flowsim.training.optimizer import clock
from flowsim.training.optimizer import optimizer as optimizer_of
from flowsim.training.starts import RandomStart, Shapes, circuits_at_start, for_each_seed, stream
from flowsim.training.step import Fixed, Lane, Program, State, whole_run
from flowsim.trajectory import Trajectory
from flowsim.trajectory_file import versions

DTYPES = ("float64", "float32")
ORTHONORMAL = "orthonormal"
CHECKPOINTS = 20
"""Number of checkpoints of a run if nothing else is said."""


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
    examples: int | None = None,
    test: int | None = None,
    batch: int | None = None,
    form: str = "counts",
    margin0: Any = None,
    score_gap0: Any = None,
    imbalance_ov: Any = None,
    imbalance_qk: Any = None,
    start: Start | RandomStart | Mapping[str, Any] | None = None,
    hidden_qk: int | None = None,
    hidden_ov: int | None = None,
    embedding: Any = ORTHONORMAL,
    score_scale: float | str = 1.0,
    optimizer: Any = "sgd",
    lr_schedule: Any = None,
    schedule: Any = None,
    weight_decay_qk: float | None = None,
    weight_decay_ov: float | None = None,
    decay: str = "coupled",
    dtype: Any = "float64",
    keep_circuits: bool = False,
    devices: Any = None,
    progress: bool | None = None,
    checkpoint: str | os.PathLike | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
) -> Trajectory:
    r"""Trains the full matrices $W_{QK}$, $W_{OV}$, or their factors, with finite steps.

    Every ratio is trained with every learning rate and every seed, all runs side by side in one compiled loop, on all
    devices or all cores. The gradient is the derivative of the cross-entropy of the full model; the reduced equations
    have no part in it. Ctrl-C stops after the present stretch of steps and returns what was recorded.

    Args:
        task: what is learnt.
        parameterization: `"CACO"`, `"FACO"`, `"CAFO"` or `"FAFO"`: which circuits are collapsed and which factorized.
        ratio: $\eta_{QK}/\eta_{OV}$, 0 or more; a number or a list.
        lr: learning rate of the output-value circuit per step, above 0; a number or a list. The query-key circuit has
            `ratio * lr`.
        steps: number of steps; gradient-flow time is `lr` times the step number.
        seeds: where something is random: None for seed 0 without an axis, a number of seeds, or a list of seeds.
        points: number of steps to record, logarithmically spaced from step 1 to the last.
        population: `"mean-counts"`: each token of a group stands in every sequence count/types times, and a full batch
            holds every composition and class with its probability. `"sampled-identities"`: sequences are drawn; give
            `examples`, `batch` or both.
        examples: size of the data set, drawn once for each seed; without it every step has fresh sequences.
        test: number of held-out sequences, drawn once for each seed. With `examples` their error and loss are recorded
            in `extra["log_test_error"]` and `extra["log_test_loss"]`; without, the records are taken over them (1024).
        batch: number of sequences of a step, drawn with replacement; None for all of them.
        form: `"counts"`, or `"sequences"` to train token by token (the same up to rounding, and slower).
        margin0: margin at the start, on the line that the collapsed flow takes; by default 0 for a collapsed
            output-value circuit and 0.01 for a factorized one.
        score_gap0: score gap at the start, likewise for the query-key circuit.
        imbalance_ov: $W_O^\top W_O - W_V W_V^\top$ of the symmetric start, as a multiple of the identity.
        imbalance_qk: the same of $W_K$ and $W_Q$.
        start: instead of margin and score gap a `flowsim.Start` with blocks, a `flowsim.RandomStart`, or arrays
            `{"qk": W_QK or (W_K, W_Q), "ov": W_OV or (W_O, W_V)}`, tokens in the order of the groups; all of them with
            a leading axis over the seeds for one start each.
        hidden_qk: hidden units of $W_K$ and $W_Q$; by default the smaller side of $W_{QK}$.
        hidden_ov: hidden units of $W_O$ and $W_V$, likewise.
        embedding: `"orthonormal"`; a dimension, for random unit vectors that all runs share; or an array with a row
            for each token, then (unless the query is attended and so a token) each query. Then $W_{QK}$ is $d \times
            d$ and $W_{OV}$ outputs x $d$.
        score_scale: factor of the scores, above 0, or `"1/sqrt(d)"` with the embedding's dimension (the number of
            tokens, and of queries that are none, for orthonormal ones).
        optimizer: `"sgd"`, `"momentum"` (0.9), `"adam"`, `"adamw"`, or an optax transformation of gradients into
            directions of descent *without* learning rate, `optax.scale_by_lion()` for instance.
        lr_schedule: factor of both learning rates as a function of the step number (from 0); time counts it.
        schedule: how the ratio changes over time, as in `integrate`, for instance `flowsim.schedules.Growing`; a step
            has the factor at its beginning.
        weight_decay_qk: weight decay of the query-key circuit, added to the direction; by default 0 (adamw: 1e-4).
        weight_decay_ov: the same of the output-value circuit.
        decay: `"coupled"`: weights shrink by the circuit's own learning rate times the decay at each step;
            `"independent"`: by `lr` times the decay in both circuits.
        dtype: `"float64"` or `"float32"`, the precision of the matrices and of the arithmetic.
        keep_circuits: whether the trajectory holds the trained parameters in `circuits`, of which
            `circuits.qk.matrix()` and `circuits.ov.matrix()` are $W_{QK}$ (tokens x queries) and $W_{OV}$
            (outputs x tokens) after the last step of every run.
        devices: devices to spread the runs over; None for all of the default kind.
        progress: whether to show progress on standard error; None: if that is a terminal.
        checkpoint: an `.npz` file that holds all that is needed to go on; replaced atomically.
        checkpoint_every: steps between two checkpoints; by default a twentieth of the steps.
        resume: go on from the checkpoint, with the numbers that an uninterrupted run would have.

    Returns:
        A trajectory with lane axes (ratio, lr, seed) as far as they were lists. `log_odds`, `log_error`, `log_loss` and
        `log_attentions` are those of the matrices on the population, the data set, or the held-out sequences; margins
        and scores are averages over the orbits of the symmetry; `extra["asymmetry"]` is the relative Frobenius distance
        from the symmetric matrices, `extra["asymmetry_class"]` and so on the same of its isotypic parts
        (`flowsim.isotypic` names them), and `extra["size"]` the norm of both matrices that these are relative to;
        `extra["drift_ov"]` and `extra["drift_qk"]` of factorized circuits say how far
        $W_O^\top W_O - W_V W_V^\top$ has moved, relative to $\|W_O\|^2 + \|W_V\|^2$. A run that diverged has status
        `Status.DIVERGED`, its records are NaN from the divergence on (and so are its `circuits`), and `n_steps` is the
        number of steps before the one that diverged. After Ctrl-C the time axis ends at the last record, and the status
        is `Status.INTERRUPTED`.

    Raises:
        InvalidInput: naming the argument, its value and the fix.
        FileProblem: if the checkpoint cannot be written or read.
    """
    name = _validate.parameterization(parameterization)
    if not isinstance(task, Task):
        raise InvalidInput(f"task={task!r} must be a flowsim.Task.")
    precision = _precision(dtype)
    keep = _checks.boolean("keep_circuits", keep_circuits)
    path = checkpoints.checked_path(checkpoint, _checks.boolean("resume", resume))
    seed_values, seeds_given = _seeds(seeds)
    lanes = Lanes.of(ratio, lr, steps, points)
    where = jax.local_devices() if devices is None else tuple(devices)
    refuse_too_large(task, where)
    source, sequences, data_settings = examples_of(
        task,
        seed_values,
        precision,
        population=population,
        form=form,
        examples=examples,
        test=test,
        batch=batch,
    )
    many = isinstance(start, RandomStart) or for_each_seed(start)
    if seeds_given and not many and source.weighted and not source.noisy:
        raise InvalidInput(
            f"seeds={seeds!r} was given, but a full batch from a start that is not random has nothing random; leave "
            "seeds out."
        )
    layout = Layout.of(task)
    vectors, d, vector_settings = _embedding(task, layout, embedding, precision)
    scale = ScoreScale.of(score_scale, name, task, d)
    circuits, start_settings = circuits_at_start(
        task,
        name,
        Shapes.of(layout, name, d, hidden_qk, hidden_ov),
        seed_values,
        start=start,
        line={
            "margin0": margin0,
            "score_gap0": score_gap0,
            "imbalance_ov": imbalance_ov,
            "imbalance_qk": imbalance_qk,
        },
        embedded=d is not None,
        score_scale=scale.value,
        dtype=precision,
    )
    chosen, decays, optimizer_settings = optimizer_of(optimizer, lr_schedule, weight_decay_qk, weight_decay_ov, decay)
    ratio_schedule = schedule_of(schedule)
    judge = STRICT if not source.noisy and decays is None else LOOSE
    # the loss on counts tells of every parameter, not of what an optimizer remembers
    judge = judge._replace(entries=form != "counts" or chosen.remembers(circuits))
    program = Program(Plan.of(task), source, chosen, judge)
    fixed = Fixed(
        sequences,
        vectors,
        jnp.asarray(scale.value, precision),
        None if decays is None else (jnp.asarray(decays[0]), jnp.asarray(decays[1])),
        ratio_schedule,
        circuits,
    )
    settings = {
        **data_settings,
        **start_settings,
        "hidden_qk": hidden_qk,
        "hidden_ov": hidden_ov,
        **vector_settings,
        **scale.plain,
        **optimizer_settings,
        "schedule": None if ratio_schedule is None else ratio_schedule.plain,
        "dtype": precision.name,
    }
    lanes = lanes.with_seeds(seed_values if seeds_given else None, clock(lr_schedule, lanes.steps))
    if _validate.is_traced(*lanes.rates):
        run = _traced(program, fixed, lanes)
        after = lost_to_nan(run.progress.state.circuits, run.status == int(Status.DIVERGED)) if keep else None
        return lanes.trajectory(run, task, name, "training", settings, after)
    every = max(1, -(-int(lanes.steps[-1]) // CHECKPOINTS))
    if checkpoint_every is not None:
        every = _validate.whole("checkpoint_every", checkpoint_every, minimum=1)
    journal = None
    if path is not None:
        binding = {
            **settings,
            "task": task.to_dict(),
            "parameterization": name,
            "ratio": np.asarray(lanes.ratio).tolist(),
            "lr": np.asarray(lanes.lr).tolist(),
            "seeds": seed_values.tolist(),
            "record_steps": lanes.steps.tolist(),
            "keep_circuits": keep,
            # the settings say of arrays only that they are some
            "start_arrays": checkpoints.digest(jax.tree.leaves(circuits)) if isinstance(start, Mapping) else None,
            "embedding_arrays": checkpoints.digest(jax.tree.leaves(vectors)) if d is not None else None,
            "versions": versions(),
        }
        journal = Journal(path, every, binding, resume)
    done = run_lanes(
        program,
        fixed,
        _lanes(lanes, seed_values),
        lanes.steps,
        devices=where,
        journal=journal,
        progress=progress,
        keep_circuits=keep,
    )
    return lanes.until(done.points).trajectory(done, task, name, "training", settings, done.circuits)


def _lanes(lanes: Lanes, seeds: np.ndarray) -> Lane:
    ratio, lr = lanes.rates
    numbers = np.tile(np.arange(seeds.size), ratio.size // seeds.size)
    if _validate.is_traced(ratio, lr):
        return Lane(ratio, lr, jnp.asarray(seeds[numbers]), jnp.asarray(numbers))
    return Lane(np.asarray(ratio), np.asarray(lr), seeds[numbers], numbers)  # pyright: ignore[reportArgumentType]


def _traced(program: Program, fixed: Fixed, lanes: Lanes) -> Run[State, Record]:
    """All runs under a transformation of JAX's, which cannot be interrupted, cut or spread."""
    seeds = np.zeros(1, dtype=int) if lanes.seeds is None else lanes.seeds
    run = functools.partial(whole_run, program, fixed, gaps=lanes.gaps)
    return jax.vmap(lambda lane: run(lane))(_lanes(lanes, seeds))


def _seeds(given: Any) -> tuple[np.ndarray, bool]:
    """The seeds as integers, and whether they make an axis."""
    if given is None:
        return np.zeros(1, dtype=int), False
    array = _validate.numeric_array("seeds", given)
    if array.ndim == 0:
        return np.arange(_validate.whole("seeds", given, minimum=1)), True
    if array.ndim > 1 or array.size == 0:
        raise InvalidInput(f"seeds has shape {array.shape}; give a number of seeds or a list of them.")
    whole = [_validate.whole("seeds", value, minimum=0) for value in array.tolist()]
    if len(set(whole)) < len(whole):
        raise InvalidInput(f"seeds={whole} repeats a seed, which would give the same run twice; remove it.")
    return np.array(whole), True


def _embedding(
    task: Task, layout: Layout, given: Any, dtype: np.dtype
) -> tuple[Embedding | None, int | None, dict[str, Any]]:
    """The vectors of tokens and queries, their dimension, and the setting as plain values."""
    if isinstance(given, str):
        _validate.one_of("embedding", given, (ORTHONORMAL,))
        return None, None, {"embedding": given}
    array = _validate.numeric_array("embedding", given)
    rows = layout.tokens + (0 if task.attend_query else layout.queries)
    plain: Any = "array"
    if array.ndim == 0:
        plain = d = _validate.whole("embedding", given, minimum=1)
        normal = jax.random.normal(stream(jnp.asarray(0), "embedding"), (rows, d), dtype)
        table = normal / jnp.linalg.norm(normal, axis=1, keepdims=True)
    else:
        if array.ndim != 2 or array.shape[0] != rows or array.shape[1] == 0:
            raise InvalidInput(
                f"embedding has shape {array.shape}; this task has {layout.tokens} tokens"
                f"{'' if task.attend_query else f' and {layout.queries} queries'}, so give ({rows}, d)."
            )
        if not np.isfinite(array).all():
            raise InvalidInput("embedding holds a value that is not finite; replace it.")
        table = jnp.asarray(array, dtype)
    queries = table[-layout.queries :]  # an attended query is the last group of tokens
    return Embedding(table[: layout.tokens], queries), table.shape[1], {"embedding": plain}


def _precision(dtype: Any) -> np.dtype:
    try:
        precision = np.dtype(dtype)
    except TypeError as error:
        raise InvalidInput(f"dtype={dtype!r} must be one of {', '.join(DTYPES)}.") from error
    _checks.one_of("dtype", precision.name, DTYPES)
    if precision.name == "float64":
        _jax.require_x64()
    return precision
