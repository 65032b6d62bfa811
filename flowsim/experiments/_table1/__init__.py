"""Attention and prediction of transformers on real texts (paper, section 7)."""

from flowsim.experiments._experiment import Experiment
from flowsim.experiments._table1.dial_findings import dial_findings
from flowsim.experiments._table1.findings import findings
from flowsim.experiments._table1.run import ratio_dial, table1
from flowsim.experiments._table1.settings import DialSettings, Table1Settings
from flowsim.experiments._table1.tables import dial_tables, tables
from flowsim.plot import texts

__all__ = ["DIAL", "EXPERIMENT", "DialSettings", "Table1Settings", "findings", "ratio_dial", "table1"]

EXPERIMENT = Experiment(
    name="table1",
    summary="Attention and prediction on real texts, with one learning rate and with faster query-key learning.",
    settings=Table1Settings,
    run=table1,
    findings=findings,
    figures={
        "table1": texts.paired_metrics,
        "table1_dtap": texts.relevance_maps,
        "table1_losses": texts.validation_losses,
    },
    tables=tables,
    resumable=True,
)

DIAL = Experiment(
    name="ratio-dial",
    summary="Attention and prediction on real texts against the multiplier of the query-key learning rate.",
    settings=DialSettings,
    run=ratio_dial,
    findings=dial_findings,
    figures={"ratio-dial": texts.multiplier_dial},
    tables=dial_tables,
    resumable=True,
)
