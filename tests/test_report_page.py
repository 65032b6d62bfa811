"""The page of a report: whole, self-contained, and its equations and numbers those of the report."""

import re
from html import unescape

import numpy as np
import pytest
import sympy as sp

import flowsim as fs
from flowsim.errors import FileProblem
from flowsim.html.math import equations, formula
from flowsim.html.tables import from_rich
from tests.html_page import Page, same_verdicts, self_contained

TASK = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))


@pytest.fixture(scope="module")
def report():
    return fs.verify(fs.exact(TASK, ratio=[0.1, 1.0], log_times=np.geomspace(1, 1e6, 150)))


def test_a_report_is_one_page_with_every_verdict(report, tmp_path):
    path = report.to_html(tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    page = self_contained(text)
    assert same_verdicts(page, report.to_dict()["rows"])
    assert page.math == 1
    assert {"verdicts-1", "verdicts-2", "equations-caco", "versions"} <= set(page.ids)
    with pytest.raises(FileProblem, match="exists"):
        report.to_html(path)
    with pytest.raises(FileProblem, match=r"must end in \.html"):
        report.to_html(tmp_path / "report.pdf")
    assert report.to_html(path, overwrite=True) == path
    assert path.read_text(encoding="utf-8") == text
    assert [item.name for item in tmp_path.iterdir()] == ["report.html"]


def test_planted_errors_are_seen(report, tmp_path):
    text = report.to_html(tmp_path / "report.html").read_text(encoding="utf-8")
    rows = report.to_dict()["rows"]
    for altered in (
        text.replace("</section>", "", 1),
        text.replace("</tr>", "", 1),
        text.replace("default-src 'none'", "default-src *"),
        text.replace("<main>", '<main><img alt="no figure" src="data:,">'),
        text.replace("<main>", '<main><a href="#nowhere">x</a>'),
        text.replace("<main>", '<main><a href="https://example.org">x</a>'),
        text.replace("<main>", "<main><script></script>"),
    ):
        assert altered != text
        with pytest.raises(AssertionError):
            self_contained(altered)
    for old, new in ((" holds<", " fails<"), ('<data value="1.', '<data value="1.5')):
        assert old in text
        with pytest.raises(AssertionError):
            same_verdicts(Page(text.replace(old, new, 1)), rows)
    with pytest.raises(AssertionError):
        same_verdicts(Page(text), rows[:-1])


def test_words_are_escaped(tmp_path):
    trajectory = fs.Trajectory.from_arrays(margin=np.linspace(1, 2, 9), log_times=np.linspace(1, 9, 9))
    report = fs.verify(trajectory)
    text = report.to_html(tmp_path / "x.html").read_text(encoding="utf-8")
    self_contained(text)
    assert "task is not known" in text
    from rich.table import Table

    table = Table("a<b", "c")
    table.add_row("<script>", "1 & 2")
    page = Page(from_rich(table))
    assert page.tables == [[[("a<b", None), ("c", None)], [("<script>", None), ("1 & 2", None)]]]


def symbols_of(mathml):
    """The letters of an equation in the order of the page."""
    return re.findall(r"<mi>([^<]*)</mi>", mathml)


@pytest.mark.parametrize("parameterization", ["CACO", "FAFO"])
def test_equations_have_every_symbol_of_the_flow_and_nothing_browsers_do_not_draw(parameterization):
    flow = fs.derive(TASK, parameterization)
    text = equations(flow.equations)
    page = Page(text)
    assert page.math == 1
    assert text.count("<mtr>") == len(flow.equations)
    assert text.count("<mrow><mi>d</mi><mi>t</mi></mrow></mfrac></mtd><mtd><mo>=</mo>") == len(
        [line for line in flow.equations if isinstance(line.args[0], sp.Derivative)]
    )
    assert "mfenced" not in text  # MathML 3, which Chromium leaves out
    assert not re.search(r"&[A-Za-z]+;", text)  # named entities draw letters of another alphabet
    if parameterization == "CACO":
        assert symbols_of(text.split("<mtr>")[1]) == ["&#945;", "m", "e", "&#952;", "m", "e", "&#952;", "n"]
        assert "\U0001d53c" in unescape(text)  # the mean


def test_a_fraction_a_root_and_an_integral_are_set():
    x, y = sp.symbols("x y_d_s")
    text = formula(sp.sqrt(x) / (1 + y) + sp.Integral(sp.exp(x), (x, 0, 1)))
    Page(text)
    for tag in ("<msqrt>", "<mfrac>", "<msubsup>"):
        assert tag in text
    assert "<mo>,</mo>" in text
