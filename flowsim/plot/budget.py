"""The error budget of training: how large each part of its distance from theory is, over time."""

import numpy as np
from matplotlib.figure import Figure

from flowsim.budget import PARTS, ErrorBudget
from flowsim.errors import InvalidInput
from flowsim.plot import style

_COLOURS: dict[str, str] = dict(zip(PARTS, style.PALETTE, strict=False))
_TITLES = {"margin": ("output-value circuit", r"distance of the margin $w$"),
           "score_gap": ("query-key circuit", r"distance of the score gap $\theta$")}  # fmt: skip


def error_budget(budget: ErrorBudget) -> Figure:
    """The parts of |training - theory| of margin and score gap.

    Args:
        budget: from `flowsim.error_budget`.

    Returns:
        The figure: one line for each part and a black one for the total; thin lines are the sampled runs one by one.

    Raises:
        InvalidInput: if `budget` is none, or has a single time only.
    """
    if not isinstance(budget, ErrorBudget):
        raise InvalidInput(f"budget={budget!r} must be what flowsim.error_budget returned.")
    if budget.log_time.size < 2:
        raise InvalidInput("budget has a single time, which makes no line; give more points.")
    time = np.exp(budget.log_time)
    with style.style():
        figure, axes = style.panels(1, len(budget.parts), height=2.9)
        for ax, (observable, parts) in zip(axes[0], budget.parts.items(), strict=True):
            title, label = _TITLES[observable]
            for run in budget.sampled[observable]:
                ax.plot(time, _positive(run), color=_COLOURS["sampling"], lw=0.4, alpha=0.35)
            for part, values in parts.items():
                ax.plot(time, _positive(values), color=_COLOURS[part])
            ax.plot(time, _positive(budget.total[observable]), color="black", ls=(0, (5, 2)))
            ax.set(xscale="log", yscale="log", xlabel=style.TIME, ylabel=label)
            ax.set_xlim(time[0], time[-1])
            ax.set_title(title)
        style.letters(list(axes[0]))
        entries = [style.key(part, color=_COLOURS[part]) for part in next(iter(budget.parts.values()))]
        entries.append(style.key("training against theory", color="black", ls=(0, (5, 2))))
        style.legend(figure, entries, per_row=len(entries))
    return figure


def _positive(values: np.ndarray) -> np.ndarray:
    """Distances on a log axis: an exact 0 leaves a gap."""
    return np.where(values > 0, values, np.nan)
