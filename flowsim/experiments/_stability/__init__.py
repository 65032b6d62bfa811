"""`stability`: which perturbations of the symmetric trajectory grow, and how large a random start may be."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from flowsim import _validate, data, plot
from flowsim.context import FixedContext
from flowsim.errors import InvalidInput
from flowsim.experiments._experiment import Experiment, Report
from flowsim.experiments._stability.directions import SYMMETRIC, kinds
from flowsim.experiments._stability.linearized import (
    Propagated,
    growth,
    propagate,
    stacked,
    symmetric_start,
    type_numbers,
)
from flowsim.experiments._stability.moments import second_moments
from flowsim.experiments._stability.noisy_starts import tolerance
from flowsim.experiments._stability.reading import SPAN, findings
from flowsim.experiments._stability.trained import check
from flowsim.experiments._typed import typed
from flowsim.symmetric import Layout
from flowsim.task import Task

POPULATIONS = ("mean-counts", "sampled-identities")
_LANES = 16
"""Runs side by side: as many for every part of the experiment, so that training compiles once."""
_TOL = 1e-6
"""Of a step of the linearized flow; what training is held against is read to 5 %."""
RUNS = ("given", "half the step", "half the size")


@dataclasses.dataclass(frozen=True)
class StabilitySettings:
    """Settings of `stability`; the task has a query per class, the label head and a fixed context.

    Attributes:
        classes: number of classes, 2 or more.
        distinct: distinct token types per class.
        common: common token types.
        distinct_count: positions with distinct tokens.
        common_count: positions with common tokens.
        parameterizations: which ones.
        ratios: learning-rate ratios of the linearized flow.
        spare: hidden units of factorized circuits beyond one for each class; 2 or more show what telling them apart
            does.
        first_time: first gradient-flow time, above 0.
        last_time: last one.
        points: times between them, logarithmically spaced.
        check_ratio: the ratio that training is compared at; one of `ratios`.
        check_times: first and last time that the growth is compared in training.
        check_lr: learning rate of that training; half of it is tried as well.
        epsilon: norm of the perturbation there, in parameter space; half of it is tried as well.
        scales: standard deviations of the Gaussian entries that are added to the symmetric start, increasing.
        seeds: random starts for each of them.
        tolerance_lr: learning rate of the training from random starts.
        tolerance_time: gradient-flow time that it takes.
        tolerance_ratio: its learning-rate ratio.
        allowed: relative deviation of attention or margin from the reduction that counts as off.
    """

    classes: int = 4
    distinct: int = 10
    common: int = 10
    distinct_count: int = 32
    common_count: int = 31
    parameterizations: tuple[str, ...] = ("CACO", "FACO", "CAFO", "FAFO")
    ratios: tuple[float, ...] = (1.0, 5.0, 25.0)
    spare: int = 5
    first_time: float = 0.1
    last_time: float = 1e4
    points: int = 61
    check_ratio: float = 5.0
    check_times: tuple[float, float] = (1.0, 200.0)
    check_lr: float = 0.1
    epsilon: float = 1e-7
    scales: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.2, 0.5, 1.0)
    seeds: int = 16
    tolerance_lr: float = 0.5
    tolerance_time: float = 1000.0
    tolerance_ratio: float = 5.0
    allowed: float = 0.1

    def __post_init__(self) -> None:
        typed(self)
        for name in ("classes", "distinct", "common", "distinct_count", "common_count"):
            _validate.whole(name, getattr(self, name), minimum=2)
        for name in self.parameterizations:
            _validate.parameterization(name)
        for name in ("ratios", "scales"):
            values = getattr(self, name)
            for value in values:
                _validate.real(name, value, above=0.0)
            if len(values) < 1 or list(values) != sorted(set(values)):
                raise InvalidInput(f"{name}={values} must be one number or more, increasing.")
        _validate.whole("spare", self.spare, minimum=0)
        _validate.whole("points", self.points, minimum=5)
        _validate.whole("seeds", self.seeds, minimum=1)
        above = ("first_time", "check_lr", "epsilon", "tolerance_lr", "tolerance_time", "tolerance_ratio", "allowed")
        for name in above:
            _validate.real(name, getattr(self, name), above=0.0)
        _validate.real("last_time", self.last_time, above=self.first_time)
        if self.check_ratio not in self.ratios:
            raise InvalidInput(f"check_ratio={self.check_ratio:g} is not among ratios={self.ratios}; add it there.")
        if len(self.check_times) != 2:
            raise InvalidInput(f"check_times={self.check_times} must be two times, the first and the last.")
        early, late = self.check_times
        if not self.first_time <= early < late <= self.last_time or self.check_lr > early:
            raise InvalidInput(
                f"check_times={self.check_times} must increase within first_time={self.first_time:g} and "
                f"last_time={self.last_time:g}, from one step of check_lr={self.check_lr:g} on."
            )

        if self.compared.stop - self.compared.start < 2 * SPAN:
            raise InvalidInput(
                f"check_times={self.check_times} hold fewer than {2 * SPAN} of the {self.points} points; give more "
                "points or times farther apart."
            )

    @property
    def times(self) -> np.ndarray:
        """Times of the linearized flow."""
        return np.geomspace(self.first_time, self.last_time, self.points)

    @property
    def compared(self) -> slice:
        """Those that training is compared at."""
        early, late = self.check_times
        inside = np.flatnonzero((self.times >= early * 0.999) & (self.times <= late * 1.001))
        return slice(int(inside[0]), int(inside[-1]) + 1) if inside.size else slice(0, 0)

    @classmethod
    def quick(cls) -> "StabilitySettings":
        """A reduced run of seconds."""
        return cls(
            parameterizations=("FAFO",),
            ratios=(5.0,),
            points=31,
            check_times=(1.0, 50.0),
            check_lr=0.1,
            scales=(0.03, 0.1, 0.3, 1.0),
            seeds=4,
            tolerance_time=200.0,
        )

    @property
    def task(self) -> Task:
        """The task that is learnt."""
        context = FixedContext(distinct=self.distinct_count, common=self.common_count)
        return Task(classes=self.classes, distinct=self.distinct, common=self.common, context=context)

    def widths(self, parameterization: str) -> dict[str, int | None]:
        """Hidden widths of a parameterization's factors."""
        hidden = self.classes + self.spare
        return {
            "hidden_qk": hidden if parameterization[0] == "F" else None,
            "hidden_ov": hidden if parameterization[2] == "F" else None,
        }


def stability(settings: StabilitySettings | None = None, report: Report | None = None) -> xr.Dataset:
    r"""Growth of perturbations of each isotypic type, checked in training, and how large a random start may be.

    Args:
        settings: what to compute; None for the defaults.
        report: is told about the progress.

    Returns:
        `log_growth`, the logarithm of the largest factor by which a perturbation of a type has grown in parameter
        space, and `exponent`, its derivative by $\ln t$, over (parameterization, population, ratio, type, time); NaN
        where a parameterization does not have the type. `base_growth` is the same of the symmetric parameters (NaN for
        a start at zero), `leakage` how far velocities lead out of a type, which is
        rounding. `predicted` and `trained` are the growth of
        one perturbation of each type, and `deviation` how far runs from random starts are from the reduction.
    """
    settings = StabilitySettings() if settings is None else settings
    task, layout = settings.task, Layout.of(settings.task)
    times, compared = settings.times, settings.compared
    each, checks, deviations = [], [], []
    total = 3 * len(settings.parameterizations)
    for number, name in enumerate(settings.parameterizations):

        def say(what: str, part: int, name: str = name, number: int = number) -> None:
            if report is not None:
                report(f"{what} {name}", 3 * number + part, total)

        widths = settings.widths(name)
        found = kinds(layout, **widths)
        vectors, parts = stacked(found)
        start = symmetric_start(task, name, **widths)
        say("linearizing", 0)
        flow = _all_populations(task, start, vectors, type_numbers(found), settings.ratios, times)
        size0 = math.sqrt(sum(float(jnp.sum(array**2)) for array in jax.tree.leaves(start)))
        each.append(_grown(flow, found, parts, times, size0))
        say("checking", 1)
        one = jax.tree.map(lambda array: array[0, settings.ratios.index(settings.check_ratio)], flow)
        checked = check(
            task, name, start, found, parts, one, times, compared,
            ratio=settings.check_ratio, lr=settings.check_lr, epsilon=settings.epsilon, lanes=_LANES,
        )  # fmt: skip
        checks.append(
            xr.Dataset(
                {
                    "predicted": (("type", "check_time"), checked.predicted),
                    "trained": (("run", "type", "check_time"), checked.trained),
                },
                {"type": list(checked.types), "run": list(RUNS), "check_time": times[compared]},
            )
        )
        say("random starts of", 2)
        deviations.append(
            tolerance(
                task, start, name, scales=settings.scales, seeds=settings.seeds, lr=settings.tolerance_lr,
                ratio=settings.tolerance_ratio, time=settings.tolerance_time, lanes=_LANES,
            )
        )  # fmt: skip
    axis = xr.Variable("parameterization", list(settings.parameterizations))
    dataset = xr.Dataset()
    for parts in (each, checks, deviations):
        dataset = dataset.merge(xr.concat(parts, axis, join="outer"), join="outer")
    return _described(dataset, settings)


def _all_populations(
    task: Task, start, vectors: np.ndarray, types: np.ndarray, ratios: tuple[float, ...], times: np.ndarray
) -> Propagated:
    """Both populations in one compiled function: the mean counts are as many sequences as the second moments take."""
    sampled, mean = second_moments(task), data.population(task)
    copies = sampled.weights.shape[0] // mean.weights.shape[0]
    repeated = jax.tree.map(lambda array: jnp.concatenate([array] * copies), mean)
    repeated = dataclasses.replace(repeated, weights=repeated.weights / copies)
    both = [
        propagate(start, batch, jnp.asarray(vectors), jnp.asarray(ratios), jnp.asarray(times), types, _TOL)
        for batch in (repeated, sampled)
    ]
    return jax.tree.map(lambda *arrays: np.stack(arrays), *both)


def _grown(flow: Propagated, found, parts, times: np.ndarray, size0: float) -> xr.Dataset:
    kept = [(kind, part) for kind, part in zip(found, parts, strict=True) if kind.name != SYMMETRIC]
    lines = np.stack([growth(flow, part) for _, part in kept], axis=-2)
    base = np.log(np.asarray(flow.sizes))
    leakage = np.asarray(flow.leakage)
    relative = base - math.log(size0) if size0 > 0 else np.full(base.shape, np.nan)
    axes = ("population", "ratio", "type", "time")
    return xr.Dataset(
        {
            "log_growth": (axes, lines),
            "exponent": (axes, np.gradient(lines, np.log(times), axis=-1)),
            "dimension": ("type", [kind.dimension for kind, _ in kept]),
            "base_growth": (("population", "ratio", "time"), relative),
            "leakage": (axes, np.stack([leakage[..., part].max(axis=-1) for _, part in kept], axis=-2)),
        },
        {"population": list(POPULATIONS), "type": [kind.name for kind, _ in kept], "time": times},
    )


def _described(dataset: xr.Dataset, settings: StabilitySettings) -> xr.Dataset:
    dataset = dataset.assign_coords(ratio=list(settings.ratios))
    names = {
        "log_growth": "ln of the largest growth of a perturbation of this type",
        "exponent": "d ln growth / d ln t",
        "dimension": "dimension of the representation",
        "base_growth": "ln of the growth of the symmetric parameters",
        "leakage": "part of the velocity that leads out of the type",
        "predicted": "ln distance from symmetric matrices, linearized flow",
        "trained": "ln distance from symmetric matrices, training",
        "deviation_attention": "largest relative deviation of attention from the reduction so far",
        "deviation_margin": "largest relative deviation of the margin from the reduction so far",
        "ratio": "ratio of the learning rates",
        "time": "gradient-flow time",
        "check_time": "gradient-flow time",
        "run_time": "gradient-flow time",
        "scale": "standard deviation of the random entries",
    }
    for name, text in names.items():
        dataset[name].attrs.update(long_name=text, units="1")
    dataset.attrs.update(check_ratio=settings.check_ratio, tolerance_ratio=settings.tolerance_ratio,
                         allowed=settings.allowed)  # fmt: skip
    return dataset


EXPERIMENT = Experiment(
    name="stability",
    summary="Which perturbations of the symmetric trajectory grow, and how large a random start may be.",
    settings=StabilitySettings,
    run=stability,
    findings=findings,
    figures={"stability": plot.transverse_stability},
)
