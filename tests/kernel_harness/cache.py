"""Where tests and benchmarks keep the kernels that they build."""

from __future__ import annotations

import contextlib
import os
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
