"""Checkpoints: everything that a training needs to go on, in one file of arrays, replaced atomically."""

import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from flowsim._files import atomic_path, read_arrays
from flowsim.errors import FileProblem, InvalidInput

_FORMAT = "flowsim checkpoint 1"


class Snapshot(NamedTuple):
    """A training between two stretches.

    Attributes:
        step: steps that the runs of the present part have taken.
        first: number of the first run of the present part; the runs before it are done.
        points: number of recorded points of each run.
        status: of each run that is done; -1 for the others.
        n_steps: of each run that is done.
        records: leaves of the records, each with leading axes (run, point).
        carry: leaves of the carry of the present part, each with a leading axis over its runs.
        circuits: leaves of the parameters of the runs that are done; empty if they are not kept.
    """

    step: int
    first: int
    points: np.ndarray
    status: np.ndarray
    n_steps: np.ndarray
    records: list[np.ndarray]
    carry: list[np.ndarray]
    circuits: list[np.ndarray]


def write(path: pathlib.Path, snapshot: Snapshot, settings: Mapping[str, Any]) -> None:
    """Writes a checkpoint; whoever reads the path meanwhile finds the old one or the new one, whole.

    Args:
        path: ends in `.npz`.
        snapshot: what to write.
        settings: plain values that a training must share to go on from here.
    """
    arrays: dict[str, Any] = {
        name: np.asarray(getattr(snapshot, name)) for name in ("step", "first", "points", "status", "n_steps")
    }
    for name in ("records", "carry", "circuits"):
        arrays |= {f"{name}_{i}": leaf for i, leaf in enumerate(getattr(snapshot, name))}
    write_arrays(path, arrays, settings)


def write_arrays(path: pathlib.Path, arrays: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Writes arrays and the settings that they belong to, atomically.

    Args:
        path: ends in `.npz`.
        arrays: by name; none is called `header`.
        settings: plain values.
    """
    header = json.dumps({"format": _FORMAT, **settings})
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, header=np.array(header), **arrays)
        file.flush()
        os.fsync(file.fileno())


def read(path: pathlib.Path, settings: Mapping[str, Any]) -> Snapshot:
    """Reads a checkpoint that `write` wrote.

    Args:
        path: the file.
        settings: those of the training that wants to go on.

    Raises:
        FileProblem: if the file is missing or damaged.
        InvalidInput: if it belongs to another training, naming the first setting that differs.
    """
    arrays = arrays_of(path, settings)
    if not arrays.keys() >= {"step", "first", "points", "status", "n_steps"}:
        raise damaged(path)

    def leaves(name: str) -> list[np.ndarray]:
        return [arrays[f"{name}_{i}"] for i in range(sum(key.startswith(f"{name}_") for key in arrays))]

    return Snapshot(
        int(arrays["step"]),
        int(arrays["first"]),
        arrays["points"],
        arrays["status"],
        arrays["n_steps"],
        leaves("records"),
        leaves("carry"),
        leaves("circuits"),
    )


def arrays_of(path: pathlib.Path, settings: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Reads what `write_arrays` wrote.

    Args:
        path: the file.
        settings: those of the training that wants to go on.

    Raises:
        FileProblem: if the file is missing or damaged.
        InvalidInput: if it belongs to another training, naming the first setting that differs.
    """
    if not path.is_file():
        raise FileProblem(
            f"checkpoint={str(path)!r} does not exist, so that nothing can be resumed; start without resume."
        )
    arrays = read_arrays(path, str(damaged(path)))
    try:
        header = json.loads(str(arrays.pop("header")))
        ours = header.pop("format") == _FORMAT
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path) from error
    if not ours:
        raise FileProblem(f"checkpoint={str(path)!r} was written by another version of flowsim; start without resume.")
    wanted = json.loads(json.dumps(dict(settings)))
    for name in wanted.keys() | header.keys():
        if wanted.get(name) != header.get(name):
            raise InvalidInput(
                f"checkpoint={str(path)!r} belongs to another training: {name} was {header.get(name)!r} and is now "
                f"{wanted.get(name)!r}; use the same or start without resume."
            )
    return arrays


def damaged(path: pathlib.Path) -> FileProblem:
    """What to raise if a checkpoint cannot be used."""
    return FileProblem(f"checkpoint={str(path)!r} is damaged or no checkpoint of flowsim's; start without resume.")


def digest(arrays: Iterable[Any]) -> str:
    """A text that tells given arrays from others, for the settings that a training must share to go on."""
    found = hashlib.sha256()
    for array in map(np.asarray, arrays):
        found.update(f"{array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def checked_path(given: Any, resume: bool) -> pathlib.Path | None:
    """The path of the checkpoint, refused before any work is done.

    Raises:
        InvalidInput: if there is something to resume but no path, or the path is none.
        FileProblem: if the name does not end in .npz, the folder is missing, or a checkpoint would be overwritten.
    """
    if given is None:
        if resume:
            raise InvalidInput("resume=True was given without checkpoint=; name the file to go on from.")
        return None
    try:
        path = pathlib.Path(given)
    except TypeError as error:
        raise InvalidInput(f"checkpoint={given!r} must be the name of a file.") from error
    if path.suffix != ".npz":
        raise FileProblem(f"checkpoint={str(path)!r} must end in .npz.")
    if not path.parent.is_dir():
        raise FileProblem(f"checkpoint={str(path)!r}: the folder does not exist; create it first.")
    if path.exists() and not resume:
        raise FileProblem(f"checkpoint={str(path)!r} exists; give resume=True to go on from it, or another name.")
    return path
