r"""Two clocks with factors: the closed form of FACO, CAFO and FAFO (paper, section 6).

Each circuit is pulled in one direction that never changes, only how strongly it is pulled does. On a clock that runs
at that strength the collapsed circuit is a straight line, and factors $B = P Q$ driven by a constant matrix $F u$
solve a linear equation: $P' = F u\, Q^\top$, $Q' = P^\top F u$. Everything here is found from the derived flow.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportReturnType=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import sympy as sp

from flowsim.theory.closed_form import ClosedForm, bind_single
from flowsim.theory.symbols import CLASSES, ERROR, LEAD, TIME

if TYPE_CHECKING:
    from flowsim.theory.circuits import Side
    from flowsim.theory.flow import Flow
    from flowsim.theory.symmetry import Part

TAU_V, TAU_K = sp.symbols("tau_v tau_k", real=True)


@dataclasses.dataclass(frozen=True)
class DrivenPart:
    r"""A factorized part on the clock of its circuit.

    Attributes:
        name: the part, for instance `"qk_trivial"`.
        letter: of its blocks.
        clock: the clock, $\tau_v$ or $\tau_k$.
        drive: $F$, how strongly the clock pulls.
        direction: the unit matrix $u$ along which it pulls.
        weight: by how much margin or score gap change with the component along $u$.
        component: $b = \langle u, P Q\rangle$ in the factors.
        energy: $h = (|u^\top P|^2 + |Q|^2)/2$ in the factors.
    """

    name: str
    letter: str
    clock: sp.Symbol
    drive: sp.Expr
    direction: sp.ImmutableMatrix
    weight: sp.Expr
    component: sp.Expr
    energy: sp.Expr

    @property
    def start(self) -> tuple[sp.Symbol, sp.Symbol]:
        """The symbols of component and energy at time 0."""
        return sp.Symbol(f"b_{self.letter}0", real=True), sp.Symbol(f"h_{self.letter}", nonnegative=True)

    @property
    def solution(self) -> sp.Expr:
        r"""$b(\tau) = b_0 \cosh 2F\tau + h \sinh 2F\tau$."""
        b0, h = self.start
        angle = 2 * self.drive * self.clock
        return b0 * sp.cosh(angle) + h * sp.sinh(angle)


@dataclasses.dataclass(frozen=True)
class TwoClocks:
    r"""The solution of a flow with one distinct and one background group and at least one factorized circuit.

    Attributes:
        collapsed: the closed form of the collapsed flow of the same structure, which has the same clocks.
        parts: the factorized parts on their clocks.
        margin_on_clock: $w(\tau_v)$.
        score_gap_on_clock: $\theta(\tau_k)$.
        ratio: $c = r C (K-1)/K$: $d\tau_k/d\tau_v = c\,(1-\alpha)\, w$.
    """

    collapsed: ClosedForm
    parts: tuple[DrivenPart, ...]
    margin_on_clock: sp.Expr
    score_gap_on_clock: sp.Expr
    ratio: sp.Expr

    @property
    def clocks(self) -> tuple[sp.Eq, sp.Eq]:
        """The output-value and the query-key clock."""
        return self.collapsed.clocks

    @functools.cached_property
    def orbit(self) -> sp.Eq:
        r"""$\tau_k + (m/n)\int_0^{\tau_k} e^\theta = c \int_0^{\tau_v} w$: without time, all separates."""
        tau = sp.Symbol("tau", real=True)
        odds = self.collapsed.odds.subs(self.collapsed.score_gap, self.score_gap_on_clock.subs(TAU_K, tau))
        constant, growing = odds.as_independent(tau, as_Add=False)
        gate = TAU_K + constant * sp.Integral(growing, (tau, 0, TAU_K))
        way = sp.integrate(self.margin_on_clock, TAU_V)
        return sp.Eq(gate, self.ratio * sp.expand(way - way.subs(TAU_V, 0)), evaluate=False)

    @property
    def invariant(self) -> sp.Expr:
        """The difference of the two sides of the orbit, which stays 0."""
        return self.orbit.lhs - self.orbit.rhs

    @property
    def time_map(self) -> sp.Eq:
        r"""$t = C \int_0^{\tau_v} (e^{\alpha w} + K - 1)/\alpha\, d\tau_v$, along the orbit."""
        closed = self.collapsed
        integral = closed.time_map.rhs.atoms(sp.Integral).pop()
        end = sp.Symbol("tau_vt", real=True)
        return sp.Eq(TIME, closed.types * sp.Integral(integral.function, (TAU_V, 0, end)), evaluate=False)

    @property
    def equations(self) -> tuple[sp.Eq, ...]:
        """Attention and error, the clocks, margin and score gap on their clocks, the orbit and the time map."""
        closed, y = self.collapsed, sp.Symbol("y", positive=True)
        lines = (
            (y, closed.odds),
            (closed.attention, y / (1 + y)),
            (LEAD, closed.attention * closed.margin),
            (ERROR, (CLASSES - 1) / (sp.exp(LEAD) + CLASSES - 1)),
        )
        explicit = ((closed.margin, self.margin_on_clock), (closed.score_gap, self.score_gap_on_clock))
        starts = [pair for part in self.parts for pair in zip(part.start, (part.component, part.energy), strict=True)]
        return (
            *(sp.Eq(*line, evaluate=False) for line in (*lines, *starts)),
            *self.clocks,
            *(sp.Eq(*line, evaluate=False) for line in explicit),
            self.orbit,
            self.time_map,
        )

    def latex(self) -> str:
        """The equations as one LaTeX `aligned` environment."""
        from flowsim.theory.printing import latex_lines

        return latex_lines(self.equations)

    def _repr_latex_(self) -> str:
        return f"$\\displaystyle {self.latex()}$"


def two_clocks(flow: Flow, collapsed: ClosedForm) -> TwoClocks:
    """Finds the drives of the factorized parts of an eligible flow.

    Args:
        flow: a flow with factors whose `closed_form_reason` is None.
        collapsed: the closed form of the collapsed flow of the same structure.

    Returns:
        The closed form.
    """
    tau_v, tau_k = (clock.rhs for clock in collapsed.clocks)
    on_clock = {}
    parts = []
    for side, clock, rate, observed, gain in (
        (flow.sides[0], TAU_K, tau_k, collapsed.score_gap, collapsed.gain),
        (flow.sides[1], TAU_V, tau_v, collapsed.margin, sp.Integer(1)),
    ):
        begin = sp.Symbol(f"{observed}_0", real=True)
        if side.circuit.closes:
            on_clock[observed] = begin + gain * clock
            continue
        here = [_driven(flow, part, side, clock, rate, observed) for part in side.matrix.parts if flow.driven(part)]
        parts += here
        on_clock[observed] = begin + sp.Add(*(part.weight * (part.solution - part.start[0]) for part in here))
    ratio = sp.factor(tau_k / tau_v / ((1 - collapsed.attention) * collapsed.margin))
    return TwoClocks(
        collapsed=collapsed,
        parts=tuple(parts),
        margin_on_clock=on_clock[collapsed.margin],
        score_gap_on_clock=on_clock[collapsed.score_gap],
        ratio=ratio,
    )


def _driven(flow: Flow, part: Part, side: Side, clock: sp.Symbol, rate: sp.Expr, observed: sp.Symbol) -> DrivenPart:
    """The drive of one part: minus its gradient over the clock's pace, which must be a constant matrix."""
    symbols = [[block.symbol for block in row] for row in part.blocks]
    pull = sp.Matrix(
        [[-side.rate * bind_single(flow, flow.gradient[b]) / rate for b in row] for row in symbols]
    ).applyfunc(_tidy)
    if pull.free_symbols & {*flow.coordinates.state, ERROR, *(g.attention for g in flow.reduction.groups)}:
        raise AssertionError("an eligible flow drives each part along a fixed direction")
    drive = sp.sqrt(sp.factor(sum(x**2 for x in pull)))
    direction = sp.ImmutableMatrix((pull / drive).applyfunc(_tidy))
    readout = dict(zip(flow.coordinates.state, flow.coordinates.in_blocks, strict=True))[observed]
    weight = sum(sp.diff(readout, b) * x for b, x in zip((b for row in symbols for b in row), pull, strict=True))
    rows, columns = part.shape
    width = side.circuit.width(part)
    state = side.circuit.state(part)
    p = sp.Matrix(rows, width, state[: rows * width])
    q = sp.Matrix(width, columns, state[rows * width :])
    if columns != 1:
        raise AssertionError("the parts of an eligible flow have one column")
    along = direction.T * p
    return DrivenPart(
        name=part.name,
        letter=part.letter,
        clock=clock,
        drive=drive,
        direction=direction,
        weight=_tidy(weight / drive),
        component=(along * q)[0],
        energy=sp.Rational(1, 2) * sum(x**2 for x in (*along, *q)),
    )


def _tidy(expression: sp.Expr) -> sp.Expr:
    return sp.powdenest(sp.factor(sp.powsimp(sp.cancel(sp.together(expression)))), force=True)
