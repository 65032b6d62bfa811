r"""The coordinates in which the collapsed flow closes: score gaps, margins, never-label logits.

The loss sees the blocks $B$ only through its *readouts* $x = J B$: scores $u_g$, margins $w_g$, rest logits $v_g$. In
the metric $M = \mathrm{diag}(d_\rho)$ of the full matrices the collapsed flow $\dot B = -M^{-1} J^\top \nabla_x L$
gives $\dot x = -(J M^{-1} J^\top) \nabla_x L$ with a constant Gram matrix, the *mobilities*. The softmax sees only
score differences, so the scores are taken relative to one reference group.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false, reportReturnType=false

import dataclasses
import functools
from collections.abc import Mapping
from typing import Literal

import sympy as sp

from flowsim.task import Structure
from flowsim.theory.loss import composition_loss
from flowsim.theory.symbols import GroupSymbols
from flowsim.theory.symmetry import reduce

Kind = Literal["score", "margin", "rest"]
Readout = tuple[Kind, int]


@dataclasses.dataclass(frozen=True)
class Coordinates:
    r"""Readouts of the blocks and the relative coordinates built from them.

    Attributes:
        structure: roles, query and head.
        readouts: (kind, group) -> linear expression in the blocks: score $u_g$ and margin $w_g$ and rest logit $v_g$.
        weights: (kind, group) -> block -> coefficient: the rows of $J$.
        dimensions: block -> $d_\rho$.
        reference: the group whose score the others are measured from.
        state: the relative coordinates: score gaps (first distinct group first), margins, rest logits.
        keys: (kind, group) of each coordinate, aligned with `state`.
    """

    structure: Structure
    readouts: Mapping[Readout, sp.Expr]
    weights: Mapping[Readout, Mapping[sp.Symbol, sp.Expr]]
    dimensions: Mapping[sp.Symbol, sp.Expr]
    reference: int
    state: tuple[sp.Symbol, ...]
    keys: tuple[Readout, ...]

    @functools.cached_property
    def _mobilities(self) -> dict[tuple[Readout, Readout], sp.Expr]:
        return {}

    def mobility(self, one: Readout, other: Readout) -> sp.Expr:
        r"""The entry of $J M^{-1} J^\top$ between two readouts."""
        key = (one, other) if one <= other else (other, one)
        if key not in self._mobilities:
            left, right = self.weights[one], self.weights[other]
            total = sum((left[b] * right[b] / self.dimensions[b] for b in left.keys() & right.keys()), sp.Integer(0))
            self._mobilities[key] = _factor(total)
        return self._mobilities[key]

    @property
    def gaps(self) -> dict[int, sp.Expr]:
        """Group -> score relative to the reference: a coordinate symbol, or 0."""
        groups = reduce(self.structure).groups
        own = {index for kind, index in self.keys if kind == "score"}
        return {g.index: g.gap if g.index in own else sp.Integer(0) for g in groups}

    @property
    def in_blocks(self) -> tuple[sp.Expr, ...]:
        """The relative coordinates as linear expressions in the blocks, aligned with `state`."""
        origin = self.readouts.get(("score", self.reference), sp.Integer(0))
        return tuple(self.readouts[key] - origin if key[0] == "score" else self.readouts[key] for key in self.keys)

    def recover(self, change: Mapping[sp.Symbol, sp.Expr]) -> dict[sp.Symbol, sp.Expr]:
        r"""The change of the blocks that the collapsed flow makes when it changes the coordinates.

        The flow moves the blocks within the row space of $J M^{-1}$, so the change is
        $M^{-1} J^\top (J M^{-1} J^\top)^{-1} \,\delta x$. Without a null group the reference score moves too: the loss
        conserves $\sum_g u_g/\gamma_g$ ($\gamma_g$ the mobility of $u_g$), which fixes it.

        Args:
            change: coordinate -> its change.

        Returns:
            Block -> its change.
        """
        groups = reduce(self.structure).groups
        scored = [g.index for g in groups if not g.is_null]
        gamma = {g: self.mobility(("score", g), ("score", g)) for g in scored}
        gaps = {g: change.get(groups[g].gap, sp.Integer(0)) if self.gaps[g] != 0 else sp.Integer(0) for g in scored}
        drift = sp.Integer(0)
        if not groups[self.reference].is_null:
            drift = -sp.Add(*(gaps[g] / gamma[g] for g in scored)) / sp.Add(*(1 / gamma[g] for g in scored))
        moves: dict[Readout, sp.Expr] = {("score", g): (gaps[g] + drift) / gamma[g] for g in scored}
        for g in scored:
            moves.update(self._forces(g, groups[g], change))
        return {
            block: sp.Add(*(row[block] / dimension * moves[key] for key, row in self.weights.items() if block in row))
            for block, dimension in self.dimensions.items()
        }

    def _forces(self, index: int, group: GroupSymbols, change: Mapping[sp.Symbol, sp.Expr]) -> dict[Readout, sp.Expr]:
        """The forces on the margin and rest logit of one group that would change them as asked."""
        names: dict[Readout, sp.Symbol] = {("margin", index): group.margin, ("rest", index): group.rest}
        keys = [key for key in names if key in self.readouts]
        if not keys:
            return {}
        gram = sp.Matrix([[self.mobility(a, b) for b in keys] for a in keys])
        inverse = gram.inv().applyfunc(sp.factor)
        forces = inverse * sp.Matrix([change[names[key]] for key in keys])
        return dict(zip(keys, forces, strict=True))


@functools.cache
def coordinates(structure: Structure) -> Coordinates:
    """The readouts and relative coordinates of a structure.

    Args:
        structure: roles, query and head.

    Returns:
        Scores come from the query-key matrix, margins and rest logits from what the loss was found to depend on.
    """
    reduction = reduce(structure)
    loss = composition_loss(structure)
    groups = reduction.groups
    readouts: dict[Readout, sp.Expr] = {}
    for g in groups:
        if not g.is_null:
            readouts["score", g.index] = reduction.score(g.index)
    for output in loss.outputs:
        for g, value in output.values.items():
            kind: Kind = "margin" if output.kind == "other" else "rest"
            sign = value.coeff(groups[g].margin if kind == "margin" else groups[g].rest)
            readouts[kind, g] = sp.expand(sign * output.in_blocks[g])
    symbols = {block.symbol for block in reduction.blocks}
    weights = {
        key: {b: _factor(expr.coeff(b)) for b in sorted(expr.free_symbols & symbols, key=str)}
        for key, expr in readouts.items()
    }
    dimensions = {block.symbol: block.dimension for block in reduction.blocks}
    reference = _reference(structure)
    scored = sorted(
        (g.index for g in groups if not g.is_null and g.index != reference),
        key=lambda index: (index != structure.roles.index("distinct"), index),
    )
    keys: list[Readout] = [("score", g) for g in scored]
    keys += [key for key in readouts if key[0] == "margin"]
    keys += [key for key in readouts if key[0] == "rest"]
    names = {"score": "gap", "margin": "margin", "rest": "rest"}
    state = tuple(getattr(groups[g], names[kind]) for kind, g in keys)
    return Coordinates(structure, readouts, weights, dimensions, reference, state, tuple(keys))


def _factor(expression: sp.Expr) -> sp.Expr:
    return sp.factor(expression) if expression.is_Add else expression


def _reference(structure: Structure) -> int:
    """The null group if there is one, else the first common group, else the last distinct one."""
    for role in ("null", "common"):
        if role in structure.roles:
            return structure.roles.index(role)
    return len(structure.roles) - 1
