"""What is trained on real texts, and how it is read; the paper's numbers where it states them."""

import dataclasses
import itertools
from typing import Any

from flowsim import _checks, _validate
from flowsim.erasure import REMOVALS
from flowsim.errors import InvalidInput
from flowsim.experiments._table1.data import DATASETS
from flowsim.experiments._typed import typed

PAPER = {"hatexplain": (5e-5, 30.0), "subject-verb": (1e-5, 100.0)}
"""The paper's base rates and multipliers."""
PRESETS = ("tuned", "paper")
TUNING_SEED = 10_000
"""Seeds for tuning begin here, so that none of them is reported on."""

_COUNTS = {
    "seeds": 1, "tuning_seeds": 1, "at_most": 3, "at_least": 1, "d": 1, "layers": 1, "heads": 1, "batch": 1,
    "max_epochs": 1, "patience": 1, "bins": 1, "split_seed": 0, "longest": 1,
}  # fmt: skip
_MOST = {"seeds": TUNING_SEED, "d": 8192, "layers": 128}  # larger models fit on no machine that this is meant for


@dataclasses.dataclass(frozen=True)
class TextSettings:
    """Settings that both experiments on real texts have.

    The paper states the data sets, AdamW, base rates, multipliers, one layer, and that only validation performance was
    used for tuning. It does not state in its main text the sizes of the model, weight decay, batch, number of epochs
    and the thresholds of AC and ACMC.

    Attributes:
        data: folder with the data sets' files.
        datasets: which of hatexplain and subject-verb.
        preset: `"paper"`: the paper's base rates and multipliers; `"tuned"`: both chosen by validation loss, never by
            attention, with seeds that are not those of the results.
        seeds: number of runs of each kind; a seed draws weights and batches.
        skip_bad: go on after malformed records.
        split_seed: of the division by source, where the official one cannot be had.
        at_most: texts of a data set; of more, so many are drawn with `split_seed`.
        longest: tokens of a text; of a longer one the beginning is left away, and what is relevant in it.
        at_least: times that a word must occur in the training texts to have a number of its own.
        end_token: whether a sign for the end stands behind each text, so that the position that predicts holds no
            word; otherwise the last word predicts.
        parameterization: of the circuits of each head.
        d: dimension of the residual stream.
        layers: number of blocks.
        heads: of each block.
        batch: texts of a step.
        weight_decay: of all parameters.
        max_epochs: most epochs of a run.
        patience: epochs without a smaller validation loss before a run stops.
        base_rates: from which `preset="tuned"` chooses.
        tuning_seeds: runs for each choice, over which the validation loss is averaged.
        threshold: attention on relevant tokens from which on AC and ACMC count an example.
        confidence: probability of the label from which on ACMC takes a prediction as confident.
        share: of the tokens, for comprehensiveness and sufficiency at a single k.
        removal: how tokens are removed for them: delete, where later ones move up; pad, where they are hidden and the
            others keep their positions; or mask, where the unknown word replaces them, which the models know only if
            rare words are left out of the vocabulary (`at_least`).
        bins: of the heat maps on both axes.

    Raises:
        InvalidInput: naming the field, its value and the fix.
    """

    data: str = ""
    datasets: tuple[str, ...] = DATASETS
    preset: str = "tuned"
    seeds: int = 5
    skip_bad: bool = False
    split_seed: int = 0
    at_most: int = 20_000
    longest: int = 512
    at_least: int = 2
    end_token: bool = False
    parameterization: str = "FAFO"
    d: int = 64
    layers: int = 1
    heads: int = 1
    batch: int = 32
    weight_decay: float = 0.01
    max_epochs: int = 60
    patience: int = 5
    base_rates: tuple[float, ...] = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
    tuning_seeds: int = 3
    threshold: float = 0.5
    confidence: float = 0.5
    share: float = 0.2
    removal: str = "delete"
    bins: int = 10

    def __post_init__(self):
        typed(self)
        for name, minimum in _COUNTS.items():
            value = _checks.whole(name, getattr(self, name), minimum=minimum, maximum=_MOST.get(name))
            self._set(name, value)
        for name, allowed in (("preset", PRESETS), ("removal", REMOVALS)):
            _checks.one_of(name, getattr(self, name), allowed)
        _validate.parameterization(self.parameterization)
        chosen = tuple(_checks.one_of("datasets", name, DATASETS) for name in self.datasets)
        if not chosen or len(set(chosen)) < len(chosen):
            raise InvalidInput(f"datasets={chosen} must name one data set or more, each once.")
        self._set("weight_decay", _checks.real("weight_decay", self.weight_decay, minimum=0.0))
        for name in ("threshold", "confidence", "share"):
            value = _checks.real(name, getattr(self, name), above=0.0)
            if value > 1:
                raise InvalidInput(f"{name}={value:g} must be at most 1.")
            self._set(name, value)
        self._increasing("base_rates")
        if self.removal == "mask" and self.at_least == 1:
            raise InvalidInput(
                "removal='mask' replaces tokens by the unknown word, which no training text holds with at_least=1; "
                "give at_least=2 or more, or another removal."
            )
        if self.d % self.heads:
            raise InvalidInput(f"d={self.d} is no multiple of heads={self.heads}; change one of them.")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _increasing(self, name: str) -> None:
        values = tuple(
            _checks.real(f"{name}[{i}]", value, above=0.0)
            for i, value in enumerate(_checks.listing(name, getattr(self, name), "numbers"))
        )
        if not values or any(a >= b for a, b in itertools.pairwise(values)):
            raise InvalidInput(f"{name}={_checks.show(values)} must be increasing numbers; sort them.")
        self._set(name, values)


@dataclasses.dataclass(frozen=True)
class Table1Settings(TextSettings):
    """Settings of `table1`: those of `TextSettings`, and one more.

    Attributes:
        multipliers: of the query-key learning rate, from which `preset="tuned"` chooses; above 1, the baseline's.
    """

    multipliers: tuple[float, ...] = (3.0, 10.0, 30.0, 100.0)

    def __post_init__(self):
        super().__post_init__()
        self._increasing("multipliers")
        if self.multipliers[0] <= 1:
            raise InvalidInput(
                f"multipliers={self.multipliers} must be above 1, the baseline's; leave the others away."
            )

    @classmethod
    def quick(cls) -> "Table1Settings":
        """A reduced version, of about a minute on the two small data sets."""
        return cls(seeds=2, tuning_seeds=1, base_rates=(3e-4,), multipliers=(10.0,), max_epochs=4, at_most=1000, d=32)


@dataclasses.dataclass(frozen=True)
class DialSettings(TextSettings):
    """Settings of `ratio-dial`: those of `TextSettings`, and two more.

    Attributes:
        multipliers: of the query-key learning rate; all of them are trained, 1 among them.
        decay: weight decay of the query-key circuits: `"coupled"` to their own rate, or `"independent"` of it.
    """

    multipliers: tuple[float, ...] = (0.1, 1.0, 10.0, 30.0, 100.0)
    decay: str = "coupled"

    def __post_init__(self):
        super().__post_init__()
        self._increasing("multipliers")
        _checks.one_of("decay", self.decay, ("coupled", "independent"))
        if 1.0 not in self.multipliers:
            raise InvalidInput(f"multipliers={self.multipliers} lack 1, the baseline; add it.")

    @classmethod
    def quick(cls) -> "DialSettings":
        """A reduced version, of about a minute on the two small data sets."""
        return cls(
            seeds=2, tuning_seeds=1, base_rates=(3e-4,), multipliers=(0.1, 1.0, 10.0), max_epochs=4, at_most=1000, d=32
        )
