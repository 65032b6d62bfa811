r"""What a prediction loses without the tokens that attention points to, and what it keeps with them alone.

Comprehensiveness and sufficiency (DeYoung et al. 2020, ERASER), for the class that is predicted from the whole text:

$$ \mathrm{comp} = p(\hat y\,|\,x) - p(\hat y\,|\,x \setminus r), \qquad
   \mathrm{suff} = p(\hat y\,|\,x) - p(\hat y\,|\,r), $$

where $r$ are the $k$ most important of the $n$ tokens, $k = \lceil s n\rceil$ for a share $s$ and so at least one.
Their means over several shares are the areas over the perturbation curves (AOPC).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from flowsim import _checks
from flowsim.errors import InvalidInput

REMOVALS = ("delete", "mask", "pad")
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
"""ERASER's."""

Predict = Callable[[list[np.ndarray]], Any]
"""From texts, as arrays of token numbers, to the probabilities of the classes, shape (texts, classes)."""


@dataclasses.dataclass(frozen=True)
class Faithfulness:
    """Comprehensiveness and sufficiency of each text.

    Attributes:
        shares: of the tokens that were taken for the explanation.
        comprehensiveness: for each text and share; larger is better.
        sufficiency: for each text and share; smaller is better.
        removal: how tokens were removed.
    """

    shares: tuple[float, ...]
    comprehensiveness: Float[np.ndarray, "texts shares"]
    sufficiency: Float[np.ndarray, "texts shares"]
    removal: str

    @property
    def aopc_comprehensiveness(self) -> float:
        """Mean over texts and shares."""
        return float(self.comprehensiveness.mean())

    @property
    def aopc_sufficiency(self) -> float:
        """Mean over texts and shares."""
        return float(self.sufficiency.mean())


def faithfulness(
    predict: Predict,
    texts: Sequence[Any],
    importance: Sequence[Any],
    *,
    shares: Sequence[float] = SHARES,
    removal: str = "delete",
    replacement: int | None = None,
    always: Sequence[Any] | None = None,
) -> Faithfulness:
    """Comprehensiveness and sufficiency of explanations by the most important tokens.

    Args:
        predict: the model.
        texts: token numbers of each text.
        importance: how important each token is, attention for instance; of equally important ones the earlier counts.
        shares: of the tokens that make an explanation, each above 0 and at most 1; one for a single k.
        removal: `"delete"`: tokens go and later ones move up; `"mask"`: each is replaced by the number of a mask or of
            an unknown word; `"pad"`: by that of padding, for a model that hides padding: the other tokens keep their
            positions.
        replacement: the number that replaces a token; needed unless `removal` is `"delete"`.
        always: for each text which tokens are kept whatever happens (a separator, the question); they are neither
            counted nor removed.

    Returns:
        The two scores of each text at each share.

    Raises:
        InvalidInput: naming the argument, its value and the fix.
    """
    _checks.one_of("removal", removal, REMOVALS)
    if (replacement is None) != (removal == "delete"):
        fix = "leave it away" if removal == "delete" else "give the number that replaces a token"
        raise InvalidInput(f"replacement={replacement} does not go with removal={removal!r}; {fix}.")
    if replacement is not None:
        replacement = _checks.whole("replacement", replacement, minimum=0)
    chosen = tuple(_checks.real("shares", share, above=0.0) for share in shares)
    if not chosen or max(chosen) > 1:
        raise InvalidInput(f"shares={tuple(shares)} must be one number or more, at most 1 each.")
    numbers, scores, kept = _aligned(texts, importance, always)
    whole = _probabilities(predict, numbers)
    guessed = whole.argmax(axis=1)
    rows = np.arange(len(numbers))
    without: list[np.ndarray] = []
    alone: list[np.ndarray] = []
    for share in chosen:
        for text, score, keep in zip(numbers, scores, kept, strict=True):
            inside = _most_important(score, keep, share)
            without.append(_removed(text, inside, replacement))
            alone.append(_removed(text, ~inside & ~keep, replacement))
    left, only = (
        _probabilities(predict, each).reshape(len(chosen), len(numbers), -1)[:, rows, guessed].T
        for each in (without, alone)
    )
    base = whole[rows, guessed][:, None]
    return Faithfulness(chosen, base - left, base - only, removal)


def _aligned(
    texts: Sequence[Any], importance: Sequence[Any], always: Sequence[Any] | None
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    numbers = [np.asarray(text) for text in texts]
    scores = [np.asarray(score, dtype=float) for score in importance]
    kept = [np.zeros(text.shape, dtype=bool) for text in numbers] if always is None else [np.asarray(k) for k in always]
    if not numbers or not len(numbers) == len(scores) == len(kept):
        raise InvalidInput(
            f"there are {len(numbers)} texts, {len(scores)} of importance and {len(kept)} of always; give one for each."
        )
    for i, (text, score, keep) in enumerate(zip(numbers, scores, kept, strict=True)):
        if text.ndim != 1 or text.shape != score.shape or text.shape != keep.shape or keep.dtype != bool:
            raise InvalidInput(
                f"text {i} has shape {text.shape}, its importance {score.shape}, its always {keep.shape} of "
                f"{keep.dtype}; give one number (and one truth value) for each token."
            )
        if not np.isfinite(score).all():
            raise InvalidInput(f"importance[{i}] holds a value that is not finite; replace it.")
        if keep.all():
            raise InvalidInput(f"text {i} has no token that may be removed; leave it away.")
    return numbers, scores, kept


def _most_important(score: np.ndarray, keep: np.ndarray, share: float) -> np.ndarray:
    """Which tokens make the explanation."""
    free = np.flatnonzero(~keep)
    # a product like 0.1 * 30 = 3.0000000000000004 must not become four tokens
    count = max(1, int(np.ceil(round(share * free.size, 9))))
    inside = np.zeros(score.shape, dtype=bool)
    inside[free[np.argsort(-score[free], kind="stable")[:count]]] = True
    return inside


def _removed(text: np.ndarray, gone: np.ndarray, replacement: int | None) -> np.ndarray:
    return text[~gone] if replacement is None else np.where(gone, replacement, text)


def _probabilities(predict: Predict, texts: list[np.ndarray]) -> np.ndarray:
    found = np.asarray(predict(texts), dtype=float)
    if found.ndim != 2 or found.shape[0] != len(texts):
        raise InvalidInput(f"predict returned shape {found.shape} for {len(texts)} texts; return (texts, classes).")
    if not (np.isfinite(found).all() and np.allclose(found.sum(axis=1), 1, atol=1e-3) and (found >= 0).all()):
        raise InvalidInput("predict returned rows that are no probabilities; return values of 0 or more that sum to 1.")
    return found
