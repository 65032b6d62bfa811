"""Settings shared by all tests."""

import jax
import matplotlib as mpl
import pytest
from hypothesis import HealthCheck, settings

import flowsim as fs
from flowsim import _cache

mpl.use("Agg")

# Most of the tests' time is compilation. What one worker has compiled the others read, and so do the commands that
# tests start: it is kept where the command line keeps it. Checks stay as a user of the library has them (no
# EQX_ON_ERROR).
kept: dict[str, str] = {}
_cache.enable(kept)
if kept:
    jax.config.update("jax_compilation_cache_dir", kept["JAX_COMPILATION_CACHE_DIR"])
    seconds, size = (kept[f"JAX_PERSISTENT_CACHE_MIN_{name}"] for name in ("COMPILE_TIME_SECS", "ENTRY_SIZE_BYTES"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float(seconds))
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", int(size))

# Numeric properties compile JAX programs, so single examples take long on a busy machine: no deadline.
settings.register_profile(
    "flowsim", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("flowsim")


@pytest.fixture(scope="session")
def reference_task() -> fs.Task:
    """The task of the paper's size: 4 classes, 10 distinct tokens each, 10 common ones, 63 positions."""
    return fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
