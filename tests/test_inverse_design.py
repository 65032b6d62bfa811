"""`ratio_for`: the ratio it gives leads back to the attention that was asked for, for all four parameterizations."""

import numpy as np
import pytest

import flowsim as fs

TASK = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
ATTENTION = [0.6, 0.9, 0.999]
NAMES = ["CACO", "FACO", "CAFO", "FAFO"]


def reached(name, ratio, **grid):
    return float(fs.exact(TASK, name, ratio=float(ratio), **grid).attention[0])


@pytest.mark.parametrize("name", NAMES)
def test_at_a_margin(name):
    """A slower ratio by 1e-6 misses, so the round trip could fail."""
    for attention, ratio in zip(ATTENTION, fs.ratio_for(TASK, name, attention=ATTENTION, margin=7.0), strict=True):
        assert reached(name, ratio, margins=7.0) == pytest.approx(attention, rel=1e-12)
        assert reached(name, ratio * (1 - 1e-6), margins=7.0) != pytest.approx(attention, rel=1e-11)


def test_caco_by_hand():
    """rho = 2 (y + ln y - y0 - ln y0)/w^2 with rho = r g C (K-1)/K = 1.5 r."""
    y0, y = 32 / 31, 9.0
    rho = 2 * (y + np.log(y) - y0 - np.log(y0)) / 7.0**2
    assert float(fs.ratio_for(TASK, attention=0.9, margin=7.0)) == pytest.approx(rho / 1.5, rel=1e-13)


def test_at_a_loss_and_at_a_time():
    name = "CACO"
    by_loss, by_time = (fs.ratio_for(TASK, name, attention=ATTENTION, **at) for at in ({"loss": 0.01}, {"time": 1e4}))
    for attention, at_loss, at_time in zip(ATTENTION, by_loss, by_time, strict=True):
        assert reached(name, at_loss, losses=0.01) == pytest.approx(attention, rel=1e-9)
        assert reached(name, at_time, times=1e4) == pytest.approx(attention, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_with_any_start(name):
    start = {"margin0": 0.5, "score_gap0": -2.0}
    start |= {"imbalance_qk": 0.3} if name[0] == "F" else {}
    start |= {"imbalance_ov": -2.0} if name[2] == "F" else {}
    for at, grid in (("loss", "losses"), ("time", "times")):
        ratio = fs.ratio_for(TASK, name, attention=0.8, **{at: 0.05 if at == "loss" else 3e3}, **start)
        value = reached(name, ratio, **{grid: 0.05 if at == "loss" else 3e3}, **start)
        assert value == pytest.approx(0.8, rel=1e-9)


def test_shapes():
    assert fs.ratio_for(TASK, attention=0.9, margin=7.0).shape == ()
    assert fs.ratio_for(TASK, attention=[0.9], margin=7.0).shape == (1,)
    assert fs.ratio_for(TASK, attention=ATTENTION, margin=[3.0, 4.0, 5.0]).shape == (3,)


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ({"attention": 0.9}, ["exactly one of", "none"]),
        ({"attention": 0.9, "margin": 1.0, "time": 1.0}, ["margin= and time="]),
        ({"attention": 1.0, "margin": 1.0}, ["attention=1", "below 1"]),
        ({"attention": 0.0, "margin": 1.0}, ["attention=0", "above 0"]),
        ({"attention": 0.3, "margin": 7.0}, ["attention=0.3", "no ratio"]),
        ({"attention": 0.9, "margin": 0.5, "margin0": 1.0}, ["margin=0.5", "no ratio"]),
        ({"attention": 0.9, "loss": 2.0}, ["loss=2", "no ratio"]),
        ({"attention": [0.8, 0.9], "margin": [1.0, 2.0, 3.0]}, ["do not broadcast"]),
        ({"attention": 0.9, "margin": 7.0, "margin0": -1.0}, ["margin0=-1"]),
    ],
)
def test_bad_targets(arguments, fragments):
    with pytest.raises(fs.InvalidInput) as caught:
        fs.ratio_for(TASK, **arguments)
    for fragment in fragments:
        assert fragment in str(caught.value)
