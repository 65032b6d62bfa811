r"""The flow: what a parameterization does to a structure under gradient flow, by differentiation of the loss.

Time already contains $\eta_{OV}$, so the output-value circuit moves at rate 1 and the query-key circuit at rate $r$.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false

import dataclasses
import functools
import types
from collections.abc import Mapping

import sympy as sp

from flowsim._checks import show
from flowsim.errors import InvalidInput
from flowsim.task import Structure, Task
from flowsim.theory import circuits
from flowsim.theory.closed_form import ClosedForm, closed_form, why_no_closed_form
from flowsim.theory.coordinates import Coordinates, Readout, coordinates
from flowsim.theory.invariants import Invariant, conserved_quantities
from flowsim.theory.loss import CompositionLoss, Pair, composition_loss
from flowsim.theory.printing import flow_text, latex_lines, readable
from flowsim.theory.symbols import Mean
from flowsim.theory.symmetry import Part, Reduction, reduce
from flowsim.theory.two_clocks import TwoClocks, two_clocks

# The flow that closes in margin and score gap; its clocks are those of every parameterization.
COLLAPSED = "CACO"


@dataclasses.dataclass(frozen=True)
class Flow:
    """The symbolic gradient flow of one structure and parameterization.

    Sizes, counts, probabilities and the learning-rate ratio stay symbols: one flow serves every task of the structure.
    Two flows are equal when structure and parameterization are.

    Attributes:
        structure: roles of the groups, query and head.
        parameterization: four letters, for instance `"CACO"`.
        hidden: hidden sizes of factorized parts, by name, where they are not the default.
    """

    structure: Structure
    parameterization: str
    hidden: circuits.Hidden = ()

    @functools.cached_property
    def sides(self) -> tuple[circuits.Side, circuits.Side]:
        """Both circuits with their matrices and learning rates, query-key first."""
        pair = circuits.parameterization(self.parameterization, self.hidden)
        return pair.sides(self.reduction.qk, self.reduction.ov)

    @property
    def closes(self) -> bool:
        """Whether the flow closes in the relative coordinates that the loss sees: both circuits are collapsed."""
        return all(side.circuit.closes for side in self.sides)

    @functools.cached_property
    def reduction(self) -> Reduction:
        """The two circuits in symmetric blocks."""
        return reduce(self.structure)

    @functools.cached_property
    def coordinates(self) -> Coordinates:
        """What the loss reads off the blocks, and the coordinates in which the collapsed flow closes."""
        return coordinates(self.structure)

    @functools.cached_property
    def composition(self) -> CompositionLoss:
        """The loss of one composition and its derivative."""
        return composition_loss(self.structure)

    @functools.cached_property
    def fluxes(self) -> Mapping[Pair, tuple[sp.Symbol, sp.Expr]]:
        r"""Pair of groups -> name and definition of the mean score flux $F_{gh}$ from the second to the first."""
        groups = self.reduction.groups
        return types.MappingProxyType(
            {
                (g, h): (
                    sp.Symbol(f"F_{groups[g].tag}{groups[h].tag}", real=True),
                    sp.Add(
                        *(
                            difference * Mean(groups[g].attention * groups[h].attention * error)
                            for error, difference in terms.items()
                        )
                    ),
                )
                for (g, h), terms in self.composition.fluxes.items()
            }
        )

    @functools.cached_property
    def slopes(self) -> Mapping[Readout, sp.Expr]:
        """Derivative of the population loss by each readout, in score fluxes and means."""
        slopes: dict[Readout, sp.Expr] = {key: sp.Integer(0) for key in self.coordinates.readouts}
        for (g, h), (flux, _) in self.fluxes.items():
            for group, sign in ((g, -1), (h, 1)):
                if ("score", group) in slopes:
                    slopes["score", group] += sign * flux
        for g, slope in self.composition.margin_slopes.items():
            slopes["margin", g] = _mean(slope)
        for g, slope in self.composition.rest_slopes.items():
            slopes["rest", g] = _mean(slope)
        return types.MappingProxyType(slopes)

    @functools.cached_property
    def gradient(self) -> Mapping[sp.Symbol, sp.Expr]:
        r"""Block -> $G = (1/d_\rho)\, \partial L/\partial B$, the gradient in the metric of the full matrices."""
        weights = self.coordinates.weights
        return types.MappingProxyType(
            {
                block.symbol: sp.Add(
                    *(row[block.symbol] * self.slopes[key] for key, row in weights.items() if block.symbol in row)
                )
                / block.dimension
                for block in self.reduction.blocks
            }
        )

    @functools.cached_property
    def block_velocity(self) -> Mapping[sp.Symbol, sp.Expr]:
        """State symbol of the circuits (block or factor) -> its time derivative, in score fluxes and means."""
        velocity: dict[sp.Symbol, sp.Expr] = {}
        for matrix, circuit, rate in self.sides:
            for part in matrix.parts:
                moved = circuit.velocity(part, self.gradient, rate)
                velocity.update(zip(circuit.state(part), moved, strict=True))
        return types.MappingProxyType(velocity)

    @functools.cached_property
    def block_values(self) -> Mapping[sp.Symbol, sp.Expr]:
        """Block -> what it is in the state of its circuit: itself, or a product of factors."""
        values: dict[sp.Symbol, sp.Expr] = {}
        for matrix, circuit, _ in self.sides:
            for part in matrix.parts:
                values.update(circuit.blocks(part))
        return types.MappingProxyType(values)

    def driven(self, part: Part) -> bool:
        """Whether the loss pulls on a part of a matrix at all."""
        return any(self.gradient[block.symbol] != 0 for row in part.blocks for block in row)

    @property
    def factorized_parts(self) -> tuple[tuple[Part, circuits.Side], ...]:
        """The parts that move as products of factors, in order."""
        return tuple(
            (part, side)
            for side in self.sides
            if not side.circuit.closes
            for part in side.matrix.parts
            if self.driven(part)
        )

    @functools.cached_property
    def velocity(self) -> Mapping[sp.Symbol, sp.Expr]:
        """The closed system: what moves -> its time derivative, in score fluxes, means and factors.

        A collapsed circuit closes in the relative coordinates: the readouts are linear in the blocks, so each velocity
        is that of the blocks seen through the readout. A factorized circuit closes in the factors of its driven parts.
        """
        velocity: dict[sp.Symbol, sp.Expr] = {}
        for side in self.sides:
            if side.circuit.closes:
                velocity.update(self._relative_velocity(side.matrix.circuit))
                continue
            for part in side.matrix.parts:
                if self.driven(part):
                    velocity.update((symbol, self.block_velocity[symbol]) for symbol in side.circuit.state(part))
        return types.MappingProxyType(velocity)

    def _relative_velocity(self, circuit: str) -> dict[sp.Symbol, sp.Expr]:
        velocity = {}
        blocks, places = self.block_velocity, self.coordinates
        for symbol, (kind, _), expression in zip(places.state, places.keys, places.in_blocks, strict=True):
            if (kind == "score") != (circuit == "qk"):
                continue
            moved = sp.Add(*(sp.diff(expression, b) * blocks[b] for b in expression.free_symbols & blocks.keys()))
            terms = self.linear_terms(moved)
            velocity[symbol] = sp.Add(*(_sum_of_rates(coefficient) * mover for mover, coefficient in terms.items()))
        return velocity

    def linear_terms(self, expression: sp.Expr) -> dict[sp.Expr, sp.Expr]:
        """An expression that is linear in score fluxes and means, term by term.

        Args:
            expression: a velocity or a component of the gradient.

        Returns:
            Score flux or mean -> its coefficient.
        """
        fluxes = {flux for flux, _ in self.fluxes.values()} & expression.free_symbols
        stand_ins = {mover: sp.Dummy() for mover in sorted(fluxes | expression.atoms(Mean), key=str)}
        plain = expression.xreplace(stand_ins)
        terms = {mover: sp.diff(plain, stand_in) for mover, stand_in in stand_ins.items()}
        return {mover: coefficient for mover, coefficient in terms.items() if coefficient != 0}

    @functools.cached_property
    def definitions(self) -> tuple[tuple[sp.Symbol, sp.Expr], ...]:
        """The named intermediates in order: attentions, relative logits, errors, score fluxes."""
        groups, loss = self.reduction.groups, self.composition
        relative = {g.score: gap for g, gap in zip(groups, self.coordinates.gaps.values(), strict=True)}
        named = [(g.attention, loss.attention[g.index].xreplace(relative)) for g in groups]
        for output in loss.outputs:
            attended = sp.Add(*(groups[g].attention * value for g, value in output.values.items()))
            named.append((output.lead, output.sign * attended))
        named += [(output.error, output.definition) for output in loss.outputs]
        return (*named, *self.fluxes.values())

    @functools.cached_property
    def equations(self) -> tuple[sp.Eq, ...]:
        """The closed system as a paper would print it: named intermediates, then one line for each coordinate."""
        return readable(self)

    @functools.cached_property
    def conserved(self) -> tuple[Invariant, ...]:
        """What the flow conserves: linear and (of factors) quadratic laws, and the orbit where there is one."""
        return conserved_quantities(self)

    @functools.cached_property
    def closed_form(self) -> ClosedForm | TwoClocks | None:
        """The two-clock solution of tasks with one distinct and one background group, or None."""
        if self.closed_form_reason is not None:
            return None
        if self.closes:
            return closed_form(self)
        return two_clocks(self, closed_form(derive(self.structure, COLLAPSED)))

    @property
    def closed_form_reason(self) -> str | None:
        """The sentence that says why there is no closed form, or None when there is one."""
        return why_no_closed_form(self.structure)

    def latex(self) -> str:
        """The equations as one LaTeX `aligned` environment."""
        return latex_lines(self.equations)

    def _repr_latex_(self) -> str:
        return f"$\\displaystyle {self.latex()}$"

    def __str__(self) -> str:
        return flow_text(self)

    def __repr__(self) -> str:
        hidden = f", hidden={dict(self.hidden)}" if self.hidden else ""
        return f"Flow({self.structure}, {self.parameterization!r}{hidden})"


def derive(
    task: Task | Structure, parameterization: str = "CACO", *, hidden: int | Mapping[str, int] | None = None
) -> Flow:
    """Derives the gradient-flow ODEs of a task.

    Args:
        task: a task, or just its structure; the flow depends on nothing else.
        parameterization: which circuits are collapsed and which factorized.
        hidden: hidden size of the factors of every part (`"qk_standard"`, `"qk_trivial"`, `"ov_standard"`,
            `"ov_trivial"`) of a factorized circuit: one number or a number by part; by default the smallest that holds
            every matrix, the smaller side of the part (1, but for `"ov_trivial"` of the vocabulary head).

    Returns:
        The symbolic flow, cached for each structure.

    Raises:
        InvalidInput: if `task` is neither, the parameterization is unknown, or a hidden size cannot be used.
    """
    structure = task.structure if isinstance(task, Task) else task
    if not isinstance(structure, Structure):
        raise InvalidInput(f"task={show(task)} must be a flowsim.Task (or its structure).")
    if "distinct" not in structure.roles:
        raise InvalidInput(f"task={show(task)} has no distinct group, so nothing names the class; add one.")
    name = circuits.parameterization(parameterization).name
    reduction = reduce(structure)
    return _derive(structure, name, circuits.hidden_sizes(name, reduction.qk, reduction.ov, hidden))


@functools.cache
def _derive(structure: Structure, parameterization: str, hidden: circuits.Hidden) -> Flow:
    return Flow(structure, parameterization, hidden)


def _mean(term: sp.Expr) -> sp.Expr:
    """The mean over compositions of a number times intermediates."""
    number, rest = term.as_coeff_Mul()
    return number * Mean(rest)


def _sum_of_rates(coefficient: sp.Expr) -> sp.Expr:
    """A coefficient as a sum of simple fractions, $r (1/C + 1/D)/K$ rather than $r (C + D)/(C D K)$."""
    numerator, denominator = sp.fraction(sp.factor(coefficient))
    return sp.factor_terms(sp.Add(*(term / denominator for term in sp.Add.make_args(sp.expand(numerator)))))
