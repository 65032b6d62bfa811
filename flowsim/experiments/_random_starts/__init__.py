"""`random-starts`: how far randomly initialized FAFO models are from the symmetric reduction, and which part of it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from flowsim import _validate, data, plot
from flowsim.context import FixedContext
from flowsim.errors import InvalidInput
from flowsim.experiments._experiment import Experiment, Report
from flowsim.experiments._random_starts.gram import grams, linearized
from flowsim.experiments._random_starts.reading import findings
from flowsim.experiments._symmetrized import Runs, symmetrized, train_each
from flowsim.experiments._typed import typed
from flowsim.isotypic import existing
from flowsim.models import Circuits, FactorizedCircuit
from flowsim.symmetric import Layout
from flowsim.task import Task
from flowsim.training.starts import KINDS, RandomStart, Shapes, circuits_at_start

_NAME = "FAFO"
VARIANTS = ("as drawn", "common tokens alike", "distinct tokens alike", "all tokens alike")
"""Averaged in the start: nothing; the rows of all common tokens; those of each class's distinct tokens; both."""


@dataclasses.dataclass(frozen=True)
class RandomStartsSettings:
    """Settings of `random-starts`; the task has a query per class, the label head and a fixed context.

    Attributes:
        classes: number of classes, 2 or more.
        distinct: distinct token types per class.
        common: common token types.
        distinct_count: positions with distinct tokens.
        common_count: positions with common tokens.
        scales: scale of the random entries of the factors, increasing.
        widths: hidden units of both circuits, increasing.
        kind: distribution of the entries, "gaussian" or "uniform".
        seeds: runs for each scale and width.
        ratio: learning-rate ratio.
        lr: learning rate of the output-value circuit.
        time: gradient-flow time to train for.
        points: times to record, logarithmically spaced.
        linear_seeds: how many of the runs are compared with the linearized flow.
        allowed: relative deviation of attention or margin that counts as having left the reduction.
    """

    classes: int = 4
    distinct: int = 10
    common: int = 10
    distinct_count: int = 32
    common_count: int = 31
    scales: tuple[float, ...] = (0.03, 0.1, 0.3)
    widths: tuple[int, ...] = (4, 16, 64)
    kind: str = "gaussian"
    seeds: int = 64
    ratio: float = 5.0
    lr: float = 0.5
    time: float = 500.0
    points: int = 60
    linear_seeds: int = 8
    allowed: float = 0.1

    def __post_init__(self) -> None:
        typed(self)
        for name in ("classes", "distinct", "common", "distinct_count", "common_count"):
            _validate.whole(name, getattr(self, name), minimum=2)
        for name in ("seeds", "points"):
            _validate.whole(name, getattr(self, name), minimum=2)
        for name, check in (
            ("scales", lambda value: _validate.real("scales", value, above=0.0)),
            ("widths", lambda value: _validate.whole("widths", value, minimum=1)),
        ):
            values = getattr(self, name)
            for value in values:
                check(value)
            if len(values) < 1 or list(values) != sorted(set(values)):
                raise InvalidInput(f"{name}={values} must be one number or more, increasing.")
        _validate.one_of("kind", self.kind, KINDS)
        for name in ("ratio", "lr", "allowed"):
            _validate.real(name, getattr(self, name), above=0.0)
        _validate.real("time", self.time, above=self.lr)
        _validate.whole("linear_seeds", self.linear_seeds, minimum=1, maximum=self.seeds)

    @classmethod
    def quick(cls) -> "RandomStartsSettings":
        """A reduced run of seconds."""
        return cls(scales=(0.03, 0.1), widths=(4,), seeds=8, time=200.0, linear_seeds=2)

    @property
    def task(self) -> Task:
        """The task that is learnt."""
        context = FixedContext(distinct=self.distinct_count, common=self.common_count)
        return Task(classes=self.classes, distinct=self.distinct, common=self.common, context=context)


def random_starts(settings: RandomStartsSettings | None = None, report: Report | None = None) -> xr.Dataset:
    r"""Trains FAFO from random starts, and the symmetric reduction of each of them.

    The reduction of a run starts from the averages over the symmetry of its $W$, $L L^\top$ and $R^\top R$ (both
    circuits, $W = L R$), and takes the same steps; where matrices are symmetric it is exact.

    Args:
        settings: what to compute; None for the defaults.
        report: is told about the progress.

    Returns:
        `attention` and `margin` of the runs over (scale, width, variant, seed, time), where the variants make some
        tokens alike at the start, `attention_reduction` and `margin_reduction`; `asymmetry`, the norm of each isotypic
        part of both matrices over (scale, width, type, seed, time), and `asymmetry_linear`, what the linearized flow
        makes of the same start.
    """
    settings = RandomStartsSettings() if settings is None else settings
    rows, done = [], 0
    total = len(settings.scales) * len(settings.widths)
    for width in settings.widths:
        each = []
        for scale in settings.scales:
            if report is not None:
                report(f"training {settings.seeds} seeds, width {width}, scale {scale:g}", done, total)
            each.append(_one(settings, scale, width))
            done += 1
        rows.append(xr.concat(each, xr.Variable("scale", list(settings.scales))))
    dataset = xr.concat(rows, xr.Variable("width", list(settings.widths)))
    texts = {
        "attention": "attention on distinct tokens",
        "attention_reduction": "attention on distinct tokens in the symmetric reduction",
        "margin": "mean margin of distinct tokens",
        "margin_reduction": "margin in the symmetric reduction",
        "asymmetry": "norm of the isotypic part of both matrices",
        "asymmetry_linear": "the same in the linearized flow",
        "size": "norm of both matrices",
        "scale": "scale of the random entries",
        "width": "hidden units of each circuit",
        "time": "gradient-flow time",
    }
    for name, text in texts.items():
        dataset[name].attrs.update(long_name=text, units="1")
    return dataset.assign_attrs(allowed=settings.allowed, ratio=settings.ratio)


def _one(settings: RandomStartsSettings, scale: float, width: int) -> xr.Dataset:
    task = settings.task
    layout = Layout.of(task)
    start = RandomStart(scale, settings.kind)
    shapes = Shapes.of(layout, _NAME, None, width, width)
    none: dict[str, Any] = dict.fromkeys(("margin0", "score_gap0", "imbalance_ov", "imbalance_qk"))
    circuits, _ = circuits_at_start(
        task, _NAME, shapes, np.arange(settings.seeds), start=start, line=none, embedded=False, score_scale=1.0,
        dtype=np.dtype("float64"),
    )  # fmt: skip
    steps = max(2, round(settings.time / settings.lr))

    def run(circuits: Circuits) -> Runs:
        lanes = min(settings.seeds, 64)
        return train_each(
            task, _NAME, circuits, lanes, ratio=settings.ratio, lr=settings.lr, steps=steps, points=settings.points
        )

    variants = [run(tokens_alike(layout, circuits, roles)) for roles in ((), ("common",), ("distinct",), layout.roles)]
    symmetric = symmetrized(layout, circuits)
    theory = run(symmetric)
    kinds, time = existing(layout), theory.time
    few = slice(settings.linear_seeds)
    first_order = linearized(
        layout,
        grams(jax.tree.map(lambda array: array[few], symmetric)),
        grams(jax.tree.map(lambda array: array[few], circuits)),
        data.population(task),
        jnp.asarray(settings.ratio),
        jnp.asarray(time),
    )
    drawn = variants[0]
    size = drawn.extra["size"]
    return xr.Dataset(
        {
            "attention": (("variant", "seed", "time"), np.stack([runs.attention for runs in variants])),
            "margin": (("variant", "seed", "time"), np.stack([runs.margin for runs in variants])),
            "attention_reduction": (("seed", "time"), theory.attention),
            "margin_reduction": (("seed", "time"), theory.margin),
            "size": (("seed", "time"), size),
            "asymmetry": (
                ("type", "seed", "time"), np.stack([drawn.extra[f"asymmetry_{kind}"] * size for kind in kinds]),
            ),
            "asymmetry_linear": (
                ("type", "linear_seed", "time"), np.stack([np.asarray(first_order[kind]) for kind in kinds]),
            ),
        },
        {
            "variant": list(VARIANTS),
            "seed": np.arange(settings.seeds),
            "linear_seed": np.arange(settings.linear_seeds),
            "type": list(kinds),
            "time": time,
        },
    )  # fmt: skip


def tokens_alike(layout: Layout, circuits: Circuits, roles: tuple[str, ...]) -> Circuits:
    """Factors in which all tokens of a group (of one class, for distinct ones) have the same, averaged row.

    The flow from there is exactly that of a start without the isotypic types that tell these tokens apart.

    Args:
        layout: where tokens stand.
        circuits: both factorized, with a leading axis over the seeds.
        roles: of the groups to average.
    """
    group, owner = layout.owners
    chosen = np.array([layout.roles[g] in roles for g in group])
    number = np.where(chosen, group * layout.classes + np.maximum(owner, 0), layout.tokens + np.arange(group.size))
    same = number[:, None] == number[None, :]
    mean = same / same.sum(axis=1, keepdims=True)
    qk, ov = circuits
    assert isinstance(qk, FactorizedCircuit)
    assert isinstance(ov, FactorizedCircuit)
    return Circuits(FactorizedCircuit(mean @ qk.left, qk.right), FactorizedCircuit(ov.left, ov.right @ mean.T))


EXPERIMENT = Experiment(
    name="random-starts",
    summary="How far randomly initialized models are from the symmetric reduction, and which part of them.",
    settings=RandomStartsSettings,
    run=random_starts,
    findings=findings,
    figures={"random-starts": plot.random_starts},
)
