"""A disk of a few megabytes that can be filled: a file system in memory, mounted for a test (as root)."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BALLAST = "ballast"
CHUNK = bytes(4096)


@dataclass(frozen=True)
class SmallDisk:
    """A folder on it."""

    folder: Path

    @contextmanager
    def full(self) -> Iterator[None]:
        """Not a byte is left on it meanwhile. Who may not mount: no file of this process grows (EFBIG for ENOSPC)."""
        if os.geteuid() != 0:
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            return
        ballast = self.folder / BALLAST
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(CHUNK):
                    pass
            except OSError:
                pass
        try:
            yield
        finally:
            ballast.unlink()


@contextmanager
def small_disk(at: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mounted at a new folder, and taken away."""
    at.mkdir(mode=0o700)
    if os.geteuid() != 0:
        yield SmallDisk(at)
        return
    options = f"size={size_bytes},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)], check=True)
    try:
        yield SmallDisk(at)
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)
