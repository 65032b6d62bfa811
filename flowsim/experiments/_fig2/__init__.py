"""Attention and prediction of the four parameterizations after a short training (paper, section 4)."""

from flowsim.experiments._experiment import Experiment
from flowsim.experiments._fig2.findings import findings
from flowsim.experiments._fig2.run import fig2
from flowsim.experiments._fig2.settings import Fig2Settings
from flowsim.plot import heatmaps

__all__ = ["EXPERIMENT", "Fig2Settings", "fig2", "findings"]

EXPERIMENT = Experiment(
    name="fig2",
    summary="Attention against prediction of the four parameterizations, and with faster query-key learning.",
    settings=Fig2Settings,
    run=fig2,
    findings=findings,
    figures={
        "fig2": heatmaps.dtap_maps,
        "fig2_confidence": heatmaps.confidence_curves,
        "fig2_scan": heatmaps.ordering_maps,
        "fig2_ratio": heatmaps.ratio_dial,
    },
)
