r"""What a table or a heat map says about attention and prediction, with exact definitions.

Every function takes NumPy arrays with one entry for each example, so that they serve trained matrices and real data
alike: $a_i \in [0, 1]$, the attention of example $i$ on its relevant (distinct) tokens, and $p_i \in [0, 1]$, the
probability that the model gives to its label. Sums in single precision may end outside by up to $10^{-6}$; such values
count as they are, in the first or the last bin.
"""

from typing import Any

import numpy as np

from flowsim import _validate
from flowsim.errors import InvalidInput

DENOMINATORS = ("confident", "all")
_MOST_BINS = 4096
_ROUNDING = 1e-6  # sums of attention in single precision end that far outside [0, 1]


def dtap(attention: Any, probability: Any, *, bins: int | tuple[int, int] = 10) -> np.ndarray:
    r"""The distinct-token attention-prediction heat map: the share of examples in each bin of attention x probability.

    With $m \times n$ bins of equal width,

    $$ H_{jk} = \frac1N \#\{i : a_i \in [\tfrac jm, \tfrac{j+1}m),\ p_i \in [\tfrac kn, \tfrac{k+1}n)\}, $$

    where the last interval of each axis includes 1. The bins sum to 1.

    Args:
        attention: $a_i$, attention on the relevant tokens, shape `(examples,)`.
        probability: $p_i$, probability of the label, shape `(examples,)`.
        bins: number of bins on both axes, or (of attention, of probability).

    Returns:
        The shares, shape (bins of attention, bins of probability).

    Raises:
        InvalidInput: if the arrays are empty, differ in shape, or hold values outside [0, 1].
    """
    a, p = _pair(attention, probability)
    pair = bins if isinstance(bins, tuple) else (bins, bins)
    if len(pair) != 2:
        raise InvalidInput(f"bins={bins!r} must be one number of bins or two.")
    m, n = (_validate.whole("bins", number, minimum=1, maximum=_MOST_BINS) for number in pair)
    number = _bin(a, m) * n + _bin(p, n)
    return np.bincount(number, minlength=m * n).reshape(m, n) / a.size


def attention_confidence(attention: Any, threshold: Any = 0.5) -> np.ndarray:
    r"""AC: the share of examples that have a large part of the attention on relevant tokens.

    $$ \mathrm{AC}(\tau) = \frac1N \#\{i : a_i \ge \tau\} . $$

    Args:
        attention: $a_i$, shape `(examples,)`.
        threshold: $\tau$, a number or an array of them; the paper's is not stated.

    Returns:
        The shares, in the shape of the thresholds.

    Raises:
        InvalidInput: if an array is empty or holds values outside [0, 1].
    """
    a = _shares("attention", attention)
    return np.mean(a >= _thresholds("threshold", threshold)[..., None], axis=-1)


def attention_model_confidence(
    attention: Any, probability: Any, threshold: Any = 0.5, *, confidence: Any = 0.5, denominator: str = "confident"
) -> np.ndarray:
    r"""ACMC: the share of confidently correct examples that also have a large part of the attention on relevant tokens.

    With $\tau$ the threshold and $\kappa$ the confidence, both inclusive,

    $$ \mathrm{ACMC} = \frac{\#\{i : a_i \ge \tau,\ p_i \ge \kappa\}}{\#\{i : p_i \ge \kappa\}} \quad\text{or}\quad
       \frac{\#\{i : a_i \ge \tau,\ p_i \ge \kappa\}}N . $$

    The paper describes the first: "the percentage of confidently correct instances that also exhibit high attention
    concentration" (section 7). The second counts all examples, so that it also falls when predictions get worse.
    A label with $p_i > 1/2$ is always the predicted one; with a smaller $\kappa$ an example may be counted whose
    prediction is another output.

    Args:
        attention: $a_i$, shape `(examples,)`.
        probability: $p_i$, shape `(examples,)`.
        threshold: $\tau$, a number or an array; the paper's is not stated.
        confidence: $\kappa$, a number or an array that broadcasts with the thresholds; not stated either.
        denominator: `"confident"` or `"all"`.

    Returns:
        The shares, in the broadcast shape of threshold and confidence; NaN where no example is confident and the
        denominator is `"confident"`.

    Raises:
        InvalidInput: if an array is empty or holds values outside [0, 1], or the denominator is unknown.
    """
    a, p = _pair(attention, probability)
    _validate.one_of("denominator", denominator, DENOMINATORS)
    tau, kappa = _thresholds("threshold", threshold), _thresholds("confidence", confidence)
    try:
        tau, kappa = np.broadcast_arrays(tau, kappa)
    except ValueError:
        raise InvalidInput(
            f"confidence has shape {kappa.shape}, which does not broadcast with threshold's {tau.shape}; give a number "
            "or add axes."
        ) from None
    sure = p >= kappa[..., None]
    both = np.sum((a >= tau[..., None]) & sure, axis=-1)
    if denominator == "all":
        return both / a.size
    confident = np.sum(sure, axis=-1)
    return np.divide(both, confident, out=np.full(both.shape, np.nan), where=confident > 0)


def mean_relevant_attention(attention: Any, relevant: Any, present: Any = None) -> float:
    r"""MRTA: the attention on relevant tokens, averaged over examples.

    $$ \mathrm{MRTA} = \frac1N \sum_i \sum_j r_{ij}\, A_{ij}, \qquad \sum_j A_{ij} = 1, $$

    with $A_{ij}$ the attention of example $i$ to position $j$ (of one layer, or rolled out over several) and $r_{ij}$
    1 where the token is relevant, else 0. Examples without a relevant token have no attention that could be right: they
    are refused, since averaging them in would lower the number for a fault of the annotation.

    Args:
        attention: $A$, one row for each example, shape (examples, positions).
        relevant: $r$, booleans or 0 and 1, same shape.
        present: which positions hold a token, same shape; None for all. Padding must have no attention.

    Returns:
        The mean.

    Raises:
        InvalidInput: if shapes differ, a row is no distribution (within 1e-6), an absent position is relevant or
            attended, or a row has no relevant token.
    """
    rows = _validate.numeric_array("attention", attention)
    if rows.ndim != 2 or rows.size == 0:
        raise InvalidInput(f"attention has shape {rows.shape}; give one row of positions for each example.")
    mask = _mask("relevant", relevant, rows.shape)
    _check_range("attention", rows)
    sums = rows.sum(axis=1)
    wrong = np.abs(sums - 1) > _ROUNDING
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InvalidInput(f"attention[{i}] sums to {sums[i]:.9g}; give rows that sum to 1.")
    if present is not None:
        absent = ~_mask("present", present, rows.shape)
        for name, here in (("relevant", mask), ("attended", rows > 0)):
            bad = (absent & here).any(axis=1)
            if bad.any():
                raise InvalidInput(f"present[{int(np.argmax(bad))}] leaves out a position that is {name}; mask it.")
    empty = ~mask.any(axis=1)
    if empty.any():
        raise InvalidInput(f"relevant[{int(np.argmax(empty))}] marks no token; leave such examples out.")
    return float(np.mean(np.sum(rows, axis=1, where=mask)))


def _bin(values: np.ndarray, n: int) -> np.ndarray:
    """Number of the bin of each value: compared with the edges $j/n$, across which $n v$ could round."""
    return np.searchsorted(np.arange(1, n) / n, values, side="right")


def _pair(attention: Any, probability: Any) -> tuple[np.ndarray, np.ndarray]:
    a, p = _shares("attention", attention), _shares("probability", probability)
    if a.shape != p.shape:
        raise InvalidInput(
            f"probability has shape {p.shape} and attention {a.shape}; give one number for each example."
        )
    return a, p


def _shares(name: str, value: Any) -> np.ndarray:
    array = _validate.numeric_array(name, value)
    if array.ndim != 1 or array.size == 0:
        raise InvalidInput(f"{name} has shape {array.shape}; give one number for each example.")
    _check_range(name, array)
    return array


def _check_range(name: str, array: np.ndarray) -> None:
    bad = ~((array >= -_ROUNDING) & (array <= 1 + _ROUNDING))
    if bad.any():
        where = np.unravel_index(int(np.argmax(bad)), array.shape)
        raise InvalidInput(
            f"{name}[{', '.join(map(str, where))}]={array[where]:.9g} is no share; give numbers in [0, 1]."
        )


def _thresholds(name: str, value: Any) -> np.ndarray:
    array = _validate.numeric_array(name, value)
    if array.size == 0:
        raise InvalidInput(f"{name} is empty; give at least one number.")
    if not np.all((array >= 0) & (array <= 1)):
        raise InvalidInput(f"{name}={_validate.show(value)} must lie in [0, 1].")
    return array


def _mask(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    if np.ma.is_masked(value):
        raise InvalidInput(f"{name} has masked entries; fill them with 0 or 1.")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidInput(f"{name} is ragged; give an array of shape {shape}.") from error
    if array.shape != shape:
        raise InvalidInput(f"{name} has shape {array.shape} and attention {shape}; give one mark for each position.")
    if array.dtype.kind not in "buif" or not np.isin(array, (0, 1)).all():
        raise InvalidInput(f"{name} must hold booleans, or 0 and 1.")
    return array.astype(bool)
