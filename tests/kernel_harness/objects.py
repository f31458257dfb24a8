"""C sources as objects, and objects as libraries in this process; both are cached by their content."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ziglang

from compiler.cache_folder import LINKER, cache_folder
from compiler.errors import BuildError
from tests.kernel_harness.cache import kernel_cache_folder


def load_library(*objects: bytes) -> ctypes.CDLL:
    """Link objects into a library and load it into this process, which has the C library that they call.

    The same objects are loaded once in a process, with one set of variables. Raises: BuildError.
    """
    path = _path("libraries", b"\0".join(objects), ".so")
    if not path.exists():
        with _partial(path) as (folder, library):
            names = [folder / f"{number}.o" for number in range(len(objects))]
            for name, content in zip(names, objects, strict=True):
                name.write_bytes(content)
            link_library(library, *names)
    return ctypes.CDLL(str(path), mode=os.RTLD_NOW)


def link_library(library: Path, *objects: Path) -> None:
    """Link by the system's linker, which comes with gcc: zig's takes twice the time. Raises: BuildError."""
    _run("ld", "-shared", "--gc-sections", "-z", "noexecstack", "-o", str(library), *map(str, objects))


def object_file(source: str, *options: str, compiler: str = "cc") -> Path:
    """Compile C source by one of zig's compilers: `cc`, or `clang`, which has no C library but starts faster.

    Raises: BuildError.
    """
    path = _path("objects", "\0".join((source, compiler, *options)).encode(), ".o")
    if not path.exists():
        with _partial(path) as (folder, compiled):
            (folder / "source.c").write_text(source)
            run_zig(compiler, *options, "-c", str(folder / "source.c"), "-o", str(compiled))
    return path


def run_zig(program: str, *arguments: str) -> str:
    """Run one of zig's programs (`cc`, `ld.lld`) and return its output, of both streams. Raises: BuildError."""
    zig = str(Path(ziglang.__file__).parent / "zig")
    return _run(zig, program, *arguments, ZIG_GLOBAL_CACHE_DIR=str(cache_folder() / LINKER))


def _path(kind: str, content: bytes, suffix: str) -> Path:
    folder = kernel_cache_folder() / kind
    folder.mkdir(exist_ok=True)
    return folder / f"{hashlib.sha256(content).hexdigest()}{suffix}"


@contextlib.contextmanager
def _partial(path: Path) -> Iterator[tuple[Path, Path]]:
    """A folder to work in and a file in it that becomes `path` in the end, so that others see all of it or none."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as name:
        folder = Path(name)
        yield folder, folder / path.name
        (folder / path.name).replace(path)


def _run(*command: str, **variables: str) -> str:
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env={**variables, **os.environ})
    if completed.returncode:
        raise BuildError(completed.stderr.strip()[-2000:], where=" ".join(command[:2]))
    return completed.stdout + completed.stderr
