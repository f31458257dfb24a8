"""The GPU of this machine, as an agent finds it."""

from __future__ import annotations

from device_agents.devices.accelerator import Accelerator, accelerator_of
from device_agents.errors import EnrolmentError


class NoGpu(Exception):
    """CUDA gives none; the message says why."""


def gpu() -> Accelerator:
    """The first that CUDA's driver gives. Raises: NoGpu."""
    try:
        return accelerator_of("cuda")
    except EnrolmentError as problem:
        raise NoGpu(str(problem).removeprefix("--engine cuda: ")) from None
