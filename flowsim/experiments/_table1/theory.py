"""What the gradient flow of a one-layer model does with the ratio, on a symmetric task with a data set's numbers."""

import collections
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from flowsim.context import FixedContext
from flowsim.corpora import Example
from flowsim.experiments._table1.data import Prepared, relevant_tokens
from flowsim.solve.ode import integrate
from flowsim.task import Task

_DENSE = 61  # ratios of the curve
# up to t = 1e10, where the slowest ratio has long learnt the loss asked for; out of a small start attention turns
# within 0.1 of ln t: lines between times 0.05 apart would miss it by 0.01, between these by 1e-4
_LOG_TIMES = np.linspace(0.0, 23.0, 4601)


class Numbers(NamedTuple):
    """Numbers of a data set that a symmetric task takes over.

    Attributes:
        classes: number of classes.
        distinct: words that are relevant in texts of one class only, on average over the classes that have some.
        common: words of the marked texts that are relevant nowhere.
        length: mean number of tokens of a marked text.
        share: of them that are relevant, on average, so that uniform attention gives what it gives on the data.
    """

    classes: int
    distinct: int
    common: int
    length: float
    share: float

    @property
    def task(self) -> Task | None:
        """The task, in which every text asks the same question; None where there are no words of one of the kinds."""
        if not (self.distinct and self.common):
            return None
        context = FixedContext(distinct=self.share * self.length, common=(1 - self.share) * self.length)
        return Task(classes=self.classes, distinct=self.distinct, common=self.common, context=context, query="shared")


def numbers_of(examples: Sequence[Example], classes: int) -> Numbers:
    """Counts words and tokens.

    Args:
        examples: training texts, of which some have relevant tokens.
        classes: number of classes.
    """
    marked = [(example, mask) for example in examples if (mask := relevant_tokens(example)) is not None]
    relevant: dict[str | None, set[str]] = {}
    for example, mask in marked:
        words = {word for word, here in zip(example.tokens, mask, strict=True) if here}
        relevant.setdefault(example.label, set()).update(words)
    every = {word for example, _ in marked for word in example.tokens}
    everywhere = collections.Counter(word for words in relevant.values() for word in words)
    own = [sum(everywhere[word] == 1 for word in words) for words in relevant.values()]
    return Numbers(
        classes,
        distinct=round(float(np.mean(own))),
        common=len(every - set(everywhere)),
        length=float(np.mean([mask.size for _, mask in marked])),
        share=float(np.mean([mask.mean() for _, mask in marked])),
    )


def trend(data: Prepared, multipliers: Sequence[float], loss: float) -> xr.Dataset:
    """Attention on relevant tokens in the FAFO flow against the ratio, at equal training loss and at equal time.

    Nothing is fitted: the task has the data set's numbers (`numbers_of`). The loss is the one that the trained
    baseline reached; the time is when the flow with ratio 1 reaches it. Real training has Adam, noise, an MLP and texts
    that are not symmetric, so that the trend is all that can be compared.

    Args:
        data: the data set.
        multipliers: the curve reaches from the least to the largest.
        loss: training loss of the baseline; NaN where it is not known, and the curves are NaN then.

    Returns:
        `theory_attention` and `theory_attention_equal_time` over `theory_multiplier`; NaN where a flow does not reach
        the loss, or the texts have no symmetric counterpart. The data set's numbers stand beside them.
    """
    numbers = numbers_of(data.examples[0], len(data.classes))
    ratios = np.unique(np.append(np.geomspace(min(multipliers), max(multipliers), _DENSE), 1.0))
    curves = _curves(numbers.task, ratios, loss) if numbers.task else np.full((2, ratios.size), np.nan)
    return xr.Dataset(
        {
            "theory_attention": ("theory_multiplier", curves[0]),
            "theory_attention_equal_time": ("theory_multiplier", curves[1]),
            **{f"theory_{name}": value for name, value in numbers._asdict().items()},
        },
        coords={"theory_multiplier": ratios},
    )


def _curves(task: Task, ratios: np.ndarray, loss: float) -> np.ndarray:
    """Attention at equal loss and at equal time, one row each."""
    flow = integrate(task, "FAFO", ratio=ratios, log_times=_LOG_TIMES)
    losses, attention = np.asarray(flow.log_loss), np.asarray(flow.attention)
    target = np.log(loss) if loss > 0 else -np.inf
    reached = np.array([_where(row, target) if np.isfinite(row).all() else np.nan for row in losses])
    equal_time = reached[np.flatnonzero(ratios == 1.0)[0]]
    return np.stack([_at(attention, reached), _at(attention, np.full(ratios.size, equal_time))])


def _where(log_losses: np.ndarray, target: float) -> float:
    """Number of the time, between two of them, at which a falling loss passes the target first; NaN if it does not."""
    below = np.flatnonzero(log_losses <= target)
    if not below.size or below[0] == 0:
        return float("nan")
    i = below[0]
    return i - 1 + (log_losses[i - 1] - target) / (log_losses[i - 1] - log_losses[i])


def _at(values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Values between two times, one for each row; NaN where the number is."""
    first = np.minimum(np.where(np.isnan(numbers), 0, np.floor(numbers)), values.shape[1] - 2).astype(int)
    part = numbers - first
    rows = np.arange(len(values))
    return (1 - part) * values[rows, first] + part * values[rows, first + 1]
