"""HateXplain (Mathew et al. 2021): posts, three annotators each, rationales per token."""

import collections
import os
from typing import Any

from flowsim.corpora._examples import Corpus, Example, LeftOut, collect, json_of, need
from flowsim.errors import FileProblem

_WANTED = "HateXplain's dataset.json, {id: {post_id, annotators, rationales, post_tokens}}"
_NORMAL = "normal"
_ANNOTATORS = 3
TIE = "the three annotators disagree"


def hatexplain(path: str | os.PathLike, *, skip_bad: bool = False) -> Corpus:
    """Reads HateXplain's `dataset.json`.

    The label is what two or three of the three annotators say; posts on which all three disagree are left out, and
    counted. Relevant are the tokens in any annotator's rationale; a normal post has none: its relevance is None.

    Args:
        path: the file, plain or .gz.
        skip_bad: go on after a malformed record; what was wrong is in `Corpus.skipped`.

    Returns:
        The posts, one source each.

    Raises:
        FileProblem: if the file is missing, or a record is malformed, which is named by its place.
    """
    content = json_of(path, _WANTED)
    if not isinstance(content, dict):
        raise FileProblem(f"file {str(path)!r} holds a {type(content).__name__}; give {_WANTED}.")
    records = ((f"record {number} ({key!r})", (key, post)) for number, (key, post) in enumerate(content.items(), 1))
    return collect("hatexplain", path, records, _read, skip_bad=skip_bad, wanted=_WANTED)


def _read(record: tuple[str, Any]) -> list[Example]:
    key, post = record
    tokens = post["post_tokens"]
    need(isinstance(tokens, list) and bool(tokens), "post_tokens is no list of tokens")
    need(all(isinstance(token, str) and token for token in tokens), "post_tokens holds something that is no token")
    votes = [annotator["label"] for annotator in post["annotators"]]
    need(len(votes) == _ANNOTATORS, f"annotators has {len(votes)} entries, not {_ANNOTATORS}")
    need(all(isinstance(vote, str) for vote in votes), "a label is no text")
    for number, rationale in enumerate(post["rationales"], 1):
        need(len(rationale) == len(tokens), f"rationale {number} has {len(rationale)} entries for {len(tokens)} tokens")
        need(all(mark in (0, 1) for mark in rationale), f"rationale {number} holds something besides 0 and 1")
    label, count = collections.Counter(votes).most_common(1)[0]
    if count == 1:
        raise LeftOut(TIE)
    relevant = None
    if label != _NORMAL and post["rationales"]:
        relevant = tuple(any(marks) for marks in zip(*post["rationales"], strict=True))
    return [Example(key, key, tuple(tokens), label=label, relevant=relevant)]
