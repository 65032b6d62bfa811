"""Every claim of the paper's theory and synthetic parts, beside what the exact flow and training show."""

import dataclasses

import xarray as xr

from flowsim import _checks, _jax
from flowsim.errors import InvalidInput
from flowsim.experiments._claims import _factors, _flow, _rates, _ratio, _trained
from flowsim.experiments._experiment import Experiment, Finding, Report
from flowsim.experiments._typed import typed
from flowsim.plot.rates import effective_rates
from flowsim.task import FixedContext, Task

PARTS = ("ratio", "factors", "rates", "training")
"""What is measured beside the exact flow, which is always."""


@dataclasses.dataclass(frozen=True)
class ClaimsSettings:
    """On what the claims are tested.

    Attributes:
        classes: number of classes.
        distinct: distinct token types per class.
        common: common token types.
        positions: distinct and common positions in a sequence.
        sparse_positions: the same with few distinct ones, so that attention starts low.
        ratios: number of ratios from e^-4 to e^4, one more than a divisor of 80.
        matrices: number of random matrices for the statements on factors.
        lrs: learning rates that show how training breaks what the flow conserves, decreasing.
        seeds: number of seeds of the training on sampled sequences.
        parts: what is measured beside the exact flow: "ratio", "factors", "rates", "training".
    """

    classes: int = 4
    distinct: int = 10
    common: int = 10
    positions: tuple[float, float] = (32.0, 31.0)
    sparse_positions: tuple[float, float] = (6.0, 57.0)
    ratios: int = 17
    matrices: int = 8
    lrs: tuple[float, ...] = (0.4, 0.2, 0.1)
    seeds: int = 4
    parts: tuple[str, ...] = PARTS

    def __post_init__(self) -> None:
        typed(self, empty=("parts",))
        for name, minimum in {"classes": 2, "distinct": 1, "common": 1, "ratios": 5, "matrices": 1, "seeds": 1}.items():
            _checks.whole(name, getattr(self, name), minimum=minimum)
        if 80 % (self.ratios - 1):
            raise InvalidInput(f"ratios={self.ratios} is not one more than a divisor of 80; give 5, 9, 11, 17 or 21.")
        for name in ("positions", "sparse_positions"):
            counts = getattr(self, name)
            if len(counts) != 2 or any(_checks.real(name, count) <= 0 for count in counts):
                raise InvalidInput(f"{name}={counts} must be two numbers above 0, distinct and common.")
        if len(self.lrs) < 2 or any(a <= b for a, b in zip(self.lrs, self.lrs[1:], strict=False)):
            raise InvalidInput(f"lrs={self.lrs} must be two decreasing learning rates or more; sort them.")
        _checks.real("lrs", self.lrs[-1], above=0.0)
        for part in self.parts:
            _checks.one_of("parts", part, PARTS)

    @classmethod
    def quick(cls) -> "ClaimsSettings":
        """A reduced version that takes seconds: what the exact flow says."""
        return cls(ratios=9, parts=("rates",))


def claims(settings: ClaimsSettings = ClaimsSettings(), report: Report | None = None) -> xr.Dataset:
    """Measures all that the claims are compared with.

    Args:
        settings: on what they are tested.
        report: is told about the progress.

    Returns:
        The exact flow over parameterization, ratio and ln t, and beside it, by the parts chosen: ratios that reach
        given attention, errors of the statements on factors, collapsed training with the rate of factors, training on
        sampled sequences.
    """
    _jax.require_x64()
    task, sparse = (
        Task(settings.classes, settings.distinct, settings.common, context=FixedContext(distinct=m, common=n))
        for m, n in (settings.positions, settings.sparse_positions)
    )
    total = 1 + len(settings.parts)

    def tell(what: str, done: int) -> None:
        if report is not None:
            report(what, done, total)

    tell("solving the flow", 0)
    flow = _flow.measure(task, sparse, settings.ratios)
    measures = {
        "ratio": lambda: _ratio.measure(task),
        "factors": lambda: _factors.measure(task, settings.matrices, settings.lrs),
        "rates": lambda: _rates.measure(flow, task),
        "training": lambda: _trained.measure(task, settings.seeds),
    }
    datasets = [flow]
    for done, part in enumerate(settings.parts, start=1):
        tell(f"measuring {part}", done)
        datasets.append(measures[part]())
    tell("done", total)
    return _described(xr.merge(datasets, join="outer", combine_attrs="no_conflicts"))


_LONG_NAMES = {
    "margin": "margin of the exact flow",
    "score_gap_change": "change of the score gap since the start, exact flow",
    "log_odds": "logit of attention on distinct tokens, exact flow",
    "log_error": "log of the error, exact flow",
    "log_loss": "log of the cross-entropy, exact flow",
    "usable": "whether the closed form is accurate there",
    "ratio_at_margin": "learning-rate ratio that reaches an attention at a margin",
    "ratio_at_loss": "learning-rate ratio that reaches an attention at a loss",
    "attention_detour": "attention at one time with a vocabulary head and few distinct tokens",
    "attention_backwards": "attention at early times from a margin below 0",
    "identity_error": "relative distance of autodiff from Proposition 1",
    "preconditioner_error": "relative distance of the velocity of the product from Lemma 2",
    "degree": "degree of homogeneity of the preconditioner of balanced factors",
    "degree_imbalanced": "the same of factors with an imbalance",
    "cosine": "cosine between preconditioned and plain gradient",
    "drift": "relative change of what the flow conserves, in training",
    "scheduled_attention": "attention of collapsed circuits trained with the rate of factors",
    "factorized_attention": "attention of the factorized circuit, exact flow",
    "scheduled_log_time": "log of gradient-flow time",
    "attention_trained": "mean attention on distinct tokens after training on sampled sequences",
    "label_probability": "mean probability of the label after training on sampled sequences",
    "attention_growing": "mean attention after training with a ratio that grows",
    "label_probability_growing": "mean probability of the label after training with a ratio that grows",
    "log_odds_adam": "logit of attention under Adam at one loss",
    "log_loss_adam": "log of the loss at the end of training with Adam",
}


def _described(dataset: xr.Dataset) -> xr.Dataset:
    for name, variable in dataset.data_vars.items():
        variable.attrs.update(long_name=_LONG_NAMES[str(name)], units="1")
    dataset["log_time"].attrs.update(long_name="log of gradient-flow time", units="1")
    return dataset


def findings(dataset: xr.Dataset) -> list[Finding]:
    """The comparison with the paper, claim by claim.

    Args:
        dataset: from `claims`.
    """
    found = [*_flow.findings(dataset), *_ratio.findings(dataset)]
    if "identity_error" in dataset:
        found += _factors.findings(dataset)
    found += _rates.findings(dataset)
    if "attention_trained" in dataset:
        found += _trained.findings(dataset)
    return found


EXPERIMENT = Experiment(
    name="claims",
    summary="Every claim of the paper's theory and synthetic parts, with what the exact flow and training show.",
    settings=ClaimsSettings,
    run=claims,
    findings=findings,
    figures={"claims": effective_rates},
)
