"""The error budget: each part against a comparison made by hand, and the behaviour that theory asks of it."""

import dataclasses

import numpy as np
import pytest

import flowsim as fs

TASK = fs.Task(classes=3, distinct=2, common=3, context=fs.FixedContext(distinct=4, common=5))
RUN = {"ratio": 2.0, "lr": 0.2, "steps": 60, "points": 12}


@pytest.fixture(scope="module")
def budget():
    return fs.error_budget(TASK, "FAFO", **RUN, batch=16, seeds=3)


@pytest.mark.slow
def test_parts_are_the_distances_of_runs_made_by_hand(budget):
    times = np.exp(budget.log_time)
    assert times == pytest.approx(0.2 * np.array([1, 2, 3, 4, 5, 8, 12, 16, 23, 31, 43, 60]), rel=0.2)
    theory = fs.exact(TASK, "FAFO", ratio=2.0, times=times)
    blocks = fs.descend(TASK, "FAFO", **RUN)
    drawn = fs.train(TASK, "FAFO", **RUN, population="sampled-identities", batch=16, seeds=3)
    for observable, name in (("margin", "margin"), ("score_gap", "score_gap_change")):
        truth, stepped, sampled = (np.asarray(getattr(run, name)) for run in (theory, blocks, drawn))
        parts = budget.parts[observable]
        np.testing.assert_allclose(parts["step size"], np.abs(stepped - truth), rtol=1e-6)
        assert np.max(parts["reduction"]) < 1e-12
        assert np.max(parts["solver"]) < 1e-8
        np.testing.assert_allclose(budget.total[observable] ** 2, np.mean((sampled - truth) ** 2, axis=0), rtol=1e-6)
        assert np.all(budget.sampled[observable] >= 0)


@pytest.mark.slow
def test_no_total_exceeds_the_sum_of_its_parts(budget):
    for observable, parts in budget.parts.items():
        whole = sum(parts.values())
        assert np.all(budget.total[observable] <= whole * (1 + 1e-9) + 1e-15)
        # without the part that matters most the sum is too small: no part is there for show
        for missing in ("step size", "sampling"):
            assert np.any(budget.total[observable] > whole - parts[missing])


@pytest.mark.slow
def test_step_size_part_shrinks_with_the_step_and_nothing_else_does():
    coarse, fine = (
        fs.error_budget(TASK, ratio=2.0, lr=lr, steps=steps, points=1, batch=None)
        for lr, steps in ((0.2, 60), (0.05, 240))
    )
    for observable in ("margin", "score_gap"):
        assert "sampling" not in coarse.parts[observable]
        assert coarse.at(observable)["step size"] / fine.at(observable)["step size"] == pytest.approx(4, rel=0.1)
        assert coarse.at(observable)["total"] == pytest.approx(coarse.at(observable)["step size"], rel=1e-9)


@pytest.mark.slow
def test_task_without_closed_form_is_compared_with_a_tighter_integration():
    task = dataclasses.replace(TASK, other_outputs=2)
    found = fs.error_budget(task, **{**RUN, "points": 2}, batch=None)
    assert found.settings["theory"] == "ode"
    assert 0 < found.at("margin")["step size"] < 0.1


@pytest.mark.slow
def test_table_and_figure(budget):
    text = str(budget)
    assert "FAFO" in text
    assert "batch 16, seeds 3" in text
    assert text.count("sampling") == 2
    figure = fs.plot.error_budget(budget)
    assert len(figure.axes) == 2
    with pytest.raises(fs.InvalidInput, match="budget="):
        fs.plot.error_budget(3)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"ratio": -1.0}, "ratio"),
        ({"lr": 0.0}, "lr"),
        ({"steps": 0}, "steps"),
        ({"batch": 0}, "batch"),
        ({"lr": 1e200, "ratio": 1e200}, "smaller lr"),
    ],
)
def test_refusals(change, fragment):
    with pytest.raises(fs.InvalidInput, match=fragment):
        fs.error_budget(TASK, **{**RUN, "batch": None, **change})
