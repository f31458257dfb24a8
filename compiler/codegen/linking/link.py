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

from compiler import targets
from compiler.cache_folder import LINKER, RUNTIMES, cache_folder
from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.choice import Variant
from compiler.codegen.linking.tables import table_source
from compiler.codegen.linking.trials import Trial, pool_bytes, trial_source
from compiler.errors import BuildError, InternalError
from compiler.program.program import BinaryImage
from compiler.targets import CpuTarget, Target

RUNTIME = Path(__file__).parents[2] / "runtime"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-ffunction-sections", "-fdata-sections", "-fno-unwind-tables",
         "-fno-asynchronous-unwind-tables")  # fmt: skip
LINK_FLAGS = ("-static", "-s", "-Wl,--gc-sections")
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
    trials: Sequence[Trial], kernels: Mapping[Variant, CompiledKernel], target: Target, *, threads: int, work_dir: Path
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
    triple, include = target.zig_triple, ["-I", str(RUNTIME), "-I", str(RUNTIME / "tuner")]
    runtime = [path for path in runtime_objects(triple) if path.stem not in left_out]
    with tempfile.TemporaryDirectory(dir=work_dir, prefix="link-") as name:
        folder = Path(name)
        objects = write_kernels(folder, kernels)
        for stem, source in sources.items():
            (folder / f"{stem}.c").write_text(source)
            zig_cc(triple, [*include, "-c", f"{stem}.c", "-o", f"{stem}.o"], folder)
        own = [f"{stem}.o" for stem in sources]
        zig_cc(triple, [*LINK_FLAGS, "-o", "step", *map(str, runtime), *own, *objects], folder)
        return (folder / "step").read_bytes()


LINKERS: Mapping[str, Callable[[Mapping[str, str], Collection[str], Iterable[CompiledKernel], Target, Path], bytes]] = {
    "cpu": _static_executable,
}
"""How a target's kind is linked. A CPU's step is a static executable (decision 0006)."""


def runtime_objects(zig_triple: str) -> tuple[Path, ...]:
    """The runtime's object files for a triple, built on first use and then taken from the cache folder.

    Raises: BuildError if the compiler fails.
    """
    return objects_of(zig_triple, sorted(RUNTIME.glob("*.c")), ())


def objects_of(triple: str, sources: Sequence[Path], flags: Sequence[str]) -> tuple[Path, ...]:
    """Object files of some of the runtime's sources. Raises: as `runtime_objects`."""
    folder = cache_folder() / RUNTIMES / f"{triple}-{_runtime_digest(triple, sources, flags)}"
    if not folder.is_dir():
        _build_runtime(triple, sources, flags, folder)
    return tuple(folder / f"{source.stem}.o" for source in sources)


def warm_toolchain(zig_triples: Iterable[str] | None = None) -> None:
    """Build the runtime and zig's C library for each triple (default: those of all targets), so that no compile waits.

    Raises: BuildError if the compiler or linker fails.
    """
    wanted = {targets.load(name).zig_triple for name in targets.names()} if zig_triples is None else set(zig_triples)
    for triple in sorted(wanted):
        runtime_objects(triple)
        with tempfile.TemporaryDirectory(prefix="pockfarm-warm-") as name:
            folder = Path(name)
            (folder / "warm.c").write_text("int main(void) { return 0; }\n")
            zig_cc(triple, [*LINK_FLAGS, "-o", "warm", "warm.c"], folder)


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
    """Digest of everything that decides the objects: flags, tools, and the folders that the sources are in."""
    digest = hashlib.sha256(repr((zig_triple, FLAGS, *flags, importlib.metadata.version("ziglang"))).encode())
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
