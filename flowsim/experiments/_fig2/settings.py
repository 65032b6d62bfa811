"""What is trained and evaluated; the paper's numbers where it states them."""

import dataclasses
import itertools
from typing import Any

from flowsim import _checks
from flowsim.errors import InvalidInput
from flowsim.experiments._typed import typed
from flowsim.task import BinomialContext, Task

_COUNTS = {
    "classes": 2, "distinct": 1, "common": 1, "length": 2, "batches": 1, "batch": 1, "hidden": 1, "seeds": 2,
    "test": 2, "bins": 1, "thresholds": 2, "scan_seeds": 1, "together": 1,
}  # fmt: skip
_POSITIVE = ("lr", "init", "ratio", "faster", "increasing")
_LISTS = ("scan_lr", "scan_gamma", "scan_init", "scan_ratio")


@dataclasses.dataclass(frozen=True)
class Fig2Settings:
    r"""Settings of `fig2`.

    The paper states classes, distinct and common tokens, vocabulary, length, batches, batch and SGD. It does not state
    the learning rate, the mixture weight, the start, the width of the factors, how much faster the query-key circuit
    learns, nor how 4 queries, 4 next tokens, 40 distinct and 10 common tokens share a vocabulary of 50. Here the 50
    tokens of the context are the vocabulary: next tokens are 4 of its 50 outputs, and a query only selects a column of
    the query-key matrix. `vocabulary=58` gives every token an output of its own, `vocabulary=4` the labels only.

    Attributes:
        classes: number of classes, each with a query and a next token.
        distinct: distinct tokens of each class.
        common: common tokens.
        vocabulary: number of outputs, at least the number of classes.
        length: length of a sequence, the query included.
        gamma: probability that a token before the query is a distinct one.
        attend_query: whether the query is attended like the other tokens.
        batches: number of steps.
        batch: sequences of a step.
        lr: learning rate of the output-value circuit.
        init: trained entries start uniformly between -init and init.
        hidden: width of the factors.
        ratio: of the query-key learning rate to the output-value one.
        faster: that ratio with faster query-key learning.
        increasing: the ratio at the last step when it increases linearly, from `ratio`.
        seeds: number of runs of each parameterization.
        test: held-out sequences of each run.
        bins: bins of the heat maps on both axes.
        thresholds: number of attention thresholds, evenly spaced from 0 to 1.
        confidence: probability of the label from which on a prediction is confident.
        corner: attention and probability from which on an example is in the top right corner.
        scan_lr: learning rates of the scan.
        scan_gamma: mixture weights of the scan.
        scan_init: starts of the scan.
        scan_seeds: runs at each point of the scan.
        scan_ratio: ratios that are trained at the default of everything else, with `scan_seeds` runs each.
        learnt: mean probability of the label from which on a point of the scan counts as learnt.
        together: learning rates or ratios of the scan that are trained in one call; no number depends on it.

    Raises:
        InvalidInput: naming the field, its value and the fix.
    """

    classes: int = 4
    distinct: int = 10
    common: int = 10
    vocabulary: int = 50
    length: int = 64
    gamma: float = 0.5
    attend_query: bool = False
    batches: int = 200
    batch: int = 32
    lr: float = 3.0
    init: float = 0.01
    hidden: int = 50
    ratio: float = 1.0
    faster: float = 3.0
    increasing: float = 10.0
    seeds: int = 32
    test: int = 256
    bins: int = 20
    thresholds: int = 101
    confidence: float = 0.5
    corner: float = 0.8
    scan_lr: tuple[float, ...] = (0.3, 1.0, 2.0, 3.0, 5.0, 10.0)
    scan_gamma: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    scan_init: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3)
    scan_seeds: int = 4
    scan_ratio: tuple[float, ...] = (0.3, 1.0, 2.0, 3.0, 5.0, 10.0)
    learnt: float = 0.8
    together: int = 6

    def __post_init__(self):
        typed(self)
        for name, minimum in _COUNTS.items():
            self._set(name, _checks.whole(name, getattr(self, name), minimum=minimum))
        self._set("vocabulary", _checks.whole("vocabulary", self.vocabulary, minimum=self.classes))
        for name in _POSITIVE:
            self._set(name, _checks.real(name, getattr(self, name), above=0.0))
        for name in ("gamma", "confidence", "corner", "learnt"):
            self._set(name, _share(name, getattr(self, name)))
        for name in _LISTS:
            values = tuple(
                _checks.real(f"{name}[{i}]", value, above=0.0)
                for i, value in enumerate(_checks.listing(name, getattr(self, name), "numbers"))
            )
            if not values or any(a >= b for a, b in itertools.pairwise(values)):
                raise InvalidInput(f"{name}={_checks.show(values)} must be increasing numbers; sort them.")
            self._set(name, values)
        for i, value in enumerate(self.scan_gamma):
            _share(f"scan_gamma[{i}]", value)
        if self.increasing < self.ratio:
            raise InvalidInput(
                f"increasing={self.increasing:g} lies below ratio={self.ratio:g}, from where it increases; raise it."
            )
        _checks.boolean("attend_query", self.attend_query)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def quick(cls) -> "Fig2Settings":
        """A reduced version of seconds, in which every call of a parameterization shares one compiled program."""
        return cls(
            seeds=4,
            test=64,
            bins=10,
            scan_seeds=4,
            together=1,
            scan_lr=(1.0, 3.0),
            scan_gamma=(0.5,),
            scan_init=(0.01, 0.1),
            scan_ratio=(1.0, 3.0, 10.0),
        )

    def task(self, gamma: float | None = None) -> Task:
        """The task, with another mixture weight where one is given."""
        return Task(
            classes=self.classes,
            distinct=self.distinct,
            common=self.common,
            context=BinomialContext(self.length - 1, self.gamma if gamma is None else gamma),
            attend_query=self.attend_query,
            other_outputs=self.vocabulary - self.classes,
        )


def _share(name: str, value: Any) -> float:
    number = _checks.real(name, value, above=0.0)
    if number >= 1:
        raise InvalidInput(f"{name}={number:g} must lie between 0 and 1.")
    return number
