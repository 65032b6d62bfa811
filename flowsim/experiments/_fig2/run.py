"""From settings to arrays: the trainings of the heat maps, and the scan of what the paper leaves open."""

import concurrent.futures
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import xarray as xr

from flowsim import metrics
from flowsim.experiments._experiment import Report
from flowsim.experiments._fig2.settings import Fig2Settings
from flowsim.schedules import Growing
from flowsim.task import Task
from flowsim.training import RandomStart, train
from flowsim.training.evaluation import evaluate
from flowsim.training.examples import held_out
from flowsim.trajectory import Trajectory

PARAMETERIZATIONS = ("FAFO", "CACO", "CAFO", "FACO")
"""In the order of the paper's panels."""
ABOVE = ("CACO", "FACO")
"""Those that the paper has attend more than FAFO."""
REGIMES = ("equal", "faster", "increasing")
_DTYPE = np.dtype("float64")
_READ_BY_FIGURES = ("gamma", "init", "lr", "ratio", "faster", "increasing", "confidence", "corner", "learnt")


def fig2(settings: Fig2Settings | None = None, report: Report | None = None) -> xr.Dataset:
    """Trains the four parameterizations and looks at each held-out sequence; scans what the paper leaves open.

    Args:
        settings: what to train; None for the defaults.
        report: is told about the progress.

    Returns:
        The arrays: attention and probability of each held-out example, heat maps, AC and ACMC, and the scan.
    """
    settings = settings or Fig2Settings()
    done = _all_parts(settings, report)
    axis = xr.DataArray(list(PARAMETERIZATIONS), dims="parameterization", name="parameterization")
    mixtures = xr.DataArray(list(settings.scan_gamma), dims="gamma", name="gamma")
    main, dial, *scan = (xr.concat(each, dim=axis) for each in done)
    dataset = xr.merge([main, dial, xr.concat(scan, dim=mixtures)])
    dataset = xr.merge([dataset, _summaries(settings, dataset), _orderings(settings, dataset)])
    return _described(dataset).assign_attrs({name: getattr(settings, name) for name in _READ_BY_FIGURES})


def _all_parts(settings: Fig2Settings, report: Report | None) -> list[list[xr.Dataset]]:
    """Every part of the work for every parameterization, side by side: compiling uses one core only.

    A parameterization is worked on by one thread at a time, so that nothing is compiled twice.
    """
    parts: list[tuple[str, Callable[[Fig2Settings, str], xr.Dataset]]] = [
        ("training", _examples),
        ("scanning ratios of", _dial),
        *((f"scanning mixture {gamma:g} of", functools.partial(_scan, gamma=gamma)) for gamma in settings.scan_gamma),
    ]
    locks = {name: threading.Lock() for name in PARAMETERIZATIONS}

    def alone(work: Callable[[Fig2Settings, str], xr.Dataset], name: str) -> xr.Dataset:
        with locks[name]:
            return work(settings, name)

    n = len(parts) * len(PARAMETERIZATIONS)
    with concurrent.futures.ThreadPoolExecutor(len(PARAMETERIZATIONS)) as pool:
        waiting = [[pool.submit(alone, work, name) for name in PARAMETERIZATIONS] for _, work in parts]
        results: list[list[xr.Dataset]] = []
        try:
            for i, ((what, _), futures) in enumerate(zip(parts, waiting, strict=True)):
                results.append([])
                for k, (name, future) in enumerate(zip(PARAMETERIZATIONS, futures, strict=True)):
                    if report is not None:
                        report(f"{what} {name}", i * len(PARAMETERIZATIONS) + k, n)
                    results[-1].append(future.result())
        except BaseException:  # Ctrl-C as well: what has not begun need not
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if report is not None:
        report("summing up", n, n)
    return results


def _trained(settings: Fig2Settings, task: Task, name: str, **given: Any) -> Trajectory:
    """One call of `train`; always with a schedule, so that a changing ratio is the same program."""
    widths = {
        f"hidden_{circuit}": settings.hidden
        for circuit, letter in zip(("qk", "ov"), name[::2], strict=True)
        if letter == "F"
    }
    whole = settings.batches * settings.lr
    arguments = {"lr": settings.lr, "ratio": settings.ratio, "schedule": Growing(whole, begin=1.0)} | given
    init = arguments.pop("init", settings.init)
    return train(
        task,
        name,
        steps=settings.batches,
        points=1,
        population="sampled-identities",
        batch=settings.batch,
        test=settings.test,
        start=RandomStart(init, "uniform"),
        progress=False,
        **widths,
        **arguments,
    )


def _examples(settings: Fig2Settings, name: str) -> xr.Dataset:
    """Attention and probability of each held-out sequence under the three regimes of the ratio."""
    task, seeds = settings.task(), np.arange(settings.seeds)
    sequences = held_out(task, seeds, settings.test, _DTYPE)
    growing = Growing(settings.batches * settings.lr, begin=settings.ratio / settings.increasing)
    regimes = {
        "equal": {"ratio": settings.ratio},
        "faster": {"ratio": settings.faster},
        "increasing": {"ratio": settings.increasing, "schedule": growing},
    }
    parts: list[xr.Dataset] = []
    for given in (regimes[regime] for regime in REGIMES):
        trained = _trained(settings, task, name, seeds=settings.seeds, keep_circuits=True, **given)
        seen = evaluate(task, trained.circuits, sequences)
        dims = ("seed", "example")
        usable = np.asarray(trained.ok)[:, None]
        parts.append(
            xr.Dataset(
                {
                    "attention": (dims, np.asarray(seen.attention)),
                    "probability": (dims, np.asarray(seen.probability)),
                    "correct": (dims, np.where(usable, np.asarray(seen.correct, float), np.nan)),
                    "status": (("seed",), np.asarray(trained.status)),
                },
                coords={"seed": seeds},
            )
        )
    return xr.concat(parts, dim=xr.DataArray(list(REGIMES), dims="regime", name="regime"))


def _means(trained: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """Mean attention and probability of the label at the end; NaN of a run that diverged."""
    return np.asarray(trained.attention[..., -1]), -np.expm1(np.asarray(trained.log_error[..., -1]))


def _calls(values: tuple[float, ...], together: int) -> Iterator[list[float]]:
    """The values in groups of one size (the last one repeats its end), so that one program serves all."""
    size = min(together, len(values))
    for i in range(0, len(values), size):
        some = list(values[i : i + size])
        yield some + some[-1:] * (size - len(some))


def _lanes(settings: Fig2Settings, task: Task, name: str, axis: str, values: tuple[float, ...], **given: Any):
    """Mean attention and probability, arrays of shape (values, seeds), for each value of `lr` or `ratio`."""
    done = [
        _means(_trained(settings, task, name, seeds=settings.scan_seeds, **{**given, axis: some}))
        for some in _calls(values, settings.together)
    ]
    return tuple(np.concatenate(arrays)[: len(values)] for arrays in zip(*done, strict=True))


def _dial(settings: Fig2Settings, name: str) -> xr.Dataset:
    """Attention and probability against the ratio."""
    arrays = _lanes(settings, settings.task(), name, "ratio", settings.scan_ratio)
    dims = ("ratio", "scan_seed")
    return xr.Dataset(
        {f"dial_{what}": (dims, array) for what, array in zip(("attention", "probability"), arrays, strict=True)},
        coords={"ratio": list(settings.scan_ratio), "scan_seed": np.arange(settings.scan_seeds)},
    )


def _scan(settings: Fig2Settings, name: str, gamma: float) -> xr.Dataset:
    """Attention and probability over start and learning rate, at one mixture weight."""
    task = settings.task(gamma)
    arrays = [_lanes(settings, task, name, "lr", settings.scan_lr, init=init) for init in settings.scan_init]
    attention, probability = np.moveaxis(np.array(arrays), 1, 0)
    dims = ("init", "lr", "scan_seed")
    return xr.Dataset(
        {"scan_attention": (dims, attention), "scan_probability": (dims, probability)},
        coords={
            "init": list(settings.scan_init),
            "lr": list(settings.scan_lr),
            "scan_seed": np.arange(settings.scan_seeds),
        },
    )


def _orderings(settings: Fig2Settings, scan: xr.Dataset) -> xr.Dataset:
    """Where in the scan CACO and FACO attend more than FAFO, and whether both have learnt the task there."""
    attention, probability = scan.scan_attention.mean("scan_seed"), scan.scan_probability.mean("scan_seed")
    upper = {"parameterization": xr.DataArray(list(ABOVE), dims="above", coords={"above": list(ABOVE)})}
    lower = {"parameterization": "FAFO"}
    learnt = np.minimum(
        probability.sel(upper).drop_vars("parameterization"), probability.sel(lower).drop_vars("parameterization")
    )
    difference = attention.sel(upper).drop_vars("parameterization") - attention.sel(lower).drop_vars("parameterization")
    return xr.Dataset({"scan_difference": difference, "scan_learnt": (learnt >= settings.learnt).astype("int8")})


def _summaries(settings: Fig2Settings, examples: xr.Dataset) -> xr.Dataset:
    """Heat maps of all seeds together, and AC and ACMC of each seed; runs that diverged are left out."""
    n, tau = settings.bins, np.linspace(0, 1, settings.thresholds)
    attention, probability = examples.attention.values, examples.probability.values
    lanes = attention.shape[:-1]
    usable = np.isfinite(attention).all(axis=-1)
    maps = np.full((*lanes[:2], n, n), np.nan)
    ac = np.full((*lanes, tau.size), np.nan)
    acmc = np.full((*lanes, len(metrics.DENOMINATORS), tau.size), np.nan)
    for where in np.ndindex(lanes[:2]):
        good = usable[where]
        if good.any():
            maps[where] = metrics.dtap(attention[where][good].ravel(), probability[where][good].ravel(), bins=n)
    for where in zip(*np.nonzero(usable), strict=True):
        a, p = attention[where], probability[where]
        ac[where] = metrics.attention_confidence(a, tau)
        for d, denominator in enumerate(metrics.DENOMINATORS):
            acmc[where][d] = metrics.attention_model_confidence(
                a, p, tau, confidence=settings.confidence, denominator=denominator
            )
    lane_dims = ("parameterization", "regime", "seed")
    centres = (np.arange(n) + 0.5) / n
    return xr.Dataset(
        {
            "dtap": (("parameterization", "regime", "attention_bin", "probability_bin"), maps),
            "ac": ((*lane_dims, "threshold"), ac),
            "acmc": ((*lane_dims, "denominator", "threshold"), acmc),
        },
        coords={
            "threshold": tau,
            "denominator": list(metrics.DENOMINATORS),
            "attention_bin": centres,
            "probability_bin": centres,
        },
    )


_NAMES = {
    "attention": "attention of a held-out sequence on its distinct tokens",
    "probability": "probability of the label of a held-out sequence",
    "correct": "1 where the label has the largest logit",
    "status": "flowsim.Status of the run",
    "dtap": "share of examples in a bin of attention and probability, all seeds together",
    "ac": "share of examples with at least the threshold of attention",
    "acmc": "of these with a confident prediction: share of the confident ones, or of all",
    "dial_attention": "mean attention over held-out sequences, by ratio",
    "dial_probability": "mean probability of the label, by ratio",
    "scan_attention": "mean attention over held-out sequences",
    "scan_probability": "mean probability of the label",
    "scan_difference": "mean attention minus that of FAFO",
    "scan_learnt": "1 where both have at least the mean probability that counts as learnt",
    "gamma": "probability that a context token is distinct",
    "init": "largest absolute value of a trained entry at the start",
    "lr": "learning rate of the output-value circuit",
    "ratio": "query-key over output-value learning rate",
    "threshold": "threshold of attention",
    "attention_bin": "centre of a bin of attention",
    "probability_bin": "centre of a bin of probability",
}


def _described(dataset: xr.Dataset) -> xr.Dataset:
    for name, text in _NAMES.items():
        dataset[name].attrs.update(long_name=text, units="1")
    return dataset
