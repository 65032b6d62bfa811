"""The paper's results and what it left open, each a function from settings to arrays.

Every experiment has a frozen dataclass of settings, a function from settings to an xarray dataset, findings that
compare the arrays with the paper, and plot functions that need nothing but the arrays. `flowsim reproduce NAME` does
all of it.

Names are loaded on first use, as in `flowsim` itself.
"""

import importlib
from typing import TYPE_CHECKING

from flowsim.errors import InvalidInput

if TYPE_CHECKING:
    from flowsim.experiments._claims import ClaimsSettings, claims
    from flowsim.experiments._detour import DetourSettings, detour
    from flowsim.experiments._experiment import Experiment, Finding, perform
    from flowsim.experiments._fig2 import Fig2Settings, fig2
    from flowsim.experiments._fig3 import Fig3Settings, fig3
    from flowsim.experiments._random_starts import RandomStartsSettings, random_starts
    from flowsim.experiments._stability import StabilitySettings, stability
    from flowsim.experiments._table1 import DialSettings, Table1Settings, ratio_dial, table1

# the name on the command line -> the module that defines it, and under which name
_MODULES: dict[str, tuple[str, str]] = {
    "fig2": ("_fig2", "EXPERIMENT"),
    "fig3": ("_fig3", "EXPERIMENT"),
    "claims": ("_claims", "EXPERIMENT"),
    "detour": ("_detour", "EXPERIMENT"),
    "stability": ("_stability", "EXPERIMENT"),
    "random-starts": ("_random_starts", "EXPERIMENT"),
    "table1": ("_table1", "EXPERIMENT"),
    "ratio-dial": ("_table1", "DIAL"),
}
ALL: tuple[str, ...] = ("fig2", "fig3", "claims", "detour", "stability")
"""Those that `flowsim reproduce all` runs, in this order."""

# public name -> its module
_HOME = {
    "ClaimsSettings": "_claims",
    "DetourSettings": "_detour",
    "DialSettings": "_table1",
    "Experiment": "_experiment",
    "Fig2Settings": "_fig2",
    "Fig3Settings": "_fig3",
    "Finding": "_experiment",
    "RandomStartsSettings": "_random_starts",
    "StabilitySettings": "_stability",
    "claims": "_claims",
    "detour": "_detour",
    "fig2": "_fig2",
    "fig3": "_fig3",
    "perform": "_experiment",
    "Table1Settings": "_table1",
    "random_starts": "_random_starts",
    "ratio_dial": "_table1",
    "stability": "_stability",
    "table1": "_table1",
}

__all__ = [
    "ALL",
    "ClaimsSettings",
    "DetourSettings",
    "DialSettings",
    "Experiment",
    "Fig2Settings",
    "Fig3Settings",
    "Finding",
    "RandomStartsSettings",
    "StabilitySettings",
    "Table1Settings",
    "claims",
    "detour",
    "experiment",
    "fig2",
    "fig3",
    "names",
    "perform",
    "random_starts",
    "ratio_dial",
    "stability",
    "table1",
]


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
    module, attribute = _MODULES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
