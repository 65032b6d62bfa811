"""Growth-law verdicts: which law an observable follows, where, with which constant."""

from flowsim.laws.report import Crossing, Report, Row
from flowsim.laws.verify import verify

__all__ = ["Crossing", "Report", "Row", "verify"]
