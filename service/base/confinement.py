"""The confinement of a child process, before it reads anything of a user's: memory, time, files, network, powers,
calls.

It dies with its parent. `RLIMIT_AS` must stay above 1.5 GiB (TVM), `RLIMIT_NPROC` does nothing for root. No network: a
network namespace of its own, where the kernel allows it (with privileges, or with unprivileged user namespaces).
`Confined` says what was had; `python -m service.base.child_probe` tries each thing and prints a table.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from dataclasses import dataclass

from service.base.landlock import Files, restrict
from service.base.system_calls import drop_privileges, filter_calls

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
OPEN_FILES = 4096


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """Limits of one child; `cpu_s` is CPU time of the process, over all its threads."""

    memory_bytes: int
    cpu_s: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Confined:
    """The parts of the confinement that the machine could provide."""

    no_network: bool
    landlock: int
    """The kernel's version of it; 0: none, and every file of the user may be opened."""
    no_privileges: bool
    system_calls: bool
    """They are filtered; else it may use sockets, and change modes of the user's files and limits of its processes."""


def confine(limits: ChildLimits, files: Files, *, parent: int) -> Confined:
    """Confines this process to `limits`, to `files` and to its parent's life. This cannot be undone. Raises:
    OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it died before we could ask for the signal
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _limit(resource.RLIMIT_AS, limits.memory_bytes)
    _limit(resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 5)
    _limit(resource.RLIMIT_FSIZE, limits.file_bytes)
    _limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    _limit(resource.RLIMIT_CORE, 0)
    no_network, landlock = _leave_network(libc), restrict(files)
    return Confined(no_network, landlock, drop_privileges(libc), filter_calls(libc))


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    _, highest = resource.getrlimit(kind)
    limit = soft if hard is None else hard
    ceiling = limit if highest == resource.RLIM_INFINITY else min(limit, highest)
    resource.setrlimit(kind, (min(soft, ceiling), ceiling))


def _leave_network(libc: ctypes.CDLL) -> bool:
    if libc.unshare(CLONE_NEWNET) == 0:
        return True
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        return False
    try:
        for path, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{path}", "w") as file:
                file.write(text)
    except OSError:
        pass  # the process then shows as nobody, and still owns its files
    return True
