"""Reading of the arrays of `table1` and `ratio-dial`: numbers by hand, by NumPy, by SciPy; planted effects."""

# Matplotlib types a line's data as anything array-like, SciPy its results as tuples.
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

import dataclasses
import functools
import json
import re
import types

import numpy as np
import pytest
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy import stats

import flowsim.experiments as ex
from flowsim import plot
from flowsim.cli import run
from flowsim.errors import InvalidInput
from flowsim.experiments._table1 import reading
from flowsim.experiments._table1.dial_findings import dial_findings, reference, slopes
from flowsim.experiments._table1.findings import findings
from flowsim.experiments._table1.reading import METRICS, Choices, compared, interval, measured, uniform
from flowsim.experiments._table1.tables import dial_tables, tables
from tests.table1_arrays import ARMS, SIZES, dial_arrays, diverged, swapped, table1_arrays

CHOICES = Choices(0.5, 0.6, 0.2)
MOVED = [metric.name for metric in METRICS if metric.sign]


def by_hand():
    """Four examples of which the third has no relevant token, and a fifth that is only there to pad."""
    nan = np.nan
    one = ("dataset", "arm", "seed", "example")
    share = xr.DataArray([0.1, 0.2], dims="share")
    comp = xr.DataArray([[[[0.1, 0.2, 0.3, 0.6, nan]]]], dims=one)
    return xr.Dataset(
        {
            "attention": (one, [[[[0.5, 0.9, nan, 0.1, nan]]]]),
            "probability": (one, [[[[0.6, 0.2, 0.8, 0.7, nan]]]]),
            "correct": (one, [[[[1.0, 0.0, 1.0, 1.0, nan]]]]),
            "largest": (one, [[[[0.5, 0.9, 0.7, 0.3, nan]]]]),
            "high_by_chance": (one, [[[[0.25, 0.5, nan, 0.0, nan]]]]),
            "uniform": (("dataset", "example"), [[0.3, 0.5, nan, 0.1, nan]]),
            "comprehensiveness": comp * share / 0.2,
            "sufficiency": -comp * share / 0.1,
            "status": (one[:3], [[[0]]]),
        },
        {"dataset": ["a"], "arm": ["baseline"], "seed": [0], "share": [0.1, 0.2]},
    )


def test_every_metric_by_hand():
    found = {name: float(value) for name, value in measured(by_hand(), CHOICES).squeeze().items()}
    assert found == {
        "accuracy": 3 / 4,
        "mrta": pytest.approx(1.5 / 3),
        "largest": pytest.approx(0.6),  # of all four, marked or not
        "ac": pytest.approx(2 / 3),  # 0.5 and 0.9 reach the threshold of 0.5
        "acmc_confident": 1 / 2,  # the first and the fourth are confident, only the first attends
        "acmc_all": pytest.approx(1 / 3),  # the third is confident, but nobody marked it
        "ac_beyond": pytest.approx(((1 - 0.25) + (1 - 0.5) + 0) / 3),
        "acmc_confident_beyond": pytest.approx((1 - 0.25) / 2),
        "acmc_all_beyond": pytest.approx((1 - 0.25) / 3),
        "comprehensiveness": pytest.approx(0.3),
        "sufficiency": pytest.approx(-0.6),
        "aopc_comprehensiveness": pytest.approx((0.15 + 0.3) / 2),
        "aopc_sufficiency": pytest.approx(-(0.3 + 0.6) / 2),
    }
    even = uniform(by_hand(), CHOICES).squeeze()
    assert float(even.mrta) == pytest.approx(0.3)
    assert (float(even.ac), int(even.examples)) == (pytest.approx(1 / 3), 3)


def test_every_metric_against_plain_numpy():
    arrays = diverged(table1_arrays(seeds=3), dataset="hatexplain", arm="raised", seed=1)
    found = measured(arrays, CHOICES)
    for name, size in SIZES.items():
        for arm in ARMS:
            for seed in range(3):
                here = arrays.sel(dataset=name, arm=arm, seed=seed)
                a, p = here.attention.values[:size], here.probability.values[:size]
                marked = ~np.isnan(here.uniform.values[:size])
                a, q, c = a[marked], p[marked], here.high_by_chance.values[:size][marked]
                comp, suff = here.comprehensiveness.values[:size], here.sufficiency.values[:size]
                expected = {
                    "accuracy": here.correct.values[:size].sum() / size,
                    "mrta": a.sum() / marked.sum(),
                    "largest": here.largest.values[:size].sum() / size,
                    "ac": (a >= 0.5).sum() / a.size,
                    "acmc_confident": ((a >= 0.5) * (q >= 0.6)).sum() / max((q >= 0.6).sum(), 1),
                    "acmc_all": ((a >= 0.5) * (q >= 0.6)).sum() / a.size,
                    "ac_beyond": (a >= 0.5).sum() / a.size - c.sum() / a.size,
                    "acmc_confident_beyond": sum(
                        float(x >= 0.5) - z for x, y, z in zip(a, q, c, strict=True) if y >= 0.6
                    )
                    / max((q >= 0.6).sum(), 1),
                    "acmc_all_beyond": sum(float(x >= 0.5) - z for x, y, z in zip(a, q, c, strict=True) if y >= 0.6)
                    / a.size,
                    "comprehensiveness": comp[:, 3].sum() / size,
                    "sufficiency": suff[:, 3].sum() / size,
                    "aopc_comprehensiveness": comp.sum() / comp.size,
                    "aopc_sufficiency": suff.sum() / suff.size,
                }
                for metric, value in expected.items():
                    got = float(found[metric].sel(dataset=name, arm=arm, seed=seed))
                    if (name, arm, seed) == ("hatexplain", "raised", 1):
                        assert np.isnan(got)
                    else:
                        assert got == pytest.approx(value, rel=1e-13, abs=1e-13), metric


def test_what_is_missing_is_no_number():
    arrays = by_hand()
    nobody = arrays.assign(uniform=arrays.uniform * np.nan, attention=arrays.attention * np.nan)
    found = measured(nobody, CHOICES).squeeze()
    assert all(np.isnan(found[name]) for name in ("mrta", "ac", "acmc_confident", "acmc_all"))
    assert float(found.accuracy) == 3 / 4
    lost = arrays.assign(attention=arrays.attention.where(arrays.example != 1))  # of an example with relevant tokens
    assert np.isnan(measured(lost, CHOICES).mrta).all()
    gone = arrays.assign(status=arrays.status + 4)  # a run that diverged, whatever numbers it left
    assert all(np.isnan(value).all() for value in measured(gone, CHOICES).values())
    unsure = measured(arrays, Choices(0.5, 0.9, 0.2)).squeeze()
    assert np.isnan(unsure.acmc_confident)
    assert float(unsure.acmc_all) == 0
    other = xr.concat([arrays, arrays.isel(share=[1]).assign_coords(share=[0.7])], "share", data_vars="minimal")
    found = measured(other, Choices(0.5, 0.6, 0.7)).squeeze()  # a single share beside ERASER's is not part of AOPC
    assert float(found.comprehensiveness) == pytest.approx(0.3)
    assert float(found.aopc_comprehensiveness) == pytest.approx((0.15 + 0.3) / 2)
    with pytest.raises(InvalidInput, match=r"share=0\.3.*0\.1, 0\.2"):
        measured(arrays, Choices(0.5, 0.6, 0.3))


def test_intervals_against_scipy():
    values = np.array([0.5, 0.55, 0.47, np.nan, 0.61])
    finite = values[np.isfinite(values)]
    mean, half, usable, seeds = interval(values)
    low, high = stats.t.interval(0.95, 3, loc=finite.mean(), scale=stats.sem(finite))
    assert (mean - half, mean + half) == (pytest.approx(low), pytest.approx(high))
    assert (usable, seeds) == (4, 5)
    assert interval([0.3])[0] == 0.3
    assert np.isnan(interval([0.3]).half)
    assert np.isnan(interval([np.nan]).mean)
    before, after = xr.DataArray([0.1, 0.2, 0.15, 0.12]), xr.DataArray([0.25, 0.31, 0.33, 0.22])
    found = compared(before, after, 1)
    expected = stats.ttest_rel(after, before).confidence_interval(0.99)
    assert found.difference.mean - found.difference.margin == pytest.approx(expected.low)
    assert found.difference.mean + found.difference.margin == pytest.approx(expected.high)
    assert found.verdict == "agrees"
    assert compared(before, after, -1).verdict == compared(after, before, 1).verdict == "differs"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ([0.0, 0.001, -0.001, 0.002, -0.002], "agrees"),
        ([-0.01, -0.011, -0.009, -0.0105, -0.0095], "agrees"),  # clearly lower, but not by 0.02
        ([-0.05, -0.051, -0.049, -0.052, -0.048], "differs"),
        ([-0.02, -0.021, -0.019, -0.022, -0.018], "undecided"),
        ([-0.03125] * 2, "undecided"),  # one text of 32 in both seeds: no spread to judge by
        ([-0.03125] * 5, "differs"),
        ([0.0] * 5, "agrees"),
        ([0.05, -0.05, 0.04, -0.04, 0.0], "undecided"),
        ([0.1, 0.11, 0.09, 0.1, 0.12], "agrees"),
    ],
)
def test_accuracy_is_judged_by_what_is_not_lost(changes, verdict):
    before = xr.DataArray(np.array([0.75, 0.5, 0.625, 0.75, 0.875]))
    before = before[: len(changes)]
    found = compared(before, before + np.array(changes), 0)
    assert found.verdict == verdict
    assert bool(found.why) == (verdict == "undecided")


@pytest.mark.parametrize("sign", [1, -1, 0])
@pytest.mark.parametrize("step", [3, 0, -3])
def test_few_seeds_that_change_by_the_same_decide_nothing_whatever_the_rounding(sign, step):
    """Shares of 100 texts: 0.04 - 0.01 and 0.05 - 0.02 are the same change, though not the same float."""
    counts = np.array([1, 2, 67]) + 3
    for few in (counts[:2], counts):
        found = compared(xr.DataArray(few / 100), xr.DataArray((few + step) / 100), sign, 0.001)
        assert (found.verdict, found.why) == (
            "undecided",
            "the few seeds change by the same, so that their spread tells nothing",
        )
        other = np.append((few[:-1] + step) / 100, (few[-1] + step + 1) / 100)
        assert "few seeds" not in compared(xr.DataArray(few / 100), xr.DataArray(other), sign).why


def verdicts(made, words):
    return {finding.claim: finding.verdict for finding in made if words in finding.claim}


def test_a_planted_effect_is_seen_and_swapped_arms_contradict_the_paper():
    arrays = table1_arrays().sel(dataset=["hatexplain"])
    seen = verdicts(findings(arrays), "times the query-key rate")
    assert len(seen) == 2 * len(METRICS)
    assert set(seen.values()) == {"agrees"}
    against = verdicts(findings(swapped(arrays)), "times the query-key rate")
    raised = [claim for claim in against if "independent" not in claim and "accuracy" not in claim]
    assert len(raised) == len(MOVED)
    assert {against[claim] for claim in raised} == {"differs"}


def test_without_an_effect_nothing_is_seen():
    """No metric of any data set; seeds shuffled among the arms give no direction either."""
    none = verdicts(findings(table1_arrays(effect=0.0, key=3)), "times the query-key rate")
    told = [verdict for claim, verdict in none.items() if "accuracy" not in claim]
    assert set(told) == {"undecided"}
    arrays = table1_arrays(seeds=8)
    mixed = arrays.copy(deep=True)
    for seed in range(0, 8, 2):  # every other seed with the two labels exchanged
        for name in ("attention", "largest", "comprehensiveness", "sufficiency"):
            pair = {"arm": [0, 1], "seed": seed}
            mixed[name][pair] = arrays[name].isel(pair).isel(arm=[1, 0]).values
    told = verdicts(findings(mixed), "times the query-key rate")
    told = {told[claim] for claim in told if "independent" not in claim and "accuracy" not in claim}
    assert told == {"undecided"}


def test_one_seed_and_a_diverged_run_decide_nothing():
    made = findings(table1_arrays(seeds=1))
    assert {finding.verdict for finding in made} == {"undecided"}
    assert not any("has not learnt" in finding.found for finding in made)
    arrays = diverged(table1_arrays(), dataset="hatexplain", arm="raised", seed=3)
    made = [finding for finding in findings(arrays) if "times the query-key rate" in finding.claim]
    for finding in made:
        touched = finding.claim.startswith("hatexplain") and "independent" not in finding.claim
        assert ("1 of 5 seeds diverged" in finding.found) == touched
        if touched:
            assert finding.verdict == "undecided"
            assert "(4 of 5 seeds)" in finding.found
    assert {f.verdict for f in made if f.claim.startswith("subject-verb") and "MRTA" in f.claim} == {"agrees"}


def test_what_sharpness_alone_gives_is_not_what_the_paper_means():
    arrays = table1_arrays().sel(dataset=["hatexplain"])
    whole = measured(arrays, CHOICES).ac
    gained = whole - whole.sel(arm="baseline")
    sharp = arrays.assign(high_by_chance=arrays.high_by_chance + gained)  # all that AC gains, shifted tokens gain too
    found = {finding.claim.split("rate ")[1]: finding for finding in findings(sharp) if "times the" in finding.claim}
    for name in ("AC", "ACMC of confident", "ACMC of all"):
        about = found[f"raises {name}"]
        assert about.verdict == "undecided", name
        assert "sharpness alone may do that: what is beyond chance changes by" in about.found
    assert found["raises AC beyond chance"].verdict == "undecided"
    assert found["raises MRTA"].verdict == found["raises largest attention"].verdict == "agrees"
    blunt = table1_arrays(effect=-0.2).sel(dataset=["hatexplain"])
    lost = measured(blunt, CHOICES).ac - measured(blunt, CHOICES).ac.sel(arm="baseline")
    blunt = blunt.assign(high_by_chance=blunt.high_by_chance + lost)
    about = {finding.verdict for finding in findings(blunt) if "raises AC" in finding.claim}
    assert about == {"undecided"}  # what blunt attention alone loses is no contradiction either
    rows = {row[0]: row[-1] for row in tables(sharp)[0].rows}
    assert (rows["AC"], rows["ACMC of all"], rows["MRTA"]) == ("undecided", "undecided", "yes")


def test_right_answers_of_models_that_have_not_learnt_are_luck():
    arrays = table1_arrays(right=0.36).sel(dataset=["hatexplain"])
    about = [finding for finding in findings(arrays) if "ACMC" in finding.claim]
    assert {finding.verdict for finding in about} == {"undecided"}
    assert any("right answers may be luck" in finding.found for finding in about)
    falling = table1_arrays(right=0.36, effect=-0.2).sel(dataset=["hatexplain"])  # nor does luck contradict the paper
    values = measured(falling, CHOICES).acmc_all.sel(dataset="hatexplain")
    assert compared(values.sel(arm="baseline"), values.sel(arm="raised"), 1).verdict == "differs"
    assert {finding.verdict for finding in findings(falling) if "ACMC of all" in finding.claim} == {"undecided"}
    high, low = (table1_arrays(right=right).sel(dataset=["hatexplain"]) for right in (0.75, 0.36))
    for unlearnt, verdict in (("raised", "undecided"), ("baseline", "agrees")):  # the faster model's answers count
        mixed = high.assign(
            correct=xr.where(high.arm == unlearnt, low.correct, high.correct).transpose(*high.correct.dims)
        )
        found = verdicts(findings(mixed), "times the query-key rate raises ACMC")
        assert {each for claim, each in found.items() if "independent" not in claim} == {verdict}
        assert {each for claim, each in found.items() if "independent" in claim} == {"agrees"}


def test_lost_accuracy_contradicts_and_what_was_not_learnt_is_said():
    worse = verdicts(findings(table1_arrays(gain=-0.15)), "does not degrade")
    assert set(worse.values()) == {"differs"}
    made = findings(table1_arrays(right=0.36).sel(dataset=["hatexplain"]))
    (about,) = [finding for finding in made if "the models learn" in finding.claim]
    assert about.found.count("(has not learnt)") == 3
    assert about.verdict == "not stated there"
    moved = [finding for finding in made if "MRTA" in finding.claim]
    assert all("the model has not learnt" in finding.found for finding in moved)
    assert all(finding.verdict == "agrees" for finding in moved if "times the" in finding.claim)
    close = findings(table1_arrays(right=0.43, noise=0.05).sel(dataset=["hatexplain"]))
    assert any("not clear whether the model has learnt (baseline" in finding.found for finding in close)
    learnt = [finding for finding in findings(table1_arrays()) if "the models learn" in finding.claim]
    assert all(finding.found.count("(has learnt)") == 3 for finding in learnt)
    below = table1_arrays(effect=-0.1)
    about = [finding for finding in findings(below) if "uniform attention" in finding.claim]
    assert all(
        "higher ratio, decay independent 0." in finding.found and "(below it)" in finding.found for finding in about
    )


def test_slopes_are_least_squares_per_decade():
    attention = measured(dial_arrays(seeds=3), CHOICES).mrta.sel(dataset="hatexplain")
    for seed, slope in enumerate(slopes(attention)):
        fit = stats.linregress(np.log10(attention.multiplier.values), attention.sel(seed=seed).values)
        assert slope == pytest.approx(fit.slope, rel=1e-12)
    assert reference(np.array([0.1, 1.0, 10.0])) == 1
    assert reference(np.array([2.0, 10.0])) == 0


def of_dial(arrays):
    """Verdicts on trend, accuracy, and the two curves of the theory, of the first data set."""
    made = dial_findings(arrays.sel(dataset=["hatexplain"]))
    words = ("increases with", "does not degrade", "at equal training loss", "at equal time")
    return tuple(next(f.verdict for f in made if word in f.claim) for word in words)


def test_a_dial_is_judged_by_its_trend_its_steps_and_the_theory():
    quiet = functools.partial(dial_arrays, noise=0.002)
    assert of_dial(quiet()) == ("agrees",) * 4
    assert of_dial(swapped(quiet())) == ("differs", "agrees", "differs", "differs")
    assert of_dial(quiet(theory=-0.1)) == ("agrees", "agrees", "differs", "differs")
    assert of_dial(dial_arrays(effect=0.0, noise=0.02)) == ("undecided",) * 4
    assert of_dial(quiet(seeds=1)) == ("undecided",) * 4
    assert of_dial(diverged(quiet(), dataset="hatexplain", multiplier=100.0, seed=0)) == ("undecided",) * 4
    assert of_dial(quiet(gain=-0.2))[1] == "differs"
    assert of_dial(quiet(right=0.36)) == ("agrees", "undecided", "agrees", "agrees")  # nothing learnt, nothing to lose


def test_a_clear_fall_within_a_rising_trend_contradicts_monotony():
    arrays = dial_arrays()
    dented = arrays.copy(deep=True)
    dented["attention"][{"multiplier": 4}] = arrays.attention.isel(multiplier=2).values
    (about,) = [f for f in dial_findings(dented.sel(dataset=["hatexplain"])) if "increases with" in f.claim]
    assert about.verdict == "differs"
    assert "falls from x30 to x100" in about.found


def test_the_table_shows_the_numbers_and_what_was_used():
    arrays = diverged(table1_arrays(), dataset="subject-verb", arm="raised", seed=0)
    first, second = tables(arrays)
    assert first.headings[1:4] == ("baseline", "higher ratio", "higher ratio, decay independent")
    row = next(row for row in first.rows if row[0] == "MRTA")
    values = measured(arrays, CHOICES).mrta.sel(dataset="hatexplain")
    mean, half, *_ = interval(values.sel(arm="baseline"))
    assert row[1] == f"{mean:.3f} ± {half:.3f}"
    apart = compared(values.sel(arm="baseline"), values.sel(arm="raised"), 1).difference
    assert row[4:] == (f"{apart.mean:+.3f} ± {apart.margin:.3f}", "up", "yes")
    assert {row[0]: row[5] for row in first.rows}["sufficiency at 20%"] == "down"
    assert {row[-1] for row in second.rows} == {"undecided"}
    assert all("(4 of 5 seeds)" in row[2] for row in second.rows)
    told = " ".join(first.used)
    for part in ("texts.json.gz", "official divisions", "300 training", "50 validation", "120 test", "7 ties",
                 "2 malformed",
                 "base rate 0.001", "multiplier 30",
                 "FAFO, 1 layer, 1 head", "60 epochs", "weight decay 0.01",
                 "never by attention", "0.01 diverged", "raw attention", "delete",
                 "from 0.5", "probability 0.6", "right in 0.410", "MRTA 0.4"):  # fmt: skip
        assert part in told, part
    assert "1 of 15 runs diverged" in " ".join(second.used)
    assert "too long" not in told  # a reason that left nothing out
    reverse = tables(swapped(table1_arrays()))[0]
    assert {row[-1] for row in reverse.rows if row[-2] != "not lower"} == {"no"}
    paper = table1_arrays().drop_vars(["tuning_base_rate", "tuning_base_loss"])
    settings = json.loads(paper.attrs["settings"]) | {"preset": "paper"}
    assert "the paper's rates" in " ".join(tables(paper.assign_attrs(settings=json.dumps(settings)))[0].used)
    lazy = tables(table1_arrays(right=0.36))[0]
    assert "the model has not learnt" in lazy.notes[0]


def test_the_end_of_what_was_allowed_is_told():
    def said(arrays):
        return " ".join(tables(arrays)[0].notes)

    arrays = table1_arrays()
    # of base rates 1e-3 (the chosen one) and 1e-2 the second diverged: it was tried all the same
    assert "the base rate 0.001 is the smallest of those tried: a smaller one" in said(arrays)
    assert "the multiplier 30 is the largest of those tried" in said(arrays)
    one = arrays.isel(candidate=[0], factor=[1])
    assert "of those tried" not in said(one)  # there was no choice
    assert "ended with epoch" not in said(arrays)
    settings = json.loads(arrays.attrs["settings"]) | {"max_epochs": int(arrays.epoch[-1])}
    short = arrays.assign_attrs(settings=json.dumps(settings))
    here = arrays.sel(dataset="hatexplain")
    waiting = here.validation_loss.isel(epoch=-1).notnull() & (here.best_epoch > int(arrays.epoch[-1]) - 5)
    assert 0 < int(waiting.sum()) < waiting.size
    assert f"{int(waiting.sum())} of 15 runs ended with epoch {int(arrays.epoch[-1])}" in said(short)
    patient = short.assign(
        best_epoch=short.best_epoch * 0 + int(arrays.epoch[-1]) - 5
    )  # 5 epochs without a smaller loss
    assert "ended with epoch" not in said(patient)
    assert "ended with epoch" in said(patient.assign(best_epoch=patient.best_epoch + 1))


def test_what_the_numbers_owe_to_the_texts_is_told():
    arrays = table1_arrays()
    told = " ".join(tables(arrays)[0].used)
    assert "end with one" not in told  # an end token does
    assert "also stand" not in told
    assert "cut to" not in told
    sources = json.loads(arrays.attrs["sources"])
    sources["hatexplain"] |= {"cut": 3, "also_training": 0.045, "end_token": False}
    told = " ".join(tables(arrays.assign_attrs(sources=json.dumps(sources)))[0].used)
    assert "relevant tokens, of which 25% end with one" in told
    assert "3 texts cut to their last 512 tokens" in told
    assert "4.5% of the test texts also stand in the training part" in told


def test_the_dial_has_a_table_of_its_multipliers():
    (first, _) = dial_tables(dial_arrays())
    assert first.headings == ("metric", "x0.1", "x1", "x10", "x30", "x100")
    assert [row[0] for row in first.rows][:3] == ["accuracy", "MRTA", "largest attention"]
    assert all(re.fullmatch(r"-?\d\.\d{3} ± \d\.\d{3}", cell) for row in first.rows for cell in row[1:])


def drawn(figure):
    FigureCanvasAgg(figure).draw()
    return figure


def test_figures_show_the_numbers():
    arrays = diverged(table1_arrays(seeds=3), dataset="subject-verb", arm="raised", seed=0)
    arrays["high_by_chance"] = arrays.high_by_chance * xr.DataArray([1, 2, 3], dims="arm")
    maps = drawn(plot.relevance_maps(arrays))
    panels = {ax.get_title(loc="left"): ax for ax in maps.axes}
    ax = panels["(d)  subject-verb: higher ratio"]
    dots = [line for line in ax.get_lines() if line.get_marker() == "o"]
    attention = arrays.attention.sel(dataset="subject-verb", arm="raised").mean("example").values
    assert sorted(float(line.get_xdata()[0]) for line in dots) == pytest.approx(sorted(attention[1:]))
    assert [text.get_text() for text in ax.texts] == ["1 of 3 seeds diverged"]
    mesh = ax.collections[0].get_array()
    assert float(mesh.sum()) == pytest.approx(1.0)  # shares of the examples with relevant tokens
    pairs = drawn(plot.paired_metrics(arrays))
    values = measured(arrays, CHOICES)
    lines = [line for line in pairs.axes[1].get_lines() if len(line.get_xdata()) == len(ARMS)]
    expected = values.mrta.sel(dataset="hatexplain").transpose("seed", "arm").values
    assert any(np.allclose(line.get_ydata(), expected[0]) for line in lines)
    bars = [float(line.get_ydata()[0]) for line in pairs.axes[2].get_lines() if line.get_linewidth() == 2]
    assert bars == pytest.approx([0.25, 0.5, 0.75])  # what the arrays say attention has by chance
    losses = drawn(plot.validation_losses(arrays))
    kept = [line for line in losses.axes[0].get_lines() if line.get_marker() == "o"]
    for ax, name in zip(losses.axes, SIZES, strict=True):  # as long as this data set was trained on
        ran = arrays.validation_loss.sel(dataset=name).notnull().any(["arm", "seed"]).values
        assert ax.get_xlim() == (0.5, ran.sum() + 0.5)
    best = arrays.best_epoch.sel(dataset="hatexplain").values.ravel()
    assert [int(line.get_xdata()[np.isfinite(line.get_ydata())][0]) for line in kept] == best.tolist()
    dial = dial_arrays(seeds=2)
    figure = drawn(plot.multiplier_dial(dial))
    assert any(np.allclose(line.get_ydata(), dial.theory_attention[0]) for line in figure.axes[0].get_lines()
               if len(line.get_ydata()) == dial.theory_multiplier.size)  # fmt: skip


def test_figures_of_one_data_set_one_seed_or_none_that_is_usable():
    name = "subject-verb"
    for arrays in (table1_arrays(seeds=1), diverged(table1_arrays(seeds=2), dataset=name)):
        for draw in (plot.relevance_maps, plot.paired_metrics, plot.validation_losses):
            drawn(draw(arrays.sel(dataset=[name])))
    nothing = diverged(dial_arrays(seeds=2))
    nothing["theory_attention"] = nothing["theory_attention_equal_time"] = nothing.theory_attention * np.nan
    for arrays in (dial_arrays(seeds=1), diverged(dial_arrays(seeds=2), multiplier=100.0), nothing):
        figure = drawn(plot.multiplier_dial(arrays.sel(dataset=[name])))
        assert dial_tables(arrays)
        for ax in figure.axes:  # every multiplier has its place, whatever became of it
            assert ax.get_xlim()[0] < arrays.multiplier.min()
            assert ax.get_xlim()[1] > arrays.multiplier.max()
        (inside,) = (each.get_window_extent() for each in figure.legends)
        assert 0 <= inside.x0 <= inside.x1 <= figure.bbox.x1
    assert [text.get_text() for text in figure.axes[0].texts] == [
        f"{2 * nothing.multiplier.size} of {2 * nothing.multiplier.size} runs diverged"
    ]
    for draw in (plot.paired_metrics, plot.validation_losses):
        lost = drawn(draw(diverged(table1_arrays(seeds=2)).sel(dataset=[name]))).axes[0]
        assert [text.get_text() for text in lost.texts] == ["6 of 6 runs diverged"]
    assert lost.get_xlim()[0] > 0  # epochs, though no line is drawn
    with pytest.raises(InvalidInput, match="ratio_dial"):
        plot.multiplier_dial(table1_arrays())
    for draw in (plot.relevance_maps, plot.paired_metrics, plot.validation_losses):
        with pytest.raises(InvalidInput, match="table1"):
            draw(dial_arrays())


def test_intervals_that_reach_beyond_what_can_be_do_not_stretch_the_axes():
    arrays = table1_arrays(seeds=2)
    arrays["correct"] = arrays.correct * 0 + (arrays.seed == 0)  # accuracy 1 and 0: the interval reaches to 6
    for ax in drawn(plot.paired_metrics(arrays)).axes:
        assert ax.get_ylim()[0] >= -1.1
        assert ax.get_ylim()[1] <= 1.1
    dial = dial_arrays(seeds=2)
    dial["correct"] = dial.correct * 0 + (dial.seed == 0)
    for ax in drawn(plot.multiplier_dial(dial)).axes:
        assert ax.get_ylim()[0] >= -0.1
        assert ax.get_ylim()[1] <= 1.1


@dataclasses.dataclass(frozen=True)
class TextsSettings:
    """The settings that the reading needs."""

    threshold: float = 0.5
    confidence: float = 0.6
    share: float = 0.2
    preset: str = "tuned"
    bins: int = 12
    weight_decay: float = 0.01
    parameterization: str = "FAFO"
    d: int = 64
    layers: int = 1
    heads: int = 1
    batch: int = 32
    max_epochs: int = 60
    patience: int = 5

    @classmethod
    def quick(cls):
        return cls()


def test_the_command_prints_saves_and_draws_table_and_figures(tmp_path, capsys, monkeypatch):
    import sys

    made = ex.Experiment(
        "texts", "Texts.", TextsSettings, lambda _settings, _report: table1_arrays(seeds=2), findings,
        {"pairs": plot.paired_metrics}, tables,
    )  # fmt: skip
    module = types.ModuleType("flowsim.experiments._texts")
    module.__dict__["EXPERIMENT"] = made
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(ex, "_MODULES", {"texts": ("_texts", "EXPERIMENT")})
    out = tmp_path / "a"
    assert run(["reproduce", "texts", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.index("hatexplain: baseline and higher ratio") < printed.index("MRTA") < printed.index("claim")
    assert {path.name for path in out.iterdir()} == {
        "texts.nc", "texts.json", "texts.md", "pairs.png", "pairs.svg", "flowsim.json",
    }  # fmt: skip
    assert run(["reproduce", "texts", "--from", str(out / "texts.nc"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tables"] == json.loads((out / "texts.json").read_text())["tables"]
    assert len(told["tables"]) == len(SIZES)


def test_accuracy_that_needs_no_model_cannot_be_kept():
    """Both answer the most frequent label: nothing is lost, and nothing was there to lose."""
    level = xr.DataArray(np.full(5, 0.7), dims="seed")
    better = xr.DataArray(np.full(5, 0.9) + 0.001 * np.arange(5), dims="seed")
    assert compared(level, level, 0, 0.7).verdict == "undecided"
    assert compared(better, better, 0, 0.7).verdict == "agrees"
    assert compared(better, level, 0, 0.7).verdict == "differs"


def test_the_two_axes_are_told_apart():
    assert reading.model_axis(table1_arrays(seeds=1)) == "arm"
    assert reading.model_axis(dial_arrays(seeds=1)) == "multiplier"
