"""Figures; every function returns a matplotlib `Figure` and leaves pyplot alone."""

from flowsim.plot.budget import error_budget
from flowsim.plot.detour import detour_map
from flowsim.plot.four import four_laws
from flowsim.plot.growth import growth_constants, score_gap_regimes
from flowsim.plot.heatmaps import confidence_curves, dtap_maps, ordering_maps, ratio_dial
from flowsim.plot.phase import phase_diagram
from flowsim.plot.rates import effective_rates
from flowsim.plot.saving import savefig
from flowsim.plot.sharpening import fixed_attention_errors, fixed_attention_losses
from flowsim.plot.simulation import theory_vs_simulation
from flowsim.plot.stability import transverse_stability
from flowsim.plot.starts import random_starts
from flowsim.plot.texts import multiplier_dial, paired_metrics, relevance_maps, validation_losses

__all__ = [
    "confidence_curves",
    "detour_map",
    "dtap_maps",
    "effective_rates",
    "error_budget",
    "fixed_attention_errors",
    "fixed_attention_losses",
    "four_laws",
    "growth_constants",
    "multiplier_dial",
    "ordering_maps",
    "paired_metrics",
    "phase_diagram",
    "random_starts",
    "ratio_dial",
    "relevance_maps",
    "savefig",
    "score_gap_regimes",
    "theory_vs_simulation",
    "transverse_stability",
    "validation_losses",
]
