"""How far training is from theory, and why: the difference split into parts that are each measured on their own."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from flowsim import _jax, _validate
from flowsim.errors import InvalidInput, NoClosedForm
from flowsim.score_scale import ScoreScale
from flowsim.solve.descent import descend
from flowsim.solve.exact import exact
from flowsim.solve.ode import integrate
from flowsim.start import Start
from flowsim.task import Task
from flowsim.training import train
from flowsim.trajectory import Trajectory

OBSERVABLES = ("margin", "score_gap")
PARTS = ("solver", "step size", "reduction", "sampling")
# A task without closed form is solved again with this fraction of the tolerance.
_TIGHTER = 1e-3


class ErrorBudget(eqx.Module):
    r"""The parts of |training - theory| over time; arrays have shape `(time,)`, by observable.

    Every part is the distance between two runs that differ in one thing only:

    - *solver*: the numerical integration against the closed form (or against a far tighter integration);
    - *step size*: finite steps on the symmetric blocks against the flow;
    - *reduction*: finite steps on the full matrices against those on the blocks;
    - *sampling*: steps on sampled batches against steps on the whole population, the root mean square over the seeds.

    By the triangle inequality no run is farther from theory than the sum of its parts.

    Attributes:
        log_time: $\ln t$.
        parts: observable -> part -> distance.
        total: observable -> root mean square over the seeds of the distance of sampled training from theory (of
            full-batch training, where nothing is sampled).
        sampled: observable -> distance of every seed's training from that on the whole population, shape
            `(seed, time)`; empty where nothing is sampled.
        settings: plain values that reproduce the budget.
    """

    log_time: Float[np.ndarray, " time"]
    parts: dict[str, dict[str, Float[np.ndarray, " time"]]]
    total: dict[str, Float[np.ndarray, " time"]]
    sampled: dict[str, Float[np.ndarray, "seed time"]]
    settings: dict[str, Any] = eqx.field(static=True)

    def at(self, observable: str, index: int = -1) -> dict[str, float]:
        """The parts and the total at one time.

        Args:
            observable: `"margin"` or `"score_gap"`.
            index: position in time.
        """
        found = {part: float(values[index]) for part, values in self.parts[observable].items()}
        return {**found, "total": float(self.total[observable][index])}

    def __str__(self) -> str:
        settings = self.settings
        run = ", ".join(f"{name} {settings[name]:g}" for name in ("ratio", "lr", "steps"))
        if settings["batch"]:
            run += f", batch {settings['batch']}, seeds {settings['seeds']}"
        lines = [f"Error budget of {settings['parameterization']} training: {run}"]
        rows = sorted({int(i) for i in np.linspace(0, self.log_time.size - 1, 6)})
        for observable in OBSERVABLES:
            names = [*self.parts[observable], "total"]
            lines += ["", f"{observable.replace('_', ' ')}, distance at gradient-flow time t"]
            lines.append(f"{'t':>12}" + "".join(f"{name:>12}" for name in names))
            for i in rows:
                values = self.at(observable, i)
                lines.append(f"{np.exp(self.log_time[i]):12.5g}" + "".join(f"{values[name]:12.2e}" for name in names))
        return "\n".join(lines)


def error_budget(
    task: Task,
    parameterization: str = "CACO",
    *,
    ratio: float,
    lr: float,
    steps: int,
    batch: int | None = 32,
    seeds: int = 16,
    points: int = 40,
    margin0: Any = None,
    score_gap0: Any = None,
    imbalance_ov: Any = None,
    imbalance_qk: Any = None,
    start: Start | None = None,
    score_scale: float | str = 1.0,
    tol: float = 1e-8,
) -> ErrorBudget:
    r"""Measures the parts of |training - theory| for one ratio and one learning rate.

    Args:
        task: what is learnt.
        parameterization: which circuits are collapsed and which factorized.
        ratio: $\eta_{QK}/\eta_{OV}$, 0 or more.
        lr: learning rate of the output-value circuit per step, above 0.
        steps: number of steps.
        batch: sequences of a step, drawn anew at every step; None trains on the whole population only.
        seeds: number of sampled runs.
        points: number of times, logarithmically spaced.
        margin0: margin at the start, as in `integrate`.
        score_gap0: score gap at the start.
        imbalance_ov: imbalance of factorized output-value circuits.
        imbalance_qk: imbalance of factorized query-key circuits.
        start: blocks or factors of the start, instead.
        score_scale: factor of the scores, as in `integrate`.
        tol: tolerance of the integration whose error is measured.

    Returns:
        The budget.

    Raises:
        InvalidInput: naming the argument, its value and the fix; also if a run diverged.
    """
    _jax.require_x64()
    if not isinstance(task, Task):
        raise InvalidInput(f"task={task!r} must be a flowsim.Task.")
    ratio = _validate.real("ratio", ratio, minimum=0.0)
    lr = _validate.real("lr", lr, above=0.0)
    steps = _validate.whole("steps", steps, minimum=1)
    if batch is not None:
        batch = _validate.whole("batch", batch, minimum=1)
    line = {
        "margin0": margin0, "score_gap0": score_gap0, "imbalance_ov": imbalance_ov, "imbalance_qk": imbalance_qk
    }  # fmt: skip
    scale = ScoreScale.of(score_scale, parameterization, task)
    given = {name: value for name, value in line.items() if value is not None} | {"score_scale": scale.value}
    begun = given if start is None else {**given, "start": start}
    finite = {"ratio": ratio, "lr": lr, "steps": steps, "points": points}
    stepped = descend(task, parameterization, **finite, **begun)
    _refuse_unfinished({"descent": stepped}, ratio, lr)  # what costs most comes only after it
    trained = train(task, parameterization, **finite, **begun, progress=False)
    grid = np.asarray(stepped.log_time)
    solved = integrate(task, parameterization, ratio=ratio, log_times=grid, tol=tol, **begun)
    theory = _theory(task, parameterization, ratio, grid, tol, given, start)
    runs = {"descent": stepped, "training": trained, "integration": solved, "theory": theory}
    sampled = None
    if batch is not None:
        kinds = {"population": "sampled-identities", "batch": batch, "seeds": seeds, "progress": False}
        sampled = train(task, parameterization, **finite, **begun, **kinds)
        runs["sampled training"] = sampled
    _refuse_unfinished(runs, ratio, lr)
    parts, total, spread = {}, {}, {}
    for observable in OBSERVABLES:
        truth, flow, blocks, full = (_read(run, observable) for run in (theory, solved, stepped, trained))
        found = {
            "solver": np.abs(flow - truth),
            "step size": np.abs(blocks - truth),
            "reduction": np.abs(full - blocks),
        }
        if sampled is None:
            spread[observable] = np.zeros((0, grid.size))
            total[observable] = np.abs(full - truth)
        else:
            drawn = _read(sampled, observable)
            spread[observable] = np.abs(drawn - full)
            found["sampling"] = _root_mean_square(spread[observable])
            total[observable] = _root_mean_square(drawn - truth)
        parts[observable] = found
    settings = {
        **finite,
        "batch": batch,
        "seeds": None if batch is None else seeds,
        "tol": tol,
        **scale.plain,
        "parameterization": parameterization,
        "theory": theory.method,
        "task": task.to_dict(),
    }
    return ErrorBudget(grid, parts, total, spread, settings)


def _refuse_unfinished(runs: dict[str, Trajectory], ratio: float, lr: float) -> None:
    for name, run in runs.items():
        if not bool(jnp.all(run.ok)):
            raise InvalidInput(
                f"lr={lr:g} with ratio={ratio:g}: the {name} did not finish (status "
                f"{int(np.max(np.asarray(run.status)))}), so nothing can be compared; give a smaller lr or fewer steps."
            )


def _theory(task, parameterization, ratio, grid, tol, given, start) -> Trajectory:
    """The closed form where there is one, otherwise an integration that is tighter by far."""
    if start is None:
        try:
            return exact(task, parameterization, ratio=ratio, log_times=grid, **given)
        except NoClosedForm:
            pass
    begun = given if start is None else {**given, "start": start}
    return integrate(task, parameterization, ratio=ratio, log_times=grid, tol=_TIGHTER * tol, **begun)


def _read(run: Trajectory, observable: str) -> np.ndarray:
    """The observable; of the score gap its change, which is not rounded beside a large start."""
    return np.asarray(run.score_gap_change if observable == "score_gap" else run.margin)


def _root_mean_square(distances: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(distances**2, axis=0))
