"""The report: rows with verdicts, as a table for people and as plain data for programs."""

import dataclasses
import io
import json
import math
import os
import pathlib
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowsim._files import as_path, write_text
from flowsim.errors import FileProblem
from flowsim.laws import claim, empirical
from flowsim.laws.judge import DECADES, Verdict, Window
from flowsim.laws.lane import DATA_ERROR
from flowsim.laws.predictions import DISTORTION, PRECISION
from flowsim.task import Task

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from flowsim.laws.slopes import TrainedSlope

EXACT_LAW = "exact-law"
PAPER_CLAIM = "paper-claim"
UNDERIVED = "not derived"
WIDTH = 120
_COLOURS = {"holds": "green", "fails": "red", "undecided": "yellow"}


@dataclasses.dataclass(frozen=True)
class Row:
    r"""The verdict on one law for one lane.

    Attributes:
        parameterization: CACO, FACO, CAFO or FAFO.
        ratio: the learning-rate ratio, None when unknown.
        observable: `"margin"`, `"odds"` or `"score_gap"`.
        law: `"log t"`, `"log^2 t"`, `"log log t"`, `"log t log log t"` or `"log^2 t log log t"`.
        kind: `"exact-law"` (what the exact flow says), `"paper-claim"` (how the paper puts it), or `"not derived"`
            (measured against the exact laws of the two-clock task, on a run for which no law is derived).
        exponent: measured local exponent $d \ln y/d \ln l$ over the window, None where it cannot be measured.
        constant: measured constant, known corrections divided out; for `log log t` the coefficient $d\theta/d\ln l$.
        predicted_constant: theory's constant, None without a prediction.
        window: where the law was read, None where it can be read nowhere.
        verdict: `"holds"`, `"fails"` or `"undecided"`.
        reason: one sentence with the numbers.
        regime: `"saturated"` or `"before saturation"`: which attention the law is about.
        coords: all lane coordinates (ratio, lr, seed, ...), as present.
    """

    parameterization: str
    ratio: float | None
    observable: str
    law: str
    kind: str
    exponent: float | None
    constant: float | None
    predicted_constant: float | None
    window: Window | None
    verdict: Verdict
    reason: str
    regime: str
    coords: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Crossing:
    r"""Where the two regimes of the score gap meet, by theory: had the gate stayed open, it had moved by 1.

    While $\theta - \theta_0 \ll 1$ the query-key clock is $(1 - \alpha_0) c (J(w) - J(w_0))$; for CACO the regimes meet
    at $\rho (w^2 - w_0^2)(1 - \alpha_0) = 2$.

    Attributes:
        coords: lane coordinates.
        parameterization: CACO, FACO, CAFO or FAFO.
        ratio: the learning-rate ratio.
        margin: the margin there.
        log_time: $\ln t$ there, from the closed form; NaN where that does not reach so far.
    """

    coords: dict[str, Any]
    parameterization: str
    ratio: float | None
    margin: float
    log_time: float

    def __str__(self) -> str:
        when = f"ln t = {self.log_time:.5g}"
        if abs(self.log_time) < 20:
            when += f" (t = {math.exp(self.log_time):.4g})"
        return f"the score gap's regimes meet at margin {self.margin:.5g}, {when}"


@dataclasses.dataclass(frozen=True)
class Report:
    """Verdicts on the growth laws of a trajectory.

    Attributes:
        rows: one verdict for each lane and law.
        crossings: where the score gap's regimes meet, for each lane that has a prediction.
        task: the task, if known.
    """

    rows: tuple[Row, ...]
    crossings: tuple[Crossing, ...]
    task: Task | None

    @property
    def ok(self) -> bool:
        """Whether no law of the exact flow fails; rows that test the paper's claims never matter here."""
        return not any(row.kind == EXACT_LAW and row.verdict == "fails" for row in self.rows)

    def table(self) -> "Table":
        """The verdicts as a `rich` table of at most 120 columns."""
        from rich import box
        from rich.table import Table

        table = Table(
            title="Growth laws",
            caption="exact-law: what the exact flow says; paper-claim: what the paper says\n"
            "early: before attention saturates; crossing: where the two regimes of the score gap meet\n"
            "exponent: d ln y/d ln l, for powers; ln t, decades of l: where the law is read",
            title_justify="left",
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
        )
        table.add_column("run", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("observable", no_wrap=True)
        table.add_column("law", no_wrap=True)
        for name in ("exponent", "constant", "predicted", "ln t", "decades"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        for rows, crossing in self.by_lane():
            table.add_section()
            labels = _labels(rows[0], crossing)
            for i in range(max(len(rows), len(labels))):
                label = labels[i] if i < len(labels) else ""
                table.add_row(label, *(_cells(rows[i], rows[i - 1] if i else None) if i < len(rows) else ()))
        return table

    def reasons(self) -> str:
        """The reason of every verdict, and where the score gap's regimes meet, as lines of text."""
        lines = []
        for rows, crossing in self.by_lane():
            lines.append(lane_name(rows[0]))
            if crossing is not None:
                lines.append(f"  {crossing}")
            for row in rows:
                what = f"{_name(row)} {row.law}{_EARLY[row.regime]} ({row.kind})"
                lines += _wrapped(f"{what} {row.verdict}: {row.reason}")
        return "\n".join(lines)

    def __str__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        console = Console(file=out, width=WIDTH, color_system=None)
        console.print(self.table())
        return "\n".join([out.getvalue(), self.reasons(), "", *definitions()])

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data; numbers that JSON has no name for (NaN, infinity) are None."""
        return _finite(
            {
                "ok": self.ok,
                "task": None if self.task is None else self.task.to_dict(),
                "crossings": [dataclasses.asdict(crossing) for crossing in self.crossings],
                "rows": [
                    dataclasses.asdict(row) | {"window": None if row.window is None else row.window._asdict()}
                    for row in self.rows
                ],
            }
        )

    def to_json(self, indent: int | None = 2) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_html(
        self, path: str | os.PathLike, slopes: "Sequence[TrainedSlope]" = (), *, overwrite: bool = False
    ) -> pathlib.Path:
        """Writes the report as one HTML page that needs no script and no network, atomically.

        Args:
            path: a name ending in `.html`; the folder must exist.
            slopes: from `flowsim.trained_slopes`, for a column beside the verdicts.
            overwrite: replace a file that exists.

        Returns:
            The path written.

        Raises:
            FileProblem: if the file exists and `overwrite` is false, the folder is missing, or the ending is another.
        """
        from flowsim.html.report import report_page

        target = as_path(path)
        if target.suffix.lower() != ".html":
            raise FileProblem(f"path={str(path)!r} must end in .html.")
        if target.exists() and not overwrite:
            raise FileProblem(f"path={str(path)!r} exists; give overwrite=True or another name.")
        write_text(target, report_page(self, slopes))
        return target

    def by_lane(self) -> list[tuple[list[Row], Crossing | None]]:
        """The rows of each lane, and its crossing."""
        lanes: dict[tuple, list[Row]] = {}
        for row in self.rows:
            lanes.setdefault(_lane(row), []).append(row)
        crossings = {_lane(crossing): crossing for crossing in self.crossings}
        return [(rows, crossings.get(lane)) for lane, rows in lanes.items()]


def definitions() -> list[str]:
    """What the words and tolerances of a report mean, as lines of text."""
    errors = f"{DATA_ERROR['exact']:g} for the closed form, 10 tol for ODEs, {DATA_ERROR['training']:g} otherwise"
    texts = (
        "l = ln(t/C), C the distinct token types per class; early: l = ln(alpha0^2 t/C), alpha0 the attention at time "
        "0; with a factorized output-value circuit l = ln(2 t/sqrt C), early ln(2 alpha0 t/sqrt C); where no constant "
        "is predicted: l = ln t + s with a fitted shift s.",
        f"A law is read where theory leaves out at most {100 * PRECISION:g} % and its corrections change the leading "
        f"term by at most {100 * DISTORTION:g} %, over at least {DECADES:g} decades of l; a form without predicted "
        f"constant over at least {empirical.DECADES:g} decade of ln t.",
        f"It holds where every point agrees with leading term and corrections up to what theory leaves out and the "
        f"error of the data ({errors}). A form holds where its exponent is within {empirical.TOLERANCE:g}; the "
        f"paper's log^2 t of the score gap where it is within {claim.TOLERANCE:g} of 2.",
    )
    return [line for text in texts for line in _wrapped(text)]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - 2, initial_indent="  ", subsequent_indent="    ", break_long_words=False)


_EARLY = {"saturated": "", "before saturation": ", early"}


def _lane(item: Row | Crossing) -> tuple:
    return (item.parameterization, item.ratio, *item.coords.items())


def _name(row: Row) -> str:
    return row.observable.replace("_", " ")


def lane_name(row: Row) -> str:
    """Parameterization, ratio and what else names the lane of a row."""
    return ", ".join(_labels(row, None))


def _labels(row: Row, crossing: Crossing | None) -> list[str]:
    rest = [f"{name} {value:.6g}" for name, value in row.coords.items() if name in ("lr", "seed")]
    ratio = "ratio unknown" if row.ratio is None else f"ratio {row.ratio:.4g}"
    labels = [row.parameterization, ratio, *rest]
    if crossing is not None:
        labels += ["crossing:", f"w    {crossing.margin:.5g}", f"ln t {crossing.log_time:.5g}"]
    return labels


def _cells(row: Row, above: Row | None) -> tuple["str | Text", ...]:
    from rich.text import Text

    kind = "" if above is not None and above.kind == row.kind else row.kind
    window = row.window
    return (
        kind,
        _name(row),
        f"{row.law.replace(' t log log t', ' loglog t')}{_EARLY[row.regime]}",  # the column is as wide as it can be
        "-" if row.law == "log log t" else number_text(row.exponent, 3),  # no power, so no exponent to compare
        number_text(row.constant, 5),
        number_text(row.predicted_constant, 5),
        "-" if window is None else f"{_short(window.log_time_start)}..{_short(window.log_time_end)}",
        "-" if window is None else f"{window.decades:.2f}",
        Text(row.verdict, style=_COLOURS[row.verdict]),
    )


def _short(value: float) -> str:
    return f"{value:.0f}" if 10 <= value < 1e4 else f"{value:.2g}".replace("e+0", "e")


def number_text(value: float | None, digits: int) -> str:
    """Fixed significant digits, exponents without padding: 7.5000e-7."""
    if value is None:
        return "-"
    plain = value == 0 or 1e-3 <= abs(value) < 10**digits
    text = f"{value:#.{digits}g}" if plain else f"{value:.{digits - 1}e}"
    mantissa, e, power = text.partition("e")
    return f"{mantissa}e{int(power)}" if e else text


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
