"""The engines of a machine beside its CPU: which accelerators their drivers know, and what their jobs need to see.

Adding an engine: its way of asking in `ask_accelerator.py`, and a row of `ENGINES`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob

from device_agents.errors import EnrolmentError
from device_agents.own_file import own_file
from device_agents.wire.log_lines import visible

ASK_TIMEOUT_S = 60.0
"""A driver that starts for the first time may compile something."""
MAX_TEXT = 1000
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
"""The places of the C library, and with it of drivers."""


@dataclass(frozen=True)
class Engine:
    """A way to run kernels on something that is no CPU."""

    name: str
    title: str
    targets: tuple[str, ...]
    """Compiler targets of a CPU that have this engine too: `<target>/<engine>`."""
    files: tuple[str, ...]
    """Files that its drivers read beside the system's libraries, as patterns of paths."""
    nodes: tuple[str, ...]
    """Device nodes that they open, as patterns of paths."""

    def existing_files(self) -> tuple[str, ...]:
        """Returns those of the files that are there."""
        return _there((*LIBRARIES, *self.files))

    def devices(self) -> tuple[str, ...]:
        """Returns those of the device nodes that are there."""
        return _there(self.nodes)


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            "opencl",
            "OpenCL",
            ("x86-64-v3", "aarch64", "snapdragon-8-gen-2"),
            (
                "/etc/OpenCL",
                "/sys/devices/system/node",
                "/usr/share/pocl",
                "/usr/bin/ld",
                "/usr/bin/ld.bfd",
                "/usr/bin/*-linux-gnu-ld*",
                "/vendor",
            ),
            ("/dev/kgsl-3d0", "/dev/mali0", "/dev/dri/renderD*", "/dev/ion", "/dev/dma_heap/*", "/dev/null"),
        ),
        Engine(
            "cuda",
            "CUDA",
            ("jetson-orin-nano", "jetson-agx-orin", "x86-64-v3"),
            ("/etc/nv_tegra_release", "/usr/local/cuda/lib64", "/sys/module/nvgpu", "/sys/bus/pci/devices"),
            ("/dev/nvidia*", "/dev/nvhost*", "/dev/nvmap", "/dev/nvgpu/*", "/dev/host1x-fence", "/dev/null"),
        ),
    )
}
"""Sources of the nodes: the kernel drivers' names of them (msm kgsl, mali_kbase, drm, nvgpu, nvidia open modules)."""


@dataclass(frozen=True)
class Accelerator:
    """A device behind a driver, as the driver describes it."""

    engine: Engine
    kind: str
    """`gpu`, `accelerator`, or `cpu`: kernels of an accelerator that a CPU plays."""
    name: str
    version: str
    driver: str
    memory_bytes: int
    unified: bool
    """Whether its memory is the host's."""
    capability: str
    """CUDA's compute capability, as `sm_87`."""
    extensions: str

    @property
    def is_played(self) -> bool:
        """Whether it proves function only: a CPU takes the place of the accelerator."""
        return self.kind == "cpu"

    @property
    def features(self) -> tuple[str, ...]:
        """Words that a bundle may require."""
        return tuple(filter(None, (self.engine.name, self.capability)))

    def facts(self) -> dict[str, str]:
        """Returns the facts that belong beside a measured number."""
        environment = {
            "engine": self.engine.name,
            "accelerator": f"{self.name} ({self.kind})",
            "accelerator_api": self.version,
            "accelerator_driver": self.driver,
            "accelerator_memory_bytes": str(self.memory_bytes),
            "compute_capability": self.capability,
            "opencl_extensions": self.extensions,
        }
        return {name: visible(value)[:MAX_TEXT] for name, value in environment.items() if value}


def accelerator_of(name: str, ask: Callable[[str], str] | None = None) -> Accelerator:
    """The device that a binary for this engine takes: a GPU before anything else, the first of its kind.

    Raises: `EnrolmentError` when there is no such engine, or its driver knows no device.
    """
    engine = ENGINES.get(name)
    if engine is None:
        raise EnrolmentError(f"--engine {name}: no such engine; there are: {', '.join(ENGINES)}")
    answer = (ask or _ask_drivers)(name)
    accelerators = sorted(
        _usable(engine, answer), key=lambda accelerator: ("gpu", "accelerator", "cpu").index(accelerator.kind)
    )
    if not accelerators:
        raise EnrolmentError(
            f"--engine {name}: {engine.title} knows no device here{_why_none(answer)}. "
            "Install the driver of this board's GPU"
            + (", or pocl-opencl-icd, by which its CPU plays one" if name == "opencl" else "")
        )
    return accelerators[0]


def engine_targets(engine: Engine, targets: Sequence[str]) -> tuple[str, ...]:
    """Returns those of the CPU's targets that exist for the engine too, under the engine's name."""
    return tuple(f"{target}/{engine.name}" for target in targets if target in engine.targets)


def _ask_drivers(name: str) -> str:
    """Asks the drivers in a process of their own; returns their answer, or why there is none if the process does not
    end as it should.
    """
    command = [sys.executable, "-I", "-S", own_file("devices/ask_accelerator.py"), name]
    try:
        process = subprocess.run(command, capture_output=True, timeout=ASK_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return json.dumps({"none": f"the driver does not answer within {ASK_TIMEOUT_S:.0f} s"})
    except OSError as problem:
        return json.dumps({"none": str(problem)})
    if process.returncode:
        return json.dumps({"none": f"who asks the driver ends with code {process.returncode}"})
    return process.stdout.decode("utf-8", "replace")


_WORDS = ("name", "version", "driver", "capability", "extensions")


def _usable(engine: Engine, text: str) -> list[Accelerator]:
    """Returns the usable accelerators of the answer: a driver is not ours, so that its answer is checked."""
    accelerators = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
            kind, memory_bytes = str(row["kind"]), int(row["memory_bytes"])
            name, version, driver, capability, extensions = (str(row[word]) for word in _WORDS)
            unified = bool(row["unified"])
        except (ValueError, TypeError, KeyError):
            continue
        if kind in ("gpu", "accelerator", "cpu") and memory_bytes > 0:
            accelerator = Accelerator(
                engine, kind, name, version, driver, memory_bytes, unified, capability, extensions
            )
            accelerators.append(accelerator)
    return accelerators


def _why_none(answer: str) -> str:
    """The reason in an answer without a device, in brackets; nothing if it has none."""
    try:
        return f" ({visible(str(json.loads(answer)['none']))[:MAX_TEXT]})"
    except (ValueError, TypeError, KeyError):
        return ""


def _there(patterns: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path for pattern in patterns for path in sorted(glob(pattern))))
