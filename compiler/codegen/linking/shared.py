"""Kernels and tables -> a shared library that apps load, by `zig cc`, against glibc (decision 0083).

It holds the same kernels and tables as the executable, and the part of the runtime that is not the command's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from compiler import targets
from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.linking.link import write_kernels
from compiler.codegen.linking.tables import table_source
from compiler.codegen.linking.toolchain import (
    DRIVER_LIBRARIES,
    RUNTIME,
    device_sources,
    ensure_library,
    objects_of,
    runtime_objects,
    zig_cc,
)
from compiler.program.program import BinaryImage
from compiler.targets import Target

LIBRARY = RUNTIME / "library"
HEADER_SOURCE = LIBRARY / "pockfarm.h"
EXAMPLE_SOURCE = RUNTIME / "example" / "train.c"
"""The example from which an app can be written, with its header."""
LIBRARY_ABI = 1
"""POCKFARM_ABI_VERSION."""
SHARED_FLAGS = ("-fPIC", "-fvisibility=hidden", "-DPOCKFARM_BUILDS_LIBRARY")
SHARED_LINK_FLAGS = (
    "-shared",
    "-s",
    "-Wl,--gc-sections",
    "-Wl,--build-id=none",
    "-Wl,-Bsymbolic",
    "-Wl,-z,noexecstack",
    "-Wl,-z,defs",
    "-Wl,-soname,libpockfarm_step.so",
    "-Wl,--version-script=exports",
)
SYSTEM_LIBRARIES = ("-lm", "-lpthread")
EXPORTS = "{ global: pockfarm_*; local: *; };\n"
"""Kernels' names are everybody's: an app may have several such libraries."""
SHARED_SOURCES = (
    "backend",
    "checkpoint_load",
    "checkpoint_read",
    "checkpoint_write",
    "clock",
    "cores",
    "events",
    "failure",
    "files",
    "layout",
    "reach",
    "scan",
    "score",
    "session",
    "threads",
)
"""Runtime sources that a library has too; the others are the command's."""


def link_library(image: BinaryImage, kernels: Mapping[str, CompiledKernel], target: Target, *, work_dir: Path) -> bytes:
    """`libpockfarm_step.so` for `target` (library/pockfarm.h), against glibc: same image and kernels, same bytes.

    Arguments and errors are those of `link_binary`.
    """
    triple, include = target.library_triple, ["-I", str(RUNTIME)]
    with tempfile.TemporaryDirectory(dir=work_dir, prefix="link-") as name:
        folder = Path(name)
        called = [kernel for kernel in kernels.values() if kernel.is_called]
        objects = write_kernels(folder, called)
        (folder / "exports").write_text(EXPORTS)
        (folder / "tables.c").write_text(table_source(image, kernels))
        zig_cc(triple, [*include, *SHARED_FLAGS, "-c", "tables.c", "-o", "tables.o"], folder)
        objects = [*map(str, library_objects(triple, target.kind)), "tables.o", *objects]
        zig_cc(triple, [*SHARED_LINK_FLAGS, "-o", "library", *objects, *_system_libraries(target.kind)], folder)
        return (folder / "library").read_bytes()


def library_objects(library_triple: str, kind: str) -> tuple[Path, ...]:
    """The runtime for a shared library: position-independent, and without what is the command's."""
    shared = (RUNTIME / f"{stem}.c" for stem in SHARED_SOURCES)
    sources = [*shared, *sorted(LIBRARY.glob("*.c")), *device_sources(kind)]
    return objects_of(library_triple, sources, SHARED_FLAGS)


def warm_everything() -> Iterator[str]:
    """Builds what executables and libraries of all targets need, so that no compile waits; each triple before its turn.

    Raises: BuildError if the compiler or linker fails.
    """
    every_target = [targets.load(name) for name in targets.names()]
    executables = {(target.zig_triple, target.kind) for target in every_target}
    libraries = {(target.library_triple, target.kind) for target in every_target}
    triples = {triple for triple, _ in executables | libraries}
    for triple in sorted(triples, key=lambda triple: (not triple.endswith("musl"), triple)):
        yield triple
        ensure_library(triple)
        for kind in sorted(kind for name, kind in executables if name == triple):
            runtime_objects(triple, kind)
        for kind in sorted(kind for name, kind in libraries if name == triple):
            library_objects(triple, kind)


def _system_libraries(kind: str) -> tuple[str, ...]:
    return SYSTEM_LIBRARIES if kind == "cpu" else DRIVER_LIBRARIES


if __name__ == "__main__":
    for triple in warm_everything():
        print(triple, flush=True)
