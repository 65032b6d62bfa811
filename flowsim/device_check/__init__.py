"""Whether the device that JAX finds computes what a CPU computed, how fast, and with how much memory."""

from flowsim.device_check.cases import Deviation, compare, compute, read_reference, write_reference
from flowsim.device_check.check import Checked, check
from flowsim.device_check.speed import Speed

__all__ = ["Checked", "Deviation", "Speed", "check", "compare", "compute", "read_reference", "write_reference"]
