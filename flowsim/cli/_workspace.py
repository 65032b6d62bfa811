"""The folder beside --out in which a long run keeps what it has done, so that the same command goes on from there."""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flowsim._checks import show
from flowsim._files import write_text
from flowsim.cli._console import note
from flowsim.errors import FileProblem, InvalidInput

if TYPE_CHECKING:
    from flowsim.experiments import Experiment

try:
    import fcntl
except ImportError:  # Windows has no such locks: two runs at once are not told apart there
    fcntl = None

_BINDING = "settings.json"


@contextlib.contextmanager
def workspace(experiment: "Experiment", settings: Any, out: str) -> Iterator[pathlib.Path]:
    """Yields the folder; it stays if the block raises after something was kept there, else it is removed.

    Args:
        experiment: whose run it is.
        settings: of the run.
        out: where the results will be; the folder is called the same with .partial behind it.

    Raises:
        FileProblem: if the folder cannot be had, or another run is at work in it.
        InvalidInput: if it holds a run of another experiment or with other settings, naming the first difference.
    """
    target = pathlib.Path(os.path.realpath(out))
    folder = target.parent / f"{target.name}.partial"  # not with_name, which has no answer for the root
    if not folder.parent.is_dir():
        raise FileProblem(f"--out {out}: the folder {str(folder.parent)!r} does not exist; create it first.")
    if folder.exists() and not folder.is_dir():
        raise FileProblem(f"--out {out} needs the place of the file {str(folder)!r} for unfinished work; move it away.")
    from flowsim.trajectory_file import versions

    plain = json.loads(json.dumps(dataclasses.asdict(settings)))
    wanted = {"experiment": experiment.name, **plain, "versions": versions()}
    folder.mkdir(exist_ok=True)
    with _alone(folder, out):
        if _kept(folder):
            _check(folder, wanted)
            note(f"flowsim: going on from what an unfinished run left in {str(folder)!r}.")
        write_text(folder / _BINDING, json.dumps(wanted) + "\n")
        try:
            yield folder
        except BaseException as error:
            if not _kept(folder):
                _clear(folder)
            elif isinstance(error, KeyboardInterrupt):
                note(f"flowsim: what is done is kept in {str(folder)!r}; the same command goes on from there.")
            raise
        _clear(folder)


@contextlib.contextmanager
def _alone(folder: pathlib.Path, out: str) -> Iterator[None]:
    """Keeps other runs out of the folder; the system ends that when the process ends, however it ends."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileProblem(
                f"--out {out}: another run is at work in {str(folder)!r}; wait for it, or choose another name."
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


def _kept(folder: pathlib.Path) -> bool:
    return any(folder.glob("*.npz"))


def _check(folder: pathlib.Path, wanted: dict[str, Any]) -> None:
    """Whether the folder is of this run."""
    named, fix = f"{str(folder)!r} holds an unfinished run", "or remove that folder to start anew"
    try:
        found = dict(json.loads((folder / _BINDING).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise FileProblem(f"{named} whose settings are not there; move it away, {fix}.") from None
    for name in [*wanted, *(name for name in found if name not in wanted)]:
        one, other = found.get(name), wanted.get(name)
        if isinstance(one, dict) and isinstance(other, dict):  # versions of packages: name those that differ
            one, other = ({key: each.get(key) for key in other if one.get(key) != other[key]} for each in (one, other))
        if one != other:
            raise InvalidInput(
                f"{named} with {name}={show(one)}, and this one has {name}={show(other)}; give the same, {fix}."
            )


def _clear(folder: pathlib.Path) -> None:
    """Removes what a run has kept, and the folder too if nothing of anybody else's is in it."""
    for path in (folder / _BINDING, *folder.glob("*.npz")):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
