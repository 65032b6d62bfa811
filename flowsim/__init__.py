"""flowsim: exact gradient-flow dynamics of attention training.

Give it a symmetric attention task; it derives the population gradient flow, solves it in closed form or with
diffrax, trains the matrices beside it, and judges which growth law holds where.

Names are loaded on first use (PEP 562), so importing flowsim imports neither JAX nor SymPy.

It does switch JAX to float64, at once or, by JAX_ENABLE_X64 in the environment, when JAX is imported: programs started
from here inherit that, those with FLOWSIM_X64=0 too. Set FLOWSIM_X64=0 before flowsim is imported to prevent it.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING

# float64 must be on before a user's first jit traces: there the first use of a name below would come too late
if "jax" in sys.modules:
    importlib.import_module("flowsim._jax")
elif os.environ.get("FLOWSIM_X64", "1") != "0":
    os.environ.setdefault("JAX_ENABLE_X64", "1")  # read when JAX is imported

__version__ = "0.1.0"

if TYPE_CHECKING:
    from flowsim import plot, schedules
    from flowsim.answers import answer_f1, exact_match
    from flowsim.balancedness import balanced_factors, preconditioner
    from flowsim.budget import ErrorBudget, error_budget
    from flowsim.codegen import compile
    from flowsim.erasure import Faithfulness, faithfulness
    from flowsim.errors import FileProblem, InvalidInput, NoClosedForm
    from flowsim.laws import phase_diagram, trained_slopes, verify
    from flowsim.metrics import (
        attention_confidence,
        attention_model_confidence,
        dtap,
        mean_relevant_attention,
    )
    from flowsim.rollout import attention_rollout
    from flowsim.solve.descent import descend
    from flowsim.solve.equilibrium import Equilibrium, equilibrium
    from flowsim.solve.exact import exact, time_to
    from flowsim.solve.frozen import fixed_attention, frozen_gate, sharpening_incentive
    from flowsim.solve.inverse_design import ratio_for
    from flowsim.solve.ode import integrate
    from flowsim.start import Start
    from flowsim.status import Status
    from flowsim.task import BinomialContext, FixedContext, Group, MixtureContext, Task
    from flowsim.theory import derive
    from flowsim.training import RandomStart, train
    from flowsim.trajectory import Trajectory

# name -> module that defines it
_HOME = {
    "BinomialContext": "flowsim.task",
    "Equilibrium": "flowsim.solve.equilibrium",
    "ErrorBudget": "flowsim.budget",
    "Faithfulness": "flowsim.erasure",
    "FileProblem": "flowsim.errors",
    "FixedContext": "flowsim.task",
    "Group": "flowsim.task",
    "InvalidInput": "flowsim.errors",
    "MixtureContext": "flowsim.task",
    "NoClosedForm": "flowsim.errors",
    "RandomStart": "flowsim.training",
    "Start": "flowsim.start",
    "Status": "flowsim.status",
    "Task": "flowsim.task",
    "Trajectory": "flowsim.trajectory",
    "answer_f1": "flowsim.answers",
    "attention_confidence": "flowsim.metrics",
    "attention_model_confidence": "flowsim.metrics",
    "attention_rollout": "flowsim.rollout",
    "balanced_factors": "flowsim.balancedness",
    "compile": "flowsim.codegen",
    "derive": "flowsim.theory",
    "descend": "flowsim.solve.descent",
    "dtap": "flowsim.metrics",
    "equilibrium": "flowsim.solve.equilibrium",
    "error_budget": "flowsim.budget",
    "exact": "flowsim.solve.exact",
    "exact_match": "flowsim.answers",
    "faithfulness": "flowsim.erasure",
    "fixed_attention": "flowsim.solve.frozen",
    "frozen_gate": "flowsim.solve.frozen",
    "integrate": "flowsim.solve.ode",
    "mean_relevant_attention": "flowsim.metrics",
    "phase_diagram": "flowsim.laws",
    "plot": "flowsim.plot",
    "preconditioner": "flowsim.balancedness",
    "ratio_for": "flowsim.solve.inverse_design",
    "schedules": "flowsim.schedules",
    "sharpening_incentive": "flowsim.solve.frozen",
    "time_to": "flowsim.solve.exact",
    "train": "flowsim.training",
    "trained_slopes": "flowsim.laws",
    "verify": "flowsim.laws",
}

__all__ = [
    "BinomialContext",
    "Equilibrium",
    "ErrorBudget",
    "Faithfulness",
    "FileProblem",
    "FixedContext",
    "Group",
    "InvalidInput",
    "MixtureContext",
    "NoClosedForm",
    "RandomStart",
    "Start",
    "Status",
    "Task",
    "Trajectory",
    "answer_f1",
    "attention_confidence",
    "attention_model_confidence",
    "attention_rollout",
    "balanced_factors",
    "compile",
    "derive",
    "descend",
    "dtap",
    "equilibrium",
    "error_budget",
    "exact",
    "exact_match",
    "faithfulness",
    "fixed_attention",
    "frozen_gate",
    "integrate",
    "mean_relevant_attention",
    "phase_diagram",
    "plot",
    "preconditioner",
    "ratio_for",
    "schedules",
    "sharpening_incentive",
    "time_to",
    "train",
    "trained_slopes",
    "verify",
]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'flowsim' has no attribute {name!r}")
    module = importlib.import_module(_HOME[name])
    value = module if name in ("plot", "schedules") else getattr(module, name)  # these two are modules
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
