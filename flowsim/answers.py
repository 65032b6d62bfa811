"""How well an answer matches, by SQuAD's own rules (Rajpurkar et al. 2016)."""

import collections
import re
import string
from collections.abc import Sequence

from flowsim.errors import InvalidInput

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, then without the articles a, an, the; single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, right: Sequence[str]) -> float:
    """1 if the answer is one of the right ones after normalization, else 0.

    Raises:
        InvalidInput: if there is no right answer.
    """
    return float(any(normalized_answer(answer) == normalized_answer(text) for text in _given(right)))


def answer_f1(answer: str, right: Sequence[str]) -> float:
    r"""The best $F_1 = 2pr/(p+r)$ over the right answers, of the normalized words as multisets.

    Two texts of which one has no word left agree if both have none.

    Raises:
        InvalidInput: if there is no right answer.
    """
    return max(_f1(normalized_answer(answer).split(), normalized_answer(text).split()) for text in _given(right))


def _f1(words: list[str], wanted: list[str]) -> float:
    if not words or not wanted:
        return float(words == wanted)
    shared = sum((collections.Counter(words) & collections.Counter(wanted)).values())
    return 2 * shared / (len(words) + len(wanted))


def _given(right: Sequence[str]) -> Sequence[str]:
    if isinstance(right, str) or not len(right):
        raise InvalidInput(f"right={right!r} must be a list of one answer or more.")
    return right
