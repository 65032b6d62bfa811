r"""The role of the ratio: $d\alpha/dr > 0$, sharper attention at equal performance, and where that ends (Lemma 3)."""

from typing import Any

import numpy as np
import xarray as xr

from flowsim.experiments._claims._flow import FOUR, WHERE
from flowsim.experiments._experiment import Finding
from flowsim.experiments._seeds import share as _share
from flowsim.solve.descent import descend
from flowsim.solve.exact import exact
from flowsim.solve.inverse_design import ratio_for
from flowsim.task import FixedContext, Task

ATTENTION = (0.55, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
MARGINS = (0.5, 2.0, 8.0)
LOSSES = (0.5, 0.1, 0.01)
EQUAL = 0.01
"""The loss at which runs of equal performance are compared."""
_COMPARABLE = 0.02  # probabilities of the label that differ by less are comparable
_TOP = 1 - 1e-9  # attention beyond this is not told apart
_OUTPUTS, _DISTINCT, _COMMON = 50, 12.6, 50.4  # a task whose first lesson is that common tokens make labels likelier


def measure(task: Task) -> xr.Dataset:
    """Ratios that reach given attention, and the two starts of training in which attention falls first."""
    wanted = np.array(ATTENTION)
    by_margin = [_needed(task, name, wanted, margin=MARGINS) for name in FOUR]
    by_loss = [_needed(task, name, wanted, loss=LOSSES) for name in FOUR]
    groups = {"classes": task.classes, "groups": task.groups}
    away = Task(**groups, context=FixedContext(distinct=_DISTINCT, common=_COMMON), other_outputs=_OUTPUTS)
    detour = descend(away, "CACO", ratio=[1.0, 10.0], lr=0.5, steps=2000, points=1)
    backwards = exact(task, "CACO", ratio=[1.0, 10.0], margin0=-1.0, log_times=np.array([1.0, 2.0, 3.0, 8.0]))
    dims = ("parameterization", "wanted")
    return xr.Dataset(
        {
            "ratio_at_margin": ((*dims, "at_margin"), np.stack(by_margin)),
            "ratio_at_loss": ((*dims, "at_loss"), np.stack(by_loss)),
            "attention_detour": (("pair",), np.asarray(detour.attention[:, -1])),
            "attention_backwards": (("pair", "early"), np.asarray(backwards.attention)),
        },
        {"wanted": wanted, "at_margin": list(MARGINS), "at_loss": list(LOSSES), "pair": [1.0, 10.0]},
        {"detour_time": float(np.exp(detour.log_time[-1]))},
    )


def _needed(task: Task, name: str, wanted: np.ndarray, **point: Any) -> np.ndarray:
    """The ratio for every attention at every point, which is one keyword of `ratio_for` with its values."""
    ((what, values),) = point.items()
    attention, at = np.meshgrid(wanted, values, indexing="ij")
    at_points: dict[str, Any] = {what: at.ravel()}
    return np.asarray(ratio_for(task, name, attention=attention.ravel(), **at_points)).reshape(at.shape)


def findings(dataset: xr.Dataset) -> list[Finding]:
    """The rows on the ratio; those that need more than the flow only where that was measured."""
    found = [_at_time(dataset)]
    if "ratio_at_loss" in dataset:
        found += [_at_point(dataset, "margin"), _at_point(dataset, "loss")]
        found += [_backwards(dataset), _detour(dataset), _equal(dataset)]
    return [
        *found,
        _margin(dataset),
        _comparable(dataset),
        _compensates(dataset),
        _order(dataset),
        _settles(dataset),
    ]


def _flow(dataset: xr.Dataset, until: float = 60.0) -> xr.Dataset:
    """The flow of the balanced task without the tiny ratio."""
    return dataset.sel(context="balanced", log_time=slice(None, until)).isel(ratio=slice(1, None))


def _at_time(dataset: xr.Dataset) -> Finding:
    change = _flow(dataset, 1e6)["log_odds"].diff("ratio")
    share = _share(change > 0, change.notnull())
    return Finding(
        "attention rises with the ratio at fixed time (Lemma 3)",
        WHERE,
        f"all four parameterizations, {change.sizes['ratio']} steps of the ratio at {change.sizes['log_time']} times "
        f"up to ln t = 10^6: the log odds rise in {100 * share:.4g} % of them",
        "agrees" if share == 1 else "differs",
        share,
    )


def _at_point(dataset: xr.Dataset, what: str) -> Finding:
    ratio = dataset[f"ratio_at_{what}"]
    change = ratio.diff("wanted")
    share = _share(change > 0, change.notnull())
    places = ", ".join(f"{value:g}" for value in dataset[f"at_{what}"].values)
    return Finding(
        f"attention rises with the ratio at fixed {what} (Lemma 3)",
        WHERE,
        f"the ratio that attention from {ATTENTION[0]:g} to {ATTENTION[-1]:g} needs at {what} {places} rises with it "
        f"in {100 * share:.4g} % of {change.size} steps, all four parameterizations",
        "agrees" if share == 1 else "differs",
        share,
    )


def _backwards(dataset: xr.Dataset) -> Finding:
    slow, fast = dataset["attention_backwards"].values[:, :1].ravel()
    return Finding(
        "attention rises with the ratio from any start",
        "",
        f"not from a margin of -1: soon after, attention is {slow:.3g} at ratio 1 and {fast:.3g} at ratio 10, for it "
        "turns away first" if fast < slow else f"also from a margin of -1: {slow:.3g} and {fast:.3g}",
        "not stated there" if fast < slow else "undecided",
        float(fast - slow),
    )  # fmt: skip


def _detour(dataset: xr.Dataset) -> Finding:
    slow, fast = dataset["attention_detour"].values
    return Finding(
        "attention rises with the ratio for any task",
        "",
        f"{'not' if fast < slow else 'also'} with a vocabulary head and few distinct tokens ({_DISTINCT:g} of "
        f"{_DISTINCT + _COMMON:g} positions): at time {dataset.attrs['detour_time']:.0f} attention is {slow:.3g} at "
        f"ratio 1 and {fast:.2g} at ratio 10 (experiment detour)",
        "not stated there" if fast < slow else "undecided",
        float(fast - slow),
    )


def _equal(dataset: xr.Dataset) -> Finding:
    ratio = dataset["ratio_at_loss"].sel(at_loss=EQUAL, parameterization="CACO")
    blunt, sharp = float(ratio.sel(wanted=0.6)), float(ratio.sel(wanted=0.95))
    ends = dataset["ratio_at_loss"].sel(at_loss=EQUAL)
    sharper = bool((ends.sel(wanted=0.95) > ends.sel(wanted=0.6)).all())
    return Finding(
        "runs of equal performance can have attention of any sharpness, sharper with faster query-key learning",
        "paper, sections 1, 6 and 7",
        f"at loss {EQUAL:g} CACO attends by 0.6 at ratio {blunt:.3g} and by 0.95 at ratio {sharp:.3g}; FAFO needs "
        f"{float(ends.sel(wanted=0.6, parameterization='FAFO')):.3g} and "
        f"{float(ends.sel(wanted=0.95, parameterization='FAFO')):.3g}",
        "agrees" if sharper else "differs",
        sharp / blunt,
    )


def _near_loss(flow: xr.Dataset, field: str) -> xr.DataArray:
    """A field of the flow at the loss of equal performance, by interpolation in the log of the loss."""
    level = np.log(EQUAL)

    def at(log_loss: np.ndarray, values: np.ndarray) -> float:
        return float(np.interp(-level, -log_loss, values))

    return xr.apply_ufunc(
        at, flow["log_loss"], flow[field], input_core_dims=[["log_time"], ["log_time"]], vectorize=True
    )


def _margin(dataset: xr.Dataset) -> Finding:
    margin = _near_loss(_flow(dataset), "margin")
    share = _share(margin.diff("ratio") < 0, margin.diff("ratio").notnull())
    ends = margin.sel(parameterization="CACO").values[[0, -1]]
    return Finding(
        "sharper attention at equal performance needs no larger output weights",
        "paper, section 7",
        f"at loss {EQUAL:g} the margin falls with the ratio in {100 * share:.4g} % of all steps, for CACO from "
        f"{ends[0]:.3g} to {ends[1]:.3g}",
        "agrees" if share == 1 else "differs",
        share,
    )


def _comparable(dataset: xr.Dataset) -> Finding:
    flow = _flow(dataset)
    step = np.diff(np.log(flow["ratio"].values))[0]
    tenfold = round(np.log(10) / step)
    error = flow["log_error"].copy(data=np.exp(flow["log_error"].values))
    worse = error.shift(ratio=-tenfold) - error
    loss = flow["log_loss"].shift(ratio=-tenfold) - flow["log_loss"]
    most, factor = float(worse.max()), float(np.exp(loss.max()))
    where = loss.where(loss == loss.max(), drop=True)
    return Finding(
        "a larger ratio does not degrade predictive performance at equal training time",
        "paper, sections 4 and 7",
        f"ten times the ratio lowers the probability of the label by at most {max(most, 0):.2g} at any time "
        f"({_COMPARABLE:g} is comparable); where the "
        f"loss is small already it can rise {factor:.3g} times ({where['parameterization'].values[0]}, ln t = "
        f"{float(where['log_time'][0]):.3g})",
        "agrees" if most < _COMPARABLE else "differs",
        most,
    )


def _compensates(dataset: xr.Dataset) -> Finding:
    """Attention over ratio at equal query-key time r t: the output-value circuit learns slower, the other as before."""
    flow = _flow(dataset)["log_odds"].sel(parameterization="CACO")
    spacing = float(flow["log_time"][1] - flow["log_time"][0])
    step = round(np.diff(np.log(flow["ratio"].values))[0] / spacing)
    values = flow.values
    change = np.stack([values[i + 1, :-step] - values[i, step:] for i in range(values.shape[0] - 1)])
    loss = _flow(dataset)["log_loss"].sel(parameterization="CACO").values
    known = 1 / (1 + np.exp(-values[:-1, step:])) < _TOP
    late, early = (change > 0) & known, (change < 0) & known
    first = late.argmax(axis=1)  # where slower output learning begins to sharpen
    begins = np.exp(loss[np.arange(first.size), first + step])
    sharper, blunter = bool(late[:, -1].all()), bool(early.any())
    return Finding(
        "where output-value learning is slower, attention compensates by becoming sharper",
        "paper, section 7",
        f"at equal query-key time r t attention of CACO is {'sharper' if sharper else 'not sharper'} in the end if the "
        f"output-value circuit is slower, but {'blunter' if blunter else 'never blunter'} before the loss is down to "
        f"{begins.min():.2g} to {begins.max():.2g} (ratios from {float(flow['ratio'][0]):.2g} to "
        f"{float(flow['ratio'][-1]):.2g})",
        "agrees" if sharper else "differs",
        float(np.median(begins)),
    )


def _order(dataset: xr.Dataset) -> Finding:
    attention = _near_loss(_flow(dataset), "log_odds").sel(ratio=1.0, method="nearest")
    shown = {name: 1 / (1 + np.exp(-float(attention.sel(parameterization=name)))) for name in FOUR}
    collapsed, factorized = min(shown["CACO"], shown["FACO"]), max(shown["CAFO"], shown["FAFO"])
    return Finding(
        "collapsed output-value circuits (CACO, FACO) attend more sharply than factorized ones (CAFO, FAFO)",
        "paper, section 4",
        f"in the flow of ratio 1, at loss {EQUAL:g}: "
        + ", ".join(f"{name} {value:.3f}" for name, value in shown.items()),
        "agrees" if collapsed > factorized else "differs",
        collapsed - factorized,
    )


def _settles(dataset: xr.Dataset) -> Finding:
    """Whether attention of CAFO, FAFO stops near one value when sequences hold few distinct tokens."""
    flow = dataset.sel(context="sparse", log_time=slice(None, 60.0)).isel(ratio=slice(1, None))
    ends = 1 / (1 + np.exp(-_near_loss(flow, "log_odds").sel(parameterization=["CAFO", "FAFO"])))
    later = 1 / (1 + np.exp(-flow["log_odds"].sel(parameterization=["CAFO", "FAFO"]).isel(log_time=-1)))
    start = 1 / (1 + np.exp(-float(flow["log_odds"].isel(ratio=0, log_time=0).sel(parameterization="CACO"))))
    spread = float(ends.max() - ends.min())
    still = float((later - ends).mean())
    return Finding(
        "with a factorized output-value circuit attention tends to stabilize near 0.4",
        "paper, section 5",
        f"trained together from attention {start:.2g}, it stands at {float(ends.min()):.2g} to {float(ends.max()):.2g} "
        f"when the loss is {EQUAL:g}, by the ratio, and at {float(later.min()):.2g} to {float(later.max()):.2g} at "
        "ln t = 60: no value is singled out",
        "differs" if spread > 0.2 or still > 0.1 else "agrees",
        spread,
    )
