"""Files of the data sets in a folder, and what training makes of them."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowsim import corpora
from flowsim._files import as_path
from flowsim.corpora import Corpus, Example, Vocabulary
from flowsim.errors import FileProblem, InvalidInput
from flowsim.text_training import Texts

if TYPE_CHECKING:
    from flowsim.experiments._table1.settings import TextSettings

END = "[END]"


class _Source(NamedTuple):
    """Where a data set is looked for.

    Attributes:
        read: reads its file.
        patterns: names of the file, the first that exists counts; each also with .gz.
        divisions: names of the file with the official parts, likewise.
        wanted: what to get, for a message.
    """

    read: Callable[..., Corpus]
    patterns: tuple[str, ...]
    divisions: tuple[str, ...]
    wanted: str


_SOURCES = {
    "hatexplain": _Source(
        corpora.hatexplain,
        ("dataset.json", "hatexplain*.json"),
        ("post_id_divisions.json",),
        "dataset.json of HateXplain (JSON: {id: {annotators: [{label}], rationales, post_tokens}}; Mathew et al. 2021, "
        "repository hate-alert/HateXplain), and beside it, for the official parts, post_id_divisions.json",
    ),
    "subject-verb": _Source(
        corpora.subject_verb,
        ("agr_50_mostcommon_10K.tsv", "agr*.tsv", "sva*.tsv"),
        (),
        "agr_50_mostcommon_10K.tsv of Linzen et al. 2016 (tab separated columns sentence, verb_pos, subj_index, "
        "verb_index; repository TalLinzen/rnn_agreement)",
    ),
}
DATASETS = tuple(_SOURCES)


class Prepared(NamedTuple):
    """A data set, ready for training.

    Attributes:
        name: of the data set.
        examples: of the three parts: training, validation, test.
        texts: the same as arrays.
        vocabulary: of the training part.
        classes: the labels in the order of their numbers.
        length: tokens of the longest text.
        origin: what was used, as plain data.
    """

    name: str
    examples: tuple[tuple[Example, ...], ...]
    texts: tuple[Texts, ...]
    vocabulary: Vocabulary
    classes: tuple[str, ...]
    length: int
    origin: dict[str, Any]


def find(folder: str, names: tuple[str, ...]) -> dict[str, tuple[pathlib.Path, pathlib.Path | None]]:
    """The files of data sets, and of their official parts where these are there.

    Args:
        folder: where to look.
        names: of the data sets.

    Raises:
        InvalidInput: if no folder is named.
        FileProblem: naming what is missing, its format and where it comes from.
    """
    every = "; ".join(f"{name}: {_SOURCES[name].wanted}" for name in names)
    if not folder:
        raise InvalidInput(
            f"data is not given; name with --data DIR, or data=, the folder that holds, plain or .gz, {every}."
        )
    path = as_path(folder)
    if not path.is_dir():
        raise FileProblem(f"data={folder!r} is no folder; name the one that holds, plain or .gz, {every}.")
    files = {name: _first(path, _SOURCES[name].patterns) for name in names}
    missing = [name for name in names if files[name] is None]
    if missing:
        wanted = "; ".join(f"{name}: {_SOURCES[name].wanted}" for name in missing)
        there = [name for name in names if name not in missing]
        other = f", or ask for {' and '.join(there)} only, with --dataset or datasets=" if there else ""
        raise FileProblem(
            f"data={folder!r} holds no file for {' and '.join(missing)}; put there, plain or .gz, {wanted}{other}."
        )
    return {name: (file, _first(path, _SOURCES[name].divisions)) for name, file in files.items() if file is not None}


def prepared(settings: "TextSettings") -> list[Prepared]:
    """All data sets of the settings, so that what is wrong with one is told before another is trained on.

    Raises:
        InvalidInput: as `find` and `prepare` do.
        FileProblem: likewise.
    """
    files = find(settings.data, settings.datasets)
    return [prepare(name, *files[name], settings) for name in settings.datasets]


def prepare(name: str, file: pathlib.Path, divisions: pathlib.Path | None, settings: "TextSettings") -> Prepared:
    """Reads, divides and numbers a data set.

    The official parts are used if every one of them has texts in the file; otherwise texts are divided by source.

    Args:
        name: of the data set.
        file: its file.
        divisions: the file of the official parts, or None.
        settings: what to read and how to divide it.

    Raises:
        FileProblem: as the readers do; if the training texts have one label only, or no text of a part is marked.
        InvalidInput: if there is too little to divide.
    """
    corpus = _SOURCES[name].read(file, skip_bad=settings.skip_bad)
    examples = _drawn(corpus.examples, settings.at_most, settings.split_seed)
    corpus, dropped = dataclasses.replace(corpus, examples=examples), len(corpus.examples) - len(examples)
    split, note = None, ""
    if divisions is not None:
        try:
            split = corpora.split(corpus, divisions=divisions)
        except corpora.EmptyPart:
            note = "; the official divisions leave a part without any of these texts"
    if split is None:
        split = corpora.split(corpus, seed=settings.split_seed)
    parts = (split.train, split.val, split.test)
    cut = sum(len(example.tokens) > settings.longest for part in parts for example in part)
    parts = tuple(tuple(_last(example, settings.longest) for example in part) for part in parts)
    _check(file, parts)
    if settings.end_token:
        parts = tuple(tuple(_ended(example) for example in part) for part in parts)
    vocabulary = Vocabulary.of(parts[0], at_least=settings.at_least)
    length = max(len(example.tokens) for part in parts for example in part)
    texts = tuple(Texts.of(part, vocabulary, corpus.labels, length) for part in parts)
    origin = {
        "file": file.name,
        "split": split.how + note,
        "train": len(parts[0]),
        "val": len(parts[1]),
        "test": len(parts[2]),
        "vocabulary": len(vocabulary.words),
        "left_out": {**corpus.left_out, **({f"not drawn (at_most={settings.at_most})": dropped} if dropped else {})},
        "skipped": len(corpus.skipped),
        "cut": cut,
        **_overlaps(parts),
    }
    return Prepared(name, parts, texts, vocabulary, corpus.labels, length, origin)


def _first(folder: pathlib.Path, patterns: tuple[str, ...]) -> pathlib.Path | None:
    for pattern in patterns:
        found = sorted([*folder.glob(pattern), *folder.glob(f"{pattern}.gz")])
        if found:
            return found[0]
    return None


def _drawn(examples: tuple[Example, ...], at_most: int, seed: int) -> tuple[Example, ...]:
    if len(examples) <= at_most:
        return examples
    chosen = np.random.Generator(np.random.PCG64([seed, at_most])).permutation(len(examples))[:at_most]
    return tuple(examples[i] for i in sorted(chosen))


def relevant_tokens(example: Example) -> np.ndarray | None:
    """Which tokens of an example are relevant; None where nobody marked any."""
    return np.array(example.relevant) if example.relevant is not None and any(example.relevant) else None


def _check(file: pathlib.Path, parts: tuple[tuple[Example, ...], ...]) -> None:
    """Refuses parts from which nothing can be learnt, or whose attention cannot be judged."""
    mend = "give more texts, or divide them with another split_seed"
    labels = {example.label for example in parts[0]}
    if len(labels) < 2:
        raise FileProblem(f"file {str(file)!r} has training texts of the label {labels.pop()!r} alone; {mend}.")
    for part, word in ((parts[0], "training"), (parts[2], "test")):
        if all(relevant_tokens(example) is None for example in part):
            raise FileProblem(f"file {str(file)!r} has no {word} text with relevant tokens to attend to; {mend}.")


def _last(example: Example, longest: int) -> Example:
    relevant = None if example.relevant is None else example.relevant[-longest:]
    return dataclasses.replace(example, tokens=example.tokens[-longest:], relevant=relevant)


def _overlaps(parts: tuple[tuple[Example, ...], ...]) -> dict[str, float]:
    """What the numbers of a data set owe to its texts: shares of the test examples."""
    test, known = parts[2], {example.tokens for example in parts[0]}
    marked = [mask for example in test if (mask := relevant_tokens(example)) is not None]
    return {
        "also_training": float(np.mean([example.tokens in known for example in test])),
        "last_relevant": float(np.mean([mask[-1] for mask in marked])),
    }


def _ended(example: Example) -> Example:
    relevant = None if example.relevant is None else (*example.relevant, False)
    return dataclasses.replace(example, tokens=(*example.tokens, END), relevant=relevant)
