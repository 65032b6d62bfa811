"""Trajectories as xarray datasets and NetCDF files."""

import dataclasses
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

import flowsim
from flowsim._files import as_path, atomic_path
from flowsim.errors import FileProblem, InvalidInput
from flowsim.models import Circuits, CollapsedCircuit, FactorizedCircuit
from flowsim.status import Status
from flowsim.task import Task
from flowsim.trajectory import METHODS, OBSERVABLES, Trajectory

_FORMAT = "flowsim trajectory 1"
_NUMBERED = {"margins": "distinct_group", "scores": "group", "log_attentions": "group"}
_LABELS = {
    "log_time": "ln(time)",
    "margin": "own-label minus other-label logit of a distinct token",
    "score_gap": "distinct minus background score",
    "score_gap_change": "score_gap minus its value at time 0",
    "log_odds": "logit of the attention on the first distinct group",
    "log_error": "ln(1 - probability of the label), mean over contexts",
    "log_loss": "ln(cross-entropy), mean over contexts",
}


def versions() -> dict[str, str]:
    """Versions of flowsim, Python and the packages that decide the numbers."""
    packages = ("jax", "jaxlib", "diffrax", "equinox", "optax", "numpy", "sympy")
    return {
        "flowsim": flowsim.__version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def to_dataset(trajectory: Trajectory) -> xr.Dataset:
    """The trajectory as a dataset with dimensions (*lanes, time)."""
    dims = (*trajectory.axes, "time")
    shared = trajectory.log_time.ndim == 1
    data: dict[str, Any] = {
        "log_time": (("time",) if shared else dims, np.asarray(trajectory.log_time), _label("log_time"))
    }
    for name in OBSERVABLES:
        data[name] = (dims, np.asarray(getattr(trajectory, name)), _label(name))
    for name, group_dim in _NUMBERED.items():
        array = getattr(trajectory, name)
        if array is not None:
            data[name] = ((*dims, group_dim), np.asarray(array))
    for name, array in trajectory.extra.items():
        data[f"extra_{name}"] = (dims, np.asarray(array))
    for name in ("status", "n_steps"):
        data[name] = (trajectory.axes, np.asarray(getattr(trajectory, name)))
    for name, array in _parameters(trajectory.circuits).items():
        data[name] = ((*trajectory.axes, f"{name}_row", f"{name}_column"), np.asarray(array))
    coords = {
        name: (name, np.asarray(trajectory.coords[name])) for name in trajectory.axes if name in trajectory.coords
    }
    scalars = {name: _plain(value) for name, value in trajectory.coords.items() if name not in trajectory.axes}
    attrs = {
        "format": _FORMAT,
        "parameterization": trajectory.parameterization,
        "method": trajectory.method,
        "scalar_coords": json.dumps(scalars),
        "settings": json.dumps({key: _plain(value) for key, value in trajectory.settings.items()}),
        "task": "null" if trajectory.task is None else json.dumps(trajectory.task.to_dict()),
        "versions": json.dumps(versions()),
    }
    return xr.Dataset(data, coords=coords, attrs=attrs)


def from_dataset(dataset: xr.Dataset) -> Trajectory:
    """The trajectory that `to_dataset` turned into `dataset`.

    Raises:
        InvalidInput: if the dataset is not one of flowsim's.
    """
    if dataset.attrs.get("format") != _FORMAT:
        raise InvalidInput(
            f"format={dataset.attrs.get('format')!r} is not {_FORMAT!r}; it was not written by this flowsim."
        )
    required = ("log_time", *OBSERVABLES, "status", "n_steps")
    missing = [name for name in required if name not in dataset]
    if missing:
        raise InvalidInput(f"the variable {missing[0]!r} is missing.")
    axes = tuple(str(name) for name in dataset["margin"].dims[:-1])
    coords = {name: dataset[name].values for name in axes if name in dataset.coords}
    task = json.loads(dataset.attrs["task"])
    method = str(dataset.attrs["method"])
    if method not in METHODS:
        raise InvalidInput(f"method={method!r} is unknown.")
    unknown = set(np.unique(dataset["status"].values).tolist()) - {int(status) for status in Status}
    if unknown:
        raise InvalidInput(f"status={min(unknown)} is unknown; the file is damaged or of a later flowsim.")
    optional = {name: jnp.asarray(dataset[name].values) for name in _NUMBERED if name in dataset}
    names = [str(name) for name in dataset.data_vars]
    return Trajectory(
        **{name: jnp.asarray(dataset[name].values) for name in required},
        **optional,
        extra={
            name.removeprefix("extra_"): jnp.asarray(dataset[name].values)
            for name in names
            if name.startswith("extra_")
        },
        circuits=_circuits(dataset),
        axes=axes,
        coords={**json.loads(dataset.attrs["scalar_coords"]), **coords},
        task=None if task is None else Task.from_dict(task),
        parameterization=str(dataset.attrs["parameterization"]),
        method=method,
        settings=json.loads(dataset.attrs["settings"]),
    )


def _parameters(circuits: Circuits | None) -> dict[str, Any]:
    """The trained arrays by name: `circuit_ov_weight`, or `circuit_ov_left` and `circuit_ov_right`."""
    if circuits is None:
        return {}
    return {
        f"circuit_{name}_{field.name}": getattr(circuit, field.name)
        for name, circuit in circuits._asdict().items()
        for field in dataclasses.fields(circuit)
    }


def _circuits(dataset: xr.Dataset) -> Circuits | None:
    """The circuits whose arrays `_parameters` named."""
    made = []
    for name in Circuits._fields:
        arrays = {
            str(key).rpartition("_")[2]: jnp.asarray(dataset[key].values)
            for key in dataset.data_vars
            if str(key).startswith(f"circuit_{name}_")
        }
        if not arrays:
            return None
        made.append((CollapsedCircuit if "weight" in arrays else FactorizedCircuit)(**arrays))
    return Circuits(*made)


def save(trajectory: Trajectory, path: str | os.PathLike, *, overwrite: bool = False) -> None:
    """Writes a NetCDF file atomically.

    Raises:
        FileProblem: if the name does not end in .nc, the file exists and `overwrite` is false, or the folder is
            missing.
    """
    path = as_path(path)
    if path.suffix != ".nc":
        raise FileProblem(f"path={str(path)!r} must end in .nc.")
    if path.exists() and not overwrite:
        raise FileProblem(f"path={str(path)!r} exists; give overwrite=True to replace it.")
    dataset = to_dataset(trajectory)
    # HDF5 checks these sums when it reads; it keeps none for single numbers
    checksums = {name: {"fletcher32": True} for name, variable in dataset.variables.items() if variable.ndim}
    with atomic_path(path) as temporary:
        dataset.to_netcdf(temporary, engine="h5netcdf", encoding=checksums)


def load(path: str | os.PathLike) -> Trajectory:
    """Reads a file that `save` wrote.

    Raises:
        FileProblem: if it is missing, damaged, or not one of flowsim's.
    """
    path = as_path(path)
    if path.is_dir():
        inside = ", ".join(sorted(item.name for item in path.glob("*.nc")))
        fix = f"give one of its files: {inside}" if inside else "give a file that Trajectory.save wrote"
        raise FileProblem(f"{str(path)!r} is a folder, not a trajectory file; {fix}.")
    if not path.is_file():
        raise FileProblem(f"trajectory file {str(path)!r} does not exist; check the path.")
    try:
        with xr.open_dataset(path, engine="h5netcdf") as dataset:
            return from_dataset(dataset.load())
    except InvalidInput as error:
        raise FileProblem(f"trajectory file {str(path)!r} cannot be used: {error}") from error
    except Exception as error:  # HDF5 reports damage through many exception types
        raise FileProblem(
            f"trajectory file {str(path)!r} is damaged, truncated or no NetCDF file of flowsim's "
            f"({type(error).__name__}); write it again with Trajectory.save."
        ) from error


def _label(name: str) -> dict[str, str]:
    return {"long_name": _LABELS[name], "units": "1"}


def _plain(value):
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    array = np.asarray(value)
    return array.item() if array.ndim == 0 else array.tolist()
