"""Settings shared by all tests."""

import matplotlib as mpl
import pytest
from hypothesis import HealthCheck, settings

import flowsim as fs

mpl.use("Agg")

# Numeric properties compile JAX programs, so single examples take long on a busy machine: no deadline.
settings.register_profile(
    "flowsim", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("flowsim")


@pytest.fixture(scope="session")
def reference_task() -> fs.Task:
    """The task of the paper's size: 4 classes, 10 distinct tokens each, 10 common ones, 63 positions."""
    return fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
