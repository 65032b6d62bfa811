r"""`exact` and `time_to`: the closed form of the two-clock task (paper, section 6).

Time enters through a quadrature (`time_map`); everything else is explicit in the margin (`orbit`).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import (
    _jax,
    _validate,
)
from flowsim.errors import InvalidInput
from flowsim.score_scale import ScoreScale
from flowsim.solve.clocks import orbit_per_ratio, with_ratios
from flowsim.solve.closed_form import closed_form_parameters
from flowsim.solve.lanes import asked_for, at_least_a_few, map_lanes, on_cores
from flowsim.solve.line_start import LineStart, line_start
from flowsim.solve.orbit import Orbit
from flowsim.solve.progress import Observed, observe
from flowsim.task import Task
from flowsim.trajectory import OBSERVABLES, Trajectory

__all__ = ["closed_form_parameters", "exact", "time_to"]

# Lanes that are solved in lockstep: few enough for the cache, similar enough to need the same number of panels.
_BLOCK = 64


def exact(
    task: Task,
    parameterization: str | Sequence[str] = "CACO",
    *,
    ratio: Any,
    times: Any = None,
    log_times: Any = None,
    margins: Any = None,
    losses: Any = None,
    log_losses: Any = None,
    margin0: Any = None,
    score_gap0: Any = None,
    imbalance_ov: Any = None,
    imbalance_qk: Any = None,
    score_scale: float | str = 1.0,
) -> Trajectory:
    r"""The closed form of the gradient flow, for one ratio or many, indexed by time or by progress.

    Accurate to $10^{-11}$: relative for the change of the score gap, relative or absolute (whichever is larger) for
    margin and log odds, up to what 4 ulp of the log time make; lanes where those make more say so in their status.
    Works under `jit`, `vmap`, `grad` and `jvp` with respect to ratio, start and grid; second derivatives are right too,
    except those by the start of a factorized query-key circuit (`score_gap0`, `imbalance_qk`), which are refused; of
    more than 64 traced ratios JAX takes them forward over reverse (`jax.hessian`), not reverse over reverse. Lanes run
    on all cores.

    Args:
        task: a task with one distinct and one background group, a single composition, the label head, and a query that
            is not attended.
        parameterization: `"CACO"`, `"FACO"`, `"CAFO"` or `"FAFO"`, or a list of them.
        ratio: $\eta_{QK}/\eta_{OV}$, 0 or more; a number or a list.
        times: gradient-flow times, 0 or more, strictly increasing; or
        log_times: their natural logarithms (`-inf` is time 0); or
        margins: margins $w$, `margin0` or more, strictly increasing; or
        losses: losses, at most that of the start, strictly decreasing; or
        log_losses: their natural logarithms, strictly decreasing.
        margin0: margin at the start; by default 0, or 0.01 for a factorized output-value circuit. A negative one
            (collapsed query-key circuits only) makes the margin jump at some time, within one ulp of it if the ratio is
            large: lanes with a requested time there are marked ill-conditioned.
        score_gap0: score gap at the start; by default 0, or 0.01 for a factorized query-key circuit.
        imbalance_ov: $\lambda$ of a factorized output-value circuit, of either sign; 0 by default.
        imbalance_qk: $\lambda$ of a factorized query-key circuit, of either sign; 0 by default.
        score_scale: factor $s$ of the scores, above 0, or `"1/sqrt(d)"`; score gaps are those of the scores, imbalances
            those of the matrices.

    Returns:
        A trajectory with the lane axes `parameterization` and `ratio` (dropped for a scalar).

    Raises:
        NoClosedForm: naming the condition that the task breaks.
        InvalidInput: naming the argument, its value and the fix.
    """
    _jax.require_x64()
    given = {
        "margin0": margin0, "score_gap0": score_gap0, "imbalance_ov": imbalance_ov, "imbalance_qk": imbalance_qk,
        "score_scale": score_scale,
    }  # fmt: skip
    several = isinstance(parameterization, list | tuple)
    names: list[Any] = list(parameterization) if several else [parameterization]
    if not names:
        raise InvalidInput("parameterization=[] is empty; give at least one name.")
    lanes, scalar = lanes_of("ratio", ratio, minimum=0.0)
    points = {"margins": margins, "losses": losses, "log_losses": log_losses}
    index, grid = grid_of(times=times, log_times=log_times, **points)
    runs = [_run(task, name, given, lanes, index, grid, points) for name in names]
    if several:
        trajectory = _stack(runs, names)
    else:
        (trajectory,) = runs
    return trajectory.squeeze("ratio") if scalar else trajectory


def _run(task: Task, parameterization: str, given: dict[str, Any], lanes, index: str, grid, points) -> Trajectory:
    """The trajectory of one parameterization."""
    numbers, _, settings = numbers_of(task, parameterization, given)
    if _validate.is_traced(lanes, numbers, grid):
        solution = _solve(index, numbers, grid, lanes)
    else:
        solution = _solve_lanes(index, numbers, grid, lanes)
        check_reachable(solution, **points)
    if index == "log_time":
        solution = solution._replace(log_time=jnp.asarray(grid))
    return Trajectory(
        **solution._asdict(),
        n_steps=jnp.zeros_like(solution.status),
        axes=("ratio",),
        coords={"ratio": lanes},
        task=task,
        parameterization=parameterization,
        method="exact",
        settings=settings,
    )


def _stack(runs: list[Trajectory], names: list[str]) -> Trajectory:
    """Several trajectories along the axis `parameterization`; settings become lists."""
    first = runs[0]
    arrays = {name: jnp.stack([getattr(run, name) for run in runs]) for name in (*OBSERVABLES, "status", "n_steps")}
    return dataclasses.replace(
        first,
        **arrays,
        log_time=first.log_time if first.log_time.ndim == 1 else jnp.stack([run.log_time for run in runs]),
        axes=("parameterization", *first.axes),
        coords={"parameterization": np.asarray(names), **first.coords},
        parameterization=",".join(names),
        settings={key: [run.settings[key] for run in runs] for key in first.settings},
    )


def time_to(
    task: Task,
    parameterization: str = "CACO",
    *,
    ratio: Any,
    attention: Any = None,
    margin: Any = None,
    loss: Any = None,
    margin0: Any = None,
    score_gap0: Any = None,
    imbalance_ov: Any = None,
    imbalance_qk: Any = None,
    score_scale: float | str = 1.0,
) -> Array:
    r"""The log of the time at which attention, margin or loss first reaches a value.

    Args:
        task: a task with a closed form.
        parameterization: `"CACO"`, `"FACO"`, `"CAFO"` or `"FAFO"`.
        ratio: $\eta_{QK}/\eta_{OV}$, 0 or more; a number or a list.
        attention: attention $\alpha$ between 0 and 1, a number or a list; or
        margin: margins $w$; or
        loss: losses.
        margin0: margin at the start, as in `exact`.
        score_gap0: score gap at the start.
        imbalance_ov: imbalance of a factorized output-value circuit.
        imbalance_qk: imbalance of a factorized query-key circuit.
        score_scale: factor of the scores.

    Returns:
        $\ln t$, of shape `(ratio, value)`; scalar arguments drop their axis. `-inf` is time 0; under a JAX
        transformation, values that are never reached give NaN.

    Raises:
        NoClosedForm: naming the condition that the task breaks.
        InvalidInput: naming the argument, its value and the fix; also if a value is never reached.
    """
    _jax.require_x64()
    lanes, scalar_ratio = lanes_of("ratio", ratio, minimum=0.0)
    begun = {
        "margin0": margin0, "score_gap0": score_gap0, "imbalance_ov": imbalance_ov, "imbalance_qk": imbalance_qk,
        "score_scale": score_scale,
    }  # fmt: skip
    numbers, start, _ = numbers_of(task, parameterization, begun)
    given = {"attention": attention, "margin": margin, "loss": loss}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        got = " and ".join(f"{name}=" for name in named) or "none of them"
        raise InvalidInput(f"give exactly one of attention=, margin=, loss=; got {got}.")
    (name,) = named
    targets, scalar_target = lanes_of(name, given[name], **({} if name == "margin" else {"above": 0.0}))
    if name == "attention" and not _validate.is_traced(targets) and targets.max() >= 1:
        raise InvalidInput(f"attention={targets.max():.17g} is never reached; give values below 1.")

    points = jnp.log(targets) if name == "loss" else targets
    traced = _validate.is_traced(lanes, numbers, targets)
    log_time = (_solve if traced else _solve_lanes)(_INDEX[name], numbers, points, lanes).log_time
    if not traced and np.isnan(log_time).any():
        i, j = np.argwhere(np.isnan(log_time))[0]
        raise InvalidInput(
            f"{name}={targets[j]:.17g} is never reached with ratio={lanes[i]:g}, margin0={start.margin0:g}, "
            f"score_gap0={start.score_gap0:g}; give a value beyond the start (and a ratio above 0 for attention)."
        )
    log_time = log_time[:, 0] if scalar_target else log_time
    return log_time[0] if scalar_ratio else log_time


class Numbers(NamedTuple):
    """What all lanes of a parameterization share: the orbit at ratio 1, ln C and the score gap at the start."""

    orbit: Orbit
    log_types: Any
    score_gap0: Any


@functools.partial(jax.jit, static_argnums=0)
def _solve(index: str, numbers: Numbers, grid: Float[Array, " times"], ratio: Float[Array, " lanes"]):
    """Observables of all lanes; by time, the log time is the grid and is left out."""

    def solve(ratio):
        points = jnp.broadcast_to(grid, (ratio.shape[0], grid.shape[0]))
        orbit = with_ratios(numbers.orbit, ratio)
        observed = observe(index, orbit, numbers.log_types, numbers.score_gap0, points)
        return observed._replace(log_time=None) if index == "log_time" else observed

    return blockwise(solve, ratio)


def _solve_lanes(index: str, numbers: Numbers, grid, ratios: np.ndarray) -> Observed:
    """The same for concrete lanes: many on all cores, and few points without compiling for just so many."""
    points = at_least_a_few(np.asarray(grid))
    return asked_for(map_lanes(functools.partial(_solve, index, numbers, points), [ratios]), len(grid))


def blockwise(solve: Callable[[Float[Array, " lanes"]], Any], ratio: Float[Array, " lanes"]):
    """Solves blocks of lanes one after the other; all at once where that is what the machine is made for."""
    lanes = ratio.shape[0]
    if lanes <= _BLOCK or not on_cores():
        return solve(ratio)
    blocks = -(-lanes // _BLOCK)
    padded = jnp.concatenate([ratio, jnp.broadcast_to(ratio[-1], (blocks * _BLOCK - lanes,))])
    result = jax.lax.map(solve, padded.reshape(blocks, _BLOCK))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:lanes], result)


def numbers_of(
    task: Task, parameterization: str, given: dict[str, Any]
) -> tuple[Numbers, LineStart, dict[str, float | None]]:
    """What all lanes share, the start, and both with the scale of the scores as settings."""
    found = closed_form_parameters(task, parameterization)
    for name, value in given.items():
        if _validate.is_traced(value) and jnp.ndim(value):
            raise InvalidInput(f"{name} has shape {jnp.shape(value)}; give a single number (jax.vmap takes more).")
    line = dict(given)
    scale = ScoreScale.of(line.pop("score_scale", 1.0), parameterization, task)
    start = line_start(parameterization, **line)
    check_start(parameterization, start)
    orbit = orbit_per_ratio(parameterization, found, start, scale)
    numbers = Numbers(orbit, math.log(found.distinct_types), start.score_gap0)
    return numbers, start, {**start.plain, **scale.plain}


def check_start(parameterization: str, start: LineStart) -> None:
    """Refuses negative margins that the closed form cannot follow."""
    if _validate.is_traced(*start) or start.margin0 >= 0:
        return
    if parameterization[0] == "F":
        raise InvalidInput(
            f"margin0={start.margin0:g} is negative, where the score gap of a factorized query-key circuit "
            f"({parameterization}) has no closed form; give a margin0 of 0 or more, or use flowsim.integrate."
        )
    if parameterization[2] == "F" and start.imbalance_ov == 0:
        raise InvalidInput(
            f"margin0={start.margin0:g} with imbalance_ov=0 decays to 0 and never crosses it, where the closed form "
            f"of {parameterization} ends; give imbalance_ov another value, or use flowsim.integrate."
        )


def lanes_of(name: str, value, **bounds) -> tuple[Any, bool]:
    if not _validate.is_traced(value):
        return _validate.lane_values(name, value, **bounds)
    array = jnp.asarray(value, dtype=float)
    if array.ndim > 1:
        raise InvalidInput(f"{name} has shape {array.shape}; give a number or a one-dimensional list.")
    return jnp.atleast_1d(array), array.ndim == 0


def grid_of(**given) -> tuple[str, Any]:
    """Which way the points are given, and the points."""
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        got = " and ".join(f"{name}=" for name in named) or "none of them"
        raise InvalidInput(f"give exactly one of {', '.join(f'{name}=' for name in given)}; got {got}.")
    (name,) = named
    value = given[name]
    if _validate.is_traced(value):
        points = jnp.atleast_1d(jnp.asarray(value, dtype=float))
        return _INDEX[name], jnp.log(points) if name in ("times", "losses") else points
    if name in ("times", "log_times"):
        return "log_time", _validate.log_time_grid(**{name: value})[0]
    points = _validate.increasing(name, _validate.numeric_array(name, value), decreasing=name != "margins")
    if np.isinf(points).any():
        raise InvalidInput(f"{name} holds an infinite value; give finite ones.")
    if name == "losses" and points[-1] <= 0:
        raise InvalidInput(f"losses[{points.size - 1}]={points[-1]:g} is never reached; give values above 0.")
    return _INDEX[name], np.log(points) if name == "losses" else points


_INDEX = {
    "times": "log_time",
    "log_times": "log_time",
    "margins": "margin",
    "losses": "log_loss",
    "log_losses": "log_loss",
    "attention": "attention",
    "margin": "margin",
    "loss": "log_loss",
}


def check_reachable(solution: Observed, **given) -> None:
    """Refuses points of progress before the start."""
    missing = np.isnan(np.asarray(solution.margin)).any(axis=0)
    for name, values in given.items():
        if values is not None and missing.any():
            bad = float(np.atleast_1d(values)[np.argmax(missing)])
            if name == "margins":
                raise InvalidInput(
                    f"margins holds {bad:.17g}, which lies before the start; give values of margin0 or more."
                )
            raise InvalidInput(f"{name} holds {bad!r}, more than the loss at the start; give smaller values.")
