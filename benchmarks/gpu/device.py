"""The GPU of this machine, as an agent finds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from device_agents.devices.accelerator import Accelerator, accelerator_of
from device_agents.errors import EnrolmentError

_ASK = Path(__file__).with_name("ask_driver.py")
_ASK_S = 60


class NoGpu(Exception):
    """CUDA gives none; the message is the driver's."""


def gpu() -> Accelerator:
    """The first that CUDA's driver gives. Raises: NoGpu."""
    try:
        return accelerator_of("cuda")
    except EnrolmentError:
        raise NoGpu(_words()) from None


def _words() -> str:
    command = [sys.executable, "-I", "-S", str(_ASK)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except subprocess.TimeoutExpired:
        return f"CUDA's driver does not answer within {_ASK_S} s"
    ended = f"who asks CUDA's driver ends with code {done.returncode} {done.stderr[-200:]}"
    return " ".join((done.stdout.strip() or ended).split())
