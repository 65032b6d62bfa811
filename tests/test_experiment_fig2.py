"""Heat maps of attention and prediction: the arrays against loops, the findings against made data."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import flowsim as fs
import flowsim.experiments as ex
from flowsim.experiments import Fig2Settings
from flowsim.experiments._fig2 import run
from flowsim.experiments._fig2.findings import findings
from flowsim.experiments._files import load, save
from flowsim.models import Circuits, CollapsedCircuit, FactorizedCircuit
from flowsim.schedules import Growing
from flowsim.training.evaluation import evaluate
from flowsim.training.examples import held_out

SMALL = Fig2Settings(
    classes=2, distinct=2, common=3, vocabulary=5, length=7, batches=8, batch=4, hidden=3, seeds=3, test=12, bins=4,
    thresholds=5, confidence=0.3, scan_seeds=3, together=1, scan_lr=(0.5, 3.0), scan_gamma=(0.4, 0.5),
    scan_init=(0.01, 0.1), scan_ratio=(1.0, 4.0),
)  # fmt: skip


@pytest.mark.parametrize("attend_query", [False, True])
def test_each_sequence_against_a_softmax_over_its_tokens(attend_query):
    task = dataclasses.replace(SMALL, attend_query=attend_query).task()
    tokens, rows = 4 + 3 + 2 * attend_query, 9
    rng = np.random.default_rng(5)
    left, right = rng.normal(size=(2, tokens, 3)), rng.normal(size=(2, 3, 2))
    ov = rng.normal(size=(2, 5, tokens))
    circuits = Circuits(FactorizedCircuit(jnp.asarray(left), jnp.asarray(right)), CollapsedCircuit(jnp.asarray(ov)))
    sequences = held_out(task, np.arange(2), rows, np.dtype(float))
    seen = evaluate(task, circuits, sequences)
    for seed in range(2):
        for row in range(rows):
            counts = np.exp(np.asarray(sequences.log_counts[seed, row])).round().astype(int)
            label = int(np.argmax(sequences.labels[seed, row]))
            query = int(np.argmax(sequences.queries[seed, row]))
            stand = np.repeat(np.arange(tokens), counts)
            assert stand.size == 6 + attend_query
            weight = np.exp((left[seed] @ right[seed])[stand, query])
            weight /= weight.sum()
            logits = ov[seed][:, stand] @ weight
            shares = np.exp(logits) / np.exp(logits).sum()
            own = (stand >= 2 * label) & (stand < 2 * label + 2)
            # a dozen roundings of numbers of order 1
            np.testing.assert_allclose(seen.attention[seed, row], weight[own].sum(), rtol=0, atol=1e-14)
            np.testing.assert_allclose(seen.probability[seed, row], shares[label], rtol=0, atol=1e-14)
            assert bool(seen.correct[seed, row]) == (int(np.argmax(logits)) == label)


@pytest.fixture(scope="module")
def small():
    """Two of the four parameterizations, both kinds of either circuit among them: compiling takes most of the time."""
    told = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "PARAMETERIZATIONS", ("FAFO", "CACO"))
        patch.setattr(run, "ABOVE", ("CACO",))
        dataset = ex.perform(ex.experiment("fig2"), SMALL, lambda *what: told.append(what))
    assert [done for _, done, _ in told] == list(range(told[-1][2] + 1))
    return dataset


@pytest.mark.slow
def test_arrays_of_a_small_run(small):
    assert np.isfinite(small.attention).all()
    for name in small.parameterization.values.tolist():
        for regime in small.regime.values.tolist():
            here = small.sel(parameterization=name, regime=regime)
            a, p = (np.minimum(here[what].values.ravel(), 1) for what in ("attention", "probability"))  # 1 + an ulp
            counted = np.histogram2d(a, p, bins=4, range=((0, 1), (0, 1)))[0] / a.size
            np.testing.assert_allclose(here.dtap, counted, rtol=0, atol=1e-15)
            for s, t in np.ndindex(3, 5):
                a, p, tau = here.attention.values[s], here.probability.values[s], here.threshold.values[t]
                both = sum((x >= tau) and (y >= 0.3) for x, y in zip(a, p, strict=True))
                assert here.ac.values[s, t] == sum(x >= tau for x in a) / 12
                assert here.acmc.sel(denominator="all").values[s, t] == both / 12
                confident = int((p >= 0.3).sum())
                expected = both / confident if confident else np.nan
                np.testing.assert_array_equal(here.acmc.sel(denominator="confident").values[s, t], expected)
    best = small.scan_probability.mean("scan_seed")
    gap = small.scan_attention.mean("scan_seed")
    expected = gap.sel(parameterization="CACO").values - gap.sel(parameterization="FAFO").values
    np.testing.assert_array_equal(small.scan_difference.sel(above="CACO").values, expected)
    learnt = np.minimum(best.sel(parameterization="CACO").values, best.sel(parameterization="FAFO").values) >= 0.8
    np.testing.assert_array_equal(small.scan_learnt.sel(above="CACO").values, learnt)


@pytest.mark.slow
def test_the_arrays_are_those_of_train(small):
    """The same runs by calls that a user would write; the constant schedule only makes them the same program."""
    given = {"population": "sampled-identities", "batch": 4, "test": 12, "seeds": 3, "steps": 8, "points": 1,
             "schedule": Growing(24.0, begin=1.0)}  # fmt: skip
    plain = fs.train(SMALL.task(), "CACO", ratio=3.0, lr=3.0, start=fs.RandomStart(0.01, "uniform"), **given)
    here = small.sel(parameterization="CACO", regime="faster")
    np.testing.assert_allclose(here.attention.mean("example"), plain.attention[..., -1], rtol=0, atol=1e-14)
    np.testing.assert_allclose(1 - here.probability.mean("example"), plain.error[..., -1], rtol=0, atol=1e-14)
    lower = fs.train(SMALL.task(0.4), "CACO", ratio=1.0, lr=0.5, start=fs.RandomStart(0.1, "uniform"), **given)
    scanned = small.scan_attention.sel(parameterization="CACO", gamma=0.4, init=0.1, lr=0.5)
    np.testing.assert_allclose(scanned, lower.attention[..., -1], rtol=0, atol=1e-14)
    growing = {**given, "schedule": lambda time: 0.1 + 0.9 * jnp.minimum(time / 24.0, 1.0)}
    increasing = fs.train(SMALL.task(), "CACO", ratio=10.0, lr=3.0, start=fs.RandomStart(0.01, "uniform"), **growing)
    here = small.sel(parameterization="CACO", regime="increasing")
    np.testing.assert_allclose(here.attention.mean("example"), increasing.attention[..., -1], rtol=0, atol=1e-12)


def test_calls_are_of_one_size():
    assert list(run._calls((1.0, 2.0, 3.0), 2)) == [[1.0, 2.0], [3.0, 3.0]]
    assert list(run._calls((1.0, 2.0, 3.0), 6)) == [[1.0, 2.0, 3.0]]


def made(**changes):
    """Arrays as the paper describes them: (attention, probability) of every example by parameterization and regime."""
    values = {
        ("FAFO", "equal"): (0.3, 0.97), ("CACO", "equal"): (0.9, 0.95), ("CAFO", "equal"): (0.6, 0.97),
        ("FACO", "equal"): (0.97, 0.96),
    }  # fmt: skip
    for name in run.PARAMETERIZATIONS:
        for regime in ("faster", "increasing"):
            values[name, regime] = (0.98, 0.97)
    values.update(changes.pop("values", {}))
    rng = np.random.default_rng(1)
    shape = (4, 3, 8, 50)
    attention, probability = np.empty(shape), np.empty(shape)
    for (name, regime), (a, p) in values.items():
        at = run.PARAMETERIZATIONS.index(name), run.REGIMES.index(regime)
        attention[at], probability[at] = a, p
    attention += 0.01 * rng.uniform(-1, 1, shape)
    probability += 0.01 * rng.uniform(-1, 1, shape)
    names = list(run.PARAMETERIZATIONS)
    difference = np.array([0.5, 0.1, -0.2, 0.3]).reshape(1, 1, 1, 4) * np.ones((2, 1, 1, 1))
    dims = ("parameterization", "regime", "seed", "example")
    examples = xr.Dataset(
        {
            "attention": (dims, attention),
            "probability": (dims, probability),
            "correct": (dims, (probability > 0.5).astype(float)),
            "scan_difference": (("above", "gamma", "init", "lr"), difference),
            "scan_learnt": (("above", "gamma", "init", "lr"), np.array([1, 1, 1, 0]) * np.ones_like(difference, int)),
            "dial_attention": (("parameterization", "ratio", "scan_seed"), np.array([[[0.5], [0.8], [0.2]]] * 4)),
            "dial_probability": (("parameterization", "ratio", "scan_seed"), np.array([[[0.9], [0.8], [0.9]]] * 4)),
        },
        coords={"parameterization": names, "regime": list(run.REGIMES), "above": ["CACO", "FACO"], "gamma": [0.5],
                "init": [0.01], "lr": [0.5, 1.0, 2.0, 3.0], "ratio": [1.0, 3.0, 10.0]},
        attrs={name: getattr(Fig2Settings, name) for name in run._READ_BY_FIGURES},
    )  # fmt: skip
    return examples.merge(run._summaries(Fig2Settings(bins=4, thresholds=5), examples))


def test_files_and_figures(tmp_path):
    settings = Fig2Settings(bins=4, thresholds=5)
    experiment = dataclasses.replace(ex.experiment("fig2"), run=lambda *_: made())
    dataset = ex.perform(experiment, settings)
    written = save(experiment, dataset, tmp_path)
    assert {name for name in written if name.endswith(".png")} == {f"{stem}.png" for stem in experiment.figures}
    found, again = load(tmp_path / "fig2.nc")
    assert found.name == "fig2"
    xr.testing.assert_identical(again, dataset)
    with pytest.raises(fs.InvalidInput, match="lacks 'dtap'"):
        fs.plot.dtap_maps(dataset.drop_vars("dtap"))


def verdicts(dataset):
    return {finding.claim: finding.verdict for finding in findings(dataset)}


def test_findings_of_data_as_the_paper_describes_them():
    found = {finding.claim: finding for finding in findings(made())}
    of_the_paper = [finding for finding in found.values() if finding.where]
    assert len(of_the_paper) == 13
    assert {finding.verdict for finding in of_the_paper} == {"agrees"}
    assert "at 2 of 3 points" in found["where CACO attends more than FAFO"].found
    assert (
        "2 of 3 at gamma 0.5; -0.20 at gamma 0.5, start 0.01, rate 2"
        in found["where CACO attends more than FAFO"].found
    )
    assert found["where CACO attends more than FAFO"].value == 2 / 3
    assert "FAFO falls below its value at 1 from 10 on" in next(
        finding.found for finding in found.values() if "beyond which" in finding.claim
    )


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({("CAFO", "equal"): (0.6, 0.7)}, "high confidence"),
        ({(name, "equal"): (0.6, 0.97) for name in run.PARAMETERIZATIONS}, "differs substantially"),
        ({("FACO", "equal"): (0.5, 0.97)}, "FACO is near"),
        ({("CACO", "equal"): (0.97, 0.4)}, "CACO is near"),
        ({("FAFO", "equal"): (0.6, 0.97)}, "substantial mass"),
        ({("FAFO", "equal"): (0.3, 0.4)}, "substantial mass"),
        ({("CAFO", "faster"): (0.2, 0.97)}, "(ratio 3) moves attention"),
        ({("CACO", "increasing"): (0.5, 0.97)}, "10) the attention of CACO"),
        ({("FAFO", "increasing"): (0.97, 0.4)}, "predictions do not suffer from it (ratio increasing"),
    ],
)
def test_planted_data_turn_a_finding(values, word):
    told = verdicts(made(values=values))
    (claim,) = [claim for claim in told if word in claim]
    assert told[claim] == "differs"


def test_seeds_that_diverged_are_left_out():
    dataset = made()
    dataset.attention[:, :, 2] = np.nan
    dataset.probability[:, :, 2] = np.nan
    dataset.correct[:, :, 2] = np.nan
    assert verdicts(dataset) == verdicts(made())
    gone = made()
    for name in ("attention", "probability", "correct"):
        gone[name][:] = np.nan
    assert all(finding.value is None for finding in findings(gone) if finding.where)
    assert not any(finding.verdict == "agrees" for finding in findings(gone))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gamma": 1.0}, ["gamma=1", "between 0 and 1"]),
        ({"vocabulary": 3}, ["vocabulary=3", "4"]),
        ({"lr": -1.0}, ["lr=-1"]),
        ({"seeds": 1}, ["seeds=1", "2"]),
        ({"scan_lr": (3.0, 1.0)}, ["scan_lr", "sort"]),
        ({"scan_gamma": (0.5, 1.5)}, ["scan_gamma[1]=1.5"]),
        ({"increasing": 0.5}, ["increasing=0.5", "ratio=1"]),
        ({"attend_query": 1}, ["attend_query=1"]),
    ],
)
def test_settings_that_cannot_be_used(changes, words):
    with pytest.raises(fs.InvalidInput) as caught:
        Fig2Settings(**changes)
    assert all(word in str(caught.value) for word in words)


def test_how_the_tokens_fit_the_vocabulary():
    task = Fig2Settings().task()
    assert sum(group.types * (4 if group.role == "distinct" else 1) for group in task.groups) == 50
    assert task.classes + task.other_outputs == 50
    assert all(sum(composition.counts) == 63 for composition in task.compositions)
    assert sum(Fig2Settings(attend_query=True).task().compositions[0].counts) == 64


@pytest.mark.slow
def test_the_pattern_of_the_paper_in_the_quick_run():
    dataset = ex.perform(ex.experiment("fig2"), Fig2Settings.quick())
    told = {finding.claim: finding.verdict for finding in findings(dataset) if finding.where}
    assert all(verdict in ("agrees", "undecided") for verdict in told.values())
    means = dataset.attention.sel(regime="equal").mean(("seed", "example"))
    assert (means.sel(parameterization=["CACO", "FACO"]) > 0.9).all()
    assert (means.sel(parameterization=["CAFO", "FAFO"]) < 0.75).all()
    jax.clear_caches()
