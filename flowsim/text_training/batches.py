"""Texts as arrays, and the order in which a training sees them: batches of texts of about one length."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from flowsim import _checks
from flowsim.corpora import Example, Vocabulary
from flowsim.errors import InvalidInput

_EDGES = (0.5, 0.8, 0.95, 1.0)  # shares of the texts that the widths let in
_STEP = 8  # widths are multiples of it, so that few shapes compile
_SCORES = 2**24  # of a head, that are held at once where texts are only read: 64 MiB in single precision


class Texts(NamedTuple):
    """Texts with a label each.

    Attributes:
        tokens: numbers of the words, at the right end of each row.
        sizes: how many of a row are tokens.
        labels: number of the class.
    """

    tokens: Int[np.ndarray, "texts length"]
    sizes: Int[np.ndarray, " texts"]
    labels: Int[np.ndarray, " texts"]

    @classmethod
    def of(cls, examples: Sequence[Example], vocabulary: Vocabulary, classes: Sequence[str], length: int) -> "Texts":
        """The arrays of some examples.

        Args:
            examples: with labels.
            vocabulary: of the training examples.
            classes: the labels, in the order of their numbers.
            length: tokens of a row; longer texts lose their beginning.

        Raises:
            InvalidInput: if there is no example, or one has a label that is no class.
        """
        if not examples:
            raise InvalidInput("there is no text; give at least one example.")
        number = {label: i for i, label in enumerate(classes)}
        for example in examples:
            if example.label not in number:
                raise InvalidInput(
                    f"example {example.key!r} has label {example.label!r}; give one of {', '.join(classes)}."
                )
        labels = np.array([number[str(example.label)] for example in examples], dtype=np.int32)
        return cls(*vocabulary.numbers(examples, length), labels)

    @property
    def widths(self) -> tuple[int, ...]:
        """Lengths to which texts are cut on the left, so that little padding is computed; the last one holds all."""
        longest = self.tokens.shape[1]
        edges = np.quantile(self.sizes, _EDGES, method="higher")
        return tuple(sorted({min(longest, -(-int(max(edge, 1)) // _STEP) * _STEP) for edge in edges}))


class Order(NamedTuple):
    """The batches of an epoch.

    Attributes:
        width: which of the widths each batch has; the same for all runs, so that they go side by side.
        rows: numbers of the texts of each batch.
        weights: 1 for each text of a batch, 0 for what fills up its last places.
    """

    width: Int[np.ndarray, " steps"]
    rows: Int[np.ndarray, "*runs steps batch"]
    weights: Float[np.ndarray, "steps batch"]


def side_by_side(most: int, longest: int) -> int:
    """How many texts are read at once, at least one: fewer than `most` where they are long.

    Args:
        most: if they are short.
        longest: tokens of the longest.
    """
    return max(1, min(most, _SCORES // longest**2))


def words(name: str, values: np.ndarray, count: int) -> None:
    """Refuses what is no number of a word or class: compiled code would take the nearest one in silence.

    Args:
        name: of the values, for the message.
        values: the numbers.
        count: how many words or classes there are.

    Raises:
        InvalidInput: if one is no whole number from 0 to `count - 1`.
    """
    if values.size and not (np.issubdtype(values.dtype, np.integer) and 0 <= values.min() <= values.max() < count):
        raise InvalidInput(f"{name}={_checks.show(values)} must hold whole numbers from 0 to {count - 1}.")


def in_order(sizes: Int[np.ndarray, " texts"], widths: Sequence[int], batch: int) -> Order:
    """Every text once, the short ones first: for evaluation."""
    return _order(sizes, widths, batch, [_alone], _alone)


def shuffled(
    sizes: Int[np.ndarray, " texts"], widths: Sequence[int], batch: int, seeds: Sequence[int], epoch: int
) -> Order:
    """Every text once, in batches of texts of about one length, drawn anew for each epoch.

    Args:
        sizes: tokens of each text.
        widths: the lengths that rows are cut to, increasing.
        batch: texts of a step.
        seeds: of the runs, which see different batches; the order of the widths is common to all seeds.
        epoch: number of the epoch.

    Returns:
        The batches, `rows` with a leading axis over the runs.
    """
    draws = [np.random.Generator(np.random.PCG64([seed, epoch])).permutation for seed in seeds]
    return _order(sizes, widths, batch, draws, np.random.Generator(np.random.PCG64([epoch])).permutation)


def _alone(items: np.ndarray) -> np.ndarray:
    return items


def _order(sizes: np.ndarray, widths: Sequence[int], batch: int, draws: Sequence, arrange) -> Order:
    batch = _checks.whole("batch", batch, minimum=1)
    if sizes.max() > widths[-1]:
        raise InvalidInput(f"a text has {sizes.max()} tokens, more than the largest width, {widths[-1]}; widen it.")
    bins = np.searchsorted(widths, sizes)
    batch = min(batch, int(np.bincount(bins).max()))  # places that no batch fills would cost time and memory
    width, rows, weights = [], [], []
    for number in range(len(widths)):
        inside = np.flatnonzero(bins == number)
        if not inside.size:
            continue
        steps = -(-inside.size // batch)
        filled = np.zeros(steps * batch)
        filled[: inside.size] = 1
        drawn = np.stack([np.resize(draw(inside), steps * batch) for draw in draws])
        width += [number] * steps
        weights.append(filled.reshape(steps, batch))
        rows.append(drawn.reshape(-1, steps, batch))
    chosen = arrange(np.arange(len(width)))
    return Order(
        np.array(width, dtype=np.int32)[chosen],
        np.concatenate(rows, axis=1)[:, chosen].astype(np.int32),
        np.concatenate(weights)[chosen].astype(np.float32),
    )
