r"""Fixed attention: what training the output-value circuit alone gains from sharper attention (paper, section 5).

The paper states neither the learning rate nor the start nor the number of epochs; they are settings. The defaults make
an epoch ten full-batch steps, 2.5 units of gradient-flow time, with which the paper's statements about 100 epochs and
an attention of 0.4 hold; a learning rate twice as large makes every epoch number half as large.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from flowsim import _checks, _jax
from flowsim.errors import InvalidInput
from flowsim.experiments._experiment import Experiment, Report
from flowsim.experiments._fig3_findings import findings
from flowsim.experiments._held_attention import Lanes, train_held
from flowsim.experiments._typed import typed
from flowsim.plot.sharpening import fixed_attention_errors, fixed_attention_losses
from flowsim.solve.frozen import fixed_attention
from flowsim.solve.line_start import FACTORIZED
from flowsim.solve.stepping import record_steps
from flowsim.status import Status
from flowsim.symmetric import Layout
from flowsim.task import FixedContext, Task
from flowsim.training.starts import RandomStart, Shapes, circuits_at_start

NAMES = {"collapsed": "CACO", "factorized": "CAFO"}
"""The output-value circuits, by a parameterization that has them; the query-key circuit does not move."""
LOOKED_AT = (25, 100)
"""Epochs that the findings read, whatever the grid."""
REFINED = (1, 2)
"""Training is repeated with steps so many times smaller, to see the error of the steps."""


@dataclasses.dataclass(frozen=True)
class Fig3Settings:
    r"""What is trained at fixed attention.

    Attributes:
        classes: $K$.
        distinct: distinct token types per class, $C$.
        common: common token types, $D$; with symmetric starts they change nothing.
        attention: values $\alpha$ of the loss curves, from 0 to 1, increasing.
        delta: by how much attention is sharpened for the incentive.
        lr: learning rate per step.
        steps_per_epoch: full-batch steps in an epoch.
        epochs: number of epochs.
        points: number of epochs that are recorded, logarithmically spaced.
        grid: number of values of $\alpha$ of the incentive map, evenly spaced from 0 to $1 - \delta$.
        margin0: margin at the start of the factorized circuit; the collapsed one starts at 0.
        seeds: number of random starts, which are trained beside the symmetric one; 0 for none.
        start_scale: standard deviation of the entries of the matrices, or of the factors, at a random start.
        near_zero: a loss up to this one counts as near zero.
        noticeable: an incentive of at least this size counts as there.
    """

    classes: int = 4
    distinct: int = 10
    common: int = 10
    attention: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    delta: float = 0.005
    lr: float = 0.25
    steps_per_epoch: int = 10
    epochs: int = 1000
    points: int = 120
    grid: int = 200
    margin0: float = FACTORIZED
    seeds: int = 8
    start_scale: float = 0.1
    near_zero: float = 0.05
    noticeable: float = 1e-3

    def __post_init__(self) -> None:
        typed(self)
        least = {"classes": 2, "epochs": 100, "points": 20, "grid": 20, "seeds": 0}
        for name, minimum in {**dict.fromkeys(("distinct", "common", "steps_per_epoch"), 1), **least}.items():
            _checks.whole(name, getattr(self, name), minimum=minimum)
        for name in ("delta", "lr", "margin0", "start_scale", "near_zero", "noticeable"):
            _checks.real(name, getattr(self, name), above=0.0)
        values = [_checks.real("attention", value, minimum=0.0) for value in self.attention]
        if sorted(set(values)) != values or not values or values[-1] > 1:
            raise InvalidInput(
                f"attention={self.attention} must increase from 0 or more to at most 1; sort the values."
            )
        missing = [value for value in (0.2, 0.4, 0.6, 0.8) if value not in values]
        if missing:
            raise InvalidInput(f"attention={self.attention} lacks {missing[0]}, which the paper speaks of; add it.")
        if self.delta >= 0.2:
            raise InvalidInput(f"delta={self.delta:g} is no small sharpening; give less than 0.2.")

    @classmethod
    def quick(cls) -> "Fig3Settings":
        """A reduced version that takes seconds."""
        return cls(lr=0.5, steps_per_epoch=5, points=60, grid=100, seeds=2)


def fig3(settings: Fig3Settings = Fig3Settings(), report: Report | None = None) -> xr.Dataset:
    r"""Loss curves at fixed attention and the incentive to sharpen it, from the closed form and from training.

    Args:
        settings: what is trained.
        report: is told about the progress.

    Returns:
        Over the output-value circuit (collapsed, factorized), attention and epoch: `loss` and `incentive` of the closed
        form (the latter on a fine grid of attention), `loss_trained` and `incentive_trained` with steps of size
        `lr/refinement`, `loss_random` from random starts.

    Raises:
        InvalidInput: if training diverges.
    """
    _jax.require_x64()
    task = Task(settings.classes, settings.distinct, settings.common, context=FixedContext(distinct=1, common=1))
    attention = np.array(settings.attention)
    fine = np.linspace(0, 1 - settings.delta, settings.grid)
    epochs = np.union1d(record_steps(settings.epochs, settings.points), LOOKED_AT)
    times = epochs * settings.steps_per_epoch * settings.lr
    sharpened = attention[attention + settings.delta <= 1]
    collected: dict[str, list[np.ndarray]] = {name: [] for name in _DIMENSIONS}
    total = 2 * len(NAMES) * bool(settings.seeds) + len(NAMES) * (not settings.seeds)
    done = 0
    for output, name in NAMES.items():
        _tell(report, f"training the {output} circuit", done, total)
        margin0 = settings.margin0 if output == "factorized" else 0.0
        loss, incentive = _closed_form(task, name, attention, fine, times, margin0, settings.delta)
        collected["loss"].append(loss)
        collected["incentive"].append(incentive)
        lanes = np.concatenate([attention, sharpened + settings.delta])
        line = {"margin0": margin0}
        trained = np.stack([_train(task, name, settings, lanes, finer, epochs, line=line)[0] for finer in REFINED])
        here, there = trained[:, : attention.size], trained[:, attention.size :]
        collected["loss_trained"].append(here)
        change = np.full(here.shape, np.nan)
        change[:, : sharpened.size] = here[:, : sharpened.size] - there
        collected["incentive_trained"].append(change)
        done += 1
        if settings.seeds:
            _tell(report, f"training the {output} circuit from random starts", done, total)
            start = RandomStart(settings.start_scale)
            collected["loss_random"].append(_train(task, name, settings, attention, 1, epochs, start=start))
            done += 1
    _tell(report, "training", total, total)
    dataset = xr.Dataset(
        {name: (_DIMENSIONS[name], np.stack(arrays)) for name, arrays in collected.items() if arrays},
        coords={
            "output": list(NAMES),
            "refinement": list(REFINED),
            "attention": attention,
            "attention_fine": fine,
            "epoch": epochs,
            "time": ("epoch", times),
        },
        attrs={
            "delta": settings.delta,
            "lr": settings.lr,
            "near_zero": settings.near_zero,
            "noticeable": settings.noticeable,
            "ignorance": float(np.log(settings.classes)),
        },
    )
    for name, long_name in _LONG_NAMES.items():
        if name in dataset.variables:
            dataset[name].attrs.update(long_name=long_name, units="nat" if name in _DIMENSIONS else "1")
    return dataset


_DIMENSIONS = {
    "loss": ("output", "attention", "epoch"),
    "incentive": ("output", "attention_fine", "epoch"),
    "loss_trained": ("output", "refinement", "attention", "epoch"),
    "incentive_trained": ("output", "refinement", "attention", "epoch"),
    "loss_random": ("output", "seed", "attention", "epoch"),
}
_LONG_NAMES = {
    "loss": "cross-entropy at fixed attention, closed form",
    "incentive": "loss(attention) - loss(attention + delta), closed form",
    "loss_trained": "cross-entropy at fixed attention, trained with steps of size lr/refinement",
    "incentive_trained": "loss(attention) - loss(attention + delta), trained with steps of size lr/refinement",
    "loss_random": "cross-entropy at fixed attention, trained from random starts",
    "attention": "attention on distinct tokens",
    "attention_fine": "attention on distinct tokens",
    "epoch": "epochs",
    "time": "gradient-flow time, lr x steps",
    "refinement": "by how much steps are smaller than lr",
    "output": "output-value circuit",
}


def _tell(report: Report | None, what: str, done: int, total: int) -> None:
    if report is not None:
        report(what, done, total)


def _closed_form(
    task: Task, name: str, attention: np.ndarray, fine: np.ndarray, times: np.ndarray, margin0: float, delta: float
) -> tuple[np.ndarray, np.ndarray]:
    """Losses at `attention` and incentives at `fine`, in one call; at attention 0 the loss stays that of ignorance."""
    lanes = np.concatenate([attention, fine, fine + delta])
    log_loss = np.full((lanes.size, times.size), np.log(np.log(task.classes)))
    seen = lanes > 0
    log_loss[seen] = fixed_attention(task, name, attention=lanes[seen], times=times, margin0=margin0).log_loss
    loss, blunt, sharp = np.split(log_loss, np.cumsum([attention.size, fine.size]))
    return np.exp(loss), -np.exp(blunt) * np.expm1(sharp - blunt)


def _train(
    task: Task, name: str, settings: Fig3Settings, attention: np.ndarray, finer: int, epochs: np.ndarray,
    *, start: RandomStart | None = None, line: dict[str, float] | None = None,
) -> np.ndarray:  # fmt: skip
    """Losses of every seed and attention, all trained side by side with steps of size `lr/finer`."""
    layout = Layout.of(task)
    seeds = np.arange(1 if start is None else settings.seeds)
    places = {**dict.fromkeys(("margin0", "score_gap0", "imbalance_ov", "imbalance_qk")), **(line or {})}
    circuits, _ = circuits_at_start(
        task, name, Shapes.of(layout, name, None, None, None), seeds,
        start=start, line=places, embedded=False, score_scale=1.0, dtype=np.dtype("float64"),
    )  # fmt: skip
    s, a = (index.ravel() for index in np.indices((seeds.size, attention.size)))
    lanes = Lanes(
        jnp.asarray(attention[a]),
        jnp.full(a.size, settings.lr / finer),
        jax.tree.map(lambda array: array[s], circuits.ov),
    )
    losses, status = train_held(layout, lanes, np.diff(epochs, prepend=0) * settings.steps_per_epoch * finer)
    failed = status != int(Status.OK)
    if failed.any():
        raise InvalidInput(
            f"lr={settings.lr:g} makes training at attention={attention[a][np.argmax(failed)]:g} diverge; give a "
            "smaller lr."
        )
    return losses.reshape(seeds.size, attention.size, epochs.size)


EXPERIMENT = Experiment(
    name="fig3",
    summary="Loss at fixed attention and the incentive to sharpen it, collapsed against factorized (paper, section 5).",
    settings=Fig3Settings,
    run=fig3,
    findings=findings,
    figures={"fig3": fixed_attention_losses, "fig3_errors": fixed_attention_errors},
)
