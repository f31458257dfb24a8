"""The linker's tools: `zig cc`, its C library for each kind of machine, and the runtime's object files.

The runtime is generic C: only kernels use a board's features, so there is one set of flags per triple. Its objects, and
zig's C library, are built once per triple and kept in a cache folder (`compiler.cache_folder`; zig's own part also by
`ZIG_GLOBAL_CACHE_DIR`). Needs the standard library and `ziglang` alone, so that set-up can build the first library
while everything else is still being installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from compiler.cache_folder import RUNTIMES, cache_folder, linker_cache
from compiler.errors import BuildError

RUNTIME = Path(__file__).parents[2] / "runtime"
FLAGS = (
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O2",
    "-ffunction-sections",
    "-fdata-sections",
    "-fno-unwind-tables",
    "-fno-asynchronous-unwind-tables",
)
LINK_FLAGS = ("-static", "-s", "-Wl,--gc-sections")
LOADING_LINK_FLAGS = ("-s", "-Wl,--gc-sections", "-Wl,--build-id=none")
DRIVER_LIBRARIES = ("-lm", "-lpthread", "-ldl")
"""Libraries of glibc 2.31, which has the last two apart."""
ASK_AGAIN_S = 1.0
TIMEOUT_S = 600
"""The first call for a triple builds a C library, on a slow machine for minutes."""


def runtime_objects(zig_triple: str, kind: str) -> tuple[Path, ...]:
    """The runtime's object files for a triple and a kind of device, built on first use and then taken from the cache.

    Raises: BuildError if the compiler fails.
    """
    return (
        *objects_of(zig_triple, sorted(RUNTIME.glob("*.c")), ()),
        *objects_of(zig_triple, device_sources(kind), ()),
    )


def device_sources(kind: str) -> list[Path]:
    """The runtime's part that runs kernels on this kind of target: `<kind>.c`, and `<kind>_<part>.c` of a long one."""
    folder = RUNTIME / "devices"
    return [folder / f"{kind}.c", *sorted(folder.glob(f"{kind}_*.c"))]


def objects_of(triple: str, sources: Sequence[Path], flags: Sequence[str]) -> tuple[Path, ...]:
    """Object files of some of the runtime's sources. Raises: as `runtime_objects`."""
    folder = cache_folder() / RUNTIMES / f"{triple}-{_runtime_digest(triple, sources, flags)}"
    if not folder.is_dir():
        _build_runtime(triple, sources, flags, folder)
    return tuple(folder / f"{source.stem}.o" for source in sources)


def ensure_library(triple: str, progress: Callable[[str], None] = lambda message: None) -> None:
    """Builds zig's C library for a triple where no process has built it yet, or waits for the one that builds it now.

    `progress` gets a line where this takes time, again and again while another process builds it: who waits uses no
    processor time, and would be taken to hang. Raises: BuildError if the compiler or linker fails.
    """
    folder = linker_cache()
    is_built = folder / f"{triple}-{importlib.metadata.version('ziglang')}.built"
    if is_built.exists():
        return
    message = f"waiting for the linker's C library for {triple}, which is built once"
    progress(message)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{triple}.lock").open("w") as lock:
        while not _try_lock(lock):
            time.sleep(ASK_AGAIN_S)
            progress(message)
        if not is_built.exists():
            _build_library(triple)
            is_built.touch()


def _try_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _build_library(triple: str) -> None:
    """Links one function in each way that our programs and libraries are linked: zig builds what that takes.

    With the same flags: it builds another library for each way to address code, say.
    """
    is_static = triple.endswith("musl")
    ways = (
        [LINK_FLAGS]
        if is_static
        else [(*LOADING_LINK_FLAGS, *DRIVER_LIBRARIES), ("-shared", "-fPIC", *DRIVER_LIBRARIES)]
    )
    with tempfile.TemporaryDirectory(prefix="pockfarm-warm-") as name:
        folder = Path(name)
        (folder / "warm.c").write_text("int main(void) { return 0; }\n")
        for flags in ways:
            zig_cc(triple, ["-o", "warm", "warm.c", *flags], folder)


def _runtime_digest(zig_triple: str, sources: Sequence[Path], flags: Sequence[str]) -> str:
    """Digest of everything that decides the objects: which they are, flags, tools, and the folders of the sources."""
    names = sorted(source.name for source in sources)
    digest = hashlib.sha256(repr((zig_triple, names, FLAGS, *flags, importlib.metadata.version("ziglang"))).encode())
    for path in sorted(
        path for folder in {RUNTIME, *(source.parent for source in sources)} for path in folder.iterdir()
    ):
        if path.suffix in (".c", ".h"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _build_runtime(zig_triple: str, sources: Sequence[Path], flags: Sequence[str], folder: Path) -> None:
    """Compiles beside the final folder, then renames: a second process that does the same loses nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as name:
        built = Path(name) / "objects"
        built.mkdir()
        for source in sources:
            words = ["-Wall", "-Wextra", "-Werror", "-I", str(RUNTIME), *flags, "-c", str(source)]
            zig_cc(zig_triple, [*words, "-o", f"{source.stem}.o"], built)
        try:
            built.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise


def zig_cc(zig_triple: str, arguments: Sequence[str], folder: Path) -> None:
    """Runs the compiler in `folder`, with its local cache there too. Raises: BuildError with its last words."""
    command = [sys.executable, "-m", "ziglang", "cc", "-target", zig_triple, *FLAGS, *arguments]
    local_cache = folder / ".zig-cache"
    environment = {
        **os.environ,
        "ZIG_GLOBAL_CACHE_DIR": str(linker_cache()),
        "ZIG_LOCAL_CACHE_DIR": str(local_cache),
    }
    try:
        process = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise BuildError(f"the linker did not run: {problem}", where="zig cc") from problem
    finally:
        shutil.rmtree(local_cache, ignore_errors=True)
    if process.returncode != 0:
        words = process.stderr.decode(errors="replace").strip()[-800:]
        raise BuildError(f"zig cc failed with {process.returncode}: {words}", where="zig cc")
