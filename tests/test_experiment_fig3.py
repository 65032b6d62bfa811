"""Fixed attention: training and closed form against references of their own, and findings that can turn over."""

# SciPy types a root as a number or a pair.
# pyright: reportOperatorIssue=false

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expi

import flowsim as fs
from flowsim.experiments._experiment import perform
from flowsim.experiments._fig3 import EXPERIMENT, Fig3Settings, findings
from flowsim.experiments._fig3_findings import epochs_to_near_zero
from flowsim.experiments._held_attention import Lanes, effective_inputs, train_held
from flowsim.models import CollapsedCircuit
from flowsim.symmetric import Layout

K, C, D = 4, 10, 10


@pytest.fixture(scope="module")
def data():
    return perform(EXPERIMENT, Fig3Settings.quick())


def verdicts(dataset):
    return {finding.claim: finding.verdict for finding in findings(dataset)}


def flipped(dataset, words, **changes):
    """Verdict of the finding whose claim has the words, before and after planting wrong arrays."""
    planted = dataset.copy(deep=True)
    for name, change in changes.items():
        planted[name] = planted[name].dims, change(planted[name]).values
    (claim,) = [claim for claim in verdicts(dataset) if words in claim]
    return verdicts(dataset)[claim], verdicts(planted)[claim]


def test_closed_form_solves_the_equations_of_fixed_attention(data):
    for attention in (0.2, 1.0):
        for epoch in (25, 100):
            t = float(data["time"].sel(epoch=epoch))
            x = 1 + attention**2 * t / C
            lead = brentq(lambda d, x=x: np.exp(d) + (K - 1) * d - x, 0, 50, xtol=1e-14)
            loss = float(data["loss"].sel(output="collapsed", attention=attention, epoch=epoch))
            assert loss == pytest.approx(np.log1p((K - 1) * np.exp(-lead)), rel=1e-10)

            def grown(d):
                return expi(d) + (K - 1) * np.log(d)

            x = grown(attention * 0.01) + 2 * attention * t / np.sqrt(C)
            lead = brentq(lambda d, x=x: grown(d) - x, 1e-4, 50, xtol=1e-14)
            loss = float(data["loss"].sel(output="factorized", attention=attention, epoch=epoch))
            assert loss == pytest.approx(np.log1p((K - 1) * np.exp(-lead)), rel=1e-9)


def test_incentive_is_that_of_the_public_function(data):
    task = fs.Task(K, C, D, context=fs.FixedContext(distinct=1, common=1))
    for output, name, margin0 in (("collapsed", "CACO", 0.0), ("factorized", "CAFO", 0.01)):
        fine = data["attention_fine"].values[[1, 30, -1]]
        expected = fs.sharpening_incentive(task, name, attention=fine, times=data["time"].values, margin0=margin0)
        found = data["incentive"].sel(output=output, attention_fine=fine)
        assert np.allclose(found, expected, rtol=1e-9, atol=0)


def test_training_is_gradient_descent_of_the_matrices():
    layout, lr = Layout(K, ("distinct", "common"), (C, D), False, 0), 0.3
    start = np.random.default_rng(0).normal(size=(K, K * C + D))
    lanes = Lanes(jnp.array([0.3]), jnp.array([lr]), CollapsedCircuit(jnp.asarray(start)[None]))
    losses, status = train_held(layout, lanes, np.array([1, 4]))
    w, own = start, np.kron(np.eye(K), np.ones(C) / C)
    x = np.hstack([0.3 * own, 0.7 * np.full((K, D), 1 / D)])
    assert np.allclose(effective_inputs(layout, jnp.asarray(0.3)), x, rtol=1e-15)
    expected = []
    for step in range(6):
        p = np.exp(x @ w.T)
        p /= p.sum(1, keepdims=True)
        if step in (1, 5):
            expected.append(-np.log(np.diag(p)).mean())
        w = w - lr * (p - np.eye(K)).T @ x / K
    assert status[0] == fs.Status.OK
    assert np.allclose(losses[0], expected, rtol=1e-13)


def test_training_is_the_experiment_of_a_frozen_query_key_circuit(data):
    task = fs.Task(K, C, D, context=fs.FixedContext(distinct=32, common=31))
    settings = Fig3Settings.quick()
    steps = 100 * settings.steps_per_epoch
    for output, name in (("collapsed", "CACO"), ("factorized", "CAFO")):
        gap = np.log(0.4 / 0.6 * 31 / 32)
        run = fs.train(task, name, ratio=0.0, lr=settings.lr, steps=steps, points=1, score_gap0=gap, progress=False)
        found = float(data["loss_trained"].sel(output=output, attention=0.4, epoch=100, refinement=1))
        assert found == pytest.approx(float(run.loss[-1]), rel=1e-10)


def test_without_attention_nothing_is_learnt(data):
    assert np.allclose(data["loss_trained"].sel(attention=0), np.log(K), rtol=1e-14)
    assert np.allclose(data["loss"].sel(attention=0), np.log(K), rtol=1e-14)


def test_findings_of_the_exact_flow(data):
    found = findings(data)
    assert [f.verdict for f in found] == ["agrees"] * 4 + ["differs"] + ["agrees"] * 2 + ["not stated there"] * 2


def turned(array):
    """The same with the two output-value circuits exchanged."""
    return array.isel(output=slice(None, None, -1))


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("near zero at attention 0.2", {"loss": turned}),
        ("positive up to 100", {"incentive": lambda a: a.where(a["epoch"] < 60, -a)}),
        ("diminishes rapidly", {"incentive": turned}),
        ("about 0.4", {"incentive": lambda a: a.roll(epoch=12)}),
        ("stabilize near 0.4", {"incentive": lambda a: xr_where(a["attention_fine"] <= 0.4, a)}),
        ("less quickly", {"loss": turned}),
        ("wider range", {"incentive": turned}),
        ("order of the step", {"loss_trained": lambda a: a + 0.05}),
        ("symmetric start", {"loss_random": turned}),
    ],
)
def test_a_planted_error_turns_the_finding(data, words, changes):
    before, after = flipped(data, words, **changes)
    assert before != after


def xr_where(where, array):
    """An incentive that ends at a fixed attention."""
    return (0 * array + 1).where(where, 0)


def test_figures_are_drawn(data):
    for draw in EXPERIMENT.figures.values():
        figure = draw(data)
        assert "epochs" in figure.axes[-1].get_xlabel()
    with pytest.raises(fs.InvalidInput, match=r"experiments\.fig3"):
        fs.plot.fixed_attention_losses(data.drop_vars("incentive"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": 0.0}, "lr=0"),
        ({"attention": (0.2, 0.4, 0.6)}, "lacks 0.8"),
        ({"attention": (0.4, 0.2)}, "must increase"),
        ({"delta": 0.5}, "delta=0.5"),
        ({"epochs": 10}, "epochs=10"),
    ],
)
def test_settings_are_checked(change, words):
    with pytest.raises(fs.InvalidInput, match=words):
        dataclasses.replace(Fig3Settings(), **change)


def test_steps_that_diverge_are_refused():
    with pytest.raises(fs.InvalidInput, match="lr=1000"):
        EXPERIMENT.run(dataclasses.replace(Fig3Settings.quick(), lr=1e3), None)


def test_the_epoch_at_which_a_loss_is_near_zero_does_not_hang_on_the_records(data):
    """From section 6 in closed form: 2 alpha t/sqrt(C) = Ei(Delta) + (K-1) ln Delta, from the margin at the start."""
    settings = Fig3Settings()

    def clock(delta):
        return expi(delta) + (settings.classes - 1) * np.log(delta)

    wanted = np.log((settings.classes - 1) / np.expm1(settings.near_zero))
    for attention in (0.2, 0.6):
        time = (clock(wanted) - clock(attention * settings.margin0)) * np.sqrt(settings.distinct) / (2 * attention)
        per_epoch = float(data.time[0] / data.epoch[0])
        for every in (1, 2):
            thinned = data.isel(epoch=slice(None, None, every))
            found = epochs_to_near_zero(thinned).sel(output="factorized", attention=attention)
            assert float(found) == pytest.approx(time / per_epoch, rel=0.01 * every**2)
    never = data.assign(loss=data.loss + 1)
    assert np.isinf(epochs_to_near_zero(never)).all()
