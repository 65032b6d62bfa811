"""A report of verdicts as a page of its own."""

from typing import TYPE_CHECKING

from flowsim.html.math import equations
from flowsim.html.page import Section, page
from flowsim.html.tables import definition_list
from flowsim.html.verdicts import explanation, verdict_sections
from flowsim.laws.report import Report
from flowsim.trajectory_file import versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowsim.laws.slopes import TrainedSlope


def report_page(report: Report, slopes: "Sequence[TrainedSlope]" = ()) -> str:
    """The document: verdicts, the equations of each parameterization where the task is known, versions.

    Args:
        report: the verdicts.
        slopes: what training shows of the same laws, if it was trained.
    """
    from html import escape

    from flowsim.theory import derive

    sections = [Section("verdicts", "Verdicts", explanation(slopes), verdict_sections(report, slopes))]
    names = list(dict.fromkeys(row.parameterization for row in report.rows))
    lead = "<p>The task is not known, so no constant is predicted.</p>"
    if report.task is not None:
        lead = f"<p>{escape(str(report.task))}</p>"
        flows = tuple(
            Section(f"equations-{name.lower()}", name, equations(derive(report.task, name).equations)) for name in names
        )
        sections.append(Section("equations", "Equations", "", flows))
    entries = [(escape(name), escape(version)) for name, version in versions().items()]
    sections.append(Section("versions", "Versions", definition_list(entries)))
    return page(f"Growth laws of {', '.join(names)}", lead, sections)
