"""One run of a trajectory as plain NumPy arrays, with what is known about it."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flowsim.score_scale import ScoreScale
from flowsim.solve.line_start import LineStart, line_start
from flowsim.status import Status
from flowsim.task import Task
from flowsim.trajectory import Trajectory

_DEFAULT_TOLERANCE = 1e-8
# Relative error that the numbers of each method may carry into a verdict. Training follows the flow only up to its
# finite steps, and a user's own logs may be single precision or printed with few digits.
DATA_ERROR = {"exact": 1e-9, "descent": 1e-3, "training": 1e-3, "given": 1e-3}


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
        scale: of the scores.
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
    scale: ScoreScale
    data_error: float

    @property
    def effective_ratio(self) -> float | None:
        """The ratio at which the flow without a scale of the scores is this one."""
        return None if self.ratio is None else self.ratio * self.scale.gain()

    @property
    def line(self) -> LineStart:
        """The start of that flow."""
        return self.scale.line(LineStart(self.margin0, self.score_gap0, self.imbalance_ov, self.imbalance_qk))

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
        name = coords.get("parameterization", trajectory.parameterization)
        default = line_start(name)
        own = {observable: array[index] for observable, array in arrays.items()}
        start = {
            "margin0": _start(own["margin"][np.isneginf(log_time[index])], default.margin0),
            "score_gap0": _start(own["score_gap"] - own["score_gap_change"], default.score_gap0),
            "imbalance_ov": 0.0,
            "imbalance_qk": 0.0,
            "score_scale": 1.0,
        } | _settings(settings, along, index, shape)
        yield Lane(
            coords=coords,
            parameterization=name,
            ratio=coords.get("ratio"),
            task=trajectory.task,
            status=Status(int(status[index])),
            log_time=log_time[index],
            data_error=_data_error(trajectory),
            **own,
            margin0=start["margin0"],
            score_gap0=start["score_gap0"],
            imbalance_ov=start["imbalance_ov"],
            imbalance_qk=start["imbalance_qk"],
            scale=ScoreScale.of(start["score_scale"], name),
        )


def _settings(
    settings: Mapping[str, Any], along: dict[str, int], index: tuple[int, ...], shape: tuple[int, ...]
) -> dict[str, float]:
    """The numbers of the start that are recorded: one for all lanes, one for each, or one per parameterization."""
    found = {}
    for name in ("margin0", "score_gap0", "imbalance_ov", "imbalance_qk", "score_scale"):
        value = settings.get(name)
        if isinstance(value, tuple | list) and "parameterization" in along:
            value = value[along["parameterization"]]
        if value is not None:
            found[name] = float(np.broadcast_to(np.asarray(value, dtype=np.float64), shape)[index])
    return found


def _start(recorded: np.ndarray, default: float) -> float:
    """The first recorded value; else the default start."""
    known = recorded[np.isfinite(recorded)]
    return float(known[0]) if known.size else default


def _data_error(trajectory: Trajectory) -> float:
    if trajectory.method == "ode":
        tolerance = trajectory.settings.get("tol", _DEFAULT_TOLERANCE)
        return 10 * float(np.max(np.asarray(tolerance)))
    return DATA_ERROR[trajectory.method]
