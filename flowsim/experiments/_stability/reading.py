"""What the arrays of `stability` say."""

import numpy as np
import xarray as xr

from flowsim.experiments._experiment import Finding
from flowsim.experiments._stability.noisy_starts import tolerated
from flowsim.experiments._stability.trained import slopes

OURS = "not stated there"
NAMES = {
    "class": "class asymmetry",
    "pair": "asymmetry of pairs of classes",
    "pair_cyclic": "cyclic asymmetry of pairs of classes",
    "distinct": "asymmetry of distinct tokens within a class",
    "distinct_label": "asymmetry of distinct tokens by other label",
    "common": "asymmetry of common tokens",
    "query_code": "class coded in common tokens",
    "hidden_qk": "query-key hidden units told apart",
    "hidden_ov": "output-value hidden units told apart",
    "hidden_qk+class": "query-key hidden units that carry a class",
    "hidden_ov+class": "output-value hidden units that carry a class",
}
SPAN = 5
_STEADY = 0.1
_NEUTRAL = 0.05
_SLOPES = 0.05


def findings(dataset: xr.Dataset) -> list[Finding]:
    """The comparison with the paper, which says nothing about perturbations of the symmetric trajectory."""
    return [*_growth(dataset), *_types_apart(dataset), *_populations(dataset), *_training(dataset), *_starts(dataset)]


def _growth(dataset: xr.Dataset) -> list[Finding]:
    """One row for each type that grows in some parameterization."""
    ratio, rows = dataset.attrs["check_ratio"], []
    last = float(dataset.time[-1])
    for kind in NAMES:
        if kind not in dataset.type.values:
            continue
        here = dataset.sel(type=kind, ratio=ratio, population="mean-counts")
        words, late = [], []
        for name in dataset.parameterization.values:
            line = here.log_growth.sel(parameterization=name).values
            if np.isnan(line).any():
                continue
            late.append(float(here.exponent.sel(parameterization=name).values[-SPAN:].mean()))
            words.append(f"{name} {np.exp(line.max()):.3g} (late exponent {late[-1]:+.3f})")
        if not words or float(here.log_growth.max()) < _NEUTRAL:
            continue
        rows.append(
            Finding(
                f"{NAMES[kind]} along the symmetric trajectory, ratio {ratio:g}",
                "",
                f"A perturbation grows until t={last:g} by a factor of at most: {', '.join(words)}.",
                OURS,
                max(late),
            )
        )
    return [*rows, *_by_ratio(dataset)]


def _by_ratio(dataset: xr.Dataset) -> list[Finding]:
    """How the exponent of the type that grows most depends on the ratio."""
    if dataset.ratio.size < 2:
        return []
    late = dataset.exponent.sel(population="mean-counts").isel(time=slice(-SPAN, None)).mean("time")
    kind = str(late.type.values[int(late.fillna(-np.inf).max(("parameterization", "ratio")).values.argmax())])
    words = []
    for name in dataset.parameterization.values:
        values = late.sel(type=kind, parameterization=name).values
        words.append(f"{name} {', '.join(f'{value:+.2f}' for value in values)}")
    ratios = ", ".join(f"{ratio:g}" for ratio in dataset.ratio.values)
    return [
        Finding(
            f"how the growth of {NAMES.get(kind, kind)} depends on the ratio",
            "",
            f"Late exponents at ratios {ratios}: {'; '.join(words)}.",
            OURS,
            float(late.sel(type=kind).max()),
        )
    ]


def _types_apart(dataset: xr.Dataset) -> list[Finding]:
    worst = float(dataset.leakage.max())
    return [
        Finding(
            "the linearized flow keeps isotypic types apart",
            "",
            f"At most {worst:.1e} of a velocity leads out of its type.",
            "agrees" if worst < 1e-9 else "differs",
            worst,
        )
    ]


def _populations(dataset: xr.Dataset) -> list[Finding]:
    here = dataset.log_growth.sel(ratio=dataset.attrs["check_ratio"])
    apart = np.abs(here.sel(population="sampled-identities") - here.sel(population="mean-counts"))
    where = np.unravel_index(int(np.nanargmax(apart.values)), apart.shape)
    at = {dim: apart[dim].values[i] for dim, i in zip(apart.dims, where, strict=True)}
    mean = float(here.sel(population="mean-counts", **at))
    return [
        Finding(
            "what random token identities instead of mean counts change in the growth",
            "",
            f"Most for {NAMES.get(at['type'], at['type'])}, {at['parameterization']}, t={at['time']:.3g}: ln growth "
            f"{mean:.2f} becomes {mean + float(here.sel(population='sampled-identities', **at)) - mean:.2f}.",
            OURS,
            float(apart.max()),
        )
    ]


def _training(dataset: xr.Dataset) -> list[Finding]:
    rows = []
    for name in dataset.parameterization.values:
        here = dataset.sel(parameterization=name)
        errors = slope_errors(here)
        claim = f"small perturbations of {name} grow in training as linearized"
        lost = (here.predicted.notnull().all("check_time") & errors.error.isnull()).values
        if lost.any() or errors.error.isnull().all():
            rows.append(Finding(claim, "", f"Training diverged for {int(lost.sum())} types.", "undecided"))
            continue
        kind = str(errors.type.values[int(np.nanargmax(errors.error.values))])
        worst = errors.sel(type=kind)
        rows.append(
            Finding(
                claim,
                "",
                f"Slopes differ by {float(worst.error):.2%} of the steepest at most ({NAMES[kind]}); halving the step "
                f"changes them by {float(worst.step):.2%}, halving the perturbation by {float(worst['size']):.2%} "
                f"({_SLOPES:.0%} counts as the same).",
                "agrees" if float(worst.error) < _SLOPES else "differs",
                float(worst.error),
            )
        )
    return rows


def slope_errors(dataset: xr.Dataset) -> xr.Dataset:
    """Largest error of the trained slopes by type, and the shares that step and size of the perturbation have in it.

    Args:
        dataset: the arrays of one parameterization.

    Returns:
        `error`, `step` and `size` by type, relative to the steepest predicted slope (to 1 where that is below 0.1);
        NaN for types that the parameterization does not have.
    """
    log_time = np.log(dataset.check_time.values)
    predicted = slopes(log_time, dataset.predicted.values, SPAN)
    given, half_step, half_size = slopes(log_time, dataset.trained.values, SPAN)
    steepest = np.max(np.abs(predicted), axis=-1)
    unit = np.where(steepest < _STEADY, 1.0, steepest)
    parts = {"error": given - predicted, "step": given - half_step, "size": given - half_size}
    return xr.Dataset(
        {name: ("type", np.max(np.abs(values), axis=-1) / unit) for name, values in parts.items()},
        {"type": dataset.type.values},
    )


def _starts(dataset: xr.Dataset) -> list[Finding]:
    allowed, rows = dataset.attrs["allowed"], []
    scales, times = dataset.scale.values, dataset.run_time.values
    for name in dataset.parameterization.values:
        found = {}
        for observable in ("attention", "margin"):
            deviation = dataset[f"deviation_{observable}"].sel(parameterization=name).values
            found[observable] = float(tolerated(scales, deviation, allowed)[-1])
        words = " and ".join(f"{_scale(value, scales)} for {observable}" for observable, value in found.items())
        rows.append(
            Finding(
                f"largest random start of {name} whose reduction is within {allowed:.0%}",
                "",
                f"Until t={times[-1]:g} the median run allows entries of standard deviation {words}.",
                OURS,
                min(found.values()) if np.isfinite(min(found.values())) else None,
            )
        )
    return rows


def _scale(value: float, scales: np.ndarray) -> str:
    if value == 0:
        return f"less than {scales[0]:g}"
    return f"more than {scales[-1]:g}" if np.isinf(value) else f"{value:.2g}"
