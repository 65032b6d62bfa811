"""The symbolic engine: symmetry, reduced loss, flow, conserved quantities, closed form."""

from flowsim.theory.closed_form import ClosedForm
from flowsim.theory.flow import Flow, derive
from flowsim.theory.invariants import Invariant
from flowsim.theory.observables import ObservableSymbols, observables
from flowsim.theory.symbols import Mean
from flowsim.theory.symmetry import Block, Reduction, SymmetricMatrix, reduce
from flowsim.theory.two_clocks import DrivenPart, TwoClocks

__all__ = [
    "Block",
    "ClosedForm",
    "DrivenPart",
    "Flow",
    "Invariant",
    "Mean",
    "ObservableSymbols",
    "Reduction",
    "SymmetricMatrix",
    "TwoClocks",
    "derive",
    "observables",
    "reduce",
]
