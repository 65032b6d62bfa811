"""Atomic writes and the rules for output paths."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator

from flowsim._checks import show
from flowsim.errors import FileProblem


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
