"""One run of a trajectory as plain NumPy arrays, with what is known about it."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flowsim.status import Status
from flowsim.task import Task
from flowsim.trajectory import Trajectory

_DEFAULT_TOLERANCE = 1e-8
# Relative error that the numbers of each method may carry into a verdict. Training follows the flow only up to its
# finite steps, and a user's own logs may be single precision or printed with few digits.
_DATA_ERROR = {"exact": 1e-9, "descent": 1e-3, "training": 1e-3, "given": 1e-3}


@dataclasses.dataclass(frozen=True)
class Lane:
    r"""A single run.

    Attributes:
        coords: values along the lane axes (parameterization, ratio, lr, seed), as present.
        parameterization: CACO, FACO, CAFO or FAFO.
        ratio: the learning-rate ratio, or None when unknown.
        task: the task, or None when unknown.
        status: how the solver left the lane.
        log_time: $\ln t$, shape `(time,)`.
        margin: $w$.
        score_gap: $\theta$.
        score_gap_change: $\theta - \theta_0$.
        log_odds: logit of the attention.
        margin0: margin at the start.
        score_gap0: score gap at the start.
        imbalance_ov: imbalance of the output-value circuit's factors, 0 for a collapsed circuit.
        imbalance_qk: the same of the query-key circuit's.
        data_error: relative error that the numbers may carry.
    """

    coords: dict[str, Any]
    parameterization: str
    ratio: float | None
    task: Task | None
    status: Status
    log_time: np.ndarray
    margin: np.ndarray
    score_gap: np.ndarray
    score_gap_change: np.ndarray
    log_odds: np.ndarray
    margin0: float
    score_gap0: float
    imbalance_ov: float
    imbalance_qk: float
    data_error: float

    @property
    def attention(self) -> np.ndarray:
        r"""$\alpha$, the attention on the first distinct group."""
        with np.errstate(over="ignore"):  # e^-log_odds overflows where attention underflows
            return 1 / (1 + np.exp(-self.log_odds))


def lanes(trajectory: Trajectory) -> Iterator[Lane]:
    """The runs of a trajectory, in the order of its lane axes.

    Args:
        trajectory: any trajectory, solved, trained or given.

    Yields:
        One `Lane` for each combination of lane coordinates.
    """
    shape = trajectory.lanes
    names = ("margin", "score_gap", "score_gap_change", "log_odds")
    arrays = {name: np.asarray(getattr(trajectory, name), dtype=np.float64) for name in names}
    log_time = np.broadcast_to(np.asarray(trajectory.log_time, dtype=np.float64), arrays["margin"].shape)
    status = np.asarray(trajectory.status)
    settings = trajectory.settings
    for index in np.ndindex(*shape):
        along = dict(zip(trajectory.axes, index, strict=True))
        coords = {
            name: np.atleast_1d(np.asarray(value))[along.get(name, 0)].item()
            for name, value in trajectory.coords.items()
        }
        own = {name: array[index] for name, array in arrays.items()}
        yield Lane(
            coords=coords,
            parameterization=coords.get("parameterization", trajectory.parameterization),
            ratio=coords.get("ratio"),
            task=trajectory.task,
            status=Status(int(status[index])),
            log_time=log_time[index],
            margin0=_start(settings.get("margin0"), own["margin"][np.isneginf(log_time[index])], index, shape),
            score_gap0=_start(settings.get("score_gap0"), own["score_gap"] - own["score_gap_change"], index, shape),
            imbalance_ov=_setting(settings, "imbalance_ov", index, shape),
            imbalance_qk=_setting(settings, "imbalance_qk", index, shape),
            data_error=_data_error(trajectory),
            **own,
        )


def _start(setting, recorded: np.ndarray, index: tuple[int, ...], shape: tuple[int, ...]) -> float:
    """The setting, one for all lanes or one for each; else the first recorded value; else 0, the default start."""
    if setting is not None:
        return float(np.broadcast_to(np.asarray(setting, dtype=np.float64), shape)[index])
    known = recorded[np.isfinite(recorded)]
    return float(known[0]) if known.size else 0.0


def _setting(settings: Mapping[str, Any], name: str, index: tuple[int, ...], shape: tuple[int, ...]) -> float:
    """A number of the start, one for all lanes or one for each; 0 where none is recorded."""
    value = settings.get(name)
    return 0.0 if value is None else float(np.broadcast_to(np.asarray(value, dtype=np.float64), shape)[index])


def _data_error(trajectory: Trajectory) -> float:
    if trajectory.method == "ode":
        tolerance = trajectory.settings.get("tol", _DEFAULT_TOLERANCE)
        return 10 * float(np.max(np.asarray(tolerance)))
    return _DATA_ERROR[trajectory.method]
