"""The verdicts of a report as tables of a page: every row with its window, its numbers and its reason."""

import math
from collections.abc import Sequence
from html import escape

from flowsim.html.page import Section
from flowsim.html.tables import scrolling
from flowsim.laws.report import Crossing, Report, Row, definitions, lane_name, number_text
from flowsim.laws.slopes import Estimate, TrainedSlope

# A sign beside each word: nobody has to tell the colours apart.
_SIGNS = {"holds": "\u2713", "fails": "\u2717", "undecided": "?"}
_HEADINGS = (
    ("kind", ""), ("observable", ""), ("law", ""), ("verdict", ""), ("exponent", "n"), ("constant", "n"),
    ("predicted", "n"), ("ln t", "n"), ("decades of l", "n"), ("times", "n"),
)  # fmt: skip
_EARLY = {"saturated": "", "before saturation": ", early"}


def verdict_sections(report: Report, slopes: Sequence[TrainedSlope] = (), prefix: str = "") -> tuple[Section, ...]:
    """One section for each lane of a report.

    Args:
        report: the verdicts.
        slopes: what training shows of the same laws, if it was trained.
        prefix: of the anchors, where a page has several reports.
    """
    trained = {(slope.ratio, slope.observable, slope.law, slope.regime): slope for slope in slopes}
    seeds = max((slope.seeds for slope in slopes), default=0)
    sections = []
    for i, (rows, crossing) in enumerate(report.by_lane()):
        head = "".join(f'<th scope="col"{_class(kind)}>{name}</th>' for name, kind in _HEADINGS)
        if seeds:
            head += f'<th scope="col">trained slope ({seeds} seeds)</th><th scope="col" class="n">flow there</th>'
        body = [_row(row, trained, seeds) for row in rows]
        text = "" if crossing is None else f"<p>{escape(_crossing(crossing))}</p>\n"
        text += f"{scrolling(head, body)}\n{_reasons(rows)}"
        sections.append(Section(f"{prefix}verdicts-{i + 1}", lane_name(rows[0]), text))
    return tuple(sections)


def explanation(slopes: Sequence[TrainedSlope] = ()) -> str:
    """What the columns and the words of the verdict tables mean."""
    lines = [
        "exact-law: what the exact flow says; paper-claim: how the paper puts it. early: before attention saturates. "
        "exponent: d ln y/d ln l. ln t, decades of l, times: the window in which the law was read.",
        " ".join(line.strip() for line in definitions()),
    ]
    if slopes:
        level, seeds = slopes[0].level, max(slope.seeds for slope in slopes)
        lines.append(
            f"trained slope: for each of {seeds} seeds the least-squares slope of the observable against the law's "
            "function of time, weighted so that the sampling of time does not matter; their mean, and in brackets its "
            f"{100 * level:g} % studentized bootstrap interval over the seeds. It is read in the law's window where "
            "training reaches it, else in the last decade of time, where the flow has not reached the law either: "
            "compare it with the slope of the flow there."
        )
    return "\n".join(f"<p>{escape(line)}</p>" for line in lines)


def law_text(law: str, regime: str) -> str:
    """A law as one says it, with a raised power."""
    return law.replace("^2", "\u00b2") + _EARLY[regime]


def verdict_word(verdict: str) -> str:
    """A verdict as sign and word."""
    return f'<span class="verdict {verdict}"><span aria-hidden="true">{_SIGNS[verdict]}</span> {verdict}</span>'


def number(value: float | None, digits: int) -> str:
    """A rounded number that carries the full one."""
    text = escape(number_text(value, digits))
    return text if value is None or not math.isfinite(value) else f'<data value="{value!r}">{text}</data>'


def estimate_text(estimate: Estimate) -> str:
    """An estimate with its interval, as HTML."""
    return f'<data value="{estimate.mean!r}">{escape(str(estimate))}</data>'


def _row(row: Row, trained: dict, seeds: int) -> str:
    window = row.window
    cells = [
        ("", row.kind),
        ("", row.observable.replace("_", " ")),
        ("", law_text(row.law, row.regime)),
        ("", verdict_word(row.verdict)),
        ("n", "-" if row.law == "log log t" else number(row.exponent, 3)),
        ("n", number(row.constant, 5)),
        ("n", number(row.predicted_constant, 5)),
        ("n", "-" if window is None else f"{window.log_time_start:.5g} to {window.log_time_end:.5g}"),
        ("n", "-" if window is None else f"{window.decades:.2f}"),
        ("n", "-" if window is None else str(window.points)),
    ]
    if seeds:
        found = trained.get((row.ratio, row.observable, row.law, row.regime))
        lost = "" if found is None or found.seeds == seeds else f", {found.seeds} seeds"
        cells.append(("", "-" if found is None else f"{estimate_text(found.slope)}{lost}"))
        cells.append(("n", number(None if found is None else found.slope.flow, 4)))
    return "<tr>" + "".join(f"<td{_class(kind)}>{text}</td>" for kind, text in cells) + "</tr>"


def _reasons(rows: Sequence[Row]) -> str:
    lines = (
        f"<li>{row.observable.replace('_', ' ')} {law_text(row.law, row.regime)} ({row.kind}) {row.verdict}: "
        f"{escape(row.reason)}</li>"
        for row in rows
    )
    return '<ul class="why">\n' + "\n".join(lines) + "\n</ul>"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _crossing(crossing: Crossing) -> str:
    return f"{str(crossing)[0].upper()}{str(crossing)[1:]}."
