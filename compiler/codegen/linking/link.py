"""Kernels and tables -> one stripped static executable, by `zig cc`.

The runtime is generic C: only kernels use a board's features, so there is one set of flags per triple. Its objects, and
zig's C library, are built once per triple and kept in a cache folder (`compiler.cache_folder`;
zig's own part also by `ZIG_GLOBAL_CACHE_DIR`).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compiler import targets
from compiler.cache_folder import LINKER, RUNTIMES, cache_folder
from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.choice import Variant
from compiler.codegen.linking.tables import table_source
from compiler.codegen.linking.trials import Trial, pool_bytes, trial_source
from compiler.errors import BuildError, InternalError
from compiler.program.program import BinaryImage
from compiler.targets import CpuTarget, GridTarget, Target

RUNTIME = Path(__file__).parents[2] / "runtime"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-ffunction-sections", "-fdata-sections", "-fno-unwind-tables",
         "-fno-asynchronous-unwind-tables")  # fmt: skip
LINK_FLAGS = ("-static", "-s", "-Wl,--gc-sections")
LOADING_LINK_FLAGS = ("-s", "-Wl,--gc-sections", "-Wl,--build-id=none")
DRIVER_LIBRARIES = ("-lm", "-lpthread", "-ldl")
"""Of glibc 2.31, which has the last two apart."""
TIMEOUT_S = 600
"""The first call for a triple builds a C library, on a slow machine for minutes."""


def link_binary(image: BinaryImage, kernels: Mapping[str, CompiledKernel], target: Target, *, work_dir: Path) -> bytes:
    """The executable `step` for `target`: same image and kernels, same bytes.

    `kernels` is keyed by `signature(call.spec)`; `work_dir` is an existing folder for intermediate files.
    Raises: InternalError if the image contradicts itself, BuildError if the compiler or linker fails.
    """
    sources = {"tables": table_source(image, kernels)}
    return LINKERS[target.kind](sources, (), kernels.values(), target, work_dir)


def link_tuner(
    trials: Sequence[Trial],
    kernels: Mapping[Variant, CompiledKernel],
    target: CpuTarget,
    *,
    threads: int,
    work_dir: Path,
) -> bytes:
    """The executable that times the variants of each trial: same trials and kernels, same bytes. Raises: BuildError."""
    sources = {
        "trials": trial_source(trials, kernels, threads=threads, pool_bytes=pool_bytes(target)),
        "tuner": (RUNTIME / "tuner" / "tuner.c").read_text(),
    }
    return LINKERS[target.kind](sources, ("main",), kernels.values(), target, work_dir)


def _static_executable(
    sources: Mapping[str, str],
    left_out: Collection[str],
    kernels: Iterable[CompiledKernel],
    target: CpuTarget,
    work_dir: Path,
) -> bytes:
    """Compile the sources and link them with the kernels and the runtime's objects, some of these left out."""
    with tempfile.TemporaryDirectory(dir=work_dir, prefix="link-") as name:
        folder = Path(name)
        objects = [*write_kernels(folder, kernels), *_compiled(sources, target.zig_triple, folder)]
        runtime = [path for path in runtime_objects(target.zig_triple, target.kind) if path.stem not in left_out]
        return _linked([*LINK_FLAGS, *map(str, runtime), *objects], target.zig_triple, folder)


def _loading_executable(
    sources: Mapping[str, str],
    left_out: Collection[str],
    kernels: Iterable[CompiledKernel],
    target: GridTarget,
    work_dir: Path,
) -> bytes:
    """The same for a program that loads a driver; the kernels are among the sources."""
    with tempfile.TemporaryDirectory(dir=work_dir, prefix="link-") as name:
        folder = Path(name)
        objects = _compiled(sources, target.zig_triple, folder)
        runtime = [path for path in runtime_objects(target.zig_triple, target.kind) if path.stem not in left_out]
        return _linked(
            [*LOADING_LINK_FLAGS, *map(str, runtime), *objects, *DRIVER_LIBRARIES], target.zig_triple, folder
        )


def _compiled(sources: Mapping[str, str], triple: str, folder: Path) -> list[str]:
    """An object beside each source."""
    include = ["-I", str(RUNTIME), "-I", str(RUNTIME / "tuner")]
    for stem, source in sources.items():
        (folder / f"{stem}.c").write_text(source)
        zig_cc(triple, [*include, "-c", f"{stem}.c", "-o", f"{stem}.o"], folder)
    return [f"{stem}.o" for stem in sources]


def _linked(arguments: Sequence[str], triple: str, folder: Path) -> bytes:
    zig_cc(triple, ["-o", "step", *arguments], folder)
    return (folder / "step").read_bytes()


LINKERS: Mapping[str, Callable[[Mapping[str, str], Collection[str], Iterable[CompiledKernel], Any, Path], bytes]] = {
    "cpu": _static_executable,
    "opencl": _loading_executable,
    "cuda": _loading_executable,
}
"""How a target's kind is linked. A CPU's step is a static executable (decision 0006); one with a driver cannot be."""


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


def warm_toolchain(known: Iterable[Target] | None = None) -> None:
    """Build the runtime and zig's C library for each target (default: all that there are), so that no compile waits.

    Raises: BuildError if the compiler or linker fails.
    """
    every = [targets.load(name) for name in targets.names()] if known is None else known
    for triple, kind in sorted({(target.zig_triple, target.kind) for target in every}):
        runtime_objects(triple, kind)
        flags = LINK_FLAGS if kind == "cpu" else (*LOADING_LINK_FLAGS, *DRIVER_LIBRARIES)
        with tempfile.TemporaryDirectory(prefix="pockfarm-warm-") as name:
            folder = Path(name)
            (folder / "warm.c").write_text("int main(void) { return 0; }\n")
            zig_cc(triple, [*flags, "-o", "warm", "warm.c"], folder)


def write_kernels(folder: Path, kernels: Iterable[CompiledKernel]) -> list[str]:
    """One object file per symbol, named and ordered by symbol so that links repeat."""
    objects = {kernel.symbol: _object_of(kernel) for kernel in kernels}
    for symbol, content in objects.items():
        (folder / f"{symbol}.o").write_bytes(content)
    return [f"{symbol}.o" for symbol in sorted(objects)]


def _object_of(kernel: CompiledKernel) -> bytes:
    """Raises: InternalError for a kernel that a static executable cannot hold or call."""
    if not kernel.is_called:
        forms, ways = ([one.form for one in kernel.artefacts], [one.by for one in kernel.launches])
        raise InternalError(
            f"a static executable takes one object that is called, not {forms} by {ways}", where=kernel.symbol
        )
    return kernel.object_bytes


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
    """Compile beside the final folder, then rename: a second process that does the same loses nothing."""
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
    """Run the compiler in `folder`, with its local cache there too. Raises: BuildError with its last words."""
    command = [sys.executable, "-m", "ziglang", "cc", "-target", zig_triple, *FLAGS, *arguments]
    local_cache = folder / ".zig-cache"
    environment = {**os.environ, "ZIG_LOCAL_CACHE_DIR": str(local_cache)}
    environment.setdefault("ZIG_GLOBAL_CACHE_DIR", str(cache_folder() / LINKER))
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise BuildError(f"the linker did not run: {problem}", where="zig cc") from problem
    finally:
        shutil.rmtree(local_cache, ignore_errors=True)
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip()[-800:]
        raise BuildError(f"zig cc failed with {done.returncode}: {words}", where="zig cc")
