"""Training, validation and test examples: as the data set says, or drawn by source."""

import dataclasses
import os
from collections.abc import Sequence

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
        divisions: a file with the official ids of the three parts; examples that it does not name are in none.
        shares: without `divisions`: shares of the sources (posts, sentences, articles) of the three parts, which sum
            to 1.
        seed: of the draw; the same seed and corpus give the same parts on every machine.

    Returns:
        The three parts, each in the order of the corpus. No source is in two of them.

    Raises:
        FileProblem: if the divisions cannot be read; `EmptyPart` if they name none of a part's examples.
        InvalidInput: if shares or seed cannot be used, or the sources are too few.
    """
    if divisions is not None:
        return _official(corpus, divisions)
    values = [_checks.real("shares", value, above=0.0) for value in shares]
    if len(values) != len(_PARTS) or abs(sum(values) - 1) > 1e-9:
        raise InvalidInput(f"shares={tuple(shares)} must be three numbers above 0 that sum to 1.")
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
        raise InvalidInput(f"shares={tuple(shares)} leave no source for {empty[0]} out of {len(sources)}; change them.")
    return Split(*parts, how=f"{len(sources)} sources divided {values[0]:g}/{values[1]:g}/{values[2]:g}, seed {seed}")


def _official(corpus: Corpus, path: str | os.PathLike) -> Split:
    content = json_of(path, _DIVISIONS)
    if not isinstance(content, dict) or any(not isinstance(content.get(name), list) for name in _PARTS):
        raise FileProblem(f"file {str(path)!r} does not list train, val and test; give {_DIVISIONS}.")
    parts = []
    for name in _PARTS:
        wanted = set(content[name])
        part = tuple(example for example in corpus.examples if example.key in wanted)
        if not part:
            raise EmptyPart(
                f"file {str(path)!r} names no {name} example of {corpus.path!r}; divide by source instead of it."
            )
        parts.append(part)
    return Split(*parts, how="official divisions")
