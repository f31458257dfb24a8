"""Restricts which files a child may open, with Landlock where the kernel has it (Linux 5.13 and newer), for root too.
Operations that need no open file (times, modes, owners) are not restricted.

Bits and sizes: `linux/landlock.h`. The system calls have the same numbers on every architecture. Agents confine their
jobs by another, stricter way (`device_agents/job/launch.py`, which may import nothing of ours).
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CREATE, ADD, RESTRICT = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1, 2, 4, 8, 1 << 14
DEVICES = 1 << 6 | 1 << 11 | 1 << 15
"""Rights to make character and block devices, and to command them. Nobody gets these."""
KNOWN = {1: 13, 2: 14, 3: 15, 4: 15}
"""Number of rights by Landlock version; 16 from version 5 on."""
TCP, SCOPES = 3, 3
"""Bind and connect; abstract sockets of others and signals to others."""
SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/urandom",
    "/sys/devices/system",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/vm",
)
"""System paths that a child may read. They leave out most of /proc: there the environment of the user's other
processes, the worker's among them, can be read.
"""


@dataclass(frozen=True, slots=True)
class Files:
    """Places that a child may open, each with all below it; places that are not there are passed over."""

    read: tuple[Path, ...]
    """Places to read and to run from."""
    write: tuple[Path, ...] = ()
    """Places in which to read, run, make, change and remove."""


def python_places(root: Path, packages: Iterable[str]) -> tuple[Path, ...]:
    """Returns where Python, the packages installed with it and our `packages` (below `root`) lie. Never `root` itself,
    below which a farm may have its state.
    """
    ours = (root / name for name in packages)
    return tuple(map(Path, dict.fromkeys((*SYSTEM, sys.prefix, sys.exec_prefix, sys.base_prefix)))) + tuple(ours)


def version() -> int:
    """Returns the kernel's version of Landlock; 0: it has none, or it is switched off."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(ctypes.c_long(CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(1))))


def restrict(files: Files) -> int:
    """Restricts this process and its children to `files`, without TCP and without signals to other processes. Returns
    the version of Landlock that enforces it; 0 if the kernel has none, and then nothing is restricted. Needs
    no-new-privileges. Cannot be undone.

    Raises: OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    abi = version()
    if not abi:
        return 0
    rights = (1 << KNOWN.get(abi, 16)) - 1
    attributes = struct.pack("QQQ", rights, TCP if abi >= 4 else 0, SCOPES if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = _checked("create", libc.syscall(ctypes.c_long(CREATE), attributes, ctypes.c_size_t(size), 0))
    try:
        for path in files.read:
            _allow(libc, rules, path, EXECUTE | READ_FILE | READ_DIR)
        for path in files.write:
            _allow(libc, rules, path, rights & ~DEVICES)
        _allow(libc, rules, Path("/dev/null"), READ_FILE | WRITE_FILE)
        _checked("restrict", libc.syscall(ctypes.c_long(RESTRICT), rules, 0))
    finally:
        os.close(rules)
    return abi


def _allow(libc: ctypes.CDLL, rules: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= EXECUTE | READ_FILE | WRITE_FILE | TRUNCATE
        rule = struct.pack("<Qi", rights, descriptor)
        _checked(f"allow {path}", libc.syscall(ctypes.c_long(ADD), rules, 1, rule, 0))
    finally:
        os.close(descriptor)


def _checked(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {what}: {os.strerror(number)}")
    return result
