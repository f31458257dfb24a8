"""What machine this is, and its limits: multiply-add peak and memory bandwidth, measured by a small C program."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe() -> dict[str, object]:
    """Processor, cores, memory, system."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = Path("/proc/meminfo").read_text().splitlines()[0].split()
    return {
        "cpu": cpu[0].split(":", 1)[1].strip() if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": int(memory[1]) * 1024,
        "system": platform.platform(),
        "python": platform.python_version(),
    }
