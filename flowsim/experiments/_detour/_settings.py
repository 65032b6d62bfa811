"""Settings of the detour: the task, the plane that is mapped, the training beside it."""

import dataclasses
import itertools

from flowsim import _checks
from flowsim.errors import InvalidInput
from flowsim.experiments._detour._reversal import NODES
from flowsim.experiments._typed import typed
from flowsim.task import FixedContext, Task

STEPS = 20
"""A training shorter than this has no course that a fall and a return could be read from."""


@dataclasses.dataclass(frozen=True)
class DetourSettings:
    r"""Settings of `flowsim.experiments.detour`.

    Attributes:
        classes: number of classes $K$.
        distinct: distinct token types of each class, $C$.
        common: common token types, $D$.
        other_outputs: outputs $R$ that are never the label; without any there is no detour.
        length: positions of a context.
        distinct_positions: how many of them hold distinct tokens: the grid of $\gamma$, increasing; $\gamma$ = this /
            `length`.
        ratio_min: smallest ratio of the map.
        ratio_max: largest ratio of the map; beyond some 500 the flow becomes too stiff after the return.
        ratios: number of ratios, logarithmically spaced.
        horizon: gradient-flow time up to which attention is followed; what has not returned by then is censored.
        budgets: training times for which it is asked whether a larger ratio gives more or less attention, increasing,
            at most `horizon`.
        tol: tolerance of the integration.
        accuracy: to be reached in $\ln t$ of falls and returns and in $\ln r$ of reversals.
        trained_positions: those of `distinct_positions`, whole numbers, that are trained with finite steps too.
        trained_ratios: ratios at which full matrices are trained, in full batches and in minibatches.
        lr: learning rate of the training.
        trained_time: training time; the number of steps is this / `lr`.
        batch: sequences of a minibatch.
        batch_time: training time with minibatches.
        seeds: number of runs with minibatches.
    """

    classes: int = 4
    distinct: int = 10
    common: int = 10
    other_outputs: int = 50
    length: int = 63
    distinct_positions: tuple[float, ...] = (1, 3, 6, 9, 12, 15, 18, 21, 24, 26, 28, 29, 30, 30.4, 31, 32)
    ratio_min: float = 0.1
    ratio_max: float = 300.0
    ratios: int = 29
    horizon: float = 2e4
    budgets: tuple[float, ...] = (300.0, 600.0, 2000.0, 10000.0)
    tol: float = 1e-8
    accuracy: float = 1e-4
    trained_positions: tuple[float, ...] = (9, 21, 28)
    trained_ratios: tuple[float, ...] = (1.0, 10.0, 100.0)
    lr: float = 1.0
    trained_time: float = 4e3
    batch: int = 32
    batch_time: float = 1000.0
    seeds: int = 4

    def __post_init__(self) -> None:
        typed(self)
        for name, minimum in (("classes", 2), ("distinct", 1), ("common", 1), ("other_outputs", 1), ("length", 2)):
            _checks.whole(name, getattr(self, name), minimum=minimum)
        for name in ("ratio_min", "ratio_max", "horizon", "tol", "accuracy", "lr", "trained_time", "batch_time"):
            _checks.real(name, getattr(self, name), above=0.0)
        _checks.whole("ratios", self.ratios, minimum=NODES)
        _checks.whole("batch", self.batch, minimum=1)
        _checks.whole("seeds", self.seeds, minimum=1)
        if self.ratio_max <= self.ratio_min:
            raise InvalidInput(f"ratio_max={self.ratio_max!r} must be above ratio_min={self.ratio_min!r}.")
        for name in ("distinct_positions", "budgets", "trained_positions", "trained_ratios"):
            self._increasing(name)
        if self.distinct_positions[-1] >= self.length:
            raise InvalidInput(
                f"distinct_positions={self.distinct_positions!r} must stay below length={self.length}; give "
                "smaller ones, so that there are common tokens."
            )
        for name in ("trained_time", "batch_time"):
            if getattr(self, name) < STEPS * self.lr:
                raise InvalidInput(
                    f"lr={self.lr:g} leaves fewer than {STEPS} steps for {name}={getattr(self, name):g}; give a "
                    "smaller lr or a longer time."
                )
        if self.budgets[0] > self.trained_time:
            raise InvalidInput(
                f"trained_time={self.trained_time:g} ends before the first of budgets={self.budgets!r}; train longer."
            )
        if self.budgets[-1] > self.horizon:
            raise InvalidInput(f"budgets={self.budgets!r} must not exceed horizon={self.horizon!r}.")
        for count in self.trained_positions:
            if count not in self.distinct_positions or count != int(count):
                raise InvalidInput(
                    f"trained_positions={self.trained_positions!r} must be whole numbers out of distinct_positions="
                    f"{self.distinct_positions!r}."
                )

    def _increasing(self, name: str) -> None:
        values = getattr(self, name)
        listed = [_checks.real(name, value, above=0.0) for value in _checks.listing(name, values, "numbers")]
        if not listed or any(a >= b for a, b in itertools.pairwise(listed)):
            raise InvalidInput(f"{name}={values!r} must be increasing numbers, at least one.")

    @classmethod
    def quick(cls) -> "DetourSettings":
        """A reduced run of seconds."""
        return cls(
            distinct_positions=(3, 12, 21, 28, 31),
            ratio_max=30.0,
            ratios=13,
            horizon=5e3,
            budgets=(300.0, 600.0, 2000.0),
            tol=1e-7,
            accuracy=1e-2,
            trained_positions=(12,),
            trained_ratios=(1.0, 10.0),
            lr=1.0,
            trained_time=4e3,
            batch_time=800.0,
            seeds=2,
        )

    def task(self, positions: float) -> Task:
        """The task whose contexts hold so many distinct tokens."""
        return Task(
            classes=self.classes,
            distinct=self.distinct,
            common=self.common,
            context=FixedContext(distinct=positions, common=self.length - positions),
            other_outputs=self.other_outputs,
        )
