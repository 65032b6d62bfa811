"""From a trajectory to a report: the rows of every lane."""

import math
from collections.abc import Iterator

from flowsim.errors import InvalidInput
from flowsim.laws.claim import CLAIM, judge_odds_claim, judge_score_gap_claim
from flowsim.laws.crossing import crossing_log_time
from flowsim.laws.empirical import judge_form
from flowsim.laws.exact_law import judge_law
from flowsim.laws.judge import Judgement
from flowsim.laws.lane import Lane, lanes
from flowsim.laws.numbers import Numbers, Unknown, numbers
from flowsim.laws.predictions import predictions, readable_range
from flowsim.laws.report import EXACT_LAW, PAPER_CLAIM, UNDERIVED, Crossing, Report, Row
from flowsim.theory.growth import BEFORE, MARGIN, ODDS, SATURATED, SCORE_GAP, GrowthLaw, growth_laws
from flowsim.trajectory import Trajectory

# How the paper puts it: output-value scalar log t, query-key scalar log^2 t.
_CLAIMS = ((MARGIN, "log t"), (ODDS, CLAIM), (SCORE_GAP, CLAIM))


def verify(trajectory: Trajectory) -> Report:
    r"""Says, with numbers, which growth law holds where.

    Each lane gets rows of two kinds. `exact-law` rows test what the exact flow of its parameterization says. CACO:
    margin $\log t$ with constant 1, odds $\log^2 t$ with constant $\rho/2$, score gap $\log\log t$ once attention is
    saturated and $\log^2 t$ before. FACO: odds $\log^2 t \log\log t$; CAFO: odds $\log t$; FAFO: odds
    $\log t \log\log t$. On tasks for which no law is derived, rows `not derived` only measure the same.
    `paper-claim` rows test how the paper puts it: output-value scalar $\log t$, query-key scalar $\log^2 t$, read as
    the score gap and as the odds.

    A factor $\log\log t$ counts as seen only where no constant in its place agrees as well; else the verdict is
    *undecided*.

    A law is read where theory's own corrections are small, and compared with leading term *and* corrections, without
    free parameters; tolerances are the size of the first term left out and the error of the data. Without a task or a
    ratio, the form is fitted and no constant is predicted.

    Args:
        trajectory: what any solver returned, or `Trajectory.from_arrays(...)`.

    Returns:
        The report; print it, or see `rows`, `crossings` and `ok`.

    Raises:
        InvalidInput: if `trajectory` is no trajectory.
    """
    if not isinstance(trajectory, Trajectory):
        raise InvalidInput(
            f"trajectory={type(trajectory).__name__} cannot be judged; give a flowsim.Trajectory "
            "(Trajectory.from_arrays makes one from your own logs)."
        )
    rows: list[Row] = []
    crossings: list[Crossing] = []
    for lane in lanes(trajectory):
        found = numbers(lane)
        crossing = _crossing(lane, found) if isinstance(found, Numbers) and found.rho > 0 else None
        if crossing is not None:
            crossings.append(crossing)
        rows.extend(_rows(lane, found, crossing))
    return Report(tuple(rows), tuple(crossings), trajectory.task)


def _crossing(lane: Lane, known: Numbers) -> Crossing:
    """Where the regimes of the score gap meet; the time is that of the closed form at that margin, or NaN."""
    log_time = crossing_log_time(lane, known)
    return Crossing(dict(lane.coords), lane.parameterization, lane.ratio, known.crossing_margin, log_time)


def _rows(lane: Lane, found: Numbers | Unknown, crossing: Crossing | None) -> Iterator[Row]:
    if not lane.status.usable:
        unusable = Judgement("undecided", f"{lane.status.name}: {lane.status.message}")
        yield from _unpredicted_rows(lane, dict.fromkeys((MARGIN, ODDS, SCORE_GAP), unusable), unusable, unusable)
    elif isinstance(found, Unknown):
        yield from _unpredicted(lane, found)
    elif found.rho == 0:
        yield from _frozen(lane, found)
    else:
        yield from _predicted(lane, found, crossing)


def _predicted(lane: Lane, known: Numbers, crossing: Crossing | None) -> Iterator[Row]:
    by_name = {(law.observable, law.regime): law for law in predictions(lane, known)}
    ranges = readable_range(lane, known)
    judged = {key: judge_law(lane, law, ranges[key]) for key, law in by_name.items()}
    for key in by_name:
        yield _row(lane, by_name[key].name, EXACT_LAW, key, judged[key], by_name[key].constant)
    margin, odds, gap = ((observable, SATURATED) for observable in (MARGIN, ODDS, SCORE_GAP))
    early = by_name.get((SCORE_GAP, BEFORE))
    crossed = None if crossing is None or math.isnan(crossing.log_time) else crossing.log_time
    claims = (
        judged[margin],
        judge_odds_claim(by_name[odds], judged[odds]),
        judge_score_gap_claim(lane, early, by_name[gap], judged.get((SCORE_GAP, BEFORE)), crossed),
    )
    for (observable, name), claim in zip(_CLAIMS, claims, strict=True):
        # a claim of another law has no constant of that law
        law = by_name.get((observable, BEFORE if observable == SCORE_GAP else SATURATED))
        constant = law.constant if law is not None and law.name == name else None
        yield _row(lane, name, PAPER_CLAIM, (observable, SATURATED), claim, constant)


def _frozen(lane: Lane, known: Numbers) -> Iterator[Row]:
    """Ratio 0: attention keeps its start, the margin grows as log t with constant 1/alpha0."""
    (margin,) = predictions(lane, known)
    key = (MARGIN, margin.regime)
    yield _row(
        lane, margin.name, EXACT_LAW, key, judge_law(lane, margin, readable_range(lane, known)[key]), margin.constant
    )
    frozen = Judgement("undecided", "ratio 0 freezes the query-key circuit; the law is about ratios above 0")
    for law in _forms(lane)[1:]:
        yield _row(lane, law.name, EXACT_LAW, (law.observable, SATURATED), frozen)
    for observable, name in _CLAIMS:
        yield _row(lane, name, PAPER_CLAIM, (observable, SATURATED), frozen)


def _forms(lane: Lane) -> list[GrowthLaw]:
    """The laws of saturated attention: margin, odds, score gap."""
    return [law for law in growth_laws(lane.parameterization) if law.regime == SATURATED]


def _unpredicted(lane: Lane, why: Unknown) -> Iterator[Row]:
    forms = _forms(lane)
    judged = {law.observable: judge_form(lane, law.observable, law.power, law.name, why.reason) for law in forms}
    odds, gap = judge_form(lane, ODDS, 2, CLAIM, why.reason), judge_form(lane, SCORE_GAP, 2, CLAIM, why.reason)
    if not why.judge_exponent:
        judged = {observable: _undecided(judgement, why) for observable, judgement in judged.items()}
        odds, gap = _undecided(odds, why), _undecided(gap, why)
    yield from _unpredicted_rows(lane, judged, odds, gap, EXACT_LAW if why.judge_exponent else UNDERIVED)


def _undecided(judgement: Judgement, why: Unknown) -> Judgement:
    """The measured numbers of a judgement, without a verdict."""
    return Judgement("undecided", why.reason, judgement.exponent, judgement.constant, judgement.window)


def _unpredicted_rows(
    lane: Lane, judged: dict[str, Judgement], odds: Judgement, gap: Judgement, kind: str = EXACT_LAW
) -> Iterator[Row]:
    for law in _forms(lane):
        yield _row(lane, law.name, kind, (law.observable, SATURATED), judged[law.observable])
    for (observable, name), claim in zip(_CLAIMS, (judged[MARGIN], odds, gap), strict=True):
        yield _row(lane, name, PAPER_CLAIM, (observable, SATURATED), claim)


def _row(
    lane: Lane, law: str, kind: str, key: tuple[str, str], judgement: Judgement, predicted: float | None = None
) -> Row:
    observable, regime = key
    return Row(
        parameterization=lane.parameterization,
        ratio=lane.ratio,
        observable=observable,
        law=law,
        kind=kind,
        exponent=judgement.exponent,
        constant=judgement.constant,
        predicted_constant=predicted,
        window=judgement.window,
        verdict=judgement.verdict,
        reason=judgement.reason,
        regime=regime,
        coords=dict(lane.coords),
    )
