"""Atomic writes and the rules for output paths."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flowsim._checks import show
from flowsim.errors import FileProblem

if TYPE_CHECKING:
    import numpy as np


def as_path(path: str | os.PathLike) -> pathlib.Path:
    """The path that a user gave.

    Raises:
        FileProblem: if it is no path.
    """
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise FileProblem(f"path={show(path)} must be the name of a file, a str or a pathlib.Path.")
    return pathlib.Path(path)


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields a temporary path beside `path` that replaces `path` only if the block succeeds.

    Args:
        path: the final path; its folder must exist.

    Raises:
        FileProblem: if the folder is missing, or `path` is a folder.
    """
    path = as_path(path)
    folder = path.parent
    if not folder.is_dir():
        raise FileProblem(f"path={str(path)!r}: the folder {str(folder)!r} does not exist; create it first.")
    if path.is_dir():
        raise FileProblem(f"path={str(path)!r} is a folder; give the name of a file.")
    # mkstemp's 0600 would hide results from the user's group, so the mode is reset to what open() would give.
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=folder)
    except OSError as error:
        raise FileProblem(f"path={str(path)!r} cannot be written ({error.strerror}); choose another folder.") from error
    os.close(handle)
    temporary = pathlib.Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes `text` to `path` atomically, as UTF-8.

    Raises:
        FileProblem: as `atomic_path`.
    """
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_arrays(path: str | os.PathLike, problem: str) -> "dict[str, np.ndarray]":
    """All arrays of an `.npz` file.

    Args:
        path: the file.
        problem: the sentence to say if it cannot be read.

    Raises:
        FileProblem: whatever is wrong with it: missing, cut, one array only, other bytes.
    """
    import numpy as np

    try:
        # opened here: NumPy leaves the file open when it is no archive
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as archive:
            return dict(archive)
    except Exception as error:  # zipfile and NumPy have a different exception for each byte that can be wrong
        raise FileProblem(problem) from error
