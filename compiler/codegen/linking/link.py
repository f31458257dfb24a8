"""Kernels and tables -> one stripped static executable, by `zig cc`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.choice import Variant
from compiler.codegen.linking.tables import table_source
from compiler.codegen.linking.toolchain import (
    DRIVER_LIBRARIES,
    LINK_FLAGS,
    LOADING_LINK_FLAGS,
    RUNTIME,
    runtime_objects,
    zig_cc,
)
from compiler.codegen.linking.trials import Trial, pool_bytes, trial_source
from compiler.errors import InternalError
from compiler.program.program import BinaryImage
from compiler.targets import CpuTarget, GridTarget, Target


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
    """Compiles the sources and links them with the kernels and the runtime's objects, some of these left out."""
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
    """Links an executable as `_static_executable` does, for a program that loads a driver; the kernels are among the
    sources.
    """
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
"""The linker of each kind of target. A CPU's step is a static executable (decision 0006); one with a driver cannot
be.
"""


def write_kernels(folder: Path, kernels: Iterable[CompiledKernel]) -> list[str]:
    """Writes one object file per symbol, named and ordered by symbol so that links repeat."""
    objects = {kernel.symbol: _object_of(kernel) for kernel in kernels}
    for symbol, content in objects.items():
        (folder / f"{symbol}.o").write_bytes(content)
    return [f"{symbol}.o" for symbol in sorted(objects)]


def _object_of(kernel: CompiledKernel) -> bytes:
    """Raises: InternalError for a kernel that a static executable cannot hold or call."""
    if not kernel.is_called:
        forms, ways = ([artefact.form for artefact in kernel.artefacts], [launch.by for launch in kernel.launches])
        raise InternalError(
            f"a static executable takes one object that is called, not {forms} by {ways}", where=kernel.symbol
        )
    return kernel.object_bytes
