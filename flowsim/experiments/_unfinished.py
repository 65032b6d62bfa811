"""What an experiment has done before it is finished, in one file of arrays that is replaced atomically."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

import flowsim
from flowsim._checks import show
from flowsim._files import atomic_path, read_arrays
from flowsim.errors import FileProblem, InvalidInput

_FORMAT = "flowsim unfinished experiment 1"
_HEADER = "header"


def write(path: pathlib.Path, arrays: Mapping[str, Any], settings: Any) -> None:
    """Writes what is done; whoever reads the path meanwhile finds the old file or the new one, whole.

    Args:
        path: ends in `.npz`.
        arrays: by name; whatever the run needs to go on.
        settings: of the experiment, a dataclass of plain values.

    Raises:
        FileProblem: if the folder is missing or cannot be written.
    """
    header = json.dumps({"format": _FORMAT, "flowsim": flowsim.__version__, **dataclasses.asdict(settings)})
    kept: dict[str, Any] = {name: np.asarray(value) for name, value in {_HEADER: header, **arrays}.items()}
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **kept)
        file.flush()
        os.fsync(file.fileno())


def read(path: pathlib.Path, settings: Any) -> dict[str, np.ndarray]:
    """What a run with the same settings has done; nothing if there is no file.

    Args:
        path: the file.
        settings: of the run that wants to go on.

    Returns:
        The arrays that `write` was given.

    Raises:
        FileProblem: if the file is damaged or not from `write`.
        InvalidInput: if it was made with other settings or by another version: naming the first difference.
    """
    if not path.exists():
        return {}
    named = f"the unfinished run in {str(path)!r}"
    damaged = f"{named} is damaged or not flowsim's; delete the file to start anew."
    arrays = read_arrays(path, damaged)
    try:
        header = json.loads(str(arrays.pop(_HEADER)))
        ours = header.pop("format") == _FORMAT
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileProblem(damaged) from error
    if not ours:
        raise FileProblem(damaged)
    wanted = json.loads(json.dumps({"flowsim": flowsim.__version__, **dataclasses.asdict(settings)}))
    for name in [*wanted, *(name for name in header if name not in wanted)]:
        if wanted.get(name) != header.get(name):
            raise InvalidInput(
                f"{named} was made with {name}={show(header.get(name))} and this one has {name}="
                f"{show(wanted.get(name))}; give the same, or delete the file to start anew."
            )
    return arrays
