"""SQuAD v1.1 (Rajpurkar et al. 2016): a question, a paragraph, and the span of the paragraph that answers it."""

import os
import re
from typing import Any

from flowsim.corpora._examples import Corpus, Example, collect, json_of, need
from flowsim.errors import FileProblem

_WANTED = "SQuAD v1.1 JSON, {data: [{title, paragraphs: [{context, qas}]}]}"
SEPARATOR = "[SEP]"
_TOKEN = re.compile(r"\w+|[^\w\s]")


def squad(path: str | os.PathLike, *, skip_bad: bool = False) -> Corpus:
    """Reads SQuAD v1.1.

    The tokens are the words and signs of the question, a separator, and those of the paragraph. The span is that of the
    first answer, widened to whole tokens; its tokens are the relevant ones. All answers count for F1 and exact match.

    Args:
        path: the file, plain or .gz.
        skip_bad: go on after a malformed question; what was wrong is in `Corpus.skipped`.

    Returns:
        The questions; the source of each is its article.

    Raises:
        FileProblem: if the file is missing, or a question is malformed, which is named by its place.
    """
    content = json_of(path, _WANTED)
    if not isinstance(content, dict) or not isinstance(content.get("data"), list):
        raise FileProblem(f"file {str(path)!r} has no list 'data'; give {_WANTED}.")
    return collect("squad", path, _questions(content["data"]), _read, skip_bad=skip_bad, wanted=_WANTED)


def _questions(articles: list[Any]):
    """Every question with its place; a broken article or paragraph counts as one bad record."""
    for i, article in enumerate(articles, 1):
        try:
            title, paragraphs = str(article["title"]), list(article["paragraphs"])
        except (KeyError, TypeError):
            yield f"article {i}", (None, None, None)
            continue
        for j, paragraph in enumerate(paragraphs, 1):
            try:
                context, questions = paragraph["context"], list(paragraph["qas"])
            except (KeyError, TypeError):
                yield f"article {i}, paragraph {j}", (None, None, None)
                continue
            for k, question in enumerate(questions, 1):
                yield f"article {i}, paragraph {j}, question {k}", (title, context, question)


def _read(record: tuple[Any, Any, Any]) -> list[Example]:
    title, context, question = record
    need(isinstance(context, str), "it has no text")
    answers = question["answers"]
    need(bool(answers), "it has no answer")
    text, begin = answers[0]["text"], answers[0]["answer_start"]
    end = begin + len(text)
    need(bool(text.strip()), "the answer is empty")
    need(context[begin:end] == text, f"the answer does not stand at answer_start {begin}")
    asked = _TOKEN.findall(question["question"])
    words = list(_TOKEN.finditer(context))
    inside = [i for i, word in enumerate(words) if word.start() < end and word.end() > begin]
    need(bool(inside), "the answer holds no token")
    before = len(asked) + 1
    first, last = before + inside[0], before + inside[-1]
    tokens = (*asked, SEPARATOR, *(word.group() for word in words))
    right = tuple(dict.fromkeys((*(answer["text"] for answer in answers), *question.get("all_answer_texts", ()))))
    relevant = tuple(first <= i <= last for i in range(len(tokens)))
    return [Example(str(question["id"]), title, tokens, relevant=relevant, span=(first, last), answers=right)]
