"""What machine this is, and its limits: multiply-add peak and memory bandwidth, measured by a small C program."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


def describe() -> dict[str, object]:
    """Processor, cores, memory, system, and of which commit's code figures taken now are."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = Path("/proc/meminfo").read_text().splitlines()[0].split()
    return {
        "cpu": cpu[0].split(":", 1)[1].strip() if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": int(memory[1]) * 1024,
        "system": platform.platform(),
        "python": platform.python_version(),
        "bf16": has_bf16(),
        "instructions": instructions(),
        "commit": commit(),
    }


def instructions() -> str:
    """The instruction set, as the widest of our targets names it; elsewhere the architecture alone."""
    if platform.machine() != "x86_64":
        return platform.machine()
    flags = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    wider = {
        "amx_bf16": "x86-64-v4-amx",
        "avx512_bf16": "x86-64-v4-bf16",
        "avx512_vnni": "x86-64-v4-vnni",
        "avx512vl": "x86-64-v4",
    }
    return next((name for flag, name in wider.items() if flag in flags), "x86-64-v3")


def kind() -> str:
    """This kind of machine as a name for files: processor, instruction set (hosts call many the same), cores."""
    about = describe()
    words = re.sub(r"\((?:R|TM)\)|\b(?:processor|CPU)\b|@", " ", str(about["cpu"]), flags=re.IGNORECASE)
    name = f"{words} {about['instructions']} {about['cores']} cores"
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def commit() -> str:
    """Of this checkout, with a plus sign where files are not as it has them; nothing where there is no Git."""
    words = ["git", "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    except OSError:
        return ""
    return done.stdout.strip()


def has_bf16() -> bool:
    """Whether this machine multiplies bfloat16: only there are steps in it meant to be faster."""
    return instructions() in ("x86-64-v4-bf16", "x86-64-v4-amx")


@dataclass(frozen=True)
class Limits:
    """Measured limits: GFLOP/s of multiply-adds by number of threads, GB/s of copying by footprint in bytes."""

    fma_gflop_s: Mapping[int, float]
    copy_gb_s: Mapping[int, float]

    def cache_gb_s(self, footprint_bytes: int) -> float:
        """Bandwidth at a footprint, as if the data were where data of that size stay."""
        sizes = [size for size in self.copy_gb_s if size >= footprint_bytes]
        return self.copy_gb_s[min(sizes)] if sizes else self.memory_gb_s

    @property
    def memory_gb_s(self) -> float:
        """Bandwidth of memory: the largest footprint."""
        return self.copy_gb_s[max(self.copy_gb_s)]

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {"fma_gflop_s": dict(self.fma_gflop_s), "copy_gb_s": dict(self.copy_gb_s)}

    def best(self, other: Limits) -> Limits:
        """The better of two measurements, figure by figure: a limit is what the machine can do."""
        return Limits(
            {key: max(value, other.fma_gflop_s[key]) for key, value in self.fma_gflop_s.items()},
            {key: max(value, other.copy_gb_s[key]) for key, value in self.copy_gb_s.items()},
        )


def measure_limits(threads: int) -> Limits:
    """Build and run the C program beside this file; about 3 s. Raises: CalledProcessError."""
    program = Path("build/bench/limits")
    program.parent.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("limits.c")
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        command = [sys.executable, "-m", "ziglang", "cc", "-O3", "-march=native", "-ffp-contract=fast", "-pthread"]
        subprocess.run([*command, "-o", str(program), str(source)], check=True)
    done = subprocess.run([str(program), str(threads)], capture_output=True, text=True, check=True)
    body = json.loads(done.stdout)
    return Limits(*({int(key): float(value) for key, value in body[name].items()} for name in body))
