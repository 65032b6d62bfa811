"""Growth-law verdicts: which law an observable follows, where, with which constant."""

from flowsim.laws.phase import PhaseDiagram, phase_diagram
from flowsim.laws.report import Crossing, Report, Row
from flowsim.laws.slopes import Estimate, TrainedSlope, trained_slopes
from flowsim.laws.verify import verify

__all__ = [
    "Crossing",
    "Estimate",
    "PhaseDiagram",
    "Report",
    "Row",
    "TrainedSlope",
    "phase_diagram",
    "trained_slopes",
    "verify",
]
