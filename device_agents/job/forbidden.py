"""The report of the system call that a job made and does not get: the kernel sends it to the agent.

The filter lets a forbidden call wait instead of making it (`SECCOMP_RET_USER_NOTIF`, Linux 5.0). The agent reads which
one it is, never answers, and kills the job. Should the agent be gone, so is the job, and without a listener the call
fails with ENOSYS: in no case is it made. Only numbers are read, and none of the job's memory, so nothing is believed of
what the binary may change meanwhile.

Source: Documentation/userspace-api/seccomp_filter.rst, "Userspace Notification"; `linux/seccomp.h`.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence

from device_agents.job.seccomp import PROT_EXEC
from device_agents.wire.filters import AUDIT, NAMESPACE_FLAGS, X32_BIT
from device_agents.wire.syscalls import NAMES

RECEIVE = 0xC0502100
"""`SECCOMP_IOCTL_NOTIF_RECV`."""
NOTICE = "=QIIiIQ6Q"
"""`struct seccomp_notif`: id, process, flags; call, architecture, instruction, six arguments."""
ROOM_BYTES = 256
CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000)
"""Linux's value on all our architectures; PyPy does not name it."""
MACHINES = {audit: machine for machine, audit in AUDIT.items()}
OTHER_MACHINES = {0x40000003: "32-bit x86", 0x40000028: "32-bit ARM"}
NAMESPACES = {
    0x00020000: "mount",
    0x02000000: "cgroup",
    0x04000000: "host name",
    0x08000000: "IPC",
    0x10000000: "user",
    0x20000000: "process",
    0x40000000: "network",
}


class Listener:
    """Hears of the forbidden calls of one process. Close it when the process is dead, not before."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Returns the descriptor, for a selector."""
        return self._descriptor

    def close(self) -> None:
        """Closes the listener: a call that waits then fails with ENOSYS."""
        os.close(self._descriptor)

    def wait(self, timeout_s: float = 0.0) -> str:
        """The call that now waits, in words; "" if there is none within the time, or the process is gone."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        events = poll.poll(timeout_s * 1e3)
        if not events or not events[0][1] & select.POLLIN:
            return ""
        notice = bytearray(ROOM_BYTES)
        try:
            fcntl.ioctl(self._descriptor, RECEIVE, notice, True)
        except OSError:
            return ""  # it was killed between the two, or a signal has interrupted it: then it asks again
        _, _, _, number, audit, _, *arguments = struct.unpack_from(NOTICE, notice)
        return words(number, audit, arguments)

    def is_over(self) -> bool:
        """Whether no process has the filter any more. Kernels before 5.8 never say so."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))


def received(way: socket.socket) -> tuple[bytes, Listener | None]:
    """Returns the launcher's next words, and the listener if it comes with them; no bytes at the end."""
    size = array.array("i").itemsize
    data, extras, _, _ = way.recvmsg(1 << 16, socket.CMSG_SPACE(size), CLOSE_ON_EXEC)
    for level, kind, content in extras:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            return data, Listener(*struct.unpack("i", content[:size]))
    return data, None


def words(number: int, audit: int, arguments: Sequence[int]) -> str:
    """A system call for people: `socket(AF_INET)`."""
    if audit not in MACHINES:
        return f"call {number} of {OTHER_MACHINES.get(audit, f'architecture {audit:#x}')}"
    form = "the x32 form of " if audit == AUDIT["x86_64"] and number >= X32_BIT else ""
    number = number - X32_BIT if form else number
    name = NAMES[MACHINES[audit]].get(number, f"system call {number}")
    meaning = _MEANINGS[name](arguments) if name in _MEANINGS else ""
    return f"{form}{name}({meaning})" if meaning else form + name


def _family(arguments: Sequence[int]) -> str:
    try:
        return socket.AddressFamily(_int(arguments[0])).name
    except ValueError:
        return f"family {_int(arguments[0])}"


def _process(arguments: Sequence[int]) -> str:
    return _namespaces(arguments) or "a process"


def _namespaces(arguments: Sequence[int]) -> str:
    kinds = [name for flag, name in NAMESPACES.items() if arguments[0] & flag & NAMESPACE_FLAGS]
    return f"{', '.join(kinds)} namespace" if kinds else ""


def _signal(arguments: Sequence[int]) -> str:
    pid, number = _int(arguments[0]), _int(arguments[1])
    whom = {0: "its group", -1: "everybody"}.get(pid, f"process {pid}" if pid > 0 else f"group {-pid}")
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"{name} to {whom}"


def _protection(arguments: Sequence[int]) -> str:
    return "executable" if arguments[2] & PROT_EXEC else ""


def _int(argument: int) -> int:
    """Returns the register's lower half, as C's `int`."""
    return (argument & 0x7FFFFFFF) - (argument & 0x80000000)


_MEANINGS: Mapping[str, Callable[[Sequence[int]], str]] = {
    "socket": _family,
    "socketpair": _family,
    "clone": _process,
    "unshare": _namespaces,
    "kill": _signal,
    "mmap": _protection,
    "mprotect": _protection,
}
"""Meanings of those calls of which one number says much."""
