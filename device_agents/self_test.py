"""A self-test of the board before it enrols: isolation, sensors, disk, and the clock against the farm's."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import cryptography

from device_agents.devices.describe import Device
from device_agents.errors import FarmError
from device_agents.farm.client import FarmClient
from device_agents.farm.trust import CLOCK_TOLERANCE_S
from device_agents.job.matrix import matrix, table
from device_agents.job.sandbox import Sandbox

SENSORS = ("temperature", "frequency", "throttling", "power", "energy")
FEWEST_FREE_BYTES = 1 << 30
Say = Callable[[str], None]


def self_test(device: Device, sandbox: Sandbox, client: FarmClient, state: Path, say: Say) -> bool:
    """Prints the findings. Returns False if the board must not be given work as it is."""
    description = device.description
    say(f"python        {platform.python_version()}, cryptography {cryptography.__version__}")
    say(
        f"device        {description.device_class} ({description.measurement_class}): {description.cpu_model}, "
        f"{description.cores} cores, {description.memory_bytes / (1 << 30):.1f} GiB"
    )
    say(f"targets       {', '.join(description.targets) or 'none'}")
    _say_isolation(sandbox, say)
    missing = [name for name in SENSORS if name not in description.sensors]
    without = f" (without {', '.join(missing)})" if missing else ""
    say(f"sensors       {', '.join(description.sensors) or 'none'}{without}")
    return all([_disk_is_enough(state, say), _clock_is_right(client, say)])


def _say_isolation(sandbox: Sandbox, say: Say) -> None:
    for line in table(sandbox, matrix(sandbox)).splitlines():
        say(line)


def _disk_is_enough(state: Path, say: Say) -> bool:
    free_bytes = shutil.disk_usage(state).free
    say(f"disk          {free_bytes / (1 << 30):.1f} GiB free in {state}")
    if free_bytes < FEWEST_FREE_BYTES:
        say(
            f"PROBLEM       a job needs room: less than {FEWEST_FREE_BYTES >> 30} GiB is free; make room, "
            "or name another folder with --state"
        )
        return False
    return True


def _clock_is_right(client: FarmClient, say: Say) -> bool:
    try:
        off_s = client.clock_off_s()
    except FarmError as error:
        say(f"PROBLEM       the farm does not answer: {error}; is its address right, and reachable from this board?")
        return False
    side = "ahead of" if off_s >= 0 else "behind"
    say(f"clock         {abs(off_s):.1f} s {side} the farm's ({client.server})")
    if abs(off_s) <= CLOCK_TOLERANCE_S:
        return True
    say(
        f"PROBLEM       the clock may be off by {CLOCK_TOLERANCE_S:.0f} s: no work is taken until it is set "
        "(`timedatectl set-ntp true`, or the system's NTP client)"
    )
    return False
