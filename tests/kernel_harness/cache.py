"""Where tests and benchmarks keep the kernels that they build, and what they make of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from compiler.cache_folder import LINKER, RUNTIMES, cache_folder

_VARIABLE = "POCKFARM_TEST_CACHE"
_DEFAULT = Path(__file__).parents[2] / ".cache" / "kernels"


@cache
def kernel_cache_folder() -> Path:
    """The folder that the environment names, or `.cache/kernels`: an entry is valid only for the code that made it.

    As the cache of a farm, too: it has the linker's own libraries, which take minutes to build, from where others do.
    """
    folder = Path(os.environ.get(_VARIABLE, _DEFAULT))
    folder.mkdir(parents=True, exist_ok=True)
    for name in (RUNTIMES, LINKER):
        (cache_folder() / name).mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(cache_folder() / name)
    return folder


def cached_file(kind: str, content: bytes, make: Callable[[Path], object], suffix: str = "") -> Path:
    """The file that `make` writes at the path it is given, from this content; it is made once.

    It is made in a folder of its own, then moved, so that other processes see all of it or none. `suffix`: how its name
    ends, by which compilers and linkers know a file.
    """
    folder = kernel_cache_folder() / kind
    path = folder / f"{hashlib.sha256(content).hexdigest()}{suffix}"
    if not path.exists():
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as partial:
            make(Path(partial) / path.name)
            (Path(partial) / path.name).replace(path)
    return path
