"""The detour through common tokens: where it is, how long it takes, and where a larger ratio gives less attention."""

import numpy as np
import xarray as xr

from flowsim.experiments._detour._excursion import Excursions
from flowsim.experiments._detour._findings import findings
from flowsim.experiments._detour._flow import log_times_of, map_context, ratios_of, time_courses
from flowsim.experiments._detour._plateau import Numbers, critical_gamma, curvature, plateau
from flowsim.experiments._detour._reversal import Reversals
from flowsim.experiments._detour._settings import DetourSettings
from flowsim.experiments._detour._training import Trained, train_context, trained_budgets
from flowsim.experiments._experiment import Experiment, Report
from flowsim.plot.detour import detour_map

__all__ = ["EXPERIMENT", "DetourSettings", "detour", "findings"]

_EXCURSION = {
    "outcome": ("0 no detour, 1 returned, 2 not back at the horizon, 3 not solved", ""),
    "length": ("time from falling below the start to being back (lower bound where not back)", "gradient-flow time"),
    "depth": ("lowest log odds relative to the start", ""),
    "log_fall": ("ln of the time of falling below the start", ""),
    "log_back": ("ln of the time of being back", ""),
    "log_lowest": ("ln of the time of the lowest attention", ""),
    "accuracy": ("width of the bracket of log_back", ""),
    "depth_accuracy": ("last refinement of depth", ""),
}
_REVERSAL = {
    "kind": ("0 a larger ratio gives more attention, 1 less from log_ratio on, 2 less, 3 not solved", ""),
    "log_ratio": ("ln of the ratio with the most attention", ""),
    "peak": ("log odds there relative to the start", ""),
    "accuracy": ("accuracy of log_ratio", ""),
    "changes": ("sign changes over the ratios", ""),
}


def detour(settings: DetourSettings | None = None, report: Report | None = None) -> xr.Dataset:
    r"""Maps the detour through common tokens over $\gamma$ and the ratio.

    With the vocabulary head training first learns that labels are likelier than other outputs. Common tokens teach
    that fastest, so that for small $\gamma$ attention leaves the distinct tokens and comes back later. The map is that
    of the collapsed flow (CACO) from zero matrices; the exact definitions of length and depth are those of
    `flowsim.experiments._detour._excursion`, of the reversal those of `_reversal`, and the large-ratio theory is in
    `_plateau`.

    Args:
        settings: None for the defaults.
        report: is told about the progress.

    Returns:
        Arrays over `gamma`, `ratio`, `budget` and time; variables of the finite-step training begin with `trained_`
        and `full_` and `batch_`, those of the theory with `theory_`.

    Raises:
        InvalidInput: if a setting cannot be used.
    """
    settings = DetourSettings() if settings is None else settings
    tell = _silent if report is None else report
    ratios, gammas = ratios_of(settings), np.array(settings.distinct_positions) / settings.length
    variables: dict[str, tuple] = {}

    maps = []
    for i, positions in enumerate(settings.distinct_positions):
        tell("flow over the ratios", i, gammas.size)
        maps.append(map_context(settings, positions))
    tell("flow over the ratios", gammas.size, gammas.size)
    variables["change"] = (("gamma", "ratio", "time"), np.stack([m[0] for m in maps]))
    _put(variables, "", [m[1] for m in maps], [m[2] for m in maps], "gamma", "budget")

    trained: list[Trained] = []
    for i, positions in enumerate(settings.trained_positions):
        tell("training", i, len(settings.trained_positions))
        trained.append(train_context(settings, positions))
    tell("training", len(settings.trained_positions), len(settings.trained_positions))
    variables["trained_change"] = (("trained_gamma", "ratio", "record"), np.stack([t.reduced for t in trained]))
    variables["full_change"] = (("trained_gamma", "trained_ratio", "record"), np.stack([t.full for t in trained]))
    variables["batch_change"] = (
        ("trained_gamma", "trained_ratio", "seed", "batch_record"),
        np.stack([t.batches for t in trained]),
    )
    variables["flow_change"] = (
        ("trained_gamma", "trained_ratio", "time"),
        np.stack([time_courses(settings, positions) for positions in settings.trained_positions]),
    )
    _put(
        variables,
        "trained_",
        [t.excursions for t in trained],
        [t.reversals for t in trained],
        "trained_gamma",
        "trained_budget",
    )

    _theory(variables, settings, ratios)
    return xr.Dataset(
        variables,
        coords={
            "gamma": gammas,
            "ratio": ratios,
            "budget": np.array(settings.budgets),
            "log_time": ("time", log_times_of(settings)),
            "trained_gamma": np.array(settings.trained_positions) / settings.length,
            "trained_ratio": np.array(settings.trained_ratios),
            "trained_budget": np.array(trained_budgets(settings)),
            "record_log_time": ("record", trained[0].log_times),
            "batch_log_time": ("batch_record", trained[0].batch_log_times),
            "seed": np.arange(settings.seeds),
        },
        attrs={
            "critical_gamma": critical_gamma(
                settings.classes, settings.distinct, settings.common, settings.other_outputs
            ),
            "horizon": settings.horizon,
            "lr": settings.lr,
        },
    )


def _silent(what: str, done: int, total: int) -> None:
    del what, done, total


def _put(variables, prefix: str, excursions: list[Excursions], reversals: list[Reversals], gamma: str, budget: str):
    """Adds what was found of each context, with its description."""
    for name, (long_name, units) in _EXCURSION.items():
        values = np.stack([getattr(one, name) for one in excursions])
        variables[prefix + name] = ((gamma, "ratio"), values, {"long_name": long_name, "units": units})
    for name, (long_name, units) in _REVERSAL.items():
        values = np.stack([getattr(one, name) for one in reversals])
        variables[f"{prefix}reversal_{name}"] = ((gamma, budget), values, {"long_name": long_name, "units": units})


def _theory(variables: dict[str, tuple], settings: DetourSettings, ratios: np.ndarray) -> None:
    """Adds the curvature at the start and, where attention falls first, the large-ratio formulas."""
    numbers = [Numbers.of(settings.task(positions)) for positions in settings.distinct_positions]
    bend = np.array([curvature(n) for n in numbers])
    variables["theory_curvature"] = ("gamma", bend, {"long_name": "theta/(r t^2) at the start"})
    nothing = np.full(ratios.shape, np.nan)
    at_large = [plateau(n, ratios) if b < 0 else None for n, b in zip(numbers, bend, strict=True)]
    for name, field in (("theory_back", "back"), ("theory_depth", "depth")):
        rows = np.stack([nothing if one is None else getattr(one, field) for one in at_large])
        variables[name] = (("gamma", "ratio"), rows, {"long_name": f"{field} at a large ratio"})


EXPERIMENT = Experiment(
    name="detour",
    summary="Where attention first leaves the distinct tokens, for how long, and where a larger ratio gives less.",
    settings=DetourSettings,
    run=detour,
    findings=findings,
    figures={"detour": detour_map},
)
