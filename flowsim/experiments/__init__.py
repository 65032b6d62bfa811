"""The paper's synthetic results and what it left open, each a function from settings to arrays.

Every experiment has a frozen dataclass of settings, a function from settings to an xarray dataset, findings that
compare the arrays with the paper, and plot functions that need nothing but the arrays. `flowsim reproduce NAME` does
all of it.

Names are loaded on first use, as in `flowsim` itself.
"""

import importlib
from typing import TYPE_CHECKING

from flowsim.errors import InvalidInput

if TYPE_CHECKING:
    from flowsim.experiments._detour import DetourSettings, detour
    from flowsim.experiments._experiment import Experiment, Finding, perform

# the name on the command line -> the module that defines EXPERIMENT
_MODULES: dict[str, str] = {"detour": "_detour"}
ALL: tuple[str, ...] = ("detour",)
"""Those that `flowsim reproduce all` runs, in this order."""

# public name -> its module
_HOME = {
    "DetourSettings": "_detour",
    "detour": "_detour",
    "Experiment": "_experiment",
    "Finding": "_experiment",
    "perform": "_experiment",
}

__all__ = ["ALL", "DetourSettings", "Experiment", "Finding", "detour", "experiment", "names", "perform"]


def names() -> tuple[str, ...]:
    """Names of all experiments."""
    return tuple(_MODULES)


def experiment(name: str) -> "Experiment":
    """The experiment of that name.

    Raises:
        InvalidInput: if there is none.
    """
    if name not in _MODULES:
        raise InvalidInput(f"experiment {name!r} is unknown; give one of {', '.join(_MODULES)}.")
    return importlib.import_module(f"{__name__}.{_MODULES[name]}").EXPERIMENT


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
