"""The phase diagram against differences of the closed form, laws' own windows, and the crossing by hand."""

import math

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import flowsim as fs
from flowsim import plot
from flowsim.laws.phase import EARLY, LATE, NEITHER
from tests.growth_reference import FactorizedGap, TwoClocks

TASK = fs.Task(4, 10, 10, context=fs.FixedContext(distinct=32, common=31))
RATIOS = np.geomspace(1e-6, 10, 8)
LOG_TIMES = np.geomspace(2, 1e6, 60)
NAMES = ("CACO", "FACO", "CAFO", "FAFO")
# each parameterization compiles the closed form once more
SOME = [pytest.param(name, marks=[pytest.mark.slow] if name in ("FACO", "CAFO") else []) for name in NAMES]


class Diagrams:
    def __init__(self):
        self.made = {}

    def __getitem__(self, name):
        if name not in self.made:
            self.made[name] = fs.phase_diagram(TASK, name, ratios=RATIOS, log_times=LOG_TIMES)
        return self.made[name]


@pytest.fixture(scope="module")
def diagrams():
    return Diagrams()


@pytest.mark.parametrize("name", SOME)
def test_local_growth_against_differences(diagrams, name):
    """The flow's d theta/d ln l and local exponent, against central differences of SciPy's clocks."""
    diagram = diagrams[name]
    unit = math.log(10) if name[2] == "C" else math.log(math.sqrt(10) / 2)
    for i in (3, 6):
        clocks = TwoClocks(TASK, name, RATIOS[i])
        late = np.arange(20, LOG_TIMES.size, 10)
        step = 1e-3
        gap = [
            clocks.log_odds(clocks.margin(unit + (LOG_TIMES[late] - unit) * math.exp(side * step)))
            for side in (-1, 1)
        ]  # fmt: skip
        coefficient = (gap[1] - gap[0]) / (2 * step)
        assert np.allclose(diagram.coefficient[i, late], coefficient, rtol=3e-5, atol=5e-6)
        change = clocks.log_odds(clocks.margin(LOG_TIMES[late])) - clocks.log_base - clocks.gap0
        assert np.allclose(diagram.score_gap_change[i, late], change, rtol=1e-6, atol=3e-6)
        attention0 = 1 / (1 + math.exp(-clocks.log_base - clocks.gap0))
        power = 2 if name[2] == "C" else 1
        stretch = (LOG_TIMES[late] - unit + power * math.log(attention0)) / (LOG_TIMES[late] - unit)
        assert np.allclose(
            diagram.exponent[i, late], coefficient / change * stretch, rtol=3e-5, atol=5e-6 / change.min()
        )


@pytest.mark.parametrize("name", SOME)
def test_regions(diagrams, name):
    diagram = diagrams[name]
    assert diagram.law.shape == (RATIOS.size, LOG_TIMES.size)
    assert (diagram.law[-1, -20:] == LATE).all()
    assert (diagram.law == EARLY).any()
    for row, crossing in zip(diagram.law, diagram.crossing, strict=True):
        assert (LOG_TIMES[row == EARLY] < crossing).all()
        assert (LOG_TIMES[row == LATE] > crossing).all()
        if (row == LATE).any():  # once shown, it stays
            first = np.argmax(row == LATE)
            assert (row[first:] == LATE).mean() > 0.9
    assert (
        diagram.names
        == {
            "CACO": ("neither", "log^2 t", "log log t"),
            "FACO": ("neither", "exp(log^2 t)", "log log t"),
            "CAFO": ("neither", "log t", "log log t"),
            "FAFO": ("neither", "exp(log t)", "log log t"),
        }[name]
    )
    assert np.allclose(diagram.early_exponent[0, 30:40], {"CACO": 2, "CAFO": 1}.get(name, math.nan), rtol=0.2) or (
        name[0] == "F"
    )
    if name[0] == "C":
        assert np.allclose(diagram.late_coefficient, 2 if name == "CACO" else 1)


@pytest.mark.parametrize("name", SOME)
def test_the_crossing_is_where_the_open_gate_has_moved_by_one(diagrams, name):
    """(1 - alpha0) c (J(w) - J(w0)) is the clock at which theta - theta0 = 1, by bisection here."""
    for i in (2, 6):
        clocks = TwoClocks(TASK, name, RATIOS[i])
        attention0 = 1 / (1 + math.exp(-clocks.log_base - clocks.gap0))
        if name[0] == "C":
            clock = 1 / 0.2
        else:
            assert isinstance(clocks.gap, FactorizedGap)
            low, high = 0.0, 100.0
            for _ in range(100):
                middle = (low + high) / 2
                low, high = (middle, high) if clocks.gap.gap(middle) - clocks.gap0 < 1 else (low, middle)
            clock = low
        gained = clock / ((1 - attention0) * clocks.strength)
        w = math.sqrt(2 * gained) if name[2] == "C" else clocks.w0 + 2 * math.sqrt(10) * gained
        assert diagrams[name].crossing[i] == pytest.approx(clocks.log_time(np.array([w]))[0], rel=1e-6, abs=1e-6)


def test_a_law_in_the_diagram_is_the_law_of_the_report(diagrams):
    """Where the report reads log^2 t before saturation, the diagram shows it (same run, small ratio)."""
    report = fs.verify(fs.exact(TASK, ratio=RATIOS, log_times=LOG_TIMES))
    row, *_ = [r for r in report.rows if (r.observable, r.regime) == ("score_gap", "before saturation")]
    assert row.ratio == RATIOS[0]
    assert row.verdict == "holds"
    assert row.window is not None
    inside = (row.window.log_time_start <= LOG_TIMES) & (row.window.log_time_end >= LOG_TIMES)
    assert (diagrams["CACO"].law[0, inside] == EARLY).all()


def test_another_ratio_is_another_row(diagrams):
    """The planted error: rows are not interchangeable."""
    law = diagrams["CACO"].law
    assert (law[0] != law[-1]).any()
    assert (law == NEITHER).any()


def test_figure(diagrams):
    names = ("CACO", "FAFO", "CACO")
    figure = plot.phase_diagram(*(diagrams[name] for name in names))
    FigureCanvasAgg(figure).draw()
    assert len(figure.axes) == 3
    for ax, name in zip(figure.axes, names, strict=True):
        assert name in ax.get_title(loc="left")
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        (line,) = ax.get_lines()
        at, ratios = line.get_data()
        inside = np.isfinite(np.asarray(at, float))
        assert np.array_equal(np.asarray(ratios)[inside], RATIOS[inside])
        assert np.array_equal(np.asarray(at)[inside], diagrams[name].crossing[inside])
        (mesh,) = ax.collections
        assert np.array_equal(np.asarray(mesh.get_array()).reshape(diagrams[name].law.shape), diagrams[name].law)
    assert len(plot.phase_diagram(diagrams["CACO"]).axes) == 1


def test_bad_input():
    with pytest.raises(fs.InvalidInput, match=r"ratios=\[1, 0.5\] must be strictly increasing"):
        fs.phase_diagram(TASK, ratios=[1, 0.5], log_times=[1, 2])
    with pytest.raises(fs.InvalidInput, match="ratios"):
        fs.phase_diagram(TASK, ratios=[0.0, 1.0], log_times=[1, 2])
    with pytest.raises(fs.InvalidInput, match="margin0=-1 turns attention away"):
        fs.phase_diagram(TASK, ratios=[1.0], log_times=[1, 2], margin0=-1)
    with pytest.raises(fs.NoClosedForm):
        fs.phase_diagram(
            fs.Task(4, 10, 10, context=fs.FixedContext(distinct=3, common=4), other_outputs=2),
            ratios=[1],
            log_times=[1],
        )
    with pytest.raises(fs.InvalidInput, match="nothing to draw"):
        plot.phase_diagram()
    with pytest.raises(fs.InvalidInput, match="diagrams has a Task"):
        plot.phase_diagram(TASK)  # pyright: ignore[reportArgumentType]
