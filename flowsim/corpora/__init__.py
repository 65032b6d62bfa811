"""Real texts with token-level relevance, read from the official formats of their data sets.

`hatexplain`, `subject_verb` and `squad` read a file, plain or .gz, into a `Corpus` of examples: tokens, a label or a
span, and which tokens are relevant. Nothing is downloaded and no text is printed. Names are loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowsim.corpora._examples import Corpus, Example
    from flowsim.corpora._hatexplain import hatexplain
    from flowsim.corpora._split import EmptyPart, Split, split
    from flowsim.corpora._squad import squad
    from flowsim.corpora._subject_verb import subject_verb
    from flowsim.corpora._vocabulary import Vocabulary

# public name -> its module
_HOME = {
    "Corpus": "_examples",
    "EmptyPart": "_split",
    "Example": "_examples",
    "Split": "_split",
    "Vocabulary": "_vocabulary",
    "hatexplain": "_hatexplain",
    "split": "_split",
    "squad": "_squad",
    "subject_verb": "_subject_verb",
}

__all__ = ["Corpus", "EmptyPart", "Example", "Split", "Vocabulary", "hatexplain", "split", "squad", "subject_verb"]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
