"""The experiments on real texts, on made records in the official formats: what is trained, read, kept and resumed."""

import dataclasses
import json
import math
import os
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

import flowsim as fs
from flowsim.corpora import Example, Vocabulary
from flowsim.experiments import DialSettings, Table1Settings, ratio_dial, table1
from flowsim.experiments._table1 import data, runs, theory
from flowsim.experiments._table1.run import reached_loss
from flowsim.text_training import Reading, Run, Texts
from tests import made_records as made
from tests.test_transformer import forward

SMALL = {"d": 8, "seeds": 2, "tuning_seeds": 1, "max_epochs": 3, "patience": 3, "batch": 16, "at_least": 1}
TUNED = {"base_rates": (0.003, 0.03), "multipliers": (3.0, 10.0)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made.put(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def settings(folder):
    return Table1Settings(data=str(folder), **SMALL, **TUNED)


@pytest.fixture(scope="module")
def arrays(settings):
    return table1(settings)


def test_the_official_division_is_used_where_it_can_be(arrays):
    sources = json.loads(arrays.attrs["sources"])
    posts, lines = sources["hatexplain"], sources["subject-verb"]
    assert (posts["split"], posts["train"], posts["val"], posts["test"]) == ("official divisions", 72, 24, 24)
    assert lines["split"].startswith("120 sources divided 0.8/0.1/0.1")
    assert (lines["train"], lines["val"], lines["test"]) == (96, 12, 12)
    assert posts["file"] == "dataset.json"
    assert posts["attention"] == "raw attention of the only layer"


def test_tuning_takes_the_least_validation_loss(arrays):
    for name in arrays.dataset.values:
        part = arrays.sel(dataset=name)
        assert float(part.base_rate) == part.tuning_base_rate.values[part.tuning_base_loss.values.argmin()]
        assert float(part.multiplier) == part.tuning_multiplier.values[part.tuning_multiplier_loss.values.argmin()]
        assert np.isfinite(part.tuning_base_loss).all()


def test_numbers_of_the_texts(arrays):
    posts = arrays.sel(dataset="hatexplain")
    keys = made.divisions(120)["test"]
    records = made.posts(120)
    uniform = [1 / len(records[key]["post_tokens"]) if records[key]["rationales"] else np.nan for key in keys]
    np.testing.assert_allclose(posts.uniform.values, uniform)
    labels = [records[key]["annotators"][0]["label"] for key in keys]
    assert float(posts.majority) == pytest.approx(max(map(labels.count, labels)) / len(labels))
    lines = arrays.sel(dataset="subject-verb")
    for name in (
        "probability",
        "correct",
        "largest",
        "comprehensiveness",
        "sufficiency",
    ):  # 12 test sentences beside 24 posts
        assert np.isfinite(lines[name].isel(example=slice(12))).all()
        assert np.isnan(lines[name].isel(example=slice(12, None))).all()
    assert (posts.attention.notnull() == posts.uniform.notnull()).all()
    one_token = posts.attention <= posts.largest + 1e-6  # the only relevant token has no more than the largest
    assert one_token.where(posts.attention.notnull(), True).all()
    assert set(np.unique(posts.correct)) <= {0.0, 1.0}
    np.testing.assert_allclose(arrays.share, [0.01, 0.05, 0.1, 0.2, 0.5])


@pytest.mark.parametrize(
    ("relevant", "share"),
    [([1, 0, 0, 0], 1 / 4), ([1, 1, 0, 0], 2 / 4), ([1, 0, 1, 0], 2 / 4), ([1, 1, 1, 0], 3 / 4), ([1, 1, 1, 1], 1)],
)
def test_how_often_attention_is_high_wherever_the_relevant_tokens_are(relevant, share):
    # two neighbours hold 0.7, 0.2, 0.3, 0.8; every second 0.7, 0.3, 0.7, 0.3; three 0.8, 0.4, 0.9, 0.9
    attention = np.array([0.6, 0.1, 0.1, 0.2])
    assert runs._high_by_chance(attention, np.array(relevant, dtype=bool), 0.5) == share


def test_by_chance_no_relevant_token_is_where_the_sign_for_the_end_stands(folder, monkeypatch):
    texts = prepared(folder, end_token=True)

    def even(_model, words, _widths):
        return np.full((len(words), len(texts.classes)), 1 / len(texts.classes))

    def read(model, words, widths):
        return Reading(even(model, words, widths), [np.eye(len(word))[-1] for word in words])

    monkeypatch.setattr(runs, "read", read)
    monkeypatch.setattr(runs, "probabilities", even)
    fitted = SimpleNamespace(status=np.array([fs.Status.OK]), model=lambda _: None)
    settings = Table1Settings(data=str(folder), end_token=True)
    chance = runs.outcome(texts, fitted, settings, lambda _: None).high_by_chance[0]  # pyright: ignore[reportArgumentType]
    marked = [data.relevant_tokens(example) is not None for example in texts.examples[2]]
    assert any(marked)
    np.testing.assert_array_equal(chance[marked], 0)


def test_no_constant_answer_beats_the_level_that_must_be_exceeded():
    """The label that is rare in the training texts may be frequent in those of the test."""
    parts = [
        Texts(np.ones((len(labels), 1), np.int32), np.ones(len(labels), np.int32), np.array(labels, np.int32))
        for labels in ([0, 0, 0, 1], [0], [1, 1, 1, 0])
    ]
    prepared = data.Prepared("made", ((), (), ()), tuple(parts), Vocabulary(("[PAD]", "a")), ("x", "y"), 1, {})
    assert runs.majority(prepared) == 0.75


def test_arms_differ_in_what_they_should(arrays):
    loss = arrays.training_loss.isel(epoch=0)
    base, raised, independent = (loss.sel(arm=name).values for name in arrays.arm.values)
    assert (base != raised).all()
    assert (raised != independent).all()
    np.testing.assert_allclose(raised, independent, rtol=0.02)  # decay is small beside the rest
    assert (arrays.best_epoch >= 1).all()
    assert (arrays.status == 0).all()
    at = arrays.validation_loss.argmin("epoch") + 1
    np.testing.assert_array_equal(at, arrays.best_epoch)


def test_the_sign_is_learnt_where_it_decides_and_not_where_labels_are_shuffled(tmp_path):
    """Every run learns all of it at a third and at thrice this rate, so that rounding decides nothing."""
    enough = {"base_rates": (0.006,), "multipliers": (3.0,), "max_epochs": 20, "datasets": ("subject-verb",)}
    head, *rest = made.lines(500)
    (tmp_path / "agr_x.tsv").write_text("\n".join([head, *rest]))
    found = table1(Table1Settings(data=str(tmp_path), **{**SMALL, **enough}))
    assert float(found.correct.mean()) > 0.9
    rng = np.random.default_rng(0)
    labels = rng.permutation([line.split("\t")[2] for line in rest])
    mixed = [
        "\t".join([*line.split("\t")[:2], label, *line.split("\t")[3:]])
        for line, label in zip(rest, labels, strict=True)
    ]
    (tmp_path / "agr_x.tsv").write_text("\n".join([head, *mixed]))
    lost = table1(Table1Settings(data=str(tmp_path), **{**SMALL, **enough}))
    assert float(lost.correct.mean()) < 0.7  # 50 texts by chance: a half ± 0.07 for each model


def test_an_interrupted_run_goes_on_and_gives_the_same_arrays(settings, arrays, tmp_path, monkeypatch):
    monkeypatch.setattr("flowsim.text_training.trainer._SAVE_SECONDS", 0.0)

    def stop(what, done, total):
        if what == "hatexplain, training" and done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table1(settings, stop, workspace=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "hatexplain-tuning-the-base-rate.npz", "hatexplain-tuning-the-multiplier.npz", "hatexplain-training.npz"
    }  # fmt: skip
    with pytest.raises(fs.FileProblem, match=r"unfinished run .*batch was 16 and is now 8.*remove that folder"):
        table1(dataclasses.replace(settings, batch=8), workspace=tmp_path)
    kept = (tmp_path / "hatexplain-training.npz").read_bytes()
    (tmp_path / "hatexplain-training.npz").write_bytes(kept[:-1000])
    with pytest.raises(
        fs.FileProblem, match=r"'.*hatexplain-training.npz' .* cannot be used .*; remove it, and the same"
    ):
        table1(settings, workspace=tmp_path)
    (tmp_path / "hatexplain-training.npz").write_bytes(kept)
    told = []
    again = table1(settings, lambda what, done, _: told.append((what, done)), workspace=tmp_path)
    xr.testing.assert_identical(again, arrays)
    first = min(done for what, done in told if what == "hatexplain, training")
    assert first == 7  # of 18 run-epochs: the first epoch of all six runs was kept


@pytest.mark.parametrize("removal", ["delete", "pad", "mask"])
def test_what_the_models_make_of_the_texts_against_numpy(folder, removal):
    """Attention, probabilities and erasure of a trained model, from its weights and the words alone."""
    settings = Table1Settings(
        data=str(folder), d=8, heads=2, max_epochs=2, datasets=("subject-verb",), removal=removal, preset="paper"
    )
    texts = data.prepare("subject-verb", *data.find(str(folder), ("subject-verb",))["subject-verb"], settings)
    fitted = runs.Trainer(texts, settings, None, None).train("training", [Run(0.03, 10.0, 0)])
    found = runs.outcome(texts, fitted, settings, lambda _: None)
    model = jax.tree.map(lambda leaf: leaf.astype(float), fitted.model(0))
    number = {word: i for i, word in enumerate(texts.vocabulary.words)}

    def chances(words, places=None):
        logits, _, attention = forward(model, words, places)
        return np.exp(logits) / np.exp(logits).sum(), attention[0].mean(axis=0)[-1]

    def without(words, gone):
        left = [i for i in range(len(words)) if i not in gone]
        if removal == "mask":
            return chances([1 if i in gone else word for i, word in enumerate(words)])[0]
        return chances([words[i] for i in left], left if removal == "pad" else None)[0]

    for row, example in enumerate(texts.examples[2]):
        words = [number.get(word, 1) for word in example.tokens]
        p, attention = chances(words)
        label, guess = texts.classes.index(example.label), p.argmax()
        # single precision: some hundred roundings of 6e-8 on numbers of order 1
        assert found.probability[0, row] == pytest.approx(p[label], abs=1e-5)
        assert found.correct[0, row] == (guess == label)
        assert found.largest[0, row] == pytest.approx(attention.max(), abs=1e-5)
        assert found.attention[0, row] == pytest.approx(attention[list(example.relevant)].sum(), abs=1e-5)
        for column, share in enumerate(runs.shares_of(settings)):
            size = max(1, math.ceil(round(share * len(words), 9)))
            top = set(np.argsort(-attention, kind="stable")[:size].tolist())
            rest = set(range(len(words))) - top
            for scores, gone in ((found.comprehensiveness, top), (found.sufficiency, rest)):
                lost = p[guess] - without(words, gone)[guess]
                assert scores[0, row, column] == pytest.approx(lost, abs=2e-5)
    assert np.ptp(found.comprehensiveness) > 1e-3  # or there was nothing to compare


def test_rates_that_all_diverge_are_told_and_leave_nothing_behind(settings, tmp_path):
    wild = dataclasses.replace(settings, base_rates=(1e30,), datasets=("hatexplain",), max_epochs=1)
    with pytest.raises(fs.InvalidInput, match="diverged with every one of base_rates"):
        table1(wild, workspace=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_papers_rates(folder):
    found = table1(Table1Settings(data=str(folder), **{**SMALL, "max_epochs": 1}, preset="paper"))
    assert found.base_rate.values.tolist() == [5e-5, 1e-5]
    assert found.multiplier.values.tolist() == [30, 100]
    assert "tuning_base_loss" not in found


@pytest.mark.slow
def test_the_dial(folder):
    settings = DialSettings(
        data=str(folder), **SMALL, base_rates=(0.03,), multipliers=(0.1, 1.0, 10.0), datasets=("subject-verb",)
    )
    found = ratio_dial(settings)
    assert found.attention.dims == ("dataset", "multiplier", "seed", "example")
    assert found.multiplier.values.tolist() == [0.1, 1.0, 10.0]
    part = found.isel(dataset=0)
    one = part.sel(theory_multiplier=1.0)
    assert float(one.theory_attention) == float(one.theory_attention_equal_time)
    assert np.isfinite(part.training_loss.isel(epoch=0)).all()


@pytest.mark.slow
def test_masks_and_the_end_token_change_what_is_removed_and_attended(folder):
    few = {**SMALL, "max_epochs": 1, "seeds": 1, "datasets": ("hatexplain",), "at_least": 2}
    settings = Table1Settings(data=str(folder), **few, preset="paper", removal="mask", end_token=True, share=0.3)
    found = table1(settings)
    records, keys = made.posts(120), made.divisions(120)["test"]
    marked = [key for key in keys if records[key]["rationales"]]
    here = found.sel(dataset="hatexplain").uniform.values
    expected = [1 / (1 + len(records[key]["post_tokens"])) for key in marked]
    np.testing.assert_allclose(here[~np.isnan(here)], expected)
    np.testing.assert_allclose(found.share, [0.01, 0.05, 0.1, 0.2, 0.3, 0.5])


EXAMPLES = [
    Example("1", "1", ("a", "b", "c", "c"), "x", (True, True, False, False)),
    Example("2", "2", ("a", "d"), "y", (True, False)),
    Example("3", "3", ("e", "f", "g", "h"), "y", (True, True, True, False)),
    Example("4", "4", ("q", "r"), "z", None),
]


def test_the_symmetric_task_has_the_numbers_of_the_texts():
    # a is relevant in two classes, so b is x's own word and e, f, g are y's: two each; c, d, h are relevant nowhere
    numbers = theory.numbers_of(EXAMPLES, 3)
    share, length = (1 / 2 + 1 / 2 + 3 / 4) / 3, 10 / 3
    context = fs.FixedContext(distinct=share * length, common=(1 - share) * length)
    assert numbers.task == fs.Task(classes=3, distinct=2, common=3, context=context, query="shared")


def test_texts_without_a_symmetric_counterpart_have_no_theory():
    shared = [Example("1", "1", ("a", "b"), "x", (True, False)), Example("2", "2", ("a", "c"), "y", (True, False))]
    every = [Example("1", "1", ("a", "b"), "x", (True, True)), Example("2", "2", ("c",), "y", (True,))]
    for examples in (shared, every):
        assert theory.numbers_of(examples, 2).task is None
    texts = data.Prepared("made", (tuple(shared),) * 3, (), None, ("x", "y"), 2, {})
    found = theory.trend(texts, (0.1, 1.0), 0.4)
    assert np.isnan(found.theory_attention).all()
    assert np.isnan(found.theory_attention_equal_time).all()


def test_the_loss_to_reach_is_that_of_the_runs_that_did_not_diverge():
    losses = [[0.9, 0.5, 0.7], [0.8, 0.6, 0.1], [np.nan, np.nan, np.nan]]
    baseline = xr.Dataset(
        {"training_loss": (("seed", "epoch"), losses), "best_epoch": ("seed", [2, 3, 0]), "status": ("seed", [0, 0, 4])}
    )
    assert reached_loss(baseline) == pytest.approx(0.3)
    late = baseline.assign(status=("seed", [0, 4, 4]))  # diverged after its best epoch
    assert reached_loss(late) == 0.5
    assert np.isnan(reached_loss(baseline.assign(status=("seed", [4, 4, 4]))))


@pytest.mark.slow
def test_the_trend_is_attention_where_the_flow_reaches_the_loss(folder):
    settings = DialSettings(data=str(folder))
    lines = data.prepare("subject-verb", *data.find(str(folder), ("subject-verb",))["subject-verb"], settings)
    task = theory.numbers_of(lines.examples[0], 2).task
    assert task is not None
    found = theory.trend(lines, (0.1, 1.0, 100.0), 0.4)
    for ratio in (0.1, 1.0, 100.0):

        def gap(log_time, ratio=ratio):
            flow = fs.integrate(task, "FAFO", ratio=ratio, log_times=[log_time])
            return float(flow.log_loss[0]) - np.log(0.4)

        at = brentq(gap, 0.0, 20.0, xtol=1e-10)
        attention = float(fs.integrate(task, "FAFO", ratio=ratio, log_times=[at]).attention[0])
        # between two times 0.005 apart in ln t a curve that turns within 0.1 is a line up to 0.05^2 / 8
        assert float(found.theory_attention.sel(theory_multiplier=ratio)) == pytest.approx(attention, abs=4e-4)
    assert np.isnan(theory.trend(lines, (1.0,), 1.0).theory_attention).all()  # ln 2 is where the flow begins


@pytest.mark.slow
def test_both_curves_of_the_theory_are_those_of_the_factors_integrated_by_scipy():
    """Where attention turns fast: many words, so that the flow creeps and then jumps."""
    classes, own, filler, of_class = 3, 9, 14, 80
    texts = tuple(
        Example(
            f"{k} {i}",
            f"{k} {i}",
            (*(f"{k} {i} {j}" for j in range(own)), *(f"c{(i * filler + j) % 2000}" for j in range(filler))),
            str(k),
            (True,) * own + (False,) * filler,
        )
        for k in range(classes)
        for i in range(of_class)
    )
    prepared = data.Prepared("made", (texts,) * 3, (), None, ("0", "1", "2"), own + filler, {})  # pyright: ignore[reportArgumentType]
    found = theory.trend(prepared, (1.0, 10.0, 100.0), 1.01)
    distinct, common = own * of_class, of_class * filler
    to_gap = np.array([(classes * distinct) ** -0.5, -(common**-0.5)])  # theta from the trivial block
    drive = np.linalg.norm(to_gap) * classes
    score = 0.01 / np.linalg.norm(to_gap)
    ov_factor, along = (0.01 * distinct**0.5) ** 0.5, score**0.5 * to_gap * classes / drive
    start = [ov_factor, ov_factor, *along, score**0.5]

    def read(y):
        margin, gap = y[0] * y[1] / distinct**0.5, to_gap @ y[2:4] * y[4]
        odds = own / filler * np.exp(gap)
        return margin, odds / (1 + odds)

    def log_loss(y):
        margin, attention = read(y)
        return np.log(np.log1p((classes - 1) * np.exp(-attention * margin)))

    def slope(log_time, y, ratio):
        margin, attention = read(y)
        error = (classes - 1) / (np.exp(attention * margin) + classes - 1)
        ov = error * attention / distinct**0.5 / (classes - 1)
        qk = ratio * error * margin * attention * (1 - attention) * to_gap
        return np.exp(log_time) * np.array([ov * y[1], ov * y[0], *(qk * y[4]), qk @ y[2:4]])

    def flow(ratio):
        span = (-12.0, 12.0)
        solved = solve_ivp(
            slope, span, start, method="DOP853", rtol=1e-12, atol=1e-14, dense_output=True, args=(ratio,)
        )
        return solved.sol, brentq(lambda at: log_loss(solved.sol(at)) - np.log(1.01), *span, xtol=1e-12)

    equal_time = flow(1.0)[1]
    for ratio in found.theory_multiplier.values[[0, 8, 12, 16, -1]]:
        state, equal_loss = flow(ratio)
        here = found.sel(theory_multiplier=ratio)
        for curve, at in ((here.theory_attention, equal_loss), (here.theory_attention_equal_time, equal_time)):
            assert float(curve) == pytest.approx(read(state(at))[1], abs=2e-4)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(fs.InvalidInput, match=r"data is not given.*dataset.json.*post_id_divisions.json.*agr_50"):
        table1(Table1Settings())
    with pytest.raises(fs.FileProblem, match="is no folder"):
        table1(Table1Settings(data=str(tmp_path / "nowhere")))
    with pytest.raises(fs.FileProblem, match=r"no file for hatexplain and subject-verb; .*dataset.json.*agr_50"):
        table1(Table1Settings(data=str(tmp_path)))
    (tmp_path / "dataset.json").write_text(json.dumps(made.posts(30)))
    with pytest.raises(fs.FileProblem, match=r"holds no file for subject-verb; .* hatexplain only, with --dataset"):
        table1(Table1Settings(data=str(tmp_path)))


def prepared(folder, **changes):
    settings = Table1Settings(data=str(folder), **{"datasets": ("hatexplain",), **changes})
    (name,) = settings.datasets
    return data.prepare(name, *data.find(str(folder), (name,))[name], settings)


def test_texts_from_which_nothing_can_be_learnt_are_refused(tmp_path):
    posts = made.posts(60)
    unmarked = {key: {**post, "rationales": []} for key, post in posts.items()}
    alike = {key: post for key, post in posts.items() if post["annotators"][0]["label"] == "odd"}
    for content, match in ((unmarked, "no training text with relevant tokens"), (alike, "label 'odd' alone")):
        (tmp_path / "dataset.json").write_text(json.dumps(content))
        with pytest.raises(fs.FileProblem, match=match + r".*; give more texts"):
            prepared(tmp_path)
    (tmp_path / "dataset.json").write_text(json.dumps(posts))
    (tmp_path / "post_id_divisions.json").write_text(json.dumps(
        {"train": [f"post{i}" for i in range(40)], "val": ["post40", "post41"], "test": ["post42", "post45"]}
    ))  # fmt: skip
    with pytest.raises(fs.FileProblem, match="no test text with relevant tokens"):  # all of them normal
        prepared(tmp_path)


def test_long_texts_lose_their_beginning_and_what_is_relevant_in_it(folder):
    whole, cut = prepared(folder), prepared(folder, longest=4)
    assert (whole.origin["cut"], whole.length, cut.length) == (0, 8, 4)
    for before, after in zip(whole.examples[0], cut.examples[0], strict=True):
        assert after.tokens == before.tokens[-4:]
        assert after.relevant == (None if before.relevant is None else before.relevant[-4:])
    lengths = [len(example.tokens) for part in whole.examples for example in part]
    assert cut.origin["cut"] == sum(length > 4 for length in lengths) > 0
    assert prepared(folder, longest=4, end_token=True).length == 5  # the sign is no token of the text


def test_what_the_numbers_owe_to_the_texts(folder):
    found = prepared(folder, datasets=("subject-verb",)).origin
    # made anew from the lines: 12 test sentences out of 120, the same for every run of this test
    lines = prepared(folder, datasets=("subject-verb",)).examples
    ends = [example.tokens[-1] in ("cat", "cats") for example in lines[2]]
    assert found["last_relevant"] == pytest.approx(np.mean(ends))
    seen = {" ".join(example.tokens) for example in lines[0]}
    assert found["also_training"] == pytest.approx(np.mean([" ".join(e.tokens) in seen for e in lines[2]]))


def test_bad_records_and_too_many_records(tmp_path):
    made.put(tmp_path, 60, official=False)
    posts = made.posts(60)
    posts["post7"]["rationales"] = [[1]]
    (tmp_path / "dataset.json").write_text(json.dumps(posts))
    chosen = {**SMALL, "max_epochs": 1, "seeds": 1, "preset": "paper", "datasets": ("hatexplain",)}
    with pytest.raises(fs.FileProblem, match=r"record 8 \('post7'\)"):
        table1(Table1Settings(data=str(tmp_path), **chosen))
    told, kept = [], tmp_path / "kept"
    kept.mkdir()
    with pytest.raises(fs.FileProblem, match="post7"):  # of the second data set, before the first is trained on
        table1(
            Table1Settings(data=str(tmp_path), **{**chosen, "datasets": ("subject-verb", "hatexplain")}),
            lambda *words: told.append(words),
            workspace=kept,
        )
    assert told == list(kept.iterdir()) == []
    settings = Table1Settings(data=str(tmp_path), **chosen, skip_bad=True, at_most=40)
    files = data.find(str(tmp_path), ("hatexplain",))["hatexplain"]
    origin = data.prepare("hatexplain", *files, settings).origin
    assert origin["skipped"] == 1
    assert origin["left_out"] == {"not drawn (at_most=40)": 19}
    assert origin["train"] + origin["val"] + origin["test"] == 40


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"datasets": ("squad",)}, "datasets='squad'"),
        ({"datasets": ("hatexplain", "hatexplain")}, "each once"),
        ({"preset": "best"}, "preset='best'"),
        ({"seeds": 0}, "seeds=0"),
        ({"d": 8, "heads": 3}, "no multiple"),
        ({"multipliers": (1.0, 3.0)}, "above 1"),
        ({"base_rates": (0.1, 0.01)}, "increasing"),
        ({"threshold": 1.5}, "threshold=1.5"),
        ({"removal": "burn"}, "removal='burn'"),
        ({"removal": "mask", "at_least": 1}, "at_least=1"),
        ({"seeds": 10_001}, "seeds=10001 is too large"),
        ({"longest": 0}, "longest=0"),
        ({"d": 10**6}, "d=1000000 is too large"),
        ({"layers": 129}, "layers=129 is too large"),
    ],
)
def test_settings_are_refused_in_a_sentence(changes, match):
    with pytest.raises(fs.InvalidInput, match=match):
        Table1Settings(**changes)
    with pytest.raises(fs.InvalidInput, match="lack 1"):
        DialSettings(multipliers=(0.1, 10.0))


if "FLOWSIM_DATA" in os.environ:  # the folder of the real files, of which no text may stand here

    def test_real_files_are_found_and_divided():
        settings = Table1Settings(data=os.environ["FLOWSIM_DATA"])
        for name, files in data.find(settings.data, settings.datasets).items():
            prepared = data.prepare(name, *files, settings)
            assert prepared.origin["skipped"] == 0
            assert min(prepared.origin[part] for part in ("train", "val", "test")) > 200
            assert jax.tree.all(jax.tree.map(lambda array: jnp.all(array >= 0), prepared.texts))
