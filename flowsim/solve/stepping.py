r"""Finite steps: one loop for the reduced blocks and for the full matrices.

A run takes `steps` steps and is looked at on a logarithmic grid of step numbers. The loop is nested: an outer scan over
the grid, an inner loop over the steps between two of its points, so memory grows with the grid and not with the steps,
and the number of steps is a traced value that does not recompile.

Divergence. Steps small enough for descent never raise the loss of a full batch. A run has diverged

- at the first step after which the loss or an entry of the state is not finite;
- at the first step after which the loss exceeds `EXPLOSION` times the larger of the loss at the start and
  $\ln(\text{outputs})$, the loss of a model that knows nothing;
- if its last loss exceeds the loss at the start: at the step after which the loss stayed above it for good.

A loss that rises for a while and comes back below its start is not divergence; the records show it.

These rules are `STRICT`. The loss of a minibatch is noise around the loss of the population, and with weight decay the
loss may rise for good although nothing is wrong; `LOOSE` therefore judges an average over some ten steps, and takes a
loss as risen only if it exceeds twice the larger of the loss at the start and $\ln(\text{outputs})$. What is not
finite is divergence at once under both.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.status import Status

EXPLOSION = 10.0
_ROUNDING = 1e-5  # a loss above its start by this fraction has not risen: float32 cannot tell


class Judge(NamedTuple):
    """How divergence is recognized.

    Attributes:
        window: number of steps over which losses are averaged.
        above_start: a loss has risen if it exceeds the one at the start times this ...
        above_ignorance: ... and the loss of a model that knows nothing times this.
        entries: whether a step looks at the entries of the state; not where one that is not finite makes the loss NaN.
    """

    window: int
    above_start: float
    above_ignorance: float
    entries: bool = True


STRICT = Judge(1, 1 + _ROUNDING, 0.0)
LOOSE = Judge(10, 2.0, 2.0)

State = TypeVar("State")
Record = TypeVar("Record")


def record_steps(steps: int, points: int) -> np.ndarray:
    """Step numbers at which a run is looked at: logarithmically spaced, strictly increasing, from 1 to `steps`.

    The start, step 0, is not among them: its time has no logarithm, and the caller knows it.

    Args:
        steps: number of steps of the run, at least 1.
        points: number of step numbers wanted, at least 1; a run with fewer steps has each of them.

    Returns:
        Integers of shape `(min(points, steps),)`; the last one is `steps`.
    """
    count = min(points, steps)
    if count == 1:
        return np.array([steps])
    grid = [1]
    for left in range(count - 1, 0, -1):
        even = grid[-1] * (steps / grid[-1]) ** (1 / left)  # the rest of the way in `left` equal ratios
        grid.append(min(max(grid[-1] + 1, round(even)), steps - left + 1))
    return np.array(grid)


class Progress(NamedTuple, Generic[State]):
    """A run that can go on: what one stretch of steps hands to the next.

    Attributes:
        state: the state after the steps taken so far.
        step: number of these steps.
        sound: number of the last step before the loss or the state exploded.
        low: number of the last step after which the loss was not above its start.
        alive: whether nothing has exploded.
        loss0: the loss at the start, once a step was taken.
        ignorance: the loss of a model that knows nothing.
        mean: the loss that is judged, averaged over the window of the judge.
    """

    state: State
    step: Int[Array, ""]
    sound: Int[Array, ""]
    low: Int[Array, ""]
    alive: Bool[Array, ""]
    loss0: Float[Array, ""]
    ignorance: Float[Array, ""]
    mean: Float[Array, ""]

    def judged(self, loss: Float[Array, ""], judge: Judge = STRICT) -> "Progress[State]":
        """Takes note of the loss of the present state."""
        first = self.step == 0
        loss0 = jnp.where(first, loss, self.loss0)
        mean = loss if judge.window == 1 else jnp.where(first, loss, self.mean + (loss - self.mean) / judge.window)
        alive = self.alive & jnp.isfinite(loss) & (mean <= EXPLOSION * jnp.maximum(loss0, self.ignorance))
        for leaf in jax.tree.leaves(eqx.filter(self.state, eqx.is_inexact_array)) if judge.entries else ():
            alive &= jnp.all(jnp.isfinite(leaf))
        low = alive & (mean <= jnp.maximum(loss0 * judge.above_start, self.ignorance * judge.above_ignorance))
        return self._replace(
            sound=jnp.where(alive, self.step, self.sound),
            low=jnp.where(low, self.step, self.low),
            alive=alive,
            loss0=loss0,
            mean=mean,
        )


class Run(NamedTuple, Generic[State, Record]):
    """What a loop of finite steps leaves behind.

    Attributes:
        records: what `observe` saw at each point of the grid, leading axis `grid`; NaN from the divergence on.
        status: `Status.OK` or `Status.DIVERGED`.
        n_steps: number of steps before the one that diverged; all of them if none did.
        progress: where to go on from.
    """

    records: Record
    status: Int[Array, ""]
    n_steps: Int[Array, ""]
    progress: Progress[State]


Advance = Callable[[State], tuple[State, Float[Array, ""]]]
Observe = Callable[[State], tuple[Record, Float[Array, ""]]]


def begin(start: State, outputs: float | Array, dtype: jax.typing.DTypeLike = np.float64) -> Progress[State]:
    """A run at step 0.

    Args:
        start: the state at step 0.
        outputs: number of outputs of the head.
        dtype: of the loss.
    """
    zero, no_loss = jnp.asarray(0), jnp.zeros((), dtype)
    ignorance = jnp.log(jnp.asarray(outputs, dtype=dtype))
    return Progress(start, zero, zero, zero, jnp.asarray(True), no_loss, ignorance, no_loss)


def run_steps(
    advance: Advance[State], observe: Observe[State, Record], progress: Progress[State], gaps: Int[Array, " grid"]
) -> Run[State, Record]:
    """Takes finite steps and looks at the state on a grid of step numbers.

    Written for one run; `jax.vmap` over it makes the batch, in which a diverged run leaves the others alone. It can be
    differentiated forwards (`jax.jvp`, `jax.jacfwd`); backwards it cannot, since the number of steps is traced.

    Args:
        advance: one step, returning the new state and the loss of the *old* one.
        observe: a pytree of floating arrays to record for a state, and the loss of that state.
        progress: where to start, from `begin` or from an earlier run.
        gaps: number of steps to each point of the grid from the previous one.

    Returns:
        The records and how the run ended.
    """
    progress, seen = stretch(advance, observe, progress, gaps)
    return conclude(progress, seen)


class Seen(NamedTuple, Generic[Record]):
    """What was seen at the points of the grid, leading axis `grid`.

    Attributes:
        records: what `observe` recorded.
        steps: number of steps taken before.
        losses: the losses that `observe` found.
    """

    records: Record
    steps: Int[Array, " grid"]
    losses: Float[Array, " grid"]


def stretch(
    advance: Advance[State],
    observe: Observe[State, Record],
    progress: Progress[State],
    gaps: Int[Array, " grid"],
    judge: Judge = STRICT,
) -> tuple[Progress[State], Seen[Record]]:
    """A part of a run; parts that follow each other make the same steps as the whole.

    Args:
        advance: as for `run_steps`.
        observe: as for `run_steps`.
        progress: where to start.
        gaps: number of steps to each point of the grid from the previous one; at a gap of 0, which fills up a grid,
            nothing is done and what was seen is 0.
        judge: how divergence is recognized.

    Returns:
        Where to go on from, and what was seen.
    """

    def step(_, progress: Progress[State]) -> Progress[State]:
        state, before = advance(progress.state)
        return progress.judged(before, judge)._replace(state=state, step=progress.step + 1)

    def segment(progress: Progress[State], gap):
        progress = jax.lax.fori_loop(0, gap, step, progress)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(observe, progress.state))
        record, loss = jax.lax.cond(gap > 0, observe, lambda _: nothing, progress.state)
        return progress, Seen(record, progress.step, loss)

    return jax.lax.scan(segment, progress, gaps)


def conclude(progress: Progress[State], seen: Seen[Record], judge: Judge = STRICT) -> Run[State, Record]:
    """How a run ended.

    Args:
        progress: where its last stretch ended.
        seen: all that was seen; the last entry is of the last step.
        judge: as for `stretch`.

    Returns:
        The records, NaN from the divergence on, and the status.
    """
    last = progress.judged(seen.losses[-1], judge._replace(entries=True))
    diverged = ~last.alive | (last.low < last.step)
    n_steps = jnp.where(last.alive, last.low, last.sound)  # `low` is the last step if nothing diverged

    def known(array: Array) -> Array:
        lost = seen.steps > n_steps
        return jnp.where(lost.reshape(-1, *[1] * (array.ndim - 1)), jnp.nan, array)

    status = jnp.where(diverged, int(Status.DIVERGED), int(Status.OK))
    return Run(jax.tree.map(known, seen.records), status, n_steps, progress)
