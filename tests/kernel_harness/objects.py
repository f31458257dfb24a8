"""C sources as objects, and objects as libraries in this process."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import ziglang

from compiler.cache_folder import LINKER, cache_folder
from compiler.errors import BuildError
from tests.kernel_harness.cache import cached_file


def load_library(*objects: bytes) -> ctypes.CDLL:
    """Link objects into a library and load it into this process, which has the C library that they call.

    The same objects are loaded once in a process, with one set of variables. Raises: BuildError.
    """

    def link(library: Path) -> None:
        paths = [library.with_name(f"{number}.o") for number in range(len(objects))]
        for path, content in zip(paths, objects, strict=True):
            path.write_bytes(content)
        link_library(library, *paths)

    return ctypes.CDLL(str(cached_file("libraries", b"\0".join(objects), link, ".so")), mode=os.RTLD_NOW)


def link_library(library: Path, *objects: Path) -> None:
    """Link by the system's linker, which comes with gcc: zig's takes twice the time. Raises: BuildError."""
    _run("ld", "-shared", "--gc-sections", "-z", "noexecstack", "-o", str(library), *map(str, objects))


def object_file(source: str, *options: str, compiler: str = "cc") -> Path:
    """Compile C source by one of zig's compilers: `cc`, or `clang`, which has no C library but starts faster.

    Raises: BuildError.
    """

    def compile_source(compiled: Path) -> None:
        compiled.with_name("source.c").write_text(source)
        run_zig(compiler, *options, "-c", str(compiled.with_name("source.c")), "-o", str(compiled))

    return cached_file("objects", "\0".join((source, compiler, *options)).encode(), compile_source, ".o")


def run_zig(program: str, *arguments: str) -> str:
    """Run one of zig's programs (`cc`, `ld.lld`) and return its output, of both streams. Raises: BuildError."""
    zig = str(Path(ziglang.__file__).parent / "zig")
    return _run(zig, program, *arguments, ZIG_GLOBAL_CACHE_DIR=str(cache_folder() / LINKER))


def _run(*command: str, **variables: str) -> str:
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env={**variables, **os.environ})
    if completed.returncode:
        raise BuildError(completed.stderr.strip()[-2000:], where=" ".join(command[:2]))
    return completed.stdout + completed.stderr
