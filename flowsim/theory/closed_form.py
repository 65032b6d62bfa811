r"""Two clocks: the closed form of tasks with one distinct and one background group (paper, section 6).

The margin $w$ and the score gap $\theta$ each move along their own clock, and eliminating time leaves a separable
equation, so that the odds $y$ follow from the margin and the time from a quadrature. Everything here is found from the
derived flow; nothing is typed in.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportReturnType=false, reportArgumentType=false

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import sympy as sp

from flowsim.task import Structure
from flowsim.theory.symbols import CLASSES, ERROR, LEAD, RATIO, TIME, GroupSymbols, Mean

if TYPE_CHECKING:
    from flowsim.theory.flow import Flow


def why_no_closed_form(structure: Structure) -> str | None:
    """The first condition of the closed form that a structure breaks.

    A task must besides have a single composition; that is a number, not structure, so it is not checked here.

    Args:
        structure: roles, query and head.

    Returns:
        One sentence, or None when the closed form applies.
    """
    roles = [role for i, role in enumerate(structure.roles) if i != structure.query_group]
    if structure.vocabulary_head:
        return "other_outputs > 0 (a vocabulary head) has no closed form; it needs the label head, other_outputs=0."
    if structure.query_group is not None:
        return "attend_query=True has no closed form; it needs a query position that is not attended."
    if roles.count("distinct") != 1 or len(roles) != 2:
        return (
            f"groups={tuple(roles)} have no closed form; it needs exactly one distinct and one background "
            "(common or null) group."
        )
    return None


@dataclasses.dataclass(frozen=True)
class ClosedForm:
    r"""The solution of the collapsed flow with one distinct and one background group, for a single composition.

    Attributes:
        margin: the symbol $w$.
        score_gap: the symbol $\theta$ (distinct minus background score).
        attention: the symbol $\alpha$.
        types: token types per class of the distinct group, $C$.
        odds: $y = \alpha/(1-\alpha)$ in $\theta$ and the counts.
        margin_velocity: $\dot w$ in $\alpha, q$.
        score_gap_velocity: $\dot\theta$ in $\alpha, q, w$.
        gain: $g$, how far the query-key clock moves the score gap.
        rho: the constant of the orbit.
    """

    margin: sp.Symbol
    score_gap: sp.Symbol
    attention: sp.Symbol
    types: sp.Expr
    odds: sp.Expr
    margin_velocity: sp.Expr
    score_gap_velocity: sp.Expr
    gain: sp.Expr
    rho: sp.Expr

    @property
    def clocks(self) -> tuple[sp.Eq, sp.Eq]:
        r"""The output-value and query-key clock: $\dot\tau_v = \dot w$ and $\dot\tau_k = \dot\theta/g$."""
        tau_v, tau_k = sp.symbols("tau_v tau_k", real=True)
        return (
            sp.Eq(sp.Derivative(tau_v, TIME, evaluate=False), self.margin_velocity, evaluate=False),
            sp.Eq(sp.Derivative(tau_k, TIME, evaluate=False), self.score_gap_velocity / self.gain, evaluate=False),
        )

    @functools.cached_property
    def invariant(self) -> sp.Expr:
        r"""$y + \ln y - \rho w^2/2$ up to a constant: the two sides of the separated orbit, integrated."""
        # d theta / d w = rho w (1 - alpha), so d theta/(1 - alpha) = rho w d w with 1/(1 - alpha) = 1 + y.
        gate = sp.integrate(1 + self.odds, self.score_gap)
        return gate - self.rho * self.margin**2 / 2

    @property
    def orbit(self) -> sp.Eq:
        r"""$y + \ln y = \rho (w^2 - w_0^2)/2 + y_0 + \ln y_0$."""
        y, y0, w0 = _endpoints()
        return sp.Eq(y + sp.log(y), self.rho * (self.margin**2 - w0**2) / 2 + y0 + sp.log(y0), evaluate=False)

    @property
    def odds_of_margin(self) -> sp.Expr:
        r"""The orbit solved for the odds: $y = \omega(\cdot)$, the Wright omega function, here $W(e^{\cdot})$."""
        return sp.LambertW(sp.exp(self.orbit.rhs))

    @property
    def time_map(self) -> sp.Eq:
        r"""$t = C \int_{w_0}^{w} (e^{\alpha w} + K - 1)/\alpha \, dw$, along the orbit."""
        w0, end = sp.Symbol("w_0", real=True), sp.Symbol("w_t", real=True)
        lead = self.attention * self.margin
        error = (CLASSES - 1) * sp.exp(-lead) / ((CLASSES - 1) * sp.exp(-lead) + 1)
        integrand = sp.powsimp(sp.expand(sp.together(1 / self.margin_velocity.subs(ERROR, error))))
        constant = self.types
        body = sp.factor_terms(sp.powsimp(sp.expand(integrand / constant)))
        return sp.Eq(TIME, constant * sp.Integral(body, (self.margin, w0, end)), evaluate=False)

    @property
    def rho_of_target(self) -> sp.Expr:
        r"""The $\rho$ whose orbit reaches the odds $y$ at the margin $w$: inverse design, explicit."""
        y, y0, w0 = _endpoints()
        return 2 * (y + sp.log(y) - y0 - sp.log(y0)) / (self.margin**2 - w0**2)

    @property
    def equations(self) -> tuple[sp.Eq, ...]:
        r"""The margin and score-gap form: $\alpha$, $\Delta$, $q$, $\dot\theta$, $\dot w$, $\rho$ and the orbit."""
        y = sp.Symbol("y", positive=True)
        lines = (
            (y, self.odds),
            (self.attention, y / (1 + y)),
            (LEAD, self.attention * self.margin),
            (ERROR, (CLASSES - 1) / (sp.exp(LEAD) + CLASSES - 1)),
            (sp.Derivative(self.score_gap, TIME, evaluate=False), self.score_gap_velocity),
            (sp.Derivative(self.margin, TIME, evaluate=False), self.margin_velocity),
            (sp.Symbol("rho", positive=True), self.rho),
        )
        return (*(sp.Eq(left, right, evaluate=False) for left, right in lines), self.orbit, self.time_map)

    def latex(self) -> str:
        """The margin and score-gap form, the orbit and the time map as one LaTeX `aligned` environment."""
        from flowsim.theory.printing import latex_lines

        return latex_lines(self.equations)

    def _repr_latex_(self) -> str:
        return f"$\\displaystyle {self.latex()}$"


def closed_form(flow: Flow) -> ClosedForm:
    """Finds the two clocks, the orbit constant and the odds of an eligible flow.

    Args:
        flow: a collapsed flow whose `closed_form_reason` is None.

    Returns:
        The closed form.
    """
    distinct, background = _split(flow)
    gap, margin, alpha = distinct.gap, distinct.margin, distinct.attention
    if flow.coordinates.reference != background.index or set(flow.velocity) != {gap, margin}:
        raise AssertionError("an eligible flow closes in the score gap and the margin")
    gap_velocity, margin_velocity = (bind_single(flow, flow.velocity[symbol]) for symbol in (gap, margin))
    drive = alpha * (1 - alpha) * ERROR * margin / CLASSES
    gain = sp.factor(gap_velocity / (RATIO * drive))
    rho = sp.factor(gap_velocity / margin_velocity / (margin * (1 - alpha)))
    if (gain.free_symbols | rho.free_symbols) & {gap, margin, alpha, ERROR}:
        raise AssertionError("the orbit of an eligible flow separates")
    return ClosedForm(
        margin=margin,
        score_gap=gap,
        attention=alpha,
        types=distinct.types,
        odds=distinct.count * sp.exp(gap) / background.count,
        margin_velocity=margin_velocity,
        score_gap_velocity=gap_velocity,
        gain=sp.apart(gain, CLASSES) if gain.has(CLASSES) else sp.expand(gain),
        rho=rho,
    )


def bind_single(flow: Flow, expression: sp.Expr) -> sp.Expr:
    r"""A velocity or gradient for a single composition: score fluxes written out, means dropped, $1 - \alpha$ used.

    Args:
        flow: a flow with one distinct and one background group.
        expression: in score fluxes and means.

    Returns:
        The expression in attention, error, margin and score gap.
    """
    distinct, background = _split(flow)
    written = expression.xreplace(dict(flow.fluxes.values()))
    written = written.xreplace({mean: mean.args[0] for mean in written.atoms(Mean)})
    return written.xreplace({background.attention: 1 - distinct.attention})


def _endpoints() -> tuple[sp.Symbol, sp.Symbol, sp.Symbol]:
    """The odds, the odds at the start and the margin at the start."""
    return sp.Symbol("y", positive=True), sp.Symbol("y_0", positive=True), sp.Symbol("w_0", real=True)


def _split(flow: Flow) -> tuple[GroupSymbols, GroupSymbols]:
    first, second = flow.reduction.groups
    return (first, second) if first.is_distinct else (second, first)
