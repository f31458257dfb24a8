"""C sources and objects as libraries in this process, made by zig's compiler and the system's linker."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import ziglang

from compiler.cache_folder import LINKER, cache_folder
from compiler.errors import BuildError


def load_library(*objects: Path | str) -> ctypes.CDLL:
    """Link objects into a library and load it into this process, which has the C library that they call.

    The system's linker, which comes with gcc: zig's takes twice the time. Raises: BuildError.
    """
    with tempfile.TemporaryDirectory(prefix="pockfarm-test-") as folder:
        library = Path(folder) / "kernel.so"
        _run("ld", "-shared", "--gc-sections", "-z", "noexecstack", "-o", str(library), *map(str, objects))
        return ctypes.CDLL(str(library), mode=os.RTLD_NOW)


def object_file(name: str, source: str, *options: str) -> Path:
    """Compile C source, once per content and options, into the user's temporary folder. Raises: BuildError."""
    digest = hashlib.sha256("\0".join((source, *options)).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"pockfarm-{name}-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}.o"
    if not path.exists():
        c_file = folder / f"{os.getpid()}.c"
        c_file.write_text(source)
        partial = folder / f"{os.getpid()}.o"
        run_zig("cc", *options, "-c", str(c_file), "-o", str(partial))
        partial.replace(path)
    return path


def run_zig(program: str, *arguments: str) -> str:
    """Run one of zig's programs (`cc`, `ld.lld`) and return its output, of both streams. Raises: BuildError."""
    zig = str(Path(ziglang.__file__).parent / "zig")
    return _run(zig, program, *arguments, ZIG_GLOBAL_CACHE_DIR=str(cache_folder() / LINKER))


def _run(*command: str, **variables: str) -> str:
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env={**variables, **os.environ})
    if completed.returncode:
        raise BuildError(completed.stderr.strip()[-2000:], where=" ".join(command[:2]))
    return completed.stdout + completed.stderr
