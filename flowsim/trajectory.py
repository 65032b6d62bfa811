"""What every solver returns: observables over lanes and time (theory and training alike)."""

import dataclasses
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flowsim import (
    _jax,  # noqa: F401  float64 first
    _validate,
)
from flowsim.errors import InvalidInput
from flowsim.score_scale import ScoreScale
from flowsim.solve.line_start import line_start
from flowsim.status import Status
from flowsim.task import Task

LANE_AXES = ("parameterization", "ratio", "lr", "seed")
OBSERVABLES = ("margin", "score_gap", "score_gap_change", "log_odds", "log_error", "log_loss")
_LANE_ARRAYS = (*OBSERVABLES, "status", "n_steps", "margins", "scores", "log_attentions")
METHODS = ("exact", "frozen-gate", "ode", "descent", "training", "given")


class Settings(Mapping):
    """Plain values by name, immutable and hashable, so that a trajectory can pass through JAX's transformations."""

    def __init__(self, values: Mapping[str, Any] = MappingProxyType({})):
        self._values = {key: _frozen(value) for key, value in values.items()}

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return f"Settings({self._values!r})"


def _frozen(value):
    if isinstance(value, Mapping):
        return Settings(value)
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    return value


class Trajectory(eqx.Module):
    r"""Observables of one or many runs over gradient-flow time.

    Stored quantities are finite for every time > 0, however large; `time`, `odds`, `attention`, `error` and `loss` are
    derived from them and may overflow or underflow. `*lanes` are the axes named in `axes`, in that order.

    Attributes:
        log_time: $\ln t$, shape `(time,)` when all lanes share it, else `(*lanes, time)`; `-inf` is time 0.
        margin: $w$, own-label minus other-label logit of a token of the first distinct group, shape `(*lanes, time)`.
        score_gap: $\theta$, score of that token minus the score of a token of the first background group.
        score_gap_change: $\theta - \theta_0$, accurate also where it is far below one ulp of $\theta_0$.
        log_odds: logit of the mean attention on the first distinct group.
        log_error: log of the mean of $q = 1 - p(\text{label})$.
        log_loss: log of the mean cross-entropy.
        status: `Status` of each lane as an integer, shape `(*lanes,)`.
        n_steps: steps taken by each lane, shape `(*lanes,)`; 0 for the closed form.
        margins: margin of each distinct group, shape `(*lanes, time, distinct groups)`, or None.
        scores: score of each group relative to the reference group, shape `(*lanes, time, groups)`, or None.
        log_attentions: log of the mean attention on each group, shape `(*lanes, time, groups)`, or None.
        extra: further arrays of shape `(*lanes, time)`, by name.
        circuits: the parameters after the last step (`flowsim.models.Circuits`, their arrays with the lane axes in
            front), where training kept them, or None.
        axes: names of the lane axes.
        coords: values along each lane axis (and of each scalar that dropped its axis).
        task: the task, if known.
        parameterization: CACO, FACO, CAFO or FAFO.
        method: `"exact"`, `"frozen-gate"`, `"ode"`, `"descent"`, `"training"` or `"given"`.
        settings: plain values that, with the task, reproduce the trajectory; versions are added when it is saved.
    """

    log_time: Float[Array, "*lanes time"]
    margin: Float[Array, "*lanes time"]
    score_gap: Float[Array, "*lanes time"]
    score_gap_change: Float[Array, "*lanes time"]
    log_odds: Float[Array, "*lanes time"]
    log_error: Float[Array, "*lanes time"]
    log_loss: Float[Array, "*lanes time"]
    status: Int[Array, "*lanes"]
    n_steps: Int[Array, "*lanes"]
    margins: Float[Array, "*lanes time distinct"] | None = None
    scores: Float[Array, "*lanes time groups"] | None = None
    log_attentions: Float[Array, "*lanes time groups"] | None = None
    extra: dict[str, Array] = eqx.field(default_factory=dict)
    circuits: Any = None
    axes: tuple[str, ...] = eqx.field(static=True, default=())
    coords: dict[str, Any] = eqx.field(default_factory=dict)
    task: Task | None = eqx.field(static=True, default=None)
    parameterization: str = eqx.field(static=True, default="CACO")
    method: str = eqx.field(static=True, default="given")
    settings: Mapping[str, Any] = eqx.field(static=True, default_factory=Settings, converter=Settings)

    @property
    def n_time(self) -> int:
        """Number of times."""
        return self.margin.shape[-1]

    @property
    def lanes(self) -> tuple[int, ...]:
        """Shape of the lane axes."""
        return self.margin.shape[:-1]

    @property
    def time(self) -> Array:
        r"""Gradient-flow time; overflows to inf beyond $\ln t \approx 709$."""
        return jnp.exp(self.log_time)

    @property
    def odds(self) -> Array:
        r"""$\alpha/(1-\alpha)$."""
        return jnp.exp(self.log_odds)

    @property
    def attention(self) -> Array:
        r"""Mean attention $\alpha$ on the first distinct group."""
        return jax.nn.sigmoid(self.log_odds)

    @property
    def error(self) -> Array:
        r"""Mean of $q = 1 - p(\text{label})$; underflows to 0 beyond a margin of about 745."""
        return jnp.exp(self.log_error)

    @property
    def loss(self) -> Array:
        """Mean cross-entropy; underflows to 0 beyond a margin of about 745."""
        return jnp.exp(self.log_loss)

    @property
    def ok(self) -> Array:
        """Whether each lane's numbers may be used, shape `(*lanes,)`."""
        return jnp.isin(self.status, jnp.asarray([status for status in Status if status.usable]))

    def lane(self, **index: int) -> "Trajectory":
        """Picks one entry along named lane axes, for instance `lane(ratio=0)`.

        Raises:
            InvalidInput: if an axis is not there or an index is out of range.
        """
        picked = self
        for axis, i in index.items():
            picked = picked._take(axis, i)
        return picked

    def squeeze(self, axis: str) -> "Trajectory":
        """Drops a lane axis of length 1; its value stays in `coords`.

        Raises:
            InvalidInput: if the axis is not there or longer than 1.
        """
        if axis in self.axes and self.lanes[self.axes.index(axis)] != 1:
            raise InvalidInput(
                f"squeeze({axis!r}): the axis has length {self.lanes[self.axes.index(axis)]}; only 1 can be dropped."
            )
        return self._take(axis, 0)

    def _take(self, axis: str, i: int) -> "Trajectory":
        if axis not in self.axes:
            raise InvalidInput(f"axis={axis!r} is not among the trajectory's lane axes {self.axes}.")
        position = self.axes.index(axis)
        n = self.lanes[position]
        try:
            operator.index(i)
        except TypeError:
            raise InvalidInput(
                f"{axis}={_validate.show(i)} must be an index, a whole number; the values are in coords[{axis!r}]."
            ) from None
        if not -n <= i < n:
            raise InvalidInput(f"{axis}={i} is out of range; the axis has {n} entries.")
        changes: dict[str, Any] = {}
        for name in _LANE_ARRAYS:
            array = getattr(self, name)
            changes[name] = None if array is None else jnp.take(array, i, axis=position)
        if self.log_time.ndim > 1:
            changes["log_time"] = jnp.take(self.log_time, i, axis=position)
        changes["extra"] = {name: jnp.take(array, i, axis=position) for name, array in self.extra.items()}
        changes["circuits"] = jax.tree.map(lambda array: jnp.take(array, i, axis=position), self.circuits)
        changes["axes"] = self.axes[:position] + self.axes[position + 1 :]
        if axis in self.coords:
            value = self.coords[axis]
            changes["coords"] = {**self.coords, axis: value[i]}
            if axis == "parameterization":  # the settings of several parameterizations are lists
                changes["parameterization"] = str(value[i])
                changes["settings"] = {
                    name: value[i] if isinstance(value, tuple) else value for name, value in self.settings.items()
                }
        return dataclasses.replace(self, **changes)

    def to_xarray(self):
        """The trajectory as an `xarray.Dataset`, attributes and all."""
        from flowsim.trajectory_file import to_dataset

        return to_dataset(self)

    def save(self, path: str | os.PathLike, *, overwrite: bool = False) -> None:
        """Writes the trajectory to a NetCDF file, atomically.

        Args:
            path: a name ending in `.nc` in an existing folder.
            overwrite: replace a file that exists.

        Raises:
            FileProblem: if the file exists and `overwrite` is false, or the folder is missing.
        """
        from flowsim.trajectory_file import save

        save(self, path, overwrite=overwrite)

    @staticmethod
    def load(path: str | os.PathLike) -> "Trajectory":
        """Reads a trajectory that `save` wrote.

        Raises:
            FileProblem: if the file is missing, damaged, or was not written by flowsim.
        """
        from flowsim.trajectory_file import load

        return load(path)

    @staticmethod
    def from_arrays(
        *,
        margin,
        log_odds=None,
        score_gap=None,
        times=None,
        log_times=None,
        log_error=None,
        log_loss=None,
        task: Task | None = None,
        parameterization: str = "CACO",
        ratio=None,
        margin0: float | None = None,
        score_gap0: float | None = None,
        imbalance_ov: float | None = None,
        imbalance_qk: float | None = None,
        score_scale: float | str = 1.0,
    ) -> "Trajectory":
        r"""Builds a trajectory from one's own logs, to judge it with `flowsim.verify`.

        Args:
            margin: $w$, shape `(time,)`, or `(ratio, time)` with a list of ratios.
            log_odds: logit of the attention on the distinct tokens, same shape; NaN where not given.
            score_gap: $\theta$, same shape; NaN where not given.
            times: gradient-flow times (steps x lr), strictly increasing; or `log_times`.
            log_times: natural logarithm of the times.
            log_error: log of the error, same shape; NaN where not given.
            log_loss: log of the loss, same shape; NaN where not given.
            task: the task; without it laws are judged without predicted constants.
            parameterization: which model was trained.
            ratio: $\eta_{QK}/\eta_{OV}$, a number or one for each row.
            margin0: the margin at time 0; None for the default, 0 for a collapsed output-value circuit, else 0.01.
            score_gap0: the score gap at time 0; None for the default, as for the margin.
            imbalance_ov: imbalance of a factorized output-value circuit; None for 0.
            imbalance_qk: imbalance of a factorized query-key circuit; None for 0.
            score_scale: factor of the scores, or `"1/sqrt(d)"`.

        Returns:
            A trajectory with `method="given"`.

        Raises:
            InvalidInput: if shapes disagree, a grid is unusable, or an infinite value is given.
        """
        grid, _ = _validate.log_time_grid(times, log_times)
        _validate.parameterization(parameterization)
        if task is not None and not isinstance(task, Task):
            raise InvalidInput(f"task={_validate.show(task)} must be a flowsim.Task or None.")
        values, scalar = (None, True) if ratio is None else _validate.ratios(ratio)
        lanes = () if values is None or scalar else (values.size,)
        shape = (*lanes, grid.size)
        given = {
            "margin": margin,
            "log_odds": log_odds,
            "score_gap": score_gap,
            "log_error": log_error,
            "log_loss": log_loss,
        }
        if margin is None:
            raise InvalidInput("margin=None: a trajectory needs its margins; give an array.")
        arrays = {name: _observable(name, value, shape) for name, value in given.items()}
        start = line_start(
            parameterization,
            margin0=margin0,
            score_gap0=score_gap0,
            imbalance_ov=imbalance_ov,
            imbalance_qk=imbalance_qk,
        )
        starts = {"margin": start.margin0, "score_gap": start.score_gap0}
        if np.isneginf(grid[0]):  # time 0 was recorded: what is said of the start must agree with it
            for name, value in starts.items():
                recorded = np.asarray(arrays[name])[..., 0]
                if given[name] is not None and not np.all((recorded == value) | np.isnan(recorded)):
                    raise InvalidInput(
                        f"{name}0={value:g} is not the {name} recorded at time 0 ({float(recorded.flat[0]):g}); "
                        f"give {name}0 as recorded."
                    )
        return Trajectory(
            log_time=jnp.asarray(grid),
            score_gap_change=arrays["score_gap"] - starts["score_gap"],
            status=jnp.zeros(lanes, dtype=int),
            n_steps=jnp.zeros(lanes, dtype=int),
            axes=("ratio",) if lanes else (),
            coords={} if values is None else {"ratio": values if lanes else values[0]},
            task=task,
            parameterization=parameterization,
            method="given",
            settings={**start.plain, **ScoreScale.of(score_scale, parameterization, task).plain},
            **arrays,  # pyright: ignore[reportArgumentType]  the names are those of `given`
        )


def _observable(name: str, value, shape: Sequence[int]) -> Array:
    if value is None:
        return jnp.full(tuple(shape), jnp.nan)
    array = _validate.numeric_array(name, value)
    if array.shape != tuple(shape):
        raise InvalidInput(f"{name} has shape {array.shape}, but the times (and ratios) need {tuple(shape)}.")
    if np.isinf(array).any():
        raise InvalidInput(
            f"{name} holds an infinite value at index {int(np.argmax(np.isinf(array).ravel()))}; remove it."
        )
    return jnp.asarray(array)


def lane_coords(**values) -> Mapping[str, Any]:
    """Coordinates of the lane axes that are present, in the fixed order of `LANE_AXES`."""
    return {name: values[name] for name in LANE_AXES if values.get(name) is not None}
