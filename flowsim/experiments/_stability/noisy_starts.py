"""How far runs from random starts are from the symmetric reduction."""

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.flatten_util import ravel_pytree

from flowsim.experiments._symmetrized import Runs, symmetrized, train_each
from flowsim.models import Circuits
from flowsim.symmetric import Layout
from flowsim.task import Task

_POINTS = 60
LEARNT = 1.0
"""A margin is compared from the time on at which the reduction has one of 1: relative to one of 0 it says nothing."""


def tolerance(
    task: Task,
    start: Circuits,
    parameterization: str,
    *,
    scales: tuple[float, ...],
    seeds: int,
    lr: float,
    ratio: float,
    time: float,
    lanes: int,
) -> xr.Dataset:
    """Trains from the symmetric start plus Gaussian noise, and from the symmetrized starts of the same runs.

    Args:
        task: what is learnt.
        start: the symmetric start.
        parameterization: four letters.
        scales: standard deviations of the noise.
        seeds: runs for each.
        lr: learning rate.
        ratio: learning-rate ratio.
        time: gradient-flow time to train for.
        lanes: how many runs go side by side.

    Returns:
        `deviation_attention` and `deviation_margin` over (scale, seed, run_time).
    """
    flat, unravel = ravel_pytree(start)
    noise = np.random.default_rng(0).normal(size=(seeds, flat.size))
    flats = np.asarray(flat) + (np.asarray(scales)[:, None, None] * noise).reshape(-1, flat.size)
    circuits = jax.vmap(unravel)(jnp.asarray(flats))

    settings = {"ratio": ratio, "lr": lr, "steps": max(1, round(time / lr)), "points": _POINTS}
    runs = train_each(task, parameterization, circuits, lanes, **settings)
    theory = train_each(task, parameterization, symmetrized(Layout.of(task), circuits), lanes, **settings)
    attention, margin = deviations(runs, theory)
    shape = (len(scales), seeds, -1)
    axes = ("scale", "seed", "run_time")
    return xr.Dataset(
        {
            "deviation_attention": (axes, attention.reshape(shape)),
            "deviation_margin": (axes, margin.reshape(shape)),
        },
        {"scale": list(scales), "seed": np.arange(seeds), "run_time": runs.time},
    )


def deviations(runs: Runs, theory: Runs) -> tuple[np.ndarray, np.ndarray]:
    """The largest relative deviation so far, of attention and of margin; infinite once a run has diverged.

    Args:
        runs: trained runs.
        theory: the reduction of each of them.

    Returns:
        Both, in the shape of the runs. The margin's is 0 until the reduction has a margin of `LEARNT`.
    """
    attention = np.abs(runs.attention / theory.attention - 1)
    expected = theory.margin
    margin = np.where(expected >= LEARNT, np.abs(runs.margin / expected - 1), 0.0)
    lost = ~np.isfinite(runs.margin) | ~np.isfinite(expected)
    return tuple(np.maximum.accumulate(np.where(lost, np.inf, values), axis=-1) for values in (attention, margin))  # pyright: ignore[reportReturnType]


def tolerated(scales: np.ndarray, deviation: np.ndarray, allowed: float) -> np.ndarray:
    """The scale at which the median deviation over the seeds reaches what is allowed.

    Args:
        scales: increasing, shape `(scale,)`.
        deviation: shape `(scale, seed, time)`.
        allowed: relative deviation.

    Returns:
        Shape `(time,)`, interpolated in logarithms; 0 where the smallest scale is off already, infinite where none is.
    """
    median = np.median(deviation, axis=1)
    found = np.full(median.shape[1], np.inf)
    for i in reversed(range(len(scales))):  # the first scale that is off decides
        off = median[i] > allowed
        if i == 0:
            found[off] = 0.0
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.log(allowed / median[i - 1]) / np.log(median[i] / median[i - 1])
        between = np.exp(np.log(scales[i - 1]) + share * np.log(scales[i] / scales[i - 1]))
        # a median of 0 or infinity has no logarithm to interpolate: the smaller scale is known to be fine
        between = np.where(np.isfinite(between) & (share > 0), between, scales[i - 1])
        found = np.where(off, between, found)
    return found
