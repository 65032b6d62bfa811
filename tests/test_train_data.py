"""What training sees: fixed data sets, fresh minibatches, samples of the population; and the optimizers' steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import flowsim as fs
from flowsim.sampler import Sampler, composition_law
from flowsim.training.starts import stream
from tests import full_matrix as full

TASK = fs.Task(
    classes=3,
    groups=[fs.Group("topic", "distinct", 2), fs.Group("blank", "null"), fs.Group("filler", "common", 3)],
    context=fs.MixtureContext([(0.4, (4, 2, 1)), (0.6, (2, 1, 5))]),
    other_outputs=1,
)
SHAPES = ((9, 3), (4, 9))
RUN = {"ratio": 2.0, "lr": 0.3, "points": 1}


@functools.partial(jax.jit, static_argnums=1)
def drawn(key, rows):
    sampler = Sampler.of(TASK)
    return sampler.sequences_of(sampler.draw(key, rows, composition_law(TASK)))


def sequences(seed, purpose, rows, step=None):
    """What the documented random stream gives, as the reference's full sequences."""
    key = stream(jnp.asarray(seed), purpose)
    tokens = drawn(key if step is None else jax.random.fold_in(key, step), rows)
    here = np.where(tokens.present, tokens.tokens, -1)
    appearances = np.stack([(here == token).sum(axis=1) for token in range(9)], axis=1).astype(float)
    labels = np.argmax(tokens.labels, axis=1)
    return full._sequences(
        TASK, [(1 / rows, a, float((h == 9).sum()), k) for a, h, k in zip(appearances, here, labels, strict=True)]
    )


def margin_of(ov):
    topic = np.arange(6)
    own = ov[topic // 2, topic].mean()
    return own - (ov[:3, :6].sum() - ov[topic // 2, topic].sum()) / 12


@pytest.mark.slow
def test_a_fixed_data_set_by_counts_and_by_tokens():
    given = {"population": "sampled-identities", "examples": 40, "test": 30, "seeds": [4, 9], "steps": 6, **RUN}
    trained = fs.train(TASK, **given)
    by_tokens = fs.train(TASK, form="sequences", **given)
    assert trained.axes == ("seed",)
    for lane, seed in enumerate([4, 9]):
        seen, held_out = sequences(seed, "examples", 40), sequences(seed, "test", 30)
        qk, ov = (np.zeros(shape) for shape in SHAPES)
        for _ in range(6):
            by_qk, by_ov = full.full_gradient(qk, ov, seen)
            qk, ov = qk - 0.6 * by_qk, ov - 0.3 * by_ov
        for run in (trained, by_tokens):
            assert float(run.margin[lane, 0]) == pytest.approx(margin_of(ov), rel=1e-11)
            assert float(run.log_loss[lane, 0]) == pytest.approx(np.log(full.full_loss(qk, ov, seen)), rel=1e-11)
            test_loss = np.log(full.full_loss(qk, ov, held_out))
            assert float(run.extra["log_test_loss"][lane, 0]) == pytest.approx(test_loss, rel=1e-11)
        assert float(trained.log_loss[lane, 0]) != pytest.approx(test_loss, rel=1e-6)  # planted: the other set
    assert trained.settings["examples"] == 40


def test_fresh_minibatches():
    trained = fs.train(TASK, population="sampled-identities", batch=8, test=30, seeds=[5], steps=4, **RUN)
    qk, ov = (np.zeros(shape) for shape in SHAPES)
    for step in range(4):
        by_qk, by_ov = full.full_gradient(qk, ov, sequences(5, "steps", 8, step))
        qk, ov = qk - 0.6 * by_qk, ov - 0.3 * by_ov
    assert float(trained.margin[0, 0]) == pytest.approx(margin_of(ov), rel=1e-11)
    held_out = np.log(full.full_loss(qk, ov, sequences(5, "test", 30)))
    assert float(trained.log_loss[0, 0]) == pytest.approx(held_out, rel=1e-11)


@pytest.mark.parametrize("population", ["mean-counts", "sampled-identities"])
def test_a_minibatch_is_right_on_average(population):
    """The first step of 400 runs: its mean is the step on the whole population, within five standard errors."""
    whole = float(fs.train(TASK, ratio=1.0, lr=0.1, steps=1, points=1).margin[0])
    runs = fs.train(TASK, population=population, batch=4, seeds=400, ratio=1.0, lr=0.1, steps=1, points=1)
    margins = np.asarray(runs.margin)[:, 0]
    error = margins.std() / 20
    assert 0 < error < 0.2 * whole
    assert abs(margins.mean() - whole) < 5 * error
    assert abs(2 * margins.mean() - whole) > 5 * error  # planted: a sum of two instead of the mean
    assert np.unique(margins).size > 10


# --- optimizers ---


def hand_written(optimizer, steps, *, decay=(0.0, 0.0), independent=False, lr_at=None, ratio_at=None):
    """The same rules in NumPy: gradient of the reference, one circuit after the other."""
    population = full.mean_counts(TASK)
    parameters = [0.1 * np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(SHAPES)]
    first, second = ([np.zeros(shape) for shape in SHAPES] for _ in range(2))
    time = 0.0
    for n in range(steps):
        slopes = full.full_gradient(*parameters, population)
        lr = 0.3 * (1.0 if lr_at is None else lr_at(n))
        rates = 2.0 * (1.0 if ratio_at is None else ratio_at(time)) * lr, lr
        time += lr
        for i, slope in enumerate(slopes):
            if optimizer == "momentum":
                first[i] = slope + 0.9 * first[i]
                direction = first[i]
            elif optimizer in ("adam", "adamw"):
                first[i] = 0.9 * first[i] + 0.1 * slope
                second[i] = 0.999 * second[i] + 0.001 * slope**2
                direction = first[i] / (1 - 0.9 ** (n + 1))
                direction = direction / (np.sqrt(second[i] / (1 - 0.999 ** (n + 1))) + 1e-8)
            else:
                direction = np.sign(slope) if optimizer == "sign" else slope
            shrink = decay[i] * (lr if independent else rates[i])
            parameters[i] = parameters[i] - rates[i] * direction - shrink * parameters[i]
    return parameters


def _halved(n):
    return 0.5 ** (n / 4)


def _growing(t):
    return t / 2.4


@pytest.mark.parametrize(
    ("name", "given", "rules"),
    [
        ("momentum", {"lr_schedule": _halved, "schedule": _growing}, {"lr_at": _halved, "ratio_at": _growing}),
        ("adam", {}, {}),
        ("adamw", {"weight_decay_qk": 0.3}, {"decay": (0.3, 1e-4)}),
        (
            "sgd",
            {"weight_decay_qk": 0.3, "weight_decay_ov": 0.2, "decay": "independent"},
            {"decay": (0.3, 0.2), "independent": True},
        ),
        ("sign", {}, {}),
    ],
)
def test_optimizers_take_the_steps_that_they_say(name, given, rules):
    start = {
        circuit: 0.1 * np.random.default_rng(i).normal(size=shape)
        for i, (circuit, shape) in enumerate(zip(("qk", "ov"), SHAPES, strict=True))
    }
    optimizer = optax.scale_by_sign() if name == "sign" else name
    trained = fs.train(TASK, start=start, optimizer=optimizer, steps=8, **RUN, **given)
    qk, ov = hand_written(name, 8, **rules)
    assert float(trained.margin[0]) == pytest.approx(margin_of(ov), rel=1e-10)
    own = qk[np.arange(6), np.arange(6) // 2].mean()
    gap = own if TASK.groups[1].role == "null" else own - qk[6:].mean()
    assert float(trained.score_gap[0]) == pytest.approx(gap, rel=1e-10)
    late = hand_written(name, 7, **rules)[1]  # planted: a step less
    assert float(trained.margin[0]) != pytest.approx(margin_of(late), rel=1e-4)
    if "lr_schedule" in given:
        assert float(trained.time[0]) == pytest.approx(0.3 * sum(map(_halved, range(8))), rel=1e-14)
        assert trained.settings["lr_schedule"] == "_halved"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"population": "sampled-identities"}, ["examples=", "batch=", "mean-counts"]),
        ({"examples": 5}, ["examples=5", "sampled-identities"]),
        ({"form": "sequences"}, ["form='sequences'", "mean-counts"]),
        ({"form": "one-hot"}, ["form='one-hot'"]),
        ({"batch": 0}, ["batch=0"]),
        ({"seeds": [1, 1], "batch": 4}, ["seeds=[1, 1]", "repeats"]),
        ({"optimizer": "adams"}, ["optimizer='adams'", "did you mean"]),
        ({"optimizer": 3}, ["optimizer=3", "optax"]),
        ({"lr_schedule": 0.1}, ["lr_schedule=0.1", "function"]),
        ({"lr_schedule": lambda _: -1.0}, ["lr_schedule gives -1 at step 0"]),
        ({"decay": "later"}, ["decay='later'"]),
        ({"weight_decay_ov": -1}, ["weight_decay_ov=-1"]),
    ],
)
def test_refusals(changes, words):
    with pytest.raises(fs.InvalidInput) as caught:
        fs.train(TASK, **{"ratio": 1.0, "lr": 0.1, "steps": 5, **changes})
    assert all(word in str(caught.value) for word in words), str(caught.value)
