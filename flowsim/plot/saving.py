"""Writing figures: PNG and SVG (or PDF), whole or not at all, the same bytes every time."""

import contextlib
import os
import pathlib

import matplotlib as mpl
from matplotlib.figure import Figure

from flowsim._checks import show
from flowsim._files import as_path, atomic_path
from flowsim.errors import FileProblem, InvalidInput

_FORMATS = (".png", ".svg")
# Dates and version strings would make two identical figures differ.
_METADATA = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def savefig(figure: Figure, path: str | os.PathLike, *, overwrite: bool = False) -> tuple[pathlib.Path, ...]:
    """Writes a figure to disk, atomically.

    Args:
        figure: what any function of `flowsim.plot` returned.
        path: a name ending in `.png`, `.svg` or `.pdf` for one file, or a name without ending for PNG and SVG. The
            folder must exist.
        overwrite: replace files that exist.

    Returns:
        The paths written.

    Raises:
        InvalidInput: if `figure` is no figure.
        FileProblem: if a file exists and `overwrite` is false, the folder is missing, or the ending is another one.
    """
    if not isinstance(figure, Figure):
        raise InvalidInput(f"figure={show(figure)} must be a figure; give what a function of flowsim.plot returned.")
    stem = as_path(path)
    suffix = stem.suffix.lower()
    if suffix in _METADATA:
        targets = (stem,)
    elif not suffix:
        targets = tuple(stem.with_name(stem.name + ending) for ending in _FORMATS)
    else:
        raise FileProblem(f"path={str(path)!r} must end in .png, .svg or .pdf (or in nothing, for PNG and SVG).")
    for target in targets:
        if target.exists() and not overwrite:
            raise FileProblem(f"path={str(target)!r} exists; give overwrite=True or another name.")
    with contextlib.ExitStack() as stack, mpl.rc_context({"svg.hashsalt": "flowsim"}):
        # Every file is drawn before the first one takes its place.
        for target in targets:
            temporary = stack.enter_context(atomic_path(target))
            figure.savefig(temporary, metadata=_METADATA[target.suffix.lower()], dpi=220)
    return targets
