"""Observables of a reduced state, in the log domain (symbolic counterpart: `flowsim.theory.observables`)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim._logdomain import Softmax, attend, columns, log_mean, softmax
from flowsim.theory.flow import Flow
from flowsim.theory.observables import first_background, first_distinct

# Below this the loss ln(1 + e^a) equals e^a to the last bit of its logarithm.
_TINY = -37.0


class Observables(NamedTuple):
    r"""What is reported of one state.

    Attributes:
        margin: margin $w$ of the first distinct group.
        score_gap: score of the first distinct group minus that of the first background group (common or null, not the
            query).
        log_odds: logit of the mean attention on the first distinct group.
        log_error: $\ln$ of the mean probability of a wrong output.
        log_loss: $\ln$ of the mean cross-entropy.
        margins: of every distinct group, the attended query included.
        scores: of every group, relative to the reference group (the null group if there is one, else the first common,
            else the last distinct group).
        log_attentions: $\ln$ of the mean attention on every group.
    """

    margin: Float[Array, ""]
    score_gap: Float[Array, ""]
    log_odds: Float[Array, ""]
    log_error: Float[Array, ""]
    log_loss: Float[Array, ""]
    margins: Float[Array, " n_distinct"]
    scores: Float[Array, " n_groups"]
    log_attentions: Float[Array, " n_groups"]


class Layout(NamedTuple):
    """Where the observables of a structure sit in its reduced state.

    Attributes:
        gaps: position of each group's score gap, None for gap 0.
        values: for each kind of competing output, each group's relative logit as (position, sign), None for 0.
        margins: positions of the margins.
        distinct: the first distinct group.
        background: the group that its score is measured against.
    """

    gaps: tuple[int | None, ...]
    values: tuple[tuple[tuple[int, int] | None, ...], ...]
    margins: tuple[int, ...]
    distinct: int
    background: int


def layout(flow: Flow) -> Layout:
    """Finds the observables of a flow in its reduced state."""
    groups = flow.reduction.groups
    position = {key: i for i, key in enumerate(flow.coordinates.keys)}
    values = []
    for output in flow.composition.outputs:
        kind, sign = ("margin", -1) if output.kind == "other" else ("rest", 1)
        values.append(tuple((position[kind, g.index], sign) if g.index in output.values else None for g in groups))
    return Layout(
        gaps=tuple(position.get(("score", g.index)) for g in groups),
        values=tuple(values),
        margins=tuple(i for (kind, _), i in position.items() if kind == "margin"),
        distinct=first_distinct(flow.structure),
        background=first_background(flow.structure, flow.coordinates.reference),
    )


def observe(places: Layout, x: Float[Array, " n_reduced"], parameters) -> Observables:
    """Evaluates the observables of one state.

    Args:
        places: where they sit.
        x: the reduced state.
        parameters: a `Parameters`.

    Returns:
        The observables.
    """
    probabilities = parameters.probabilities
    gaps = [x[place] if place is not None else jnp.zeros_like(x[0]) for place in places.gaps]
    logits = tuple(gap + jnp.log(count) for gap, count in zip(gaps, columns(parameters.counts), strict=True))
    attention = softmax(logits)

    wrong = None
    for size, values in zip((parameters.classes - 1, parameters.other_outputs), places.values, strict=False):
        attended = tuple(0.0 if value is None else value[1] * x[value[0]] for value in values)
        logit = attend(attention, attended, 0.0)[0] + jnp.log(size)
        wrong = logit if wrong is None else jnp.logaddexp(wrong, logit)
    assert wrong is not None
    # error = e^a/(1 + e^a), loss = ln(1 + e^a) with a the log odds of being wrong
    tail = jnp.log1p(jnp.exp(-jnp.abs(wrong)))
    log_error = -(jnp.maximum(-wrong, 0.0) + tail)
    loss = jnp.maximum(wrong, 0.0) + tail
    tiny = wrong < _TINY
    log_loss = jnp.where(tiny, wrong, jnp.log(jnp.where(tiny, 1.0, loss)))

    margins = jnp.stack([x[place] for place in places.margins])
    return Observables(
        margin=margins[0],
        score_gap=gaps[places.distinct] - gaps[places.background],
        log_odds=_log_odds(attention, logits, places.distinct, probabilities),
        log_error=log_mean(log_error, probabilities),
        log_loss=log_mean(log_loss, probabilities),
        margins=margins,
        scores=jnp.stack(gaps),
        log_attentions=jnp.stack(
            [log_mean(exponent - jnp.log(attention.total), probabilities) for exponent in attention.exponents]
        ),
    )


def _log_odds(attention: Softmax, logits: tuple[Array, ...], group: int, probabilities: Array) -> Array:
    """Logit of the mean attention on a group: never the logarithm of a difference."""
    others = [g for g in range(len(logits)) if g != group]
    if not others:
        return jnp.full_like(logits[0], jnp.inf).max()
    if probabilities.shape[0] == 1:
        rest = logits[others[0]] if len(others) == 1 else _log_total([logits[g] for g in others])
        return logits[group] - rest
    rest = _log_total([attention.exponents[g] for g in others])
    normalizer = jnp.log(attention.total)
    on, off = attention.exponents[group] - normalizer, rest - normalizer
    return log_mean(on, probabilities) - log_mean(off, probabilities)


def _log_total(logs: list[Array]) -> Array:
    total = logs[0]
    for term in logs[1:]:
        total = jnp.logaddexp(total, term)
    return total
