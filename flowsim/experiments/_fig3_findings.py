"""What the loss curves at fixed attention say about the statements of the paper's section 5."""

import numpy as np
import xarray as xr

from flowsim.experiments._experiment import Finding

WHERE = "paper, section 5"
EPOCHS = 100
"""The number of epochs that the paper names."""
EARLY = 25
SETTLED = 0.4
"""The attention that it names."""
_NEAR = 0.05  # an attention so far from another one is still "near" it
_MIDDLE = (0.2, 0.4, 0.6, 0.8)


def reach(dataset: xr.Dataset) -> xr.DataArray:
    """The largest attention at which the incentive is still noticeable, over output-value circuit and epoch.

    Args:
        dataset: from `fig3`.

    Returns:
        The attention; NaN where the incentive is noticeable nowhere.
    """
    there = dataset["incentive"] >= dataset.attrs["noticeable"]
    return dataset["attention_fine"].where(there).max("attention_fine")


def epochs_to_near_zero(dataset: xr.Dataset, loss: str = "loss") -> xr.DataArray:
    """The epoch at which the loss gets near zero, between records by their logarithms; infinite where it never does.

    Args:
        dataset: from `fig3`.
        loss: name of the variable.
    """
    epochs, level = np.log(dataset["epoch"].values), dataset.attrs["near_zero"]

    def first(values: np.ndarray) -> float:
        there = values <= level
        if not there.any():
            return np.inf
        i = int(there.argmax())
        with np.errstate(divide="ignore"):  # a loss may have underflowed
            before, after = np.log(values[max(i - 1, 0)] / level), np.log(values[i] / level)
        share = before / (before - after) if i else 0.0
        return float(np.exp(epochs[i - 1] + share * (epochs[i] - epochs[i - 1]) if i else epochs[0]))

    return xr.apply_ufunc(first, dataset[loss], input_core_dims=[["epoch"]], vectorize=True)


def findings(dataset: xr.Dataset) -> list[Finding]:
    """The comparison with the paper.

    Args:
        dataset: from `fig3`.
    """
    found = [
        _near_zero(dataset),
        _incentive_lasts(dataset),
        _incentive_diminishes(dataset),
        _reaches(dataset),
        _settles(dataset),
        _slower(dataset),
        _wider(dataset),
        _steps(dataset),
    ]
    return found + ([_random_starts(dataset)] if "loss_random" in dataset else [])


def _near_zero(dataset: xr.Dataset) -> Finding:
    when = epochs_to_near_zero(dataset).sel(attention=0.2)
    factorized = float(when.sel(output="factorized"))
    there = np.isfinite(factorized)
    last = float(dataset["epoch"][-1])
    at = dataset["loss"].sel(attention=0.2).interp(epoch=factorized if there else last)
    limit = f"at most {dataset.attrs['near_zero']:g}"
    verb = (
        f"{limit} from epoch {factorized:.0f} on, when"
        if there
        else f"above that for all {last:.0f} epochs, after which"
    )
    return Finding(
        "factorized output-value training brings the loss near zero at attention 0.2",
        WHERE,
        f"it is {verb if there else f'not {limit}, but {verb}'} the collapsed circuit stands at "
        f"{float(at.sel(output='collapsed')):.3g}",
        "undecided"  # too short a training
        if not there
        else "agrees"
        if float(at.sel(output="collapsed")) > dataset.attrs["near_zero"]
        else "differs",
        factorized if there else None,
    )


def _incentive_at(dataset: xr.Dataset, output: str, attention: float) -> xr.DataArray:
    return dataset["incentive"].sel(output=output).interp(attention_fine=attention)


def _incentive_lasts(dataset: xr.Dataset) -> Finding:
    incentive = _incentive_at(dataset, "factorized", 0.2)
    early = incentive.sel(epoch=slice(None, EPOCHS))
    there = incentive["epoch"].where(incentive >= dataset.attrs["noticeable"])
    positive, last = float(early.min()) > 0, float(there.max())
    seen = f"from epoch {float(there.min()):.0f} to {last:.0f}" if there.notnull().any() else "at none"
    return Finding(
        "with factorized training the incentive to sharpen attention beyond 0.2 is positive up to 100 epochs",
        WHERE,
        f"it is {'positive' if positive else 'not positive'} at all of them and at least "
        f"{dataset.attrs['noticeable']:g} {seen}; in the exact flow it is positive at every time",
        "differs" if not positive or last < EPOCHS else "agrees",
        last,
    )


def _incentive_diminishes(dataset: xr.Dataset) -> Finding:
    incentive = dataset["incentive"].sel(output="factorized")
    wide = incentive.sel(attention_fine=slice(SETTLED, None)).sel(epoch=EPOCHS)
    blunt = float(_incentive_at(dataset, "factorized", 0.2).sel(epoch=EPOCHS))
    most = float(wide.max())
    return Finding(
        "with factorized training the incentive diminishes rapidly for attention of 0.4 and more",
        WHERE,
        f"after {EPOCHS} epochs it is at most {most:.2g} there, against {blunt:.2g} at 0.2 (noticeable: "
        f"{dataset.attrs['noticeable']:g})",
        "undecided"  # nothing there that could diminish
        if blunt <= dataset.attrs["noticeable"]
        else "agrees"
        if most < dataset.attrs["noticeable"]
        else "differs",
        most,
    )


def _reaches(dataset: xr.Dataset) -> Finding:
    value = float(reach(dataset).sel(output="factorized").sel(epoch=EPOCHS))
    return Finding(
        "with factorized training 100 epochs of incentive carry attention to about 0.4",
        WHERE,
        f"the incentive is at least {dataset.attrs['noticeable']:g} {_up_to(value)} after {EPOCHS} epochs "
        f"of {_epoch(dataset):.3g} units of time each (the learning rate is not stated there and sets this number; "
        f"within {_NEAR:g} counts)",
        "agrees" if abs(value - SETTLED) <= _NEAR else "differs",
        value,
    )


def _up_to(attention: float) -> str:
    """Up to which attention something is noticeable, in words."""
    return f"up to attention {attention:.3g}" if np.isfinite(attention) else "nowhere"


def _epoch(dataset: xr.Dataset) -> float:
    return float(dataset["time"][0] / dataset["epoch"][0])


def _settles(dataset: xr.Dataset) -> Finding:
    last = int(dataset["epoch"][-1])
    slopes = {}
    for output in ("factorized", "collapsed"):
        limit = reach(dataset).sel(output=output, epoch=slice(EPOCHS, last)).dropna("epoch")
        inside = limit < dataset["attention_fine"][-1]
        x, y = np.log(limit["epoch"].values[inside]), np.log(limit.values[inside])
        slopes[output] = float(np.polyfit(x, y, 1)[0]) if x.size > 2 else 0.0
    limit = reach(dataset).sel(output="factorized")
    early, late = (float(limit.sel(epoch=at)) for at in (EARLY, last))
    if not np.isfinite([early, late]).all() or last <= EPOCHS:
        return Finding(
            "with factorized training attention tends to stabilize near 0.4",
            WHERE,
            f"the incentive is not noticeable at epochs {EARLY} and {last}, or {last} are too few to see it move",
            "undecided",
        )
    moves = abs(early - SETTLED) > _NEAR or abs(late - SETTLED) > _NEAR
    return Finding(
        "with factorized training attention tends to stabilize near 0.4",
        WHERE,
        f"no attention is singled out: the incentive reaches to {early:.3g} after {EARLY} epochs and to {late:.2g} "
        f"after {last}, as epochs^{slopes['factorized']:.2f} (collapsed: epochs^{slopes['collapsed']:.2f}); 0.4 is "
        f"where it stands when training stops (within {_NEAR:g} counts as near)",
        "differs" if moves else "agrees",
        slopes["factorized"],
    )


def _slower(dataset: xr.Dataset) -> Finding:
    when = epochs_to_near_zero(dataset).sel(attention=list(_MIDDLE))
    collapsed, factorized = (when.sel(output=output).values for output in ("collapsed", "factorized"))
    with np.errstate(invalid="ignore"):
        ratios = collapsed / factorized
    early = dataset["loss"].sel(output="factorized") > dataset["loss"].sel(output="collapsed")
    behind = early.sel(attention=list(_MIDDLE)).any("attention")
    until = float(dataset["epoch"].where(behind).max().fillna(0))
    known = [f"{ratio:.3g}" for ratio in ratios if np.isfinite(ratio)]
    beyond = sum(~np.isfinite(collapsed))
    return Finding(
        "collapsed training brings the loss to zero less quickly at attention from 0.2 to 0.8",
        WHERE,
        (
            f"it takes {' to '.join(sorted({known[0], known[-1]}, key=float))} times as many epochs"
            if known
            else "it does"
        )
        + (f", more than {int(dataset['epoch'][-1])} at {beyond} of {len(_MIDDLE)} values" if beyond else "")
        + f"; until epoch {until:.0f} the factorized one, which starts near 0, can be behind",
        "undecided" if not np.isfinite(factorized).all() else "agrees" if (collapsed > factorized).all() else "differs",
        float(np.min(ratios)) if np.isfinite(factorized).all() else None,
    )


def _wider(dataset: xr.Dataset) -> Finding:
    limit = reach(dataset)
    collapsed, factorized = (limit.sel(output=output) for output in ("collapsed", "factorized"))
    narrow = np.flatnonzero(~(collapsed > factorized).values)
    first = int(narrow[-1]) + 1 if narrow.size else 0
    since = (
        f"at every epoch from {int(dataset['epoch'][first])} on" if first < dataset.sizes["epoch"] else "not at last"
    )
    at = [float(limits.sel(epoch=EPOCHS)) for limits in (collapsed, factorized)]
    after = f"after {EPOCHS} epochs it is at least {dataset.attrs['noticeable']:g}"
    return Finding(
        "with collapsed training the incentive stays high over a wider range of attention",
        WHERE,
        f"{after} {_up_to(at[0])}, with factors {_up_to(at[1])}; wider {since}",
        "agrees" if at[0] > at[1] else "differs",
        at[0] / at[1],
    )


def _steps(dataset: xr.Dataset) -> Finding:
    error = abs(dataset["loss_trained"] - dataset["loss"]).max(["output", "attention", "epoch"]).values
    order = float(np.log2(error[0] / error[1]))
    return Finding(
        "finite steps follow the closed form with an error of the order of the step",
        "",
        f"the losses differ by at most {error[0]:.2g} with steps of {dataset.attrs['lr']:g}, {error[1]:.2g} with half "
        f"of it: order {order:.2f}",
        "not stated there" if abs(order - 1) < 0.2 else "undecided",
        order,
    )


def _random_starts(dataset: xr.Dataset) -> Finding:
    when = epochs_to_near_zero(dataset, "loss_random")
    slower = when.sel(attention=list(_MIDDLE))
    collapsed, factorized = (slower.sel(output=output) for output in ("collapsed", "factorized"))
    holds = bool((collapsed.min("seed") > factorized.max("seed")).all())
    blunt = when.sel(output="factorized", attention=0.2)
    return Finding(
        "the orderings above do not hinge on a symmetric start",
        "",
        f"from {dataset.sizes['seed']} random starts the factorized loss at attention 0.2 is near zero after "
        f"{float(blunt.min()):.0f} to {float(blunt.max()):.0f} epochs, and collapsed training is "
        f"{'slower' if holds else 'not always slower'} at attention from 0.2 to 0.8",
        "not stated there" if holds else "undecided",
        float(blunt.median()),
    )
