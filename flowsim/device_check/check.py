"""The whole check: parity, speed, memory."""

import os
from typing import Any, NamedTuple

import jax

from flowsim.device_check.cases import Deviation, compare, compute, read_reference
from flowsim.device_check.speed import Speed, measure, memory
from flowsim.trajectory_file import versions


class Checked(NamedTuple):
    """What the check found.

    Attributes:
        devices: the devices, in words.
        parity: distances from the stored results.
        speed: timings; empty if they were not asked for.
        memory: bytes at most in use, and whose.
        versions: of flowsim, JAX and the rest.
    """

    devices: list[str]
    parity: list[Deviation]
    speed: list[Speed]
    memory: dict[str, Any]
    versions: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Whether every result is within its bound."""
        return all(deviation.ok for deviation in self.parity)

    @property
    def plain(self) -> dict[str, Any]:
        """Plain nested data."""
        return {
            "ok": self.ok,
            "devices": self.devices,
            "parity": [{**vars(deviation), "ok": deviation.ok} for deviation in self.parity],
            "speed": [{**speed._asdict(), "rate": speed.rate} for speed in self.speed],
            "memory": self.memory,
            "versions": self.versions,
        }


def check(reference: str | os.PathLike | None = None, *, scale: float | None = 1.0) -> Checked:
    """Computes all cases on the devices that JAX finds and compares them with stored results.

    Args:
        reference: stored results; None for those that come with flowsim.
        scale: size of the timings as a fraction of the full one; None for no timings.

    Returns:
        What was found.

    Raises:
        FileProblem: if the stored results cannot be read.
    """
    stored = read_reference(reference)
    devices = [f"{device.platform}: {device.device_kind}" for device in jax.local_devices()]
    parity = compare(compute(), stored)
    return Checked(devices, parity, [] if scale is None else measure(scale), memory(), dict(versions()))
