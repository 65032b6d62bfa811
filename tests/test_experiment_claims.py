"""Claims: measurements against references of their own, and every verdict turned by a planted error."""

import dataclasses

import numpy as np
import pytest
import xarray as xr

import flowsim as fs
from flowsim.experiments._claims import EXPERIMENT, ClaimsSettings, _factors, _flow, _rates, _ratio, _trained, findings
from flowsim.experiments._experiment import perform

K, C, D = 4, 10, 10
TASK = fs.Task(K, C, D, context=fs.FixedContext(distinct=32, common=31))


@pytest.fixture(scope="module")
def quick():
    return perform(EXPERIMENT, ClaimsSettings.quick())


@pytest.fixture(scope="module")
def data(quick):
    """The quick run, and beside it what the other parts would measure if everything were as expected."""
    rising = np.broadcast_to(np.arange(1.0, 8)[:, None], (4, 7, 3))
    sharp = np.array([[0.5, 0.8, 0.9], [0.6, 0.9, 0.95], [0.3, 0.5, 0.7], [0.2, 0.4, 0.85]])
    error = np.broadcast_to(np.array([1e-16, 1e-16, 0.5])[:, None], (2, 3, 2))
    lrs = np.array([0.4, 0.2, 0.1])
    four = ("parameterization", "wanted")
    each = ("parameterization", "trained_ratio", "trained_seed")
    made = xr.Dataset(
        {
            "ratio_at_margin": ((*four, "at_margin"), rising),
            "ratio_at_loss": ((*four, "at_loss"), rising),
            "attention_detour": ("pair", [0.48, 0.01]),
            "attention_backwards": (("pair", "early"), [[0.5, 0.6], [0.4, 0.7]]),
            "identity_error": (("circuit", "seed"), np.full((2, 2), 1e-16)),
            "preconditioner_error": (("circuit", "factors", "seed"), error),
            "degree": (("circuit", "seed"), np.ones((2, 2))),
            "degree_imbalanced": (("circuit", "seed"), np.full((2, 2), 0.9)),
            "cosine": (("circuit", "seed"), np.full((2, 2), 0.8)),
            "drift": (("circuit", "lr"), np.stack([1e-3 * lrs, 2e-3 * lrs])),
            "attention_trained": (each, np.repeat(sharp[:, :, None], 2, axis=2)),
            "label_probability": (each, np.full((4, 3, 2), 0.95)),
            "attention_growing": ("trained_seed", [0.85, 0.86]),
            "label_probability_growing": ("trained_seed", [0.9, 0.9]),
            "log_odds_adam": ((), 8.0),
            "log_loss_adam": ((), -9.0),
        },
        {
            "parameterization": list(_flow.FOUR),
            "wanted": list(_ratio.ATTENTION),
            "at_margin": list(_ratio.MARGINS),
            "at_loss": list(_ratio.LOSSES),
            "factors": list(_factors.STARTS),
            "circuit": ["qk", "ov"],
            "lr": lrs,
            "trained_ratio": list(_trained.RATIOS),
        },
        {"detour_time": 1000.0},
    )
    return xr.merge([quick, made], join="outer", combine_attrs="no_conflicts")


@pytest.mark.slow
def test_effective_rates_are_those_of_the_clocks(quick):
    """dw/dtau = 2 sqrt(C) w for balanced factors; theta' of the two driven query-key blocks over g."""

    def check(name, circuit, field, expected):
        log_time, rate = _rates.effective_rate(quick, name, circuit)
        run = quick.sel(context="balanced", parameterization=name).sel(ratio=1.0, method="nearest")
        off = np.abs(rate / expected(run.sel(log_time=log_time)[field].values) - 1)
        # fourth-order differences with steps of 0.1: the rate jumps within about one unit of ln t, and is smooth later
        assert off.max() < 0.04
        assert off[log_time > 8].max() < 1e-5
        assert off[log_time < 2].max() < 1e-3

    check("CAFO", "ov", "margin", lambda margin: 2 * np.sqrt(C) * margin)
    tau0 = 0.01 / (1 / C + 1 / D)
    speeds = np.array([1 / np.sqrt(C), np.sqrt(1 / C + K / D)])  # drives of the standard and the trivial block
    weights = np.array([(K - 1) / (K * np.sqrt(C)), speeds[1] / K])
    grown = tau0 * speeds * np.exp(2 * speeds * np.linspace(0, 12, 200_001)[:, None])
    gap, slope = grown @ weights - 0.01, (2 * speeds * grown) @ weights
    check("FACO", "qk", "score_gap_change", lambda change: np.interp(change, gap, slope) / (1 / C + 1 / D))


def test_laws_are_found_where_they_hold():
    log_time = np.arange(0, 60, 0.1)
    grown = np.logaddexp(0, log_time - 2.0)
    for law, rate in {
        "constant": np.full_like(log_time, 3.0),
        "log t": 2 + 3 * grown,
        "log log t": 2 + 3 * np.log1p(grown),
        "power of t": 2 * np.exp(0.3 * grown),
    }.items():
        fits = _rates.fit(log_time, rate)
        assert fits[law].residual < 1e-6
        assert all(fits[other].residual > 0.01 for other in fits if other != law and law != "constant")
        if law != "constant":
            assert fits[law].slope == pytest.approx(0.3 if "power" in law else 3.0, rel=1e-6)
            assert fits[law].scale == pytest.approx(np.exp(2.0), rel=1e-6)


@pytest.mark.slow
def test_a_quick_run_has_the_flow_alone(quick):
    found = findings(quick)
    assert len(found) == 20
    assert {finding.verdict for finding in found} <= {"agrees", "differs", "not stated there"}


def reversed_over(dimension):
    return lambda array: array.isel({dimension: slice(None, None, -1)})


def only(change, **where):
    """Changes a part of the array only."""

    def changed(array):
        mask = xr.ones_like(array, dtype=bool)
        for name, value in where.items():
            mask = mask & (array[name] == value)
        return array.where(~mask, change(array))

    return changed


def squared(array):
    return 0 * array + 1e-3 * np.maximum(array["log_time"] - np.log(4 * C), 0) ** 2


def like_ratio_1(array):
    return 0 * array + array.sel(ratio=1.0, method="nearest", drop=True)


PLANTED = [
    (_flow, "output-value scalar grows as log t", {"margin": lambda a: 1.1 * a}),
    (_flow, "log^2 t when both are collapsed, read as the odds", {"log_odds": lambda a: a + 0.3}),
    (_flow, "read as the score gap itself", {"score_gap_change": squared}),
    (_flow, "far from saturated", {"score_gap_change": lambda a: 1.5 * a}),
    (_flow, "FACO: the odds", {"log_odds": only(lambda a: a + 0.3, parameterization="FACO")}),
    (_flow, "CAFO: the odds", {"log_odds": only(lambda a: a + 0.3, parameterization="CAFO")}),
    (_flow, "FAFO: the odds", {"log_odds": only(lambda a: a + 0.3, parameterization="FAFO")}),
    (_flow, "constant of the query-key law", {"log_odds": like_ratio_1}),
    (_flow, "constant of the output-value law", {"margin": lambda a: a * a["ratio"]}),
    (_ratio, "at fixed time", {"log_odds": reversed_over("ratio")}),
    (_ratio, "at fixed margin", {"ratio_at_margin": reversed_over("wanted")}),
    (_ratio, "at fixed loss", {"ratio_at_loss": reversed_over("wanted")}),
    (_ratio, "from any start", {"attention_backwards": reversed_over("pair")}),
    (_ratio, "for any task", {"attention_detour": reversed_over("pair")}),
    (_ratio, "of any sharpness", {"ratio_at_loss": reversed_over("wanted")}),
    (_ratio, "no larger output weights", {"margin": reversed_over("ratio")}),
    (_ratio, "does not degrade", {"log_error": reversed_over("ratio")}),
    (_ratio, "compensates", {"log_odds": reversed_over("ratio")}),
    (_ratio, "attend more sharply", {"log_odds": reversed_over("parameterization")}),
    (_ratio, "stabilize near 0.4", {"log_odds": lambda a: 0 * a + np.log(0.4 / 0.6)}),
    (_factors, "Proposition 1", {"identity_error": lambda a: a + 1e-3}),
    (_factors, "gradient flow conserves", {"drift": lambda a: 0 * a + 1e-3}),
    (_factors, "finite steps conserve", {"drift": lambda a: 1e-12 * a}),
    (_factors, "balanced factors move", {"preconditioner_error": lambda a: a + 1e-3}),
    (_factors, "balancedness is needed", {"preconditioner_error": lambda a: 0 * a}),
    (_factors, "homogeneous map", {"degree": lambda a: 2 * a}),
    (_factors, "matrices of any kind", {"cosine": lambda a: 0 * a + 0.99}),
    (_rates, "check of the measurement", {"margin": lambda a: a + 0.01 * np.sin(a["log_time"])}),
    (_rates, "output-value circuit acts like", {"margin": lambda a: a.sel(parameterization=["CACO"] * 4)}),
    (_rates, "query-key circuit acts like", {"score_gap_change": lambda a: a.sel(parameterization=["CACO"] * 4)}),
    (_rates, "close to a factorized output-value", {"scheduled_attention": lambda a: a + 0.05}),
    (_rates, "close to a factorized query-key", {"scheduled_attention": lambda a: a + 0.05}),
    (_trained, "high confidence", {"label_probability": lambda a: a / 2}),
    (_trained, "CAFO and FAFO weakly", {"attention_trained": reversed_over("parameterization")}),
    (_trained, "shifts attention", {"attention_trained": reversed_over("trained_ratio")}),
    (_trained, "FAFO attends like", {"attention_trained": lambda a: a**3}),
    (_trained, "gradually increasing", {"attention_growing": lambda a: a / 4}),
    (_trained, "adaptive", {"log_odds_adam": lambda a: 0 * a}),
]


@pytest.fixture(scope="module")
def expected(data):
    return {finding.claim: finding.verdict for finding in findings(data)}


@pytest.mark.parametrize(("module", "words", "changes"), PLANTED, ids=[words for _, words, _ in PLANTED])
def test_a_planted_error_turns_the_verdict(data, expected, module, words, changes):
    planted = data.copy()
    for name, change in changes.items():
        planted[name] = planted[name].dims, change(planted[name]).transpose(*planted[name].dims).values
    (claim,) = [claim for claim in expected if words in claim]
    (verdict,) = [finding.verdict for finding in module.findings(planted) if finding.claim == claim]
    assert verdict != expected[claim]


def test_every_row_has_a_planted_error(expected):
    assert sum(any(words in claim for _, words, _ in PLANTED) for claim in expected) == len(expected)


@pytest.mark.slow
def test_figure_is_drawn(quick):
    figure = fs.plot.effective_rates(quick)
    assert len(figure.axes) == 4
    with pytest.raises(fs.InvalidInput, match="effective rates"):
        fs.plot.effective_rates(quick.drop_vars("scheduled_attention"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ratios": 8}, "ratios=8"),
        ({"lrs": (0.1, 0.2)}, "lrs="),
        ({"positions": (0.0, 3.0)}, "positions="),
        ({"parts": ("all",)}, "parts='all'"),
    ],
)
def test_settings_are_checked(change, words):
    with pytest.raises(fs.InvalidInput, match=words):
        dataclasses.replace(ClaimsSettings(), **change)
