"""An experiment on disk: arrays, findings, figures; figures can be drawn again from the arrays alone."""

import dataclasses
import json
import os
import pathlib
from typing import Any

import xarray as xr

from flowsim import _checks
from flowsim._files import as_path, write_text
from flowsim.errors import FileProblem
from flowsim.experiments import experiment as experiment_of
from flowsim.experiments import names
from flowsim.experiments._experiment import Experiment, settings_of
from flowsim.plot.saving import savefig


def save(experiment: Experiment, dataset: xr.Dataset, folder: pathlib.Path) -> list[str]:
    """Writes NAME.nc, NAME.json and NAME.md (of its tables), then the figures: a fault in one of them costs no result.

    Args:
        experiment: whose arrays they are.
        dataset: what `perform` returned.
        folder: an existing folder.

    Returns:
        The names of the files written.
    """
    data, text = f"{experiment.name}.nc", f"{experiment.name}.json"
    # HDF5 checks these sums when it reads; it keeps none for single numbers and none for texts
    checksums = {
        name: {"fletcher32": True}
        for name, variable in dataset.variables.items()
        if variable.ndim and variable.dtype.kind in "fiub"
    }
    dataset.to_netcdf(folder / data, engine="h5netcdf", encoding=checksums)
    write_text(folder / text, json.dumps(summary(experiment, dataset), indent=2, allow_nan=False) + "\n")
    written = [data, text]
    if experiment.tables is not None:
        written.append(f"{experiment.name}.md")
        tables = "\n".join(table.markdown() for table in experiment.tables(dataset))
        write_text(folder / written[-1], f"# {experiment.summary}\n\n{tables}")
    for stem, draw in experiment.figures.items():
        written += [path.name for path in savefig(draw(dataset), folder / stem, overwrite=True)]
    return written


def load(path: str | os.PathLike) -> tuple[Experiment, xr.Dataset]:
    """Reads the arrays of an experiment.

    Raises:
        FileProblem: if the file is missing, damaged, or not an experiment of flowsim's.
    """
    path = as_path(path)
    if not path.is_file():
        raise FileProblem(f"experiment file {str(path)!r} does not exist; give the NAME.nc that reproduce wrote.")
    try:
        with xr.open_dataset(path, engine="h5netcdf") as opened:
            dataset = opened.load()
    except Exception as error:  # HDF5 reports damage through many exception types
        raise FileProblem(
            f"experiment file {str(path)!r} is damaged or no NetCDF file ({type(error).__name__}); run it again."
        ) from error
    name = dataset.attrs.get("experiment")
    if name not in names():
        raise FileProblem(f"{str(path)!r} holds no experiment of flowsim's; give the NAME.nc that reproduce wrote.")
    experiment = experiment_of(name)
    try:
        settings_of(experiment, dataset)
        summary(experiment, dataset)
    except Exception as error:  # whatever is missing, added or of another kind, each part of a reading fails in its way
        raise FileProblem(
            f"experiment file {str(path)!r} was changed, or made by another version ({type(error).__name__}: "
            f"{_checks.show(str(error))}); run it again."
        ) from error
    return experiment, dataset


def summary(experiment: Experiment, dataset: xr.Dataset) -> dict[str, Any]:
    """Settings, versions, findings and, where the experiment has them, tables as plain data."""
    told = {
        "experiment": experiment.name,
        "settings": json.loads(dataset.attrs["settings"]),
        "versions": json.loads(dataset.attrs["versions"]),
        "findings": [dataclasses.asdict(finding) for finding in experiment.findings(dataset)],
    }
    if experiment.tables is not None:
        told["tables"] = [dataclasses.asdict(table) for table in experiment.tables(dataset)]
    return told
