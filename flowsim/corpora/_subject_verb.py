"""Subject-verb agreement (Linzen et al. 2016): the sentence up to its verb, the verb's number, the subject."""

import csv
import io
import os
from collections.abc import Iterator

from flowsim.corpora._examples import Corpus, Example, collect, need, text_of
from flowsim.errors import FileProblem

_WANTED = "a table in the columns of Linzen et al.'s agr_50_mostcommon_10K.tsv"
_COLUMNS = ("sentence", "verb_pos", "subj_index", "verb_index")
LABELS = ("VBP", "VBZ")


def subject_verb(path: str | os.PathLike, *, skip_bad: bool = False) -> Corpus:
    """Reads subject-verb dependencies, tab separated with a header; indices count from 1.

    The tokens are those before the verb, the label is the verb's part of speech, VBZ (singular) or VBP (plural), and
    the relevant token is the subject.

    Args:
        path: the file, plain or .gz.
        skip_bad: go on after a malformed record; what was wrong is in `Corpus.skipped`.

    Returns:
        The dependencies; the source of each is its sentence.

    Raises:
        FileProblem: if the file is missing, or a record is malformed, which is named by its line.
    """
    rows = csv.DictReader(io.StringIO(text_of(path, _WANTED), newline=None), delimiter="\t", quoting=csv.QUOTE_NONE)
    missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise FileProblem(f"file {str(path)!r} has no column {missing[0]!r}; give {_WANTED}.")
    return collect("subject-verb", path, _records(rows, path), _read, skip_bad=skip_bad, wanted=_WANTED)


def _records(rows: csv.DictReader, path: str | os.PathLike) -> Iterator[tuple[str, tuple[str, dict[str, str]]]]:
    """Every row with its line."""
    try:
        for row in rows:
            yield f"line {rows.line_num}", (str(rows.line_num), row)
    except csv.Error as error:
        raise FileProblem(f"file {str(path)!r}, line {rows.line_num + 1}: {error}; give {_WANTED}.") from error


def _read(record: tuple[str, dict[str, str]]) -> list[Example]:
    key, row = record
    need(all(row[name] is not None for name in _COLUMNS), "the line is too short")
    words = [word for word in row["sentence"].split(" ") if word]  # a word may hold a space of another kind
    subject, verb = int(row["subj_index"]) - 1, int(row["verb_index"]) - 1
    need(
        0 <= subject < verb < len(words), f"subj_index {subject + 1} and verb_index {verb + 1} do not fit the sentence"
    )
    need(row["verb_pos"] in LABELS, f"verb_pos is {row['verb_pos']!r}, not VBZ or VBP")
    relevant = tuple(i == subject for i in range(verb))
    return [Example(key, row["sentence"], tuple(words[:verb]), label=row["verb_pos"], relevant=relevant)]
