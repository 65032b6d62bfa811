r"""The reduced loss of one composition, from softmax cross-entropy of the matrix entries, and its derivative.

The population loss is the mean over compositions, and so is its gradient. The chain scores -> attention -> logits ->
loss is differentiated link by link, so that attentions and errors keep their names:

$$\ell = \ln\bigl(1 + (K-1) e^{-\Delta} + R e^{\Gamma}\bigr), \qquad \Delta = \sum_g \alpha_g w_g, \quad
  \Gamma = \sum_g \alpha_g v_g.$$
"""

import dataclasses
import functools
from collections.abc import Mapping

import sympy as sp

from flowsim.task import Structure
from flowsim.theory.symbols import CLASSES, ERROR, LEAD, OTHER_OUTPUTS, REST_ERROR, REST_LEAD, GroupSymbols
from flowsim.theory.symmetry import Reduction, reduce

Pair = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Output:
    r"""A kind of output that competes with the label, and what the loss sees of it.

    Attributes:
        kind: `"other"` (the labels of the other classes) or `"rest"` (outputs that are never the label).
        size: how many there are, $K - 1$ or $R$.
        lead: the named intermediate, $\Delta$ or $\Gamma$.
        sign: the logit relative to the label's is `sign * lead`: $-\Delta$ or $\Gamma$.
        error: symbol of the probability that the head puts on all of them, $q$ or $q_R$.
        definition: that probability in $\Delta$ and $\Gamma$; it is the derivative of the loss by the relative logit.
        values: group -> relative logit that one of its tokens gives, $-w_g$ or $v_g$. Groups that give none are absent.
        in_blocks: group -> the same as a linear expression in the blocks.
    """

    kind: str
    size: sp.Expr
    lead: sp.Symbol
    sign: int
    error: sp.Symbol
    definition: sp.Expr
    values: Mapping[int, sp.Expr]
    in_blocks: Mapping[int, sp.Expr]

    @property
    def logit(self) -> sp.Expr:
        """The attended logit relative to the label's."""
        return self.sign * self.lead


@dataclasses.dataclass(frozen=True)
class CompositionLoss:
    r"""The loss of one composition and its derivative.

    Attributes:
        attention: group -> softmax attention as a function of the scores.
        outputs: the kinds of outputs that compete with the label.
        loss: the loss in $\Delta$ and $\Gamma$.
        fluxes: pair $(g, h)$, $g < h$ -> error $q_k$ -> $y_{kh} - y_{kg}$. The *score flux*
            $\phi_{gh} = \alpha_g \alpha_h \sum_k q_k (y_{kh} - y_{kg}) = -\phi_{hg}$ is all the loss gives to scores,
            $\partial \ell/\partial u_g = -\sum_h \phi_{gh}$, and nothing in it cancels when attention saturates. Pairs
            without flux are absent.
        margin_slopes: group -> $\partial \ell/\partial w_g$.
        rest_slopes: group -> $\partial \ell/\partial v_g$.
    """

    attention: Mapping[int, sp.Expr]
    outputs: tuple[Output, ...]
    loss: sp.Expr
    fluxes: Mapping[Pair, Mapping[sp.Symbol, sp.Expr]]
    margin_slopes: Mapping[int, sp.Expr]
    rest_slopes: Mapping[int, sp.Expr]


def score_of(group: GroupSymbols) -> sp.Expr:
    """The score of a group's tokens; null tokens score 0."""
    return sp.Integer(0) if group.is_null else group.score


def attention_of(groups: tuple[GroupSymbols, ...]) -> dict[int, sp.Expr]:
    r"""Softmax over the positions of one sequence, summed over each group: $m_g e^{u_g}/\sum_h m_h e^{u_h}$."""
    weights = {g.index: g.count * sp.exp(score_of(g)) for g in groups}
    partition = sp.Add(*weights.values())
    return {index: weight / partition for index, weight in weights.items()}


@functools.cache
def composition_loss(structure: Structure) -> CompositionLoss:
    """Derives the loss of one composition and its derivative.

    Args:
        structure: roles, query and head.

    Returns:
        The loss, with its derivative written in attentions and errors.
    """
    reduction = reduce(structure)
    groups = reduction.groups
    loss = _cross_entropy(reduction)
    outputs = tuple(_output(reduction, loss, kind) for kind in ("other", "rest")[: len(reduction.ov.rows)])

    fluxes: dict[Pair, dict[sp.Symbol, sp.Expr]] = {}
    slopes: list[dict[int, sp.Expr]] = []
    for output in outputs:
        attended = sp.Add(*(groups[g].attention * value for g, value in output.values.items()))
        names = {g: value.free_symbols.pop() for g, value in output.values.items()}
        slopes.append({g: output.error * sp.diff(attended, name) for g, name in names.items()})
        for pair, difference in attended_slopes(groups, output.values).items():
            fluxes.setdefault(pair, {})[output.error] = -difference
    return CompositionLoss(
        attention=attention_of(groups),
        outputs=outputs,
        loss=loss,
        fluxes=fluxes,
        margin_slopes=slopes[0],
        rest_slopes=slopes[1] if len(slopes) > 1 else {},
    )


def attended_slopes(groups: tuple[GroupSymbols, ...], values: Mapping[int, sp.Expr]) -> dict[Pair, sp.Expr]:
    r"""Differentiates an attended value $\sum_h \alpha_h y_h$ by the scores, in the form that does not cancel.

    The derivative of a softmax, $\partial\alpha_h/\partial u_g = \alpha_h(\delta_{gh} - \alpha_g)$, leaves
    $\alpha_g y_g - \alpha_g \sum_h \alpha_h y_h$, whose terms cancel as attention saturates. Multiplying the first term
    by $\sum_h \alpha_h = 1$ makes it quadratic in the attentions, and collecting their products leaves
    $\alpha_g \sum_h \alpha_h (y_g - y_h)$.

    Args:
        groups: the groups under the softmax.
        values: group -> value $y_g$; 0 where absent.

    Returns:
        Pair $(g, h)$, $g < h$ -> $y_g - y_h$, the factor of $\alpha_g \alpha_h$ in the derivative by $u_g$, and minus
        that in the derivative by $u_h$. Pairs where it is 0 are absent.
    """
    attention = attention_of(groups)
    log_partition = sp.log(sp.Add(*(g.count * sp.exp(score_of(g)) for g in groups)))
    alphas = [g.attention for g in groups]
    one = sp.Add(*alphas)
    slopes: dict[Pair, sp.Expr] = {}
    for g in groups:
        if g.is_null:
            continue
        # d ln alpha_h / d u_g, with d ln(partition)/d u_g recognized as alpha_g
        recognized = g.attention * _ratio(sp.diff(log_partition, g.score), attention[g.index])
        derivative = sum(
            value * groups[h].attention * (sp.diff(score_of(groups[h]), g.score) * one - recognized)
            for h, value in values.items()
        )
        for powers, value in sp.Poly(derivative, *alphas).terms():
            if value == 0:
                continue
            members = [i for i, power in enumerate(powers) for _ in range(power)]
            h = members[1] if members[0] == g.index else members[0]
            if g.index not in members or h == g.index or len(members) != 2:
                raise AssertionError("a softmax derivative must be alpha_g times the other attentions")
            pair, sign = ((g.index, h), 1) if g.index < h else ((h, g.index), -1)
            if slopes.setdefault(pair, sign * value) != sign * value:
                raise AssertionError("the terms of a pair of groups must be opposite")
    return slopes


def _cross_entropy(reduction: Reduction) -> sp.Expr:
    """Softmax cross-entropy with the own label's logit shifted to 0, which changes no probability."""
    own, other, rest = sp.symbols("z_own z_other z_rest", real=True)
    partition = sp.exp(own) + (CLASSES - 1) * sp.exp(other)
    if reduction.rest is not None:
        partition += OTHER_OUTPUTS * sp.exp(rest)
    return (sp.log(partition) - own).subs({own: 0, other: -LEAD, rest: REST_LEAD})


def _output(reduction: Reduction, loss: sp.Expr, kind) -> Output:
    size, lead, sign, error = (
        (CLASSES - 1, LEAD, -1, ERROR) if kind == "other" else (OTHER_OUTPUTS, REST_LEAD, 1, REST_ERROR)
    )
    values: dict[int, sp.Expr] = {}
    in_blocks: dict[int, sp.Expr] = {}
    for g in reduction.groups:
        relative = sp.expand(reduction.logit(g.index, kind) - reduction.logit(g.index, "own"))
        if relative != 0:
            values[g.index] = -g.margin if kind == "other" else g.rest
            in_blocks[g.index] = relative
    return Output(kind, size, lead, sign, error, sign * sp.diff(loss, lead), values, in_blocks)


def _ratio(derivative: sp.Expr, definition: sp.Expr) -> sp.Expr:
    """The number by which a derivative differs from a named intermediate's definition."""
    ratio = derivative / definition
    if not ratio.is_number:
        ratio = sp.cancel(ratio)
    if not ratio.is_number:
        raise AssertionError(f"{derivative} is no multiple of {definition}")
    return ratio
