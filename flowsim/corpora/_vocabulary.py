"""Words and their numbers."""

import collections
import dataclasses
from collections.abc import Iterable

import numpy as np
from jaxtyping import Int

from flowsim import _checks
from flowsim.corpora._examples import Example
from flowsim.errors import InvalidInput

PADDING, UNKNOWN = "[PAD]", "[UNK]"


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The words of a training split.

    Attributes:
        words: by number; the first two stand for padding and for words that are not listed.
    """

    words: tuple[str, ...]

    @classmethod
    def of(cls, examples: Iterable[Example], *, at_least: int = 1) -> "Vocabulary":
        """All words that occur so often, the most frequent first, equally frequent ones in alphabetical order.

        Raises:
            InvalidInput: if there is none.
        """
        at_least = _checks.whole("at_least", at_least, minimum=1)
        counts = collections.Counter(token for example in examples for token in example.tokens)
        kept = [word for word, count in counts.items() if count >= at_least and word not in (PADDING, UNKNOWN)]
        if not kept:
            raise InvalidInput(f"at_least={at_least} leaves no word; give a smaller number or more examples.")
        return cls((PADDING, UNKNOWN, *sorted(kept, key=lambda word: (-counts[word], word))))

    def numbers(self, examples: Iterable[Example], length: int) -> tuple[Int[np.ndarray, "n length"], np.ndarray]:
        """Numbers of the tokens, at the right end of rows of one length, and the lengths themselves.

        A text that is longer loses its beginning: what is predicted stands at the end.

        Args:
            examples: n texts.
            length: tokens of a row.

        Returns:
            The numbers, padded on the left, and how many of each row are tokens. Spans count from the first token of
            a text, not of its row.
        """
        length = _checks.whole("length", length, minimum=1)
        index = {word: number for number, word in enumerate(self.words) if word != PADDING}  # a text hides nothing
        texts = [[index.get(token, 1) for token in example.tokens[-length:]] for example in examples]
        rows = np.zeros((len(texts), length), dtype=np.int32)
        for row, text in zip(rows, texts, strict=True):
            row[length - len(text) :] = text
        return rows, np.array([len(text) for text in texts], dtype=np.int32)
