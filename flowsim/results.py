"""Output folders of the command line: made whole or not at all, and replaced only when flowsim made them."""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from flowsim.errors import FileProblem

MANIFEST = "flowsim.json"
_MAKER = "flowsim"


@contextlib.contextmanager
def output_folder(
    path: str | os.PathLike, *, overwrite: bool = False, record: Mapping[str, Any] | None = None
) -> Iterator[pathlib.Path]:
    """Yields an empty temporary folder beside `path` that takes its place only if the block succeeds.

    The folder gets a manifest, `flowsim.json`, which lists the files in it: by it flowsim recognises its own work.
    If the block raises (an interrupt included), `path` is left as it was and the temporary folder is removed.

    Args:
        path: the folder to make; its parent must exist.
        overwrite: replace a folder that an earlier run made.
        record: plain values for the manifest (the command, its settings, versions).

    Raises:
        FileProblem: if the parent is missing or cannot be written; if `path` exists, or does so when the block ends,
            and `overwrite` is false; if it is a file, was not made by flowsim, or holds files flowsim did not write.
    """
    target = _checked(path, overwrite)
    try:
        temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise FileProblem(
            f"output folder {str(path)!r} cannot be made ({error.strerror}); choose another place."
        ) from error
    try:
        yield temporary
        _write_manifest(temporary, record or {})
        umask = os.umask(0)
        os.umask(umask)
        if not overwrite and os.path.lexists(target):
            raise FileProblem(f"output folder {str(path)!r} was made meanwhile by another run; choose another name.")
        temporary.chmod(0o777 & ~umask)  # mkdtemp's 0700 would hide results from the user's group
        _swap(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def made_by_flowsim(folder: pathlib.Path) -> dict[str, Any] | None:
    """The manifest of a folder that flowsim made, or None."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    listed = isinstance(manifest, dict) and isinstance(manifest.get("files"), list)
    return manifest if listed and manifest.get("made_by") == _MAKER else None


def _checked(path: str | os.PathLike, overwrite: bool) -> pathlib.Path:
    """The folder to make, after links, if it may be made or replaced."""
    target = pathlib.Path(os.path.realpath(path))
    named = f"output folder {str(path)!r}"
    if not target.parent.is_dir():
        raise FileProblem(f"{named}: the parent folder {str(target.parent)!r} does not exist; create it first.")
    if not os.path.lexists(target):
        return target
    if not target.is_dir():
        raise FileProblem(f"{named} is a file; give the name of a folder.")
    manifest = made_by_flowsim(target)
    if manifest is None and any(target.iterdir()):
        raise FileProblem(f"{named} exists and was not made by flowsim; choose another name.")
    if not overwrite:
        raise FileProblem(f"{named} exists; give --overwrite to replace it, or choose another name.")
    foreign = sorted(set(_files(target)) - {MANIFEST, *(manifest or {"files": []})["files"]})
    if foreign:
        raise FileProblem(f"{named} holds {foreign[0]!r}, which flowsim did not write; move it away first.")
    return target


def _files(folder: pathlib.Path) -> list[str]:
    """Names of everything but folders below `folder`, relative to it."""
    return sorted(item.relative_to(folder).as_posix() for item in folder.rglob("*") if not item.is_dir())


def _write_manifest(folder: pathlib.Path, record: Mapping[str, Any]) -> None:
    manifest = {"made_by": _MAKER, **record, "files": _files(folder)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _swap(temporary: pathlib.Path, target: pathlib.Path) -> None:
    """Puts `temporary` in the place of `target`; the old folder comes back if that fails."""
    if not target.exists():
        os.rename(temporary, target)
        return
    aside = pathlib.Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    saved = aside / target.name
    try:
        os.rename(target, saved)
        os.rename(temporary, target)
    except BaseException:  # an interrupt between the two included
        if not os.path.lexists(target):
            os.rename(saved, target)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
