"""Training, validation and test examples: as the data set says, or drawn by source."""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowsim import _checks
from flowsim.corpora._examples import Corpus, Example, json_of
from flowsim.errors import FileProblem, InvalidInput

_PARTS = ("train", "val", "test")
_DIVISIONS = "HateXplain's post_id_divisions.json, {train, val, test: lists of ids}"


class EmptyPart(FileProblem):
    """Official divisions that leave a part without any text of the corpus."""


@dataclasses.dataclass(frozen=True)
class Split:
    """Examples for training, validation and test.

    Attributes:
        train: to learn from.
        val: to choose settings and the stopping time with.
        test: to report on.
        how: how they were divided, in words.
    """

    train: tuple[Example, ...]
    val: tuple[Example, ...]
    test: tuple[Example, ...]
    how: str


def split(
    corpus: Corpus,
    *,
    divisions: str | os.PathLike | None = None,
    shares: Sequence[float] = (0.8, 0.1, 0.1),
    seed: int = 0,
) -> Split:
    """Divides a corpus.

    Args:
        corpus: what a reader returned.
        divisions: a file with the official ids of the three parts; examples that it does not name are in none, and
            `Split.how` says how many.
        shares: without `divisions`: shares of the sources (posts, sentences, articles) of the three parts, which sum
            to 1.
        seed: of the draw; the same seed and corpus give the same parts on every machine.

    Returns:
        The three parts, each in the order of the corpus. No source is in two of them.

    Raises:
        FileProblem: if the divisions cannot be read, or name an id in two parts; `EmptyPart` if they name none of a
            part's examples.
        InvalidInput: if shares or seed cannot be used, or the sources are too few.
    """
    if divisions is not None:
        return _official(corpus, divisions)
    values = [_checks.real("shares", value, above=0.0) for value in _checks.listing("shares", shares, "numbers")]
    if len(values) != len(_PARTS) or abs(sum(values) - 1) > 1e-9:
        raise InvalidInput(f"shares={_checks.show(shares)} must be three numbers above 0 that sum to 1.")
    seed = _checks.whole("seed", seed, minimum=0)
    sources = sorted({example.source for example in corpus.examples})
    drawn = np.random.Generator(np.random.PCG64(seed)).permutation(len(sources))
    ends = np.round(np.cumsum([0.0, *values]) * len(sources)).astype(int)
    part_of = {sources[drawn[i]]: part for part in range(len(_PARTS)) for i in range(ends[part], ends[part + 1])}
    parts = [
        tuple(example for example in corpus.examples if part_of[example.source] == part) for part in range(len(_PARTS))
    ]
    empty = [name for name, part in zip(_PARTS, parts, strict=True) if not part]
    if empty:
        raise InvalidInput(
            f"shares={_checks.show(shares)} of {len(sources)} sources leave none for {empty[0]}; give more texts."
        )
    return Split(*parts, how=f"{len(sources)} sources divided {values[0]:g}/{values[1]:g}/{values[2]:g}, seed {seed}")


def _official(corpus: Corpus, path: str | os.PathLike) -> Split:
    content = json_of(path, _DIVISIONS)
    if not isinstance(content, dict) or not all(_texts(content.get(name)) for name in _PARTS):
        raise FileProblem(f"file {str(path)!r} does not list train, val and test; give {_DIVISIONS}.")
    wanted = {name: set(content[name]) for name in _PARTS}
    for one, other in itertools.combinations(_PARTS, 2):
        if twice := wanted[one] & wanted[other]:
            raise FileProblem(
                f"file {str(path)!r} names {min(twice)!r} in both {one} and {other}; leave each id in one part only."
            )
    parts = [tuple(example for example in corpus.examples if example.key in wanted[name]) for name in _PARTS]
    for name, part in zip(_PARTS, parts, strict=True):
        if not part:
            raise EmptyPart(
                f"file {str(path)!r} names no {name} example of {corpus.path!r}; divide by source instead of it."
            )
    unnamed = len(corpus.examples) - sum(map(len, parts))
    return Split(*parts, how="official divisions" + (f", which leave {unnamed} texts in no part" if unnamed else ""))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
