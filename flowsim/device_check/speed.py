"""How fast the device trains and sweeps, and how much memory that takes."""

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from flowsim.solve.exact import exact
from flowsim.solve.ode import integrate
from flowsim.task import FixedContext, Task
from flowsim.training import RandomStart, train

# The paper's size: 50 tokens, 63 context positions, a batch of 32.
_CONTEXT = FixedContext(distinct=32, common=31)
_PAPER = Task(classes=4, distinct=10, common=10, context=_CONTEXT, other_outputs=46)
_SWEPT = Task(classes=4, distinct=10, common=10, context=_CONTEXT)
RUNS, STEPS = 64, 300
LANES, TIMES = 10_000, 200


class Speed(NamedTuple):
    """One timing.

    Attributes:
        name: what was timed.
        units: number of units.
        unit: what is counted.
        first: seconds of the first call, which compiles.
        seconds: seconds of the best later one.
    """

    name: str
    units: int
    unit: str
    first: float
    seconds: float

    @property
    def rate(self) -> float:
        """Units per second."""
        return self.units / self.seconds


def measure(scale: float = 1.0) -> list[Speed]:
    """Times batched training at the paper's size and sweeps over the ratio.

    Args:
        scale: fraction of the full size, for a quick look.
    """
    runs, lanes = max(1, round(RUNS * scale)), max(2, round(LANES * scale))
    found = []
    for name in ("FAFO", "CACO"):
        width = {"hidden_qk": 50, "hidden_ov": 50} if name == "FAFO" else {}

        def trained(name=name, width=width):
            return train(
                _PAPER, name, ratio=1.0, lr=0.1, steps=STEPS, points=1, seeds=runs, start=RandomStart(0.1),
                population="sampled-identities", examples=32, dtype="float32", progress=False, **width,
            ).margin  # fmt: skip

        found.append(_timed(f"train {name}: {runs} runs, float32", trained, runs * STEPS, "run-steps"))
    ratios, log_times = np.geomspace(1e-2, 1e3, lanes), np.linspace(0, np.log(1e12), TIMES)
    for name, solve in (("integrate", integrate), ("exact", exact)):

        def swept(solve=solve):
            return solve(_SWEPT, ratio=ratios, log_times=log_times).margin

        found.append(_timed(f"{name} CACO: {lanes} ratios x {TIMES} times", swept, lanes * TIMES, "outputs"))
    return found


def memory() -> dict[str, Any]:
    """Bytes at most in use: of every device that says so, else of this process."""
    told = {str(device): device.memory_stats() for device in jax.local_devices()}
    known = {name: stats["peak_bytes_in_use"] for name, stats in told.items() if stats}
    if len(known) == len(told):
        return {"of": "device", "peak_bytes": max(known.values()), "devices": known}
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return {"of": "process", "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "devices": {}}


def _timed(name: str, call: Callable[[], Any], count: int, unit: str) -> Speed:
    seconds = []
    for _ in range(4):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - begin)
    return Speed(name, count, unit, seconds[0], min(seconds[1:]))
