"""Training on texts against an optax loop without padding, batches by counting, early stopping, resume, divergence."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import flowsim as fs
from flowsim.corpora import Example, Vocabulary
from flowsim.status import Status
from flowsim.text_training import Run, Texts, batches, fit, probabilities, read
from flowsim.transformer import Transformer

CLASSES, LENGTH, WORDS = ("no", "yes"), 11, 9


def texts(n, seed, length=LENGTH):
    """Random texts whose label is whether the word 2 occurs; n of them, of every length up to 11."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, length + 1, n).astype(np.int32)
    tokens, labels = np.zeros((n, length), np.int32), np.zeros(n, np.int32)
    for i, size in enumerate(sizes):
        words = rng.integers(3, WORDS, size)
        labels[i] = i % 2
        if labels[i]:
            words[rng.integers(size)] = 2
        tokens[i, length - size :] = words
    return Texts(tokens, sizes, labels)


def start(key, dtype=jnp.float64):
    model = Transformer.start(key, vocabulary=WORDS, length=LENGTH, classes=2, d=8)
    return jax.tree.map(lambda leaf: leaf.astype(dtype), model)


TRAIN, VAL = texts(40, 0), texts(14, 1)
train = functools.partial(fit, start, TRAIN, VAL, batch=8, max_epochs=3, patience=3)


@pytest.fixture(scope="module")
def trained():
    runs = [Run(0.01, 1.0, 0), Run(0.01, 30.0, 0), Run(0.01, 30.0, 0, "independent"), Run(0.02, 0.5, 1)]
    return runs, train(runs)


@jax.jit
def cross_entropies(model, data):
    """Of whole rows."""
    logarithms = jax.nn.log_softmax(jax.vmap(model)(jnp.asarray(data.tokens), jnp.asarray(data.sizes)).logits)
    return -logarithms[jnp.arange(len(data.labels)), data.labels]


def reference(run, epochs, weight_decay=0.01):
    """The same training by optax's own AdamW on whole rows; returns the model and the losses of the last epoch."""
    model = jax.jit(start)(jax.random.key(run.seed))
    names = eqx.tree_at(
        lambda m: [b.qk for b in m.blocks],
        jax.tree.map(lambda _: "rest", model),
        [jax.tree.map(lambda _: "qk", b.qk) for b in model.blocks],
    )
    shrink = weight_decay / run.ratio if run.decay == "independent" else weight_decay
    rules = optax.multi_transform(
        {
            "qk": optax.adamw(run.lr * run.ratio, weight_decay=shrink),
            "rest": optax.adamw(run.lr, weight_decay=weight_decay),
        },
        lambda _: names,  # the model is callable, and optax would call it
    )
    memory, losses = jax.jit(rules.init)(model), []

    @jax.jit
    def step(model, memory, tokens, sizes, labels, weights):
        def loss(model):
            each = jax.nn.log_softmax(jax.vmap(model)(tokens, sizes).logits)[jnp.arange(len(labels)), labels]
            return -jnp.sum(weights * each) / jnp.sum(weights)

        value, slope = jax.value_and_grad(loss)(model)
        change, memory = rules.update(slope, memory, model)
        return optax.apply_updates(model, change), memory, value

    for epoch in range(epochs):
        order = batches.shuffled(TRAIN.sizes, widths(), 8, [run.seed], epoch)
        losses = []
        for rows, weights in zip(order.rows[0], order.weights, strict=True):
            batch = (jnp.asarray(array[rows]) for array in TRAIN)
            model, memory, value = step(model, memory, *batch, weights.astype(float))
            losses.append(float(value))
    return model, losses


def widths():
    return tuple(sorted({*TRAIN.widths, LENGTH}))


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_steps_are_those_of_optax(trained, number):
    runs, fitted = trained
    epochs = int(fitted.best_epoch[number])
    model, losses = reference(runs[number], epochs)
    # float64 through about 20 steps; Adam divides by roots of squared gradients, which costs digits where they are tiny
    for ours, theirs in zip(jax.tree.leaves(fitted.model(number)), jax.tree.leaves(model), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-9)
    assert fitted.training_loss[number, epochs - 1] == pytest.approx(np.mean(losses), rel=1e-9)
    assert fitted.best_loss[number] == pytest.approx(float(cross_entropies(model, VAL).mean()), rel=1e-9)


def test_coupled_and_independent_decay_differ_and_only_there(trained):
    _, fitted = trained
    coupled, independent = (fitted.validation_loss[i, 0] for i in (1, 2))
    assert coupled != independent


def test_an_epoch_has_every_text_once():
    order = batches.shuffled(TRAIN.sizes, (4, 8, LENGTH), 8, [0, 1], 5)
    assert order.rows.shape == (2, len(order.width), 8)
    for rows in order.rows:
        assert sorted(rows[order.weights > 0]) == list(range(40))
        for width, row in zip(order.width, rows, strict=True):  # in the narrowest width that holds them
            held = TRAIN.sizes[row]
            assert (held <= (4, 8, LENGTH)[width]).all()
            assert width == 0 or (held > (4, 8, LENGTH)[width - 1]).all()
    assert not np.array_equal(order.rows[0], order.rows[1])
    again = batches.shuffled(TRAIN.sizes, (4, 8, LENGTH), 8, [1], 5)
    np.testing.assert_array_equal(again.rows[0], order.rows[1])
    assert not np.array_equal(batches.shuffled(TRAIN.sizes, (4, 8, LENGTH), 8, [1], 6).rows, again.rows)
    # a batch that holds more than all texts of a width has no places that stay empty in each of them
    most = np.bincount(np.searchsorted((4, 8, LENGTH), TRAIN.sizes)).max()
    orders = [batches.shuffled(TRAIN.sizes, (4, 8, LENGTH), batch, [1], 6) for batch in (10**9, most)]
    for mine, same in zip(*orders, strict=True):
        np.testing.assert_array_equal(mine, same)


def test_fewer_texts_are_read_at_once_where_their_scores_would_fill_the_memory():
    for longest, together in ((11, 128), (362, 128), (512, 64), (4096, 1), (10**5, 1)):  # 2^24 scores of a head at most
        assert batches.side_by_side(128, longest) == together


def test_a_run_stops_when_the_validation_loss_has_not_fallen(trained):
    _, fitted = trained
    stopped = fit(start, TRAIN, VAL, [Run(0.3, 1.0, 0), Run(1e-6, 1.0, 1)], batch=8, max_epochs=6, patience=1)
    losses = stopped.validation_loss
    for run, row in enumerate(losses):
        row = row[~np.isnan(row)]
        fell = np.flatnonzero(np.diff(row) >= 0)
        epochs = 6 if not fell.size else fell[0] + 2
        assert row.size == epochs
        assert stopped.best_epoch[run] == 1 + row.argmin()
    assert np.isnan(losses[0]).any()  # the large rate did stop
    assert not np.isnan(losses[1]).any()  # the small one has no reason to
    assert (fitted.status == Status.OK).all()


def test_an_interrupted_training_goes_on_with_the_same_numbers(trained, tmp_path, monkeypatch):
    runs, fitted = trained
    monkeypatch.setattr("flowsim.text_training.trainer._SAVE_SECONDS", 0.0)
    path = tmp_path / "half.npz"

    class Enough(Exception):
        pass

    def report(done, total):
        assert total == 12
        if done > 7:
            raise Enough

    with pytest.raises(Enough):
        train(runs, checkpoint=path, report=report)
    resumed = train(runs, checkpoint=path, resume=True)
    for ours, theirs in zip(jax.tree.leaves(resumed), jax.tree.leaves(fitted), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    finished = train(runs, checkpoint=path, resume=True, report=report)  # nothing is left to do
    np.testing.assert_array_equal(finished.validation_loss, fitted.validation_loss)
    with pytest.raises(fs.InvalidInput, match=r"runs was .* and is now"):
        train(runs[:1], checkpoint=path, resume=True)
    with pytest.raises(fs.InvalidInput, match="texts was"):
        fit(start, VAL, VAL, runs, batch=8, max_epochs=3, patience=3, checkpoint=path, resume=True)
    whole = path.read_bytes()
    with np.load(path) as archive:
        kept = dict(archive)
    for name, other in (("seen", kept["seen"][:, :, :1]), ("seen", kept["seen"].astype(str)), ("leaf_0", None)):
        changed = {**kept, name: other} if other is not None else {key: kept[key] for key in kept if key != name}
        np.savez(path, **changed)
        with pytest.raises(fs.FileProblem, match="damaged"):
            train(runs, checkpoint=path, resume=True)
    path.write_bytes(whole[:1000])
    with pytest.raises(fs.FileProblem, match="damaged"):
        train(runs, checkpoint=path, resume=True)


def test_a_run_that_diverges_says_so_and_leaves_the_others_alone(trained):
    runs, fitted = trained
    both = train([Run(1e200, 1.0, 0), runs[0]])
    assert both.status.tolist() == [Status.DIVERGED, Status.OK]
    assert math.isnan(both.best_loss[0])
    np.testing.assert_array_equal(both.validation_loss[1], fitted.validation_loss[0])


def test_all_runs_side_by_side_are_the_same_runs(trained, monkeypatch):
    runs, fitted = trained
    monkeypatch.setattr("flowsim.text_training.trainer.on_cores", lambda: False)
    together = train(runs)
    np.testing.assert_allclose(together.validation_loss, fitted.validation_loss, rtol=1e-5)
    np.testing.assert_array_equal(together.best_epoch, fitted.best_epoch)


def test_reading_does_not_depend_on_widths_and_attends_to_tokens_only(trained):
    _, fitted = trained
    model = fitted.model(1)
    words = [VAL.tokens[i, LENGTH - n :] for i, n in enumerate(VAL.sizes)]
    narrow, wide = read(model, words, (8,)), read(model, words, ())
    np.testing.assert_allclose(narrow.probabilities, wide.probabilities, atol=1e-12)
    np.testing.assert_allclose(probabilities(model, words, (8,)), wide.probabilities, atol=1e-12)
    for i, (one, other) in enumerate(zip(narrow.attention, wide.attention, strict=True)):
        assert one.shape == words[i].shape
        assert one.sum() == pytest.approx(1, abs=1e-12)
        np.testing.assert_allclose(one, other, atol=1e-12)
        if i > 2:  # a length compiles anew
            continue
        alone = model(jnp.asarray(words[i]), jnp.asarray(len(words[i])))
        np.testing.assert_allclose(one, alone.attention[0, 0, -1], atol=1e-12)
        np.testing.assert_allclose(narrow.probabilities[i], jax.nn.softmax(alone.logits), atol=1e-12)
    for text in ([WORDS], [-1], [2.5]):
        with pytest.raises(fs.InvalidInput, match="must hold whole numbers from 0 to 8"):
            read(model, [np.array([2]), np.array(text)], (4,))
    assert [row.size for row in read(model, [np.zeros(0), np.array([2, 3])], (4,)).attention] == [0, 2]
    with pytest.raises(fs.InvalidInput, match="reads up to 11"):
        read(model, [np.zeros(12, int)], ())


def test_attention_is_of_the_position_that_predicts_also_before_padding(trained):
    model = trained[1].model(1)
    (short, padded) = (read(model, [np.array(text)], ()) for text in ([3, 4, 5], [3, 4, 5, 0]))
    np.testing.assert_allclose(padded.probabilities, short.probabilities, atol=1e-12)
    np.testing.assert_allclose(padded.attention[0], [*short.attention[0], 0], atol=1e-12)
    (blank,) = read(model, [np.array([0, 0])], ()).attention
    np.testing.assert_array_equal(blank, [0, 1])


def test_a_sign_is_learnt_and_attended_to_and_shuffled_labels_are_not():
    held_out = texts(200, 3)
    words = [held_out.tokens[i, LENGTH - n :] for i, n in enumerate(held_out.sizes)]
    shuffled = TRAIN._replace(labels=np.random.default_rng(0).permutation(TRAIN.labels))
    right = {}
    for name, data in (("true", TRAIN), ("shuffled", shuffled)):
        fitted = fit(start, data, VAL, [Run(0.01, 3.0, 0)], batch=8, max_epochs=30, patience=30)
        seen = read(fitted.model(0), words, (8,))
        right[name] = np.mean(seen.probabilities.argmax(axis=1) == held_out.labels)
        if name == "true":
            signs = [row[word == 2].sum() - 1 / word.size for row, word in zip(seen.attention, words, strict=True)]
            assert np.mean([s for s, y in zip(signs, held_out.labels, strict=True) if y]) > 0.1
    assert right["true"] > 0.9
    assert right["shuffled"] < 0.7  # six standard deviations of 200 coin tosses above a half


def test_texts_of_examples():
    examples = [Example("1", "1", ("a", "b", "a"), "yes"), Example("2", "2", ("c",), "no")]
    words = Vocabulary.of(examples)
    made = Texts.of(examples, words, CLASSES, 3)
    assert made.tokens.tolist() == [[2, 3, 2], [0, 0, 4]]
    assert made.sizes.tolist() == [3, 1]
    assert made.labels.tolist() == [1, 0]
    with pytest.raises(fs.InvalidInput, match="'perhaps'"):
        Texts.of([Example("3", "3", ("a",), "perhaps")], words, CLASSES, 3)
    with pytest.raises(fs.InvalidInput, match="no text"):
        Texts.of([], words, CLASSES, 3)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"runs": []}, "runs is empty"),
        ({"runs": [Run(0.0)]}, "lr=0"),
        ({"runs": [Run(0.1, -1.0)]}, "ratio=-1"),
        ({"runs": [Run(0.1, 0.0, 0, "independent")]}, "ratio=0"),
        ({"runs": [Run(0.1, decay="both")]}, "decay='both'"),
        ({"batch": 0}, "batch=0"),
        ({"patience": 0}, "patience=0"),
        ({"weight_decay": -1.0}, "weight_decay=-1"),
        ({"val": texts(4, 0, 5)}, "rows of 11 tokens and val of 5"),
        ({"resume": True}, "resume=True was given without checkpoint"),
        ({"runs": [0.1]}, "must be a Run"),
        # compiled code would take the nearest number in silence
        ({"train": TRAIN._replace(tokens=TRAIN.tokens + WORDS - 1)}, r"train\.tokens=.* from 0 to 8"),
        ({"val": VAL._replace(labels=VAL.labels - 1)}, r"val\.labels=.* from 0 to 1"),
        ({"train": texts(4, 0, 12), "val": texts(4, 0, 12)}, "rows of 12 tokens; this model reads up to 11"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(changes, match):
    arguments = {"start": start, "train": TRAIN, "val": VAL, "runs": [Run(0.1)], **changes}
    with pytest.raises(fs.InvalidInput, match=match):
        fit(**arguments)
