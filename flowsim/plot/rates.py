"""Factorization as a learning rate that changes: effective rates with their laws, and what they lead to."""

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from flowsim.errors import InvalidInput
from flowsim.plot import style

_COLOURS = {"ov": style.PALETTE[0], "qk": style.PALETTE[1]}
_WORDS = {"ov": "output-value circuit factorized (CAFO)", "qk": "query-key circuit factorized (FACO)"}
_RULES = {
    "measured": {"color": style.PALETTE[2], "ls": "", "marker": "o", "ms": 3, "mfc": "white"},
    "fitted": {"color": style.PALETTE[3], "ls": (0, (4, 2))},
    "constant": {"color": style.PALETTE[5], "ls": (0, (1, 1.5))},
}
_LAWS = {"constant": (0, (1, 1.5)), "log t": (0, (4, 2)), "log log t": (0, (6, 2, 1, 2))}


def effective_rates(dataset: xr.Dataset) -> Figure:
    """The effective learning rate of a factorized circuit, its law, and how well a collapsed circuit follows with it.

    Args:
        dataset: from `flowsim.experiments.claims`, with the part "rates".

    Returns:
        The figure: above, the rate against ln t with the laws fitted once the loss is a tenth of its start; below,
        attention of the factorized circuit and of collapsed ones trained with that rate, with a fitted one and with a
        constant one.

    Raises:
        InvalidInput: if the dataset has no such rates.
    """
    from flowsim.experiments._claims import _rates  # the experiment draws with this module

    if not isinstance(dataset, xr.Dataset) or "scheduled_attention" not in dataset.variables:
        raise InvalidInput(
            "dataset has no effective rates; give what flowsim.experiments.claims returned with 'rates'."
        )
    with style.style():
        figure, axes = style.panels(2, 2, height=2.5)
        for column, (circuit, name) in enumerate(_rates.CIRCUITS.items()):
            above, below = axes[:, column]
            log_time, rate = _rates.effective_rate(dataset, name, circuit)
            learnt = _rates.learnt(dataset, name, rate.size)
            above.plot(log_time, rate, color="black")
            for law, fit in _rates.fit(log_time[learnt], rate[learnt]).items():
                if law in _LAWS:
                    above.plot(log_time[learnt], fit.values, color=_COLOURS[circuit], ls=_LAWS[law], lw=1.2)
            above.set_yscale("log")
            above.set_title(_WORDS[circuit])
            above.set_ylabel("effective learning rate")
            above.set_xlabel(style.LOG_TIME)
            run = dataset.sel(circuit=circuit)
            below.plot(run["scheduled_log_time"], run["factorized_attention"], color="black")
            for rule, look in _RULES.items():
                every = slice(None, None, 8 if look["ls"] == "" else 1)
                x, y = run["scheduled_log_time"].values[every], run["scheduled_attention"].sel(rule=rule).values[every]
                below.plot(x, y, **look)
            below.set_ylim(0.48, 1.02)
            below.set_title("collapsed, trained with that rate")
            below.set_ylabel(style.ATTENTION)
            below.set_xlabel(style.LOG_TIME)
            for ax, x in ((above, log_time), (below, run["scheduled_log_time"].values)):
                ax.set_xlim(0, float(np.max(x)))
        style.letters(list(axes.ravel()))
        entries = [style.key("factorized, exact", color="black")]
        entries += [style.key(f"fit: {law}", color=style.GREY, ls=look) for law, look in _LAWS.items()]
        entries += [style.key(f"CACO, {rule} rate", **look) for rule, look in _RULES.items()]
        style.legend(figure, entries, per_row=4)
    return figure
