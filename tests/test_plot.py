"""Figures show the numbers they were given, say what they are, and are written whole and reproducibly."""

# Matplotlib types a line's data as anything array-like.
# pyright: reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import flowsim as fs
from flowsim import plot
from flowsim.laws import verify
from flowsim.plot import style

TASK = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
RATIOS = (1e-6, 0.1, 10.0)


@pytest.fixture(scope="module")
def far():
    return fs.exact(TASK, ratio=RATIOS, log_times=np.geomspace(1, 1e6, 120))


@pytest.fixture(scope="module")
def near():
    return fs.exact(TASK, ratio=RATIOS, log_times=np.linspace(-1, 9, 120))


@pytest.fixture(scope="module")
def simulated(near):
    return dataclasses.replace(near, margin=near.margin + 1e-3, score_gap=near.score_gap + 1e-3, method="training")


def lines(axes, marker):
    return [line for line in axes.get_lines() if (line.get_marker() == "o") == marker and len(line.get_xdata()) > 2]


def draw(figure):
    """Renders, so that whatever matplotlib warns about becomes an error here."""
    FigureCanvasAgg(figure).draw()
    return figure


def test_theory_vs_simulation_shows_the_numbers(near, simulated):
    figure = draw(plot.theory_vs_simulation(near, simulated, ode=dataclasses.replace(near, method="ode")))
    top, strip = np.array(figure.axes).reshape(2, 3)
    for ax, values in zip(top, (near.margin, near.score_gap, near.attention), strict=True):
        solid = [line for line in lines(ax, marker=False) if line.get_color() in style.PALETTE[:3]]
        assert len(solid) == len(RATIOS)
        for line, expected in zip(solid, values, strict=True):
            assert np.allclose(line.get_ydata(), np.asarray(expected), rtol=1e-14)
            assert np.allclose(line.get_xdata(), np.asarray(near.time))
        assert ax.get_xscale() == "log"
    for line, expected in zip(lines(top[0], marker=True), simulated.margin, strict=True):
        assert set(line.get_ydata()) <= set(np.asarray(expected))
        assert 10 <= len(line.get_ydata()) <= 14
    assert np.allclose(lines(strip[0], marker=False)[0].get_ydata(), 1e-3)
    assert top[0].get_ylabel() == "margin $w$"
    assert strip[0].get_xlabel() == r"gradient-flow time $t = \mathrm{lr} \times \mathrm{steps}$"
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["$r = 10^{-6}$", "$r = 0.1$", "$r = 10$", "theory (closed form)", "ODE", "training"]


def test_theory_alone_and_other_grids(near):
    assert len(draw(plot.theory_vs_simulation(near)).axes) == 3
    coarse = fs.Trajectory.from_arrays(margin=[0.5, 1.0, 2.0], times=[1, 10, 100], ratio=10.0)
    figure = draw(plot.theory_vs_simulation(near.lane(ratio=2), coarse))
    assert len(figure.axes) == 3  # no common times, so no strip of differences
    first, last = figure.axes[0].get_xlim()
    assert first < 1  # the first and last markers are not cut by the frame
    assert last > 100
    assert (first, last) == pytest.approx((1, 100), rel=0.2)


def test_few_times_are_markers_and_not_joined():
    sparse = fs.exact(TASK, ratio=RATIOS, times=[1, 10, 100, 1000])
    (left, *_) = draw(plot.theory_vs_simulation(sparse)).axes
    assert {(line.get_linestyle(), line.get_marker()) for line in left.get_lines()} == {("None", "s")}
    single = fs.exact(TASK, ratio=RATIOS, times=[100])
    assert [line.get_xdata().tolist() for line in draw(plot.theory_vs_simulation(single)).axes[0].get_lines()]
    late = fs.exact(TASK, ratio=RATIOS, log_times=[100.0])
    for function in (plot.growth_constants, plot.score_gap_regimes):
        shown = [line for line in draw(function(late)).axes[0].get_lines() if line.get_marker() == "s"]
        assert len(shown) == len(RATIOS)


def test_a_lane_without_numbers_does_not_spoil_the_others(far):
    names = ("margin", "score_gap", "score_gap_change", "log_odds")
    spoiled = dataclasses.replace(far, **{name: getattr(far, name).at[1].set(jnp.nan) for name in names})
    for function in (plot.growth_constants, plot.score_gap_regimes, plot.theory_vs_simulation):
        draw(function(spoiled))
    with pytest.raises(fs.InvalidInput, match="the score gap cannot be drawn"):
        plot.score_gap_regimes(spoiled.lane(ratio=1))


def test_seeds_and_unknown_ratios_are_drawn(near):
    log_times = np.asarray(near.log_time)
    names = ("margin", "score_gap", "score_gap_change", "log_odds", "log_error", "log_loss")
    seeds = dataclasses.replace(
        near.lane(ratio=0),
        **{name: jnp.stack([getattr(near, name)[0]] * 3) for name in names},
        status=jnp.zeros(3, int),
        n_steps=jnp.zeros(3, int),
        axes=("seed",),
        coords={"ratio": RATIOS[0], "seed": (0, 1, 2)},
    )
    assert len(lines(draw(plot.theory_vs_simulation(near, seeds)).axes[0], marker=True)) == 3
    logs = fs.Trajectory.from_arrays(margin=near.margin[0], log_times=log_times)
    assert len(lines(draw(plot.theory_vs_simulation(near, logs)).axes[0], marker=True)) == 1


def test_growth_constants_tend_to_one_as_predicted(far):
    figure = draw(plot.growth_constants(far))
    margin, odds, margin_distance, odds_distance = figure.axes
    for ax in (margin, odds):
        for line in ax.get_lines()[:2]:
            assert line.get_ydata()[-1] == pytest.approx(1, abs=1e-4)
        assert ax.get_xscale() == "log"
    expected = np.asarray(far.margin[1]) / (np.asarray(far.log_time) - math.log(10))
    shown = margin.get_lines()[2].get_ydata()
    assert np.allclose(shown[~np.isnan(shown)], expected[~np.isnan(shown)], rtol=1e-14)
    for ax in (margin_distance, odds_distance):  # the dashed prediction lies on the measured distance
        measured, predicted = (line.get_ydata()[60:115] for line in ax.get_lines()[2:4])
        assert np.allclose(measured, predicted, rtol=0.05)


def test_score_gap_regimes_mark_the_crossing(far):
    figure = draw(plot.score_gap_regimes(far))
    gap, exponent = figure.axes
    assert (gap.get_xscale(), gap.get_yscale()) == ("log", "log")
    marks = [line for line in gap.get_lines() if line.get_marker() == "D"]
    assert len(marks) == len(RATIOS)
    for mark, crossing in zip(marks, verify(far).crossings, strict=True):
        assert mark.get_xdata()[0] == pytest.approx(crossing.log_time, rel=0.05)
    local = exponent.get_lines()[0]
    plateau = local.get_ydata()[(local.get_xdata() > 12) & (local.get_xdata() < 40)]
    assert np.allclose(plateau, 2, atol=0.05)
    assert local.get_ydata()[-1] < 0.2
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "log log t law (after)" in names
    assert "crossing" in names


@pytest.fixture(scope="module")
def four():
    return fs.exact(TASK, ["FAFO", "CACO", "FACO", "CAFO"], ratio=1.0, log_times=np.geomspace(1, 1e6, 80))


@pytest.mark.slow
def test_four_laws_tend_to_one_as_predicted(four):
    figure = draw(plot.four_laws(four))
    margin, odds, margin_ratio, odds_ratio = figure.axes
    known = {name: verify(four.lane(parameterization=i)) for i, name in enumerate(four.coords["parameterization"])}
    order = ("CACO", "FACO", "CAFO", "FAFO")
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [text[:4] for text in texts[:4]] == list(order)
    place = {name: i for i, name in enumerate(four.coords["parameterization"])}
    for number, name in enumerate(order):  # lines come in pairs: measured, theory
        for ax, values in ((margin, four.margin), (odds, four.odds)):
            shown = ax.get_lines()[2 * number].get_ydata()
            assert np.allclose(shown, np.asarray(values)[place[name]], rtol=1e-12)
        law = odds.get_lines()[2 * number + 1].get_ydata()
        (row,) = (r for r in known[name].rows if r.kind == "exact-law" and r.observable == "odds")
        l = 1e6 - (math.log(10) if name[2] == "C" else math.log(math.sqrt(10) / 2))
        if name[0] == "C":  # without log log t the law can be written down here
            assert law[-1] == pytest.approx(
                (row.predicted_constant or 0) * l ** (2 if name[2] == "C" else 1), rel=1e-12
            )
        measured, theory = (line.get_ydata() for line in odds_ratio.get_lines()[2 * number : 2 * number + 2])
        assert np.allclose(measured[-20:], theory[-20:], atol=0.01)
        assert abs(measured[-1] - 1) < (1e-3 if name[0] == "C" else 0.1)
        assert margin_ratio.get_lines()[2 * number].get_ydata()[-1] == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
def test_four_laws_takes_one_ratio_of_each(four, far):
    one = plot.four_laws(*(four.lane(parameterization=i) for i in range(4)))
    assert len(one.axes) == 4
    with pytest.raises(fs.InvalidInput, match="'CACO' comes 3 times; give one ratio of each"):
        plot.four_laws(far)
    with pytest.raises(fs.InvalidInput, match="no trajectory"):
        plot.four_laws()


def test_what_cannot_be_drawn_is_refused(near):
    with pytest.raises(fs.InvalidInput, match="no task is attached"):
        plot.growth_constants(fs.Trajectory.from_arrays(margin=[1.0, 2.0], times=[1, 2]))
    with pytest.raises(fs.InvalidInput, match=r"trajectory=int cannot be drawn"):
        plot.score_gap_regimes(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(fs.InvalidInput, match=r"simulation=int cannot be drawn"):
        plot.theory_vs_simulation(near, 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(fs.InvalidInput, match="theory holds no time above 0"):
        plot.theory_vs_simulation(fs.Trajectory.from_arrays(margin=[0.0], times=[0.0]))
    zero = fs.Trajectory.from_arrays(margin=[1.0, 2.0], times=[1, 2], task=TASK, ratio=0.0)
    with pytest.raises(fs.InvalidInput, match="ratio above 0"):
        plot.growth_constants(zero)
    short = fs.Trajectory.from_arrays(margin=[1.0, 2.0], times=[1, 2], task=TASK, ratio=1.0)
    with pytest.raises(fs.InvalidInput, match=r"the run ends at ln t = 0\.6931"):
        plot.growth_constants(short)


def test_many_ratios_get_an_ordered_colour_map():
    ratios = np.geomspace(1e-4, 1e2, 40)
    for function in (plot.growth_constants, plot.score_gap_regimes, plot.theory_vs_simulation):
        figure = draw(function(fs.exact(TASK, ratio=ratios, log_times=np.geomspace(1, 100, 40))))
        (legend,) = figure.legends
        assert len(legend.get_texts()) <= 3
        assert figure.axes[-1].get_ylabel() == "ratio $r$"
        assert figure.axes[-1].get_ylim() == pytest.approx((1e-4, 1e2))
    few, many = style.colours([1.0, 0.1, 0.1]), style.colours(list(np.geomspace(1e-4, 1e4, 20)))
    assert [few[0.1], few[1.0]] == list(style.PALETTE[:2])
    assert len(set(many.values())) == 21
    assert [style.ratio_label(r) for r in (1e-6, 2.5e-7, 5, 1e4, None)] == [
        "$r = 10^{-6}$",
        r"$r = 2.5 \times 10^{-7}$",
        "$r = 5$",
        "$r = 10^{4}$",
        "ratio unknown",
    ]


def test_savefig_writes_both_formats_reproducibly(tmp_path, near):
    figure = plot.theory_vs_simulation(near)
    written = plot.savefig(figure, tmp_path / "figure")
    assert [path.name for path in written] == ["figure.png", "figure.svg"]
    again = plot.savefig(plot.theory_vs_simulation(near), tmp_path / "again")
    for one, two in zip(written, again, strict=True):
        assert one.read_bytes() == two.read_bytes()
    svg = written[1].read_text()
    assert "<dc:date>" not in svg
    assert svg.startswith("<?xml")
    with pytest.raises(fs.FileProblem, match=r"figure\.png' exists; give overwrite=True"):
        plot.savefig(figure, tmp_path / "figure")
    assert plot.savefig(figure, tmp_path / "figure.svg", overwrite=True) == (tmp_path / "figure.svg",)
    with pytest.raises(fs.FileProblem, match=r"must end in \.png"):
        plot.savefig(figure, tmp_path / "figure.bmp")
    with pytest.raises(fs.FileProblem, match="does not exist"):
        plot.savefig(figure, tmp_path / "missing" / "figure")


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    figure = Figure()

    def fail(*args, **options):
        if str(args[0]).endswith(".svg"):
            raise OSError("disk full")
        return original(*args, **options)

    original = figure.savefig
    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        plot.savefig(figure, tmp_path / "figure")
    assert list(tmp_path.iterdir()) == []


def test_figures_stay_out_of_pyplot(near):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    figure = plot.theory_vs_simulation(near)
    assert figure.canvas.manager is None
    assert dict(mpl.rcParams) == before
