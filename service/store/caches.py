"""Caches of compiles on a worker's machine: one for each organisation, of bounded size, beside each other.

A confined compile writes the cache of its own organisation and no other. Kernels are files that a compile reads whole
or builds again, so those used longest ago go at any time. What else is there (objects of the runtime, the linker's
libraries, whatever a hostile compile left) goes all at once, and only while nobody compiles with it; until then
compiles work without the cache. When all caches together take too much, whole ones go, the longest unused first.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from compiler.cache_folder import KERNELS, ROOMS
from service.base.settings import Settings
from service.store.database.models import HOME

ORGANISATIONS, IN_USE = "organisations", "in-use"
MOST_LOOK_S, UNCOUNTABLE = 10.0, 1 << 62
"""Caches that take longer to count have more files than compiles make: they count as too large."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Cache:
    """An organisation's cache, as an operator sees it."""

    organisation_id: str
    folder: Path
    size_bytes: int
    used_at: float
    """When a compile last began or ended with it; seconds since 1970, 0: never."""


def cache_of(settings: Settings, organisation_id: str) -> Path:
    """Returns the folder of an organisation's compiled kernels. Each has one of its own, because the duration of a
    compile reveals what was compiled before.
    """
    whole = settings.cache_folder
    return whole if organisation_id == HOME else whole / ORGANISATIONS / organisation_id


def caches(settings: Settings) -> list[Cache]:
    """Returns every organisation's cache on this machine, the longest unused first."""
    others = settings.cache_folder / ORGANISATIONS
    named = [(HOME, settings.cache_folder)] if settings.cache_folder.is_dir() else []
    named += [(folder.name, folder) for folder in sorted(others.iterdir())] if others.is_dir() else []
    sizes = sizes_of([folder for _, folder in named])
    by_organisation = [
        Cache(whose, folder, size, _used_at(folder)) for (whose, folder), size in zip(named, sizes, strict=True)
    ]
    return sorted(by_organisation, key=lambda cache: cache.used_at)


def _used_at(folder: Path) -> float:
    try:
        return (folder / IN_USE).stat().st_mtime
    except FileNotFoundError:
        return 0.0


@contextmanager
def cache_for(settings: Settings, organisation_id: str, spare: Path) -> Iterator[Path]:
    """Yields the organisation's cache while a compile uses it, or `spare`, a folder of that compile alone, while the
    organisation's is too large and other compiles use it. Trims it before and after, and then all of them.
    """
    folder = cache_of(settings, organisation_id)
    folder.mkdir(parents=True, exist_ok=True)
    limit_bytes = settings.cache_bytes_per_organisation
    with _opened(folder) as handle:
        has_room = _fit(folder, handle, limit_bytes)
        try:
            if not has_room:
                spare.mkdir()
            yield folder if has_room else spare
        finally:
            os.utime(handle)
            _fit(folder, handle, limit_bytes)
    fit_all(settings)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Yields the file whose lock says who uses a cache; a compile cannot reach it."""
    handle = os.open(folder / IN_USE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def _is_alone(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fit(folder: Path, handle: int, limit_bytes: int) -> bool:
    """Shrinks a cache below its limit and returns whether that worked. Others may use the cache afterwards, as does
    whoever has the handle.
    """
    is_alone = _is_alone(handle)
    if not is_alone:
        fcntl.flock(handle, fcntl.LOCK_SH)  # waits while another empties it
    size_bytes = sizes_of([folder])[0]
    if size_bytes > limit_bytes:
        _drop_kernels(folder, size_bytes - limit_bytes)
        size_bytes = sizes_of([folder])[0]
    if size_bytes > limit_bytes and is_alone:
        _empty(folder)
        size_bytes = 0
    fcntl.flock(handle, fcntl.LOCK_SH)
    return size_bytes <= limit_bytes


def fit_all(settings: Settings) -> None:
    """Empties whole caches that nobody compiles with, the longest unused first, until all are below their limit."""
    least_used = caches(settings)
    total_bytes = sum(cache.size_bytes for cache in least_used)
    for cache in least_used:
        if total_bytes <= settings.cache_bytes:
            return
        with _opened(cache.folder) as handle:
            if _is_alone(handle):
                _empty(cache.folder)
                total_bytes -= cache.size_bytes


def sizes_of(folders: Sequence[Path]) -> list[int]:
    """Returns the bytes that each cache takes on the disk. A program counts them: a compile may leave folders of any
    depth.
    """
    rooms = {str(folder / room): number for number, folder in enumerate(folders) for room in ROOMS}
    there = [room for room in rooms if os.path.isdir(room)]
    sizes = [0] * len(folders)
    if not there:
        return sizes
    words = ["du", "--summarize", "--count-links", "--one-file-system", "--block-size=1", "--", *there]
    try:
        lines = subprocess.run(words, capture_output=True, text=True, check=False, timeout=MOST_LOOK_S).stdout
    except subprocess.TimeoutExpired:
        return [UNCOUNTABLE] * len(folders)
    for line in lines.splitlines():
        size, _, room = line.partition("\t")
        sizes[rooms[room]] += int(size)
    return sizes


def _empty(folder: Path) -> None:
    rooms = [str(folder / room) for room in ROOMS]
    subprocess.run(["rm", "-rf", "--one-file-system", "--", *rooms], capture_output=True, check=False)


def _drop_kernels(folder: Path, excess_bytes: int) -> None:
    """Removes kernels that take at least so much, those used longest ago first. Follows no link: a compile may be
    changing the folders meanwhile.
    """
    with suppress(OSError):
        room = os.open(folder / KERNELS, FOLDER)
        try:
            oldest_first = sorted(_kernels(room))
            for _, part, name, size_bytes in oldest_first:
                if excess_bytes <= 0:
                    return
                excess_bytes -= size_bytes
                with suppress(OSError):
                    inner = os.open(part, FOLDER, dir_fd=room)
                    try:
                        os.unlink(name, dir_fd=inner)
                    finally:
                        os.close(inner)
        finally:
            os.close(room)


def _kernels(room: int) -> Iterator[tuple[float, str, str, int]]:
    """Yields (last use, folder, name, bytes) of the files in the folders of a room."""
    for part in os.listdir(room):
        with suppress(OSError):
            inner = os.open(part, FOLDER, dir_fd=room)
            try:
                for name in os.listdir(inner):
                    status = os.stat(name, dir_fd=inner, follow_symlinks=False)
                    yield status.st_mtime, part, name, status.st_blocks * 512
            finally:
                os.close(inner)
