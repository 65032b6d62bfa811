"""What the map of the detour says about the paper's claims, and beyond them."""

import numpy as np
import xarray as xr

from flowsim.experiments._detour._excursion import Outcome
from flowsim.experiments._detour._reversal import Kind
from flowsim.experiments._experiment import Finding
from flowsim.experiments._seeds import CONFIDENCE, difference, share

_SHARPER = "a larger ratio of learning rates leads to sharper attention"
_LEMMA = "paper, section 6, Lemma 3"
# A change of the log odds that the tolerance of the integration cannot have made.
_CLEAR = 1e-6
# Ratios from here on are compared with the theory of large ratios.
_LARGE = 30.0
# How far from theory an own finding may be and still hold: exponents at the smallest ratios, ln of theory / flow, the
# lowest log odds there, and both of finite steps.
_EXPONENT, _TIMES, _DEPTHS, _STEPS = 0.1, 0.5, 0.5, 0.1


def findings(dataset: xr.Dataset) -> list[Finding]:
    """Compares the arrays of `detour` with the paper.

    Args:
        dataset: what `detour` returned.

    Returns:
        The comparison, row by row.
    """
    below = dataset.gamma.values < dataset.attrs["critical_gamma"]
    rows = [_sharper_below(dataset, below), _sharper_above(dataset, ~below), _where_it_turns(dataset)]
    rows += [_first_direction(dataset), _small_ratio(dataset, below), _large_ratio(dataset, below)]
    return [*rows, _finite_steps(dataset), _full_matrices(dataset), _minibatches(dataset)]


def at_budgets(dataset: xr.Dataset) -> np.ndarray:
    """Log odds relative to the start at the budgets, shape (gamma, ratio, budget)."""
    at = np.argmin(np.abs(dataset.log_time.values[:, None] - np.log(dataset.budget.values)), axis=0)
    return dataset.change.values[:, :, at]


def less_with_ratio(dataset: xr.Dataset) -> np.ndarray:
    """Whether attention falls from one ratio to the next, shape (gamma, ratios - 1, budget)."""
    return np.diff(at_budgets(dataset), axis=1) < -_CLEAR


def _known(dataset: xr.Dataset) -> np.ndarray:
    """Where both ratios of `less_with_ratio` were solved."""
    return np.isfinite(np.diff(at_budgets(dataset), axis=1))


def _sharper_below(dataset: xr.Dataset, below: np.ndarray) -> Finding:
    claim = f"{_SHARPER} (vocabulary head, gamma below {dataset.attrs['critical_gamma']:.4f})"
    if not below.any():
        return Finding(claim, _LEMMA, "no such gamma was mapped", "undecided")
    less, known = less_with_ratio(dataset)[below], _known(dataset)[below]
    shares = [share(less[..., i], known[..., i]) for i in range(dataset.budget.size)]
    worst = max(range(len(shares)), key=lambda i: np.nan_to_num(shares[i], nan=-1.0))
    parts = ", ".join(f"{100 * s:.0f} % at t={t:g}" for s, t in zip(shares, dataset.budget.values, strict=True))
    return Finding(
        claim=claim,
        where=_LEMMA,
        found=f"part of the (gamma, ln ratio) plane on which a larger ratio gives less attention: {parts}",
        verdict="differs" if shares[worst] > 0 else "agrees",
        value=float(shares[worst]),
    )


def _sharper_above(dataset: xr.Dataset, above: np.ndarray) -> Finding:
    claim = f"{_SHARPER} (vocabulary head, gamma above {dataset.attrs['critical_gamma']:.4f})"
    if not above.any():
        return Finding(claim, _LEMMA, "no such gamma was mapped", "undecided")
    less = share(less_with_ratio(dataset)[above], _known(dataset)[above])
    return Finding(
        claim,
        _LEMMA,
        f"a larger ratio gives less attention on {100 * less:.0f} % of the plane, over all budgets",
        "differs" if less > 0 else "agrees",
        less,
    )


def _where_it_turns(dataset: xr.Dataset) -> Finding:
    """The reversal in numbers: one context, the budgets one after the other."""
    kinds = dataset.reversal_kind.values
    gamma = int(np.argmax((kinds == Kind.REVERSES).sum(axis=1)))
    words = {Kind.MORE: "none", Kind.LESS: "every ratio", Kind.UNSOLVED: "not solved"}
    parts = []
    for i, budget in enumerate(dataset.budget.values):
        kind = Kind(int(kinds[gamma, i]))
        ratio = np.exp(dataset.reversal_log_ratio.values[gamma, i])
        parts.append(f"t={budget:g}: {words.get(kind, f'beyond {ratio:.4g}')}")
    reversing = dataset.reversal_accuracy.values[kinds == Kind.REVERSES]
    accuracy = f"; accuracy in ln ratio {reversing.max():.0e} or better" if reversing.size else ""
    return Finding(
        claim="beyond which ratio a larger one gives less attention at a given training time",
        where="",
        found=f"gamma={dataset.gamma.values[gamma]:.3f}, {', '.join(parts)}{accuracy}",
        verdict="not stated there",
    )


def _first_direction(dataset: xr.Dataset) -> Finding:
    """Whether attention falls first just where the closed form says so, for every ratio."""
    curved = dataset.theory_curvature.values < 0
    first = dataset.change.values[:, :, 0]
    agree = share((first < 0) == curved[:, None], np.isfinite(first))
    return Finding(
        claim="attention falls first, whatever the ratio, if and only if gamma < C R/(C R + D (K+R-1))",
        where="",
        found=f"that is {dataset.attrs['critical_gamma']:.4f}; right for {100 * agree:.0f} % of the map",
        verdict="not stated there" if agree == 1 else "undecided",
        value=agree,
    )


def _small_ratio(dataset: xr.Dataset, below: np.ndarray) -> Finding:
    returned = (dataset.outcome.values[:, :2] == Outcome.RETURNED).all(axis=1) & below
    claim = "for small ratios the depth is proportional to the ratio and the length does not depend on it"
    if not returned.any():
        return Finding(claim, "", "no detour returned there", "undecided")
    step = np.diff(np.log(dataset.ratio.values[:2]))[0]
    depth = np.diff(np.log(-dataset.depth.values[returned, :2]), axis=1) / step
    length = np.diff(np.log(dataset.length.values[returned, :2]), axis=1) / step
    return Finding(
        claim,
        "",
        f"at ratio {dataset.ratio.values[0]:g} the exponent of the depth is {depth.min():.2f} to {depth.max():.2f}, "
        f"that of the length {length.min():.3f} to {length.max():.3f} (within {_EXPONENT:g} of 1 and 0 counts)",
        "not stated there" if max(np.abs(depth - 1).max(), np.abs(length).max()) < _EXPONENT else "undecided",
        float(np.median(depth)),
    )


def _large_ratio(dataset: xr.Dataset, below: np.ndarray) -> Finding:
    claim = "for large ratios attention is back at t = B M(p) sqrt(r) (L + c1/2)^2, and was lowest near 1/(r ln^2 r)"
    compared = (dataset.outcome.values == Outcome.RETURNED) & (dataset.ratio.values >= _LARGE) & below[:, None]
    compared &= (dataset.gamma.values < 0.9 * dataset.attrs["critical_gamma"])[:, None]
    if not compared.any():
        return Finding(claim, "", f"no detour returned at a ratio of {_LARGE:g} or more", "undecided")
    off = dataset.theory_back.values[compared] / np.exp(dataset.log_back.values[compared])
    depth = np.abs(dataset.theory_depth.values - dataset.depth.values)[compared].max()
    return Finding(
        claim,
        "",
        f"for ratios from {_LARGE:g} on theory / flow is {off.min():.2f} to {off.max():.2f} in the time of return, and "
        f"the lowest log odds agree within {depth:.2f} (up to {np.exp(_TIMES):.2f} times and {_DEPTHS:g} count)",
        "not stated there" if np.abs(np.log(off)).max() < _TIMES and depth < _DEPTHS else "undecided",
        float(np.median(off)),
    )


def _finite_steps(dataset: xr.Dataset) -> Finding:
    claim = f"training with finite steps (lr {dataset.attrs['lr']:g}) makes the detour of the flow"
    at = [int(np.argmin(np.abs(dataset.gamma.values - gamma))) for gamma in dataset.trained_gamma.values]
    outcome = dataset.trained_outcome.values
    both = (outcome == Outcome.RETURNED) & (dataset.outcome.values[at] == Outcome.RETURNED)
    lost = int((outcome == Outcome.UNSOLVED).sum())
    if not both.any():
        return Finding(
            claim, "", f"no detour returned in training; {lost} of {outcome.size} runs diverged", "undecided"
        )
    off = np.abs(dataset.trained_log_back.values - dataset.log_back.values[at])[both]
    depth = np.abs(dataset.trained_depth.values - dataset.depth.values[at])[both]
    return Finding(
        claim,
        "",
        f"ln of the time of return differs by {np.median(off):.1e} in the median and {off.max():.1e} at most, the "
        f"depth by {depth.max():.1e} at most, over {both.sum()} detours ({_STEPS:g} counts as the same); {lost} of "
        f"{outcome.size} runs diverged",
        "not stated there" if max(off.max(), depth.max()) < _STEPS else "undecided",
        float(off.max()),
    )


def _full_matrices(dataset: xr.Dataset) -> Finding:
    """How far attention falls in training of the full matrices, ratio against ratio."""
    full = dataset.full_change.values
    lowest = np.where(
        np.isfinite(full).any(axis=-1), np.min(full, axis=-1, where=~np.isnan(full), initial=np.inf), np.nan
    )
    deeper = lowest.shape[1] > 1 and bool((np.diff(lowest, axis=1) < 0).all())
    listed = ", ".join(
        f"{low:.2f} at ratio {r:g}" for low, r in zip(lowest[0], dataset.trained_ratio.values, strict=True)
    )
    return Finding(
        claim="a larger ratio leads attention farther away from the distinct tokens in full-batch training, too",
        where="",
        found=f"gamma={dataset.trained_gamma.values[0]:.3f}: lowest log odds {listed}"
        + ("" if deeper else "; not so at every gamma"),
        verdict="not stated there" if deeper else "undecided",
        value=float(lowest.min()),
    )


def _minibatches(dataset: xr.Dataset) -> Finding:
    """What a user sees who stops training: attention at the last step, least against largest ratio, seed by seed."""
    claim = f"{_SHARPER} (minibatches, training stopped at t={float(np.exp(dataset.batch_log_time.values[-1])):g})"
    where = "paper, sections 4 and 6"
    if dataset.sizes["trained_ratio"] < 2:
        return Finding(claim, where, "a single ratio was trained", "undecided")
    last = dataset.batch_change.values[..., -1]
    small, large = dataset.trained_ratio.values[[0, -1]]
    changes = [difference(row) for row in last[:, -1] - last[:, 0]]
    less = [share(row < 0, np.isfinite(row)) for row in last[:, -1] - last[:, 0]]
    parts = ", ".join(
        f"{100 * s:.0f} % at gamma={g:.3f} (log odds {change.mean:+.2f} ± {change.error:.2f})"
        for s, g, change in zip(less, dataset.trained_gamma.values, changes, strict=True)
    )
    signs = [change.sign for change in changes]
    return Finding(
        claim,
        where,
        f"seeds with less attention at ratio {large:g} than at {small:g}: {parts}; it counts beyond "
        f"{CONFIDENCE:.0%} of Student's t",
        "differs" if min(signs) < 0 else "agrees" if min(signs) > 0 else "undecided",
        max(less, key=lambda value: np.nan_to_num(value, nan=-1.0)),
    )
