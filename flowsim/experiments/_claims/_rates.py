r"""Is factorization close to a learning rate that grows? (paper, section 6)

The *effective rate* of a factorized circuit is its velocity over that of the collapsed circuit in the same state:
$\dot w / (\alpha q / (C (K-1)))$ for the margin, $\dot\theta / (r g\, \alpha (1-\alpha)\, q\, w / K)$ for the score
gap. It is 1 for a collapsed circuit, whatever the task.
"""

from typing import NamedTuple

import numpy as np
import xarray as xr

from flowsim.experiments._claims._flow import SPACING, WHERE, task_of
from flowsim.experiments._experiment import Finding
from flowsim.schedules import Tabulated
from flowsim.solve.descent import descend
from flowsim.solve.line_start import FACTORIZED
from flowsim.task import Task

CIRCUITS = {"ov": "CAFO", "qk": "FACO"}
"""The circuit that is factorized, and the parameterization in which the other one is not."""
LAWS = ("constant", "log log t", "log t", "power of t")
RULES = ("measured", "fitted", "constant")
_UNTIL = {"ov": 1e3, "qk": 1e4}  # time to which a collapsed circuit is trained with the rate of factors
_LR = 0.5
_KNOTS = 200
_SCALES = np.linspace(-3, 12, 61)  # ln T of the laws
_RELIABLE = 1e-3  # how far the rate of a collapsed circuit may be measured from 1
_CLOSE = 0.01  # attention that is off by less is the same
_LEARNT = 0.1  # share of the loss at the start below which the laws are read
_GOOD = 0.1  # root mean square relative residual of a law that fits


class Fit(NamedTuple):
    """One law, fitted to relative accuracy.

    Attributes:
        residual: root mean square of the relative residual.
        constant: $a$.
        slope: $b$, or the power.
        scale: $T$.
        values: the law at the times given.
    """

    residual: float
    constant: float
    slope: float
    scale: float
    values: np.ndarray


def effective_rate(dataset: xr.Dataset, name: str, circuit: str, ratio: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    r"""The effective rate of a circuit on the dense part of the grid.

    Args:
        dataset: from the experiment `claims`.
        name: parameterization.
        circuit: `"ov"` or `"qk"`.
        ratio: $r$, one of those of the dataset or near it.

    Returns:
        $\ln t$ and the rate.
    """
    task = task_of(dataset)
    distinct, common = (group.types for group in task.groups)
    run = dataset.sel(context="balanced", parameterization=name).sel(ratio=ratio, method="nearest")
    dense = int((np.diff(dataset["log_time"].values) < 1.5 * SPACING).argmin())
    run = run.isel(log_time=slice(0, dense))
    value = run["margin" if circuit == "ov" else "score_gap_change"].values
    # fourth-order differences on the even grid of ln t
    slope = (value[:-4] - 8 * value[1:-3] + 8 * value[3:-1] - value[4:]) / (12 * SPACING)
    inner = {field: run[field].values[2:-2] for field in ("log_odds", "log_error", "margin", "log_time")}
    log_attention = -np.logaddexp(0, -inner["log_odds"])
    if circuit == "ov":
        force = log_attention + inner["log_error"] - np.log(distinct * (task.classes - 1))
    else:
        gain = float(run["ratio"]) * (1 / distinct + 1 / common) / task.classes
        gate = log_attention - np.logaddexp(0, inner["log_odds"])
        force = gate + inner["log_error"] + np.log(inner["margin"]) + np.log(gain)
    return inner["log_time"], np.exp(np.log(slope) - inner["log_time"] - force)


def learnt(dataset: xr.Dataset, name: str, size: int) -> np.ndarray:
    """Where, among the times of `effective_rate`, the loss is below a tenth of that at the start.

    Args:
        dataset: from the experiment `claims`.
        name: parameterization.
        size: number of these times.
    """
    run = dataset["log_loss"].sel(context="balanced", parameterization=name).sel(ratio=1.0, method="nearest")
    # the differences leave out two times at either end
    return run.values[2 : 2 + size] < np.log(_LEARNT * np.log(task_of(dataset).classes))


def fit(log_time: np.ndarray, rate: np.ndarray) -> dict[str, Fit]:
    r"""Fits $a$, $a + b \ln(1 + \ln(1 + t/T))$, $a + b \ln(1 + t/T)$ and $a (1 + t/T)^b$ to a rate.

    Args:
        log_time: $\ln t$.
        rate: the rate there, above 0.
    """
    mean = np.sum(1 / rate) / np.sum(1 / rate**2)
    found = {"constant": Fit(_root_mean_square(mean / rate - 1), mean, 0.0, 1.0, np.full_like(rate, mean))}
    grown = np.logaddexp(0, log_time - _SCALES[:, None])
    bases = {"log log t": np.log1p(grown), "log t": grown}
    for law, basis in bases.items():
        columns = np.stack([np.ones_like(basis), basis], axis=-1) / rate[:, None]
        solution = np.linalg.pinv(columns) @ np.ones_like(rate)
        residuals = _root_mean_square(np.einsum("sti,si->st", columns, solution) - 1)
        best = int(np.argmin(residuals))
        a, b = solution[best]
        found[law] = Fit(residuals[best], a, b, float(np.exp(_SCALES[best])), a + b * basis[best])
    columns = np.stack([np.ones_like(grown), grown], axis=-1)
    solution = np.linalg.pinv(columns) @ np.log(rate)
    values = np.exp(np.einsum("sti,si->st", columns, solution))
    residuals = _root_mean_square(values / rate - 1)
    best = int(np.argmin(residuals))
    scale = float(np.exp(_SCALES[best]))
    found["power of t"] = Fit(residuals[best], np.exp(solution[best, 0]), solution[best, 1], scale, values[best])
    return found


def _root_mean_square(values: np.ndarray):
    return np.sqrt(np.mean(values**2, axis=-1))


def measure(flow: xr.Dataset, task: Task) -> xr.Dataset:
    """Collapsed circuits trained with a learning rate that changes as the effective rate of factors.

    Args:
        flow: the exact flow, from `_flow.measure`.
        task: the task.
    """
    attention, reference, log_times = [], [], []
    for circuit, name in CIRCUITS.items():
        log_time, rate = effective_rate(flow, name, circuit)
        near = log_time <= np.log(_UNTIL[circuit])
        log_time, rate = log_time[near], rate[near]
        laws = fit(log_time, rate)
        grid = np.linspace(0, np.log(_UNTIL[circuit]), _KNOTS)
        runs = [
            _scheduled(task, circuit, log_time, factors, grid)
            for factors in (rate, laws["log t"].values, laws["constant"].values)
        ]
        attention.append(runs)
        run = flow.sel(context="balanced", parameterization=name).sel(ratio=1.0, method="nearest")
        reference.append(_sigmoid(np.interp(grid, run["log_time"].values, run["log_odds"].values)))
        log_times.append(grid)
    dims = ("circuit", "rule", "knot")
    return xr.Dataset(
        {
            "scheduled_attention": (dims, np.array(attention)),
            "factorized_attention": (("circuit", "knot"), np.array(reference)),
            "scheduled_log_time": (("circuit", "knot"), np.array(log_times)),
        },
        {"circuit": list(CIRCUITS), "rule": list(RULES)},
    )


def _scheduled(task: Task, circuit: str, log_time: np.ndarray, factors: np.ndarray, grid: np.ndarray) -> np.ndarray:
    r"""Attention of CACO on a grid of ln t if the rate of one circuit changes by the given factors.

    The rate of the output-value circuit is 1 in the solver, so time is counted by it: $ds = e\,dt$, and the ratio
    falls by the factor instead.
    """
    times = np.exp(log_time)
    if circuit == "qk":
        clock, schedule = times, Tabulated(times, factors)
    else:
        steps = np.diff(times) * (factors[1:] + factors[:-1]) / 2
        clock = np.cumsum(np.concatenate([[factors[0] * times[0]], steps]))
        schedule = Tabulated(clock, 1 / factors)
    run = descend(
        task, "CACO", ratio=1.0, lr=_LR, steps=int(clock[-1] / _LR), points=2 * _KNOTS, schedule=schedule,
        margin0=FACTORIZED if circuit == "ov" else 0.0, score_gap0=FACTORIZED if circuit == "qk" else 0.0,
    )  # fmt: skip
    at = np.interp(np.asarray(run.log_time), np.log(clock), log_time)
    return _sigmoid(np.interp(grid, at, np.asarray(run.log_odds)))


def _sigmoid(log_odds: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-log_odds))


def findings(dataset: xr.Dataset) -> list[Finding]:
    """The rows on the effective rate."""
    trained = [_close(dataset, circuit) for circuit in CIRCUITS] if "scheduled_attention" in dataset else []
    return [_reliable(dataset), *[_grows(dataset, circuit) for circuit in CIRCUITS], *trained]


def _reliable(dataset: xr.Dataset) -> Finding:
    off = max(float(np.abs(effective_rate(dataset, "CACO", circuit)[1][:300] - 1).max()) for circuit in CIRCUITS)
    return Finding(
        "the effective rate of a collapsed circuit is 1 (check of the measurement)",
        "",
        f"within {off:.1e} up to ln t = 30, both circuits",
        "not stated there" if off < _RELIABLE else "undecided",
        off,
    )


_WORDS = {"ov": "output-value", "qk": "query-key"}


def _grows(dataset: xr.Dataset, circuit: str) -> Finding:
    name = CIRCUITS[circuit]
    log_time, rate = effective_rate(dataset, name, circuit)
    late = learnt(dataset, name, rate.size)
    laws = fit(log_time[late], rate[late])
    best = min(LAWS, key=lambda law: laws[law].residual)
    law = laws[best]
    grows = bool((np.diff(rate) > 0).all())
    others = ", ".join(f"{other} {100 * laws[other].residual:.2g} %" for other in LAWS if other != best)
    return Finding(
        f"factorizing the {_WORDS[circuit]} circuit acts like a learning rate that increases over time",
        WHERE,
        f"{name}, ratio 1: the effective rate {'rises all the time' if grows else 'does not rise all the time'}, from "
        f"{rate[0]:.3g} to {rate[-1]:.3g} at ln t = {log_time[-1]:.3g}; once the loss is a tenth of its start, as "
        f"{best} (slope {law.slope:.3g}) with a residual of {100 * law.residual:.2g} % (other laws: {others})",
        "agrees" if grows and law.residual < _GOOD else "differs" if not grows else "undecided",
        law.residual,
    )


def _close(dataset: xr.Dataset, circuit: str) -> Finding:
    run = dataset.sel(circuit=circuit)
    off = abs(run["scheduled_attention"] - run["factorized_attention"]).max("knot")
    measured, fitted, constant = (float(off.sel(rule=rule)) for rule in RULES)
    return Finding(
        f"collapsed training with such a rate is close to a factorized {_WORDS[circuit]} circuit on the symmetric line",
        WHERE,
        f"CACO with the measured rate has the attention of {CIRCUITS[circuit]} within {measured:.1e} up to t = "
        f"{_UNTIL[circuit]:g}; with a + b log(1 + t/T) fitted to it within {fitted:.2g}, with a fitted constant "
        f"within {constant:.2g} ({_CLOSE:g} is close)",
        "agrees" if measured < _CLOSE else "differs",
        fitted,
    )
