"""The growth laws of a flow as equations, for `flowsim derive`."""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import sympy as sp

    from flowsim.theory.flow import Flow
    from flowsim.theory.growth import GrowthLaw

_SYMBOLS = {"margin": "w", "odds": "y", "score_gap": "theta"}


class LawLines(NamedTuple):
    r"""One law and its equation.

    Attributes:
        law: what theory derived.
        equation: the observable and the leading term of its law, in the symbols of `definitions`.
    """

    law: "GrowthLaw"
    equation: "sp.Eq"

    @property
    def name(self) -> str:
        """The law as one says it, `"odds log^2 t"`; `early` is the one before attention saturates."""
        from flowsim.theory.growth import BEFORE

        early = ", early" if self.law.regime == BEFORE else ""
        return f"{self.law.observable.replace('_', ' ')} {self.law.name}{early}"


def growth_lines(flow: "Flow") -> tuple[LawLines, ...]:
    """The leading terms of every growth law, saturated ones first.

    Args:
        flow: a flow with a closed form.
    """
    import sympy as sp

    from flowsim.theory.growth import BEFORE, SCORE_GAP, growth_laws, l

    early = sp.Symbol("l_0", positive=True)
    lines = []
    for law in growth_laws(flow.parameterization):
        left = sp.Symbol(_SYMBOLS[law.observable], positive=True)
        before = law.regime == BEFORE
        if law.observable == SCORE_GAP and before:
            left = left - sp.Symbol("theta_0", real=True)
        right = law.leading.subs(l, early) if before else law.leading
        lines.append(LawLines(law, sp.Eq(left, right, evaluate=False)))
    return tuple(lines)


def definitions(flow: "Flow") -> tuple["sp.Eq", ...]:
    r"""What the symbols in the growth laws of a flow stand for, those that occur.

    Args:
        flow: a flow with a closed form.

    Returns:
        Equations for $l$, $l_0$, $\rho$ or $\varphi$, $\Lambda$, $\alpha_0$, $\beta_0$ and $y_b$.
    """
    import sympy as sp

    from flowsim.theory import growth
    from flowsim.theory.closed_form import ClosedForm

    closed = flow.closed_form
    if closed is None:
        raise AssertionError("growth laws are derived for flows with a closed form")
    lines = growth_lines(flow)
    laws = [line.law for line in lines]
    found: list[sp.Eq] = []

    def define(left, right) -> None:
        found.append(sp.Eq(left, right, evaluate=False))

    clocks = {law.regime: law.clock.subs(growth.log_time, sp.log(sp.Symbol("t", positive=True))) for law in laws}
    define(growth.l, clocks[growth.SATURATED])
    define(sp.Symbol("l_0", positive=True), clocks[growth.BEFORE])
    if isinstance(closed, ClosedForm):
        collapsed, rate = closed, closed.rho
    else:
        collapsed, strength = closed.collapsed, closed.ratio
        output_factors = [part for part in closed.parts if part.clock.name == "tau_v"]
        score_factors = [part for part in closed.parts if part.clock.name == "tau_k"]
        # F, the largest drive, whose order is the same for all sizes; collapsed attention has half its gain instead
        pull = max((part.drive for part in score_factors), key=_size, default=collapsed.gain / 2)
        rate = pull * strength / (sp.sqrt(collapsed.types) if output_factors else 1)
        if score_factors:
            slope = sp.Derivative(collapsed.score_gap, sp.Symbol("tau_k", real=True), evaluate=False)
            define(growth.loglog, slope / (2 * pull))
    used = set().union(*(line.equation.free_symbols for line in lines))
    for symbol in (growth.rho, growth.odds_rate):
        if symbol in used:
            define(symbol, sp.factor(rate))
    counts = collapsed.odds.subs(collapsed.score_gap, 0)
    start = collapsed.odds.subs(collapsed.score_gap, sp.Symbol("theta_0", real=True))
    for symbol, value in (
        (growth.base_odds, counts),
        (growth.alpha0, sp.factor(start / (1 + start))),
        (growth.unattended0, 1 - growth.alpha0),
    ):
        if symbol in used:
            define(symbol, value)
    return tuple(found)


def _size(drive: "sp.Expr") -> float:
    return float(drive.subs(dict.fromkeys(drive.free_symbols, 2)))
