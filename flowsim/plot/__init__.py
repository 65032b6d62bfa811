"""Figures; every function returns a matplotlib `Figure` and leaves pyplot alone."""

from flowsim.plot.budget import error_budget
from flowsim.plot.detour import detour_map
from flowsim.plot.four import four_laws
from flowsim.plot.growth import growth_constants, score_gap_regimes
from flowsim.plot.phase import phase_diagram
from flowsim.plot.saving import savefig
from flowsim.plot.simulation import theory_vs_simulation

__all__ = [
    "detour_map",
    "error_budget",
    "four_laws",
    "growth_constants",
    "phase_diagram",
    "savefig",
    "score_gap_regimes",
    "theory_vs_simulation",
]
