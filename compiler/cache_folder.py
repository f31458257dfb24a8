"""Folders that keep built kernels, runtimes and the linker's libraries between builds; the farm has one for each
machine too.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "POCKFARM_CACHE_DIR"
KERNELS, RUNTIMES, LINKER = "kernels", "runtime", "zig"
ROOMS = (KERNELS, RUNTIMES, LINKER)
"""Folders in it that compiles write; a farm keeps other organisations' caches beside them."""


def cache_folder() -> Path:
    """The folder that the environment names, or `~/.cache/pockfarm`."""
    variable = os.environ.get(VARIABLE)
    return Path(variable) if variable else Path.home() / ".cache" / "pockfarm"


def linker_cache() -> Path:
    """Returns the folder in which zig keeps the C libraries that it has built: a folder of its own if the environment
    names one.
    """
    folder = os.environ.get("ZIG_GLOBAL_CACHE_DIR")
    return Path(folder) if folder else cache_folder() / LINKER
