"""The identity of this compiler: one digest over what decides a build's bytes beside the build's own inputs.

Our sources and the versions of TVM (and its calling library), of NVRTC and of the linker. Bundles carry it, the service
answers repeated requests by it, and measured schedules hold for it alone, so an upgrade of any of them never gets what
an older compiler made. Nothing heavy is imported: the service asks, too, and has none of them.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent
SOURCES = frozenset({".py", ".c", ".h", ".toml"})
KERNEL_TOOLS = ("apache-tvm", "apache-tvm-ffi", "nvidia-cuda-nvrtc-cu12")
LINKER = "ziglang"

KERNEL_ROOMS = ("codegen", "kernels", "graph.py", "tensors.py", "element_types.py", "program/operands.py")
"""The sources that decide a kernel's object, beside the target's own figures."""
NO_KERNELS = "codegen/linking"
"""The room of `codegen` that makes no kernel: it joins what was made."""


@functools.cache
def compiler_identity() -> str:
    """64 hex digits: the compiler as a whole."""
    return identity_of(ROOT, (*KERNEL_TOOLS, LINKER))


@functools.cache
def kernel_identity() -> str:
    """64 hex digits: the part of the compiler that decides a kernel's object (the key of the kernel cache)."""
    return identity_of(ROOT, KERNEL_TOOLS, KERNEL_ROOMS, NO_KERNELS)


def identity_of(root: Path, tools: Iterable[str], rooms: Iterable[str] = (".",), but: str = "") -> str:
    """Digest of the sources in some rooms of `root` (those in `but` left out) and of the tools' versions."""
    digest = hashlib.sha256()
    for path in sources(root, rooms, but):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    for tool in tools:
        digest.update(f"{tool}={version_of(tool)}\0".encode())
    return digest.hexdigest()


def sources(root: Path, rooms: Iterable[str] = (".",), but: str = "") -> list[Path]:
    """The source files in some rooms (folders, or files) of `root`, in one order, those in `but` left out."""
    paths = {path for room in rooms for path in _files(root / room) if path.suffix in SOURCES}
    return sorted(path for path in paths if not (but and path.is_relative_to(root / but)))


def _files(room: Path) -> Iterator[Path]:
    return iter([room]) if room.is_file() else room.rglob("*")


def version_of(tool: str) -> str:
    """The tool's version here; where it is not installed (the service's image), the one that our package pins."""
    try:
        return importlib.metadata.version(tool)
    except importlib.metadata.PackageNotFoundError:
        return _pinned(tool)


def _pinned(tool: str) -> str:
    try:
        requirements = importlib.metadata.requires("pockfarm") or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    pins = (re.match(rf"{re.escape(tool)}==([^;\s]+)", line) for line in requirements)
    return next((pin.group(1) for pin in pins if pin), "none")
