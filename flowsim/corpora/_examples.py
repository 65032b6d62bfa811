"""What every reader returns, and how a bad record is named."""

import dataclasses
import gzip
import json
import os
import pathlib
import zlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from flowsim import _checks
from flowsim._files import as_path
from flowsim.errors import FileProblem

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Example:
    """One text.

    Attributes:
        key: what the data set calls it.
        source: the post, sentence or article it is from; examples of one source belong in one split.
        tokens: what the model reads.
        label: the class; None where a span is asked for.
        relevant: for each token whether annotators hold it relevant; None where nobody said so.
        span: first and last token of the answer, both included; None where a class is asked for.
        answers: all answers that count as right, as texts.
    """

    key: str
    source: str
    tokens: tuple[str, ...]
    label: str | None = None
    relevant: tuple[bool, ...] | None = None
    span: tuple[int, int] | None = None
    answers: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Examples of one file.

    Attributes:
        name: the data set.
        path: the file.
        examples: in the order of the file.
        labels: the classes, sorted; empty where spans are asked for.
        left_out: how many records were left out on purpose, by reason (a tie between annotators, say).
        skipped: what was wrong with each record that was passed over.
    """

    name: str
    path: str
    examples: tuple[Example, ...]
    labels: tuple[str, ...]
    left_out: dict[str, int]
    skipped: tuple[str, ...]


class BadRecord(Exception):
    """A record that does not have the format; the message says what is wrong with it."""


class LeftOut(Exception):
    """A record in good order that the data set's own rules leave out; the message is the reason."""


def collect(
    name: str,
    path: str | os.PathLike,
    records: Iterable[tuple[str, T]],
    read: Callable[[T], Iterable[Example]],
    *,
    skip_bad: bool,
    wanted: str,
) -> Corpus:
    """Reads records one by one.

    Args:
        name: of the data set.
        path: of its file.
        records: where each stands in the file, in words, and the record.
        read: from a record to its examples; raises `BadRecord` or `LeftOut`.
        skip_bad: go on after a bad record.
        wanted: what the file should be, for the message when nothing is in it.

    Raises:
        FileProblem: naming file, place and what is wrong; or that nothing could be used.
    """
    skip_bad = _checks.boolean("skip_bad", skip_bad)
    examples: list[Example] = []
    left_out: dict[str, int] = {}
    skipped: list[str] = []
    for where, record in records:
        try:
            examples += read(record)
        except LeftOut as reason:
            left_out[str(reason)] = left_out.get(str(reason), 0) + 1
        except (BadRecord, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            # the other types are what Python says of a record of another shape
            fault = str(error) if isinstance(error, BadRecord) else f"{type(error).__name__}: {error}"
            message = f"{where}: {fault}"
            if not skip_bad:
                raise FileProblem(f"file {str(path)!r}, {message}; mend it or skip bad records.") from error
            skipped.append(message)
    if not examples:
        raise FileProblem(f"file {str(path)!r} holds no usable record; it should be {wanted}.")
    labels = sorted({example.label for example in examples if example.label is not None})
    return Corpus(name, str(path), tuple(examples), tuple(labels), left_out, tuple(skipped))


def text_of(path: str | os.PathLike, wanted: str) -> str:
    """The text of a file, plain or .gz.

    Raises:
        FileProblem: if it is missing or no such text.
    """
    file = as_path(path)
    if not file.is_file():
        raise FileProblem(f"file {str(file)!r} does not exist; give {wanted}.")
    try:
        return _bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileProblem(
            f"file {str(file)!r} is no UTF-8 from byte {error.start + 1} on; save it as UTF-8."
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise FileProblem(f"file {str(file)!r} cannot be read ({type(error).__name__}); give {wanted}.") from error


def json_of(path: str | os.PathLike, wanted: str) -> Any:
    """The content of a JSON file, plain or .gz.

    Raises:
        FileProblem: if it is missing or no JSON, or an object in it has two values of one name: one would be lost.
    """
    text = text_of(path, wanted)
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise FileProblem(f"file {str(path)!r} is no JSON ({error}); give {wanted}.") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return found


def _bytes(file: pathlib.Path) -> bytes:
    raw = file.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def need(condition: bool, fault: str) -> None:
    """Raises `BadRecord` unless the condition holds."""
    if not condition:
        raise BadRecord(fault)
