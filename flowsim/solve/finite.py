"""What the two finite-step solvers share besides the loop: their lanes, their records and their trajectories."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flowsim import _jax, _validate  # noqa: F401  float64 first
from flowsim.errors import InvalidInput
from flowsim.solve.stepping import record_steps
from flowsim.status import Status
from flowsim.task import Task
from flowsim.trajectory import Trajectory


class Record(NamedTuple):
    """The observables of one state; the fields are those of `Trajectory`."""

    margin: Float[Array, ""]
    score_gap: Float[Array, ""]
    score_gap_change: Float[Array, ""]
    log_odds: Float[Array, ""]
    log_error: Float[Array, ""]
    log_loss: Float[Array, ""]
    margins: Float[Array, " distinct"]
    scores: Float[Array, " groups"]
    log_attentions: Float[Array, " groups"]
    extra: dict[str, Float[Array, ""]]


class Ended(Protocol):
    """Runs that are over, each array with a leading axis over the runs."""

    @property
    def records(self) -> Record:
        """The observables at each point of the grid."""
        ...

    @property
    def status(self) -> Any:
        """How each run ended."""
        ...

    @property
    def n_steps(self) -> Any:
        """Number of steps of each run."""
        ...


@dataclasses.dataclass(frozen=True)
class Lanes:
    """The runs of one call: every ratio with every learning rate, and the steps at which they are looked at.

    Attributes:
        ratio: learning-rate ratios, shape `(ratio,)`.
        lr: learning rates, shape `(lr,)`.
        scalars: which of the two axes were given as a scalar and are dropped at the end.
        steps: step numbers of the records, shape `(time,)`.
        seeds: seeds of a third axis, or None.
        clock: times of the records in units of the learning rate, if they are not the step numbers.
    """

    ratio: Array
    lr: Array
    scalars: tuple[str, ...]
    steps: np.ndarray
    seeds: np.ndarray | None = None
    clock: Array | None = None

    @staticmethod
    def of(ratio, lr, steps, points) -> "Lanes":
        r"""Checks the arguments that `descend` and `train` share.

        Args:
            ratio: $\eta_{QK}/\eta_{OV}$, 0 or more; a number or a list.
            lr: learning rate of the output-value circuit per step, above 0; a number or a list.
            steps: number of steps.
            points: number of steps to record.

        Raises:
            InvalidInput: if one of them cannot be used. Traced ratios and learning rates cannot be looked at: their
                lanes report `Status.NOT_FINITE`.
        """
        ratios, ratio_scalar = _lane_axis("ratio", ratio, minimum=0.0)
        lrs, lr_scalar = _lane_axis("lr", lr, above=0.0)
        steps = _validate.whole("steps", steps, minimum=1, maximum=_validate.MOST_STEPS)
        points = _validate.whole("points", points, minimum=1, maximum=_validate.MOST_RECORDS)
        scalars = tuple(name for name, scalar in (("ratio", ratio_scalar), ("lr", lr_scalar)) if scalar)
        return Lanes(ratios, lrs, scalars, record_steps(steps, points))

    def with_seeds(self, seeds: np.ndarray | None, clock: Array) -> "Lanes":
        """The same runs once for each seed, with the times of the records in units of the learning rate."""
        return dataclasses.replace(self, seeds=seeds, clock=clock)

    def until(self, points: int) -> "Lanes":
        """The runs with only the first records."""
        clock = None if self.clock is None else self.clock[:points]
        return dataclasses.replace(self, steps=self.steps[:points], clock=clock)

    @property
    def gaps(self) -> Int[Array, " time"]:
        """Steps to each record from the previous one."""
        return jnp.asarray(np.diff(self.steps, prepend=0))

    @property
    def rates(self) -> tuple[Float[Array, " lanes"], Float[Array, " lanes"]]:
        """Ratio and learning rate of every run, the last axis varying fastest; NaN where they cannot be used."""
        ratio, lr = (grid.ravel() for grid in jnp.meshgrid(self.ratio, self.lr, indexing="ij"))
        if self.seeds is not None:
            ratio, lr = (jnp.repeat(values, self.seeds.size) for values in (ratio, lr))
        usable = (ratio >= 0) & (lr > 0) & jnp.isfinite(ratio) & jnp.isfinite(lr)
        return jnp.where(usable, ratio, jnp.nan), jnp.where(usable, lr, jnp.nan)

    def trajectory(
        self,
        run: Ended,
        task: Task,
        parameterization: str,
        method: str,
        settings: Mapping[str, Any],
        circuits: Any = None,
    ) -> Trajectory:
        """The trajectory of all runs.

        Args:
            run: what the loop left, each array with a leading axis over the runs in the order of `rates`.
            task: the task.
            parameterization: which model was stepped.
            method: `"descent"` or `"training"`.
            settings: plain values that reproduce the trajectory; ratio, lr, steps and points are added.
            circuits: the parameters after the last step, with a leading axis over the runs, if they are kept.
        """
        shape = (self.ratio.size, self.lr.size, *(() if self.seeds is None else self.seeds.shape))

        def unravel(array: Array) -> Array:
            array = array.astype(float) if jnp.issubdtype(array.dtype, jnp.floating) else array
            return jnp.asarray(array).reshape(*shape, *array.shape[1:])

        log_time = jnp.log(self.lr)[:, None] + jnp.log(self.steps if self.clock is None else self.clock)
        usable = jnp.isfinite(self.rates[0])
        fields = run.records._asdict()
        extra = {name: unravel(array) for name, array in fields.pop("extra").items()}
        by_group = ("margins", "scores", "log_attentions")
        few = len(task.all_groups) <= 2  # margin, score_gap and log_odds say it all
        arrays = {name: None if few and name in by_group else unravel(array) for name, array in fields.items()}
        trajectory = Trajectory(
            log_time=log_time[0]
            if self.lr.size == 1
            else jnp.broadcast_to(
                log_time.reshape(1, self.lr.size, *[1] * (len(shape) - 2), -1), (*shape, self.steps.size)
            ),
            **arrays,  # pyright: ignore[reportArgumentType]  only those that may be None are
            status=unravel(jnp.where(usable, run.status, int(Status.NOT_FINITE))),
            n_steps=unravel(run.n_steps),
            extra=extra,
            axes=("ratio", "lr") if self.seeds is None else ("ratio", "lr", "seed"),
            coords={"ratio": self.ratio, "lr": self.lr, **({} if self.seeds is None else {"seed": self.seeds})},
            task=task,
            parameterization=parameterization,
            method=method,
            settings={**settings, "steps": int(self.steps[-1]), "points": self.steps.size},
            circuits=jax.tree.map(lambda array: jnp.asarray(array).reshape(*shape, *array.shape[1:]), circuits),
        )
        for axis in self.scalars:
            trajectory = trajectory.squeeze(axis)
        return trajectory


def _lane_axis(name: str, value, **bounds: float) -> tuple[Array, bool]:
    if not _validate.is_traced(value):
        array, scalar = _validate.lane_values(name, value, **bounds)
        return jnp.asarray(array), scalar
    array = jnp.asarray(value, dtype=float)
    if array.ndim > 1:
        raise InvalidInput(f"{name} has shape {array.shape}; give a number or a one-dimensional list.")
    return jnp.atleast_1d(array), array.ndim == 0
