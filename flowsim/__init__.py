"""flowsim: exact gradient-flow dynamics of attention training.

Give it a symmetric attention task; it derives the population gradient flow, solves it in closed form or with
diffrax, trains the matrices beside it, and judges which growth law holds where.

Names are loaded on first use (PEP 562), so importing flowsim imports neither JAX nor SymPy.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from flowsim import plot
    from flowsim.balancedness import balanced_factors, preconditioner
    from flowsim.codegen import compile
    from flowsim.errors import FileProblem, InvalidInput, NoClosedForm
    from flowsim.laws import phase_diagram, verify
    from flowsim.solve.descent import descend
    from flowsim.solve.exact import exact, time_to
    from flowsim.solve.ode import integrate
    from flowsim.start import Start
    from flowsim.status import Status
    from flowsim.task import BinomialContext, FixedContext, Group, MixtureContext, Task
    from flowsim.theory import derive
    from flowsim.training import train
    from flowsim.trajectory import Trajectory

# name -> module that defines it
_HOME = {
    "BinomialContext": "flowsim.task",
    "FileProblem": "flowsim.errors",
    "FixedContext": "flowsim.task",
    "Group": "flowsim.task",
    "InvalidInput": "flowsim.errors",
    "MixtureContext": "flowsim.task",
    "NoClosedForm": "flowsim.errors",
    "Start": "flowsim.start",
    "Status": "flowsim.status",
    "Task": "flowsim.task",
    "Trajectory": "flowsim.trajectory",
    "balanced_factors": "flowsim.balancedness",
    "compile": "flowsim.codegen",
    "derive": "flowsim.theory",
    "descend": "flowsim.solve.descent",
    "exact": "flowsim.solve.exact",
    "integrate": "flowsim.solve.ode",
    "phase_diagram": "flowsim.laws",
    "plot": "flowsim.plot",
    "preconditioner": "flowsim.balancedness",
    "time_to": "flowsim.solve.exact",
    "train": "flowsim.training",
    "verify": "flowsim.laws",
}

__all__ = [
    "BinomialContext",
    "FileProblem",
    "FixedContext",
    "Group",
    "InvalidInput",
    "MixtureContext",
    "NoClosedForm",
    "Start",
    "Status",
    "Task",
    "Trajectory",
    "balanced_factors",
    "compile",
    "derive",
    "descend",
    "exact",
    "integrate",
    "phase_diagram",
    "plot",
    "preconditioner",
    "time_to",
    "train",
    "verify",
]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'flowsim' has no attribute {name!r}")
    module = importlib.import_module(_HOME[name])
    value = module if name == "plot" else getattr(module, name)  # flowsim.plot is a package
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
