"""The exact flow over ratio and time that most rows read, and what the paper says of its growth (section 6)."""

import json

import numpy as np
import xarray as xr

from flowsim.experiments._experiment import Finding
from flowsim.laws import verify
from flowsim.laws.report import EXACT_LAW, PAPER_CLAIM, Row
from flowsim.solve.exact import exact
from flowsim.solve.line_start import line_start
from flowsim.status import Status
from flowsim.task import Task
from flowsim.theory.growth import BEFORE, MARGIN, ODDS, SATURATED, SCORE_GAP
from flowsim.trajectory import Trajectory

FOUR = ("CACO", "FACO", "CAFO", "FAFO")
WHERE = "paper, section 6"
SPACING = 0.1
"""Of the dense part of the grid of ln t; ratios are spaced by a multiple of it, so that r t is on a grid too."""
DENSE = 60.0
"""End of the dense part; the laws are read beyond."""
TINY = 1e-6
"""A ratio at which attention stays unsaturated for long."""
FIELDS = ("margin", "score_gap_change", "log_odds", "log_error", "log_loss")
_SLOPE = 0.05  # a fitted power may be off by so much


def ratios(steps: int) -> np.ndarray:
    """The tiny ratio, and ratios from e^-4 to e^4."""
    return np.concatenate([[TINY], np.exp(np.linspace(-4, 4, steps))])


def log_times() -> np.ndarray:
    """Dense up to `DENSE`, then logarithmically spaced up to 10^6."""
    return np.concatenate([np.arange(0, DENSE, SPACING).round(10), np.geomspace(DENSE, 1e6, 60)])


def measure(task: Task, sparse: Task, steps: int) -> xr.Dataset:
    """The flow of all four parameterizations on both tasks.

    Args:
        task: the task.
        sparse: the same with few distinct tokens in a sequence.
        steps: number of ratios without the tiny one.
    """
    grid, lanes = log_times(), ratios(steps)
    runs = [exact(which, FOUR, ratio=lanes, log_times=grid) for which in (task, sparse)]
    dims = ("context", "parameterization", "ratio", "log_time")
    arrays = {name: (dims, np.stack([np.asarray(getattr(run, name)) for run in runs])) for name in FIELDS}
    arrays["usable"] = dims[:-1], np.stack([np.asarray(run.ok) for run in runs]).astype(int)
    coords = {"context": ["balanced", "sparse"], "parameterization": list(FOUR), "ratio": lanes, "log_time": grid}
    return xr.Dataset(arrays, coords, {"task": json.dumps(task.to_dict()), "sparse": json.dumps(sparse.to_dict())})


def task_of(dataset: xr.Dataset) -> Task:
    """The task that a dataset is about."""
    return Task.from_dict(json.loads(dataset.attrs["task"]))


def lane(dataset: xr.Dataset, name: str, ratio: float) -> Trajectory:
    """One run of the flow, as a trajectory for `flowsim.verify`."""
    picked = dataset.sel(context="balanced", parameterization=name).sel(ratio=ratio, method="nearest")
    start = line_start(name)
    arrays = {field: picked[field].values for field in FIELDS}
    return Trajectory(
        log_time=picked["log_time"].values,
        score_gap=arrays["score_gap_change"] + start.score_gap0,
        status=np.array(int(Status.OK if picked["usable"] else Status.NOT_FINITE)),
        n_steps=np.array(0),
        coords={"ratio": float(picked["ratio"])},
        task=task_of(dataset),
        parameterization=name,
        method="exact",
        settings=start.plain,
        **arrays,
    )


def findings(dataset: xr.Dataset) -> list[Finding]:
    """The growth laws, each by the verdict of `flowsim.verify`."""
    rows = {name: verify(lane(dataset, name, 1.0)).rows for name in FOUR}
    early = verify(lane(dataset, "CACO", TINY)).rows
    found = [
        _law("the output-value scalar grows as log t when both circuits are collapsed", rows["CACO"], MARGIN, "log t"),
        _law(
            "the query-key scalar grows as log^2 t when both are collapsed, read as the odds of attention",
            rows["CACO"], ODDS, "log^2 t",
        ),
        _law(
            "the query-key scalar grows as log^2 t when both are collapsed, read as the score gap itself",
            rows["CACO"], SCORE_GAP, "log^2 t",
        ),
        _own("the score gap grows as log^2 t while attention is far from saturated", early, SCORE_GAP, BEFORE, WHERE),
    ]  # fmt: skip
    for name in ("FACO", "CAFO", "FAFO"):
        (law,) = [row.law for row in rows[name] if (row.kind, row.observable) == (EXACT_LAW, ODDS)]
        found.append(_own(f"{name}: the odds of attention grow as {law}", rows[name], ODDS, SATURATED))
    return [*found, *_constants(dataset)]


def _law(claim: str, rows: tuple[Row, ...], observable: str, law: str) -> Finding:
    """A row of the paper's, with the verdict on it."""
    (row,) = [r for r in rows if (r.kind, r.observable, r.law) == (PAPER_CLAIM, observable, law)]
    verdict = {"holds": "agrees", "fails": "differs", "undecided": "undecided"}[row.verdict]
    exponent = f"exponent {row.exponent:.3f}, " if row.verdict == "holds" and row.exponent is not None else ""
    return Finding(claim, WHERE, exponent + row.reason, verdict, row.exponent)


def _own(claim: str, rows: tuple[Row, ...], observable: str, regime: str, where: str = "") -> Finding:
    """A law of the exact flow."""
    (row,) = [r for r in rows if (r.kind, r.observable, r.regime) == (EXACT_LAW, observable, regime)]
    right = "agrees" if where else "not stated there"
    wrong = "differs" if where and row.verdict == "fails" else "undecided"
    return Finding(claim, where, row.reason, right if row.verdict == "holds" else wrong, row.constant)


def _constants(dataset: xr.Dataset) -> list[Finding]:
    """How the constants of the saturated laws depend on the ratio: slopes of logarithms."""
    last = dataset.sel(context="balanced", parameterization="CACO").isel(ratio=slice(1, None), log_time=-1)
    l = float(last["log_time"]) - np.log(_types(dataset))
    x = np.log(last["ratio"].values)
    margin = float(np.polyfit(x, np.log(last["margin"].values / l), 1)[0])
    odds = float(np.polyfit(x, last["log_odds"].values - 2 * np.log(l), 1)[0])
    seen = f"over ratios from {last['ratio'].values[0]:.2g} to {last['ratio'].values[-1]:.2g}"
    return [
        Finding(
            "the ratio of the learning rates sets the constant of the query-key law",
            WHERE,
            f"{seen} the constant of log^2 t in the odds goes as ratio^{odds:.4f}",
            "agrees" if abs(odds - 1) < _SLOPE else "differs",
            odds,
        ),
        Finding(
            "the ratio of the learning rates sets the constant of the output-value law",
            WHERE,
            f"{seen} it goes as ratio^{margin:.2g}: the constant of log t is 1 whatever the ratio, which enters the "
            "next term only",
            "differs" if abs(margin) < _SLOPE else "agrees",
            margin,
        ),
    ]


def _types(dataset: xr.Dataset) -> int:
    (distinct,) = [group.types for group in task_of(dataset).groups if group.role == "distinct"]
    return distinct
