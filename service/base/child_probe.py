"""Tries what a child of the service may do on this machine: `python -m service.base.child_probe` prints a table.

Ends with 1 if a child may do what it should not, or may not what it needs. Each try is made by a real confined child
(`--child PLACES`), in a process of its own, and changes nothing where it succeeds.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import resource
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from device_agents.wire.syscalls import NUMBERS
from service.base.confinement import ChildLimits, Confined, confine
from service.base.landlock import Files, python_places
from service.base.system_calls import has_capabilities

ROOT = Path(__file__).resolve().parents[2]
LIMITS = ChildLimits(memory_bytes=2 << 30, cpu_s=60, file_bytes=1 << 20)
TIMEOUT_S = 120.0
EPERM = 1
CLONE_NEWUSER = 0x10000000
LANDLOCK, SIGNALS, CALLS, POWERS, LIMIT = (
    "Landlock",
    "Landlock from version 6 on",
    "the list of system calls",
    "no powers of root",
    "a limit",
)
libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Places:
    """The surroundings of a child: its parent, its folder, and outside of that a file, a Unix socket and a TCP port."""

    parent: int
    folder: str
    file: str
    socket: str
    port: int


@dataclass(frozen=True, slots=True)
class Row:
    """An action that a child tried."""

    what: str
    refused_by: str
    """Empty: it needs it."""
    may: bool

    @property
    def is_right(self) -> bool:
        """Whether it may what it needs, and nothing else."""
        return self.may != bool(self.refused_by)


@dataclass(frozen=True, slots=True)
class Try:
    """Something to be tried. `act` raises OSError or ValueError where it is refused."""

    what: str
    refused_by: str
    act: Callable[[Places], object]


def call(name: str, *arguments: int) -> int:
    """Makes a system call by its number. Raises: PermissionError if it is refused; whatever else comes is an answer."""
    number = NUMBERS[platform.machine()][name]
    answer = int(libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)))
    if answer < 0 and ctypes.get_errno() == EPERM:
        raise PermissionError(EPERM, name)
    return answer


def _start_program(_: Places) -> None:
    subprocess.run([sys.executable, "-S", "-c", ""], check=True, stdin=subprocess.DEVNULL)


def _connect(places: Places) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(places.socket)


def _connect_by_tcp(places: Places) -> None:
    socket.create_connection(("127.0.0.1", places.port), timeout=5).close()


def _change_mode_of_what_it_reads(_: Places) -> None:
    with open(__file__, "rb") as file:
        os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))


def _own_namespace(_: Places) -> None:
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise PermissionError


def _lasting_memory(_: Places) -> None:
    segment = call("shmget", 0, 4096, 0o1600)
    call("shmctl", segment, 0, 0)  # away again


def _capability(_: Places) -> None:
    if not has_capabilities(libc):
        raise PermissionError


def _sleep_in_scheduler(_: Places) -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


TRIES = (
    Try("write a file in its folder", "", lambda places: Path(places.folder, "file").touch()),
    Try("start a program", "", _start_program),
    Try("run code that it has made", "", lambda _: mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC).close()),
    Try("read a file outside", LANDLOCK, lambda places: Path(places.file).read_bytes()),
    Try("write a file outside", LANDLOCK, lambda places: open(places.file, "ab").close()),
    Try("read its parent's environment", LANDLOCK, lambda places: Path(f"/proc/{places.parent}/environ").read_bytes()),
    Try("signal its parent", SIGNALS, lambda places: os.kill(places.parent, 0)),
    Try("connect to a Unix socket", CALLS, _connect),
    Try("connect to this machine's network", CALLS, _connect_by_tcp),
    Try("make a pair of sockets", CALLS, lambda _: socket.socketpair()),
    Try("change the mode of a file outside", CALLS, lambda places: os.chmod(places.file, 0o600)),
    Try("change the mode of a file that it reads", CALLS, _change_mode_of_what_it_reads),
    Try("change the owner of a file outside", CALLS, lambda places: os.chown(places.file, -1, -1)),
    Try("change the times of a file outside", CALLS, lambda places: os.utime(places.file)),
    Try("change attributes of a file outside", CALLS, lambda places: os.setxattr(places.file, "user.probe", b"")),
    Try("limit its parent", CALLS, lambda places: resource.prlimit(places.parent, resource.RLIMIT_CORE)),
    Try("choose its parent's processors", CALLS, lambda places: os.sched_setaffinity(places.parent, {0})),
    Try("read its parent's memory", CALLS, lambda places: call("process_vm_readv", places.parent, 0, 0, 0, 0, 0)),
    Try("trace another process", CALLS, lambda _: call("ptrace", 0x4206, -1, 0, 0)),
    Try("take another scheduling class", CALLS, _sleep_in_scheduler),
    Try("change its priority", CALLS, lambda _: os.setpriority(os.PRIO_PROCESS, 0, 1)),
    Try("leave its process group", CALLS, lambda _: os.setsid()),
    Try("keep memory beyond its end", CALLS, _lasting_memory),
    Try("make a namespace", CALLS, _own_namespace),
    Try("mount", CALLS, lambda _: call("mount", 0, 0, 0, 0, 0)),
    Try("use the kernel's keyrings", CALLS, lambda _: call("keyctl", 0, -2, 0)),
    Try("use io_uring", CALLS, lambda _: call("io_uring_setup", 0, 0)),
    Try("use bpf", CALLS, lambda _: call("bpf", 0, 0, 0)),
    Try("use perf", CALLS, lambda _: call("perf_event_open", 0, 0, 0, 0, 0)),
    Try("use userfaultfd", CALLS, lambda _: call("userfaultfd", 0)),
    Try("have a capability", POWERS, _capability),
    Try("raise its limits", POWERS, lambda _: resource.setrlimit(resource.RLIMIT_CORE, (1, 1))),
    Try("take more memory than it may", LIMIT, lambda _: mmap.mmap(-1, 2 * LIMITS.memory_bytes).close()),
    Try(
        "write a larger file than it may",
        LIMIT,
        lambda places: Path(places.folder, "large").write_bytes(bytes(LIMITS.file_bytes + 1)),
    ),
)


def probe() -> tuple[Confined, list[Row]]:
    """Starts a child and has it try everything. Raises: OSError or subprocess.SubprocessError if it does not answer."""
    with ExitStack() as stack:
        outside, folder = (stack.enter_context(tempfile.TemporaryDirectory(prefix="pf-probe-")) for _ in range(2))
        file, address = Path(outside, "file"), Path(outside, "s")
        file.touch(mode=0o600)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(address))
        unix.listen()
        places = Places(os.getpid(), folder, str(file), str(address), tcp.getsockname()[1])
        completed = subprocess.run(
            [sys.executable, "-m", "service.base.child_probe", "--child", json.dumps(asdict(places))],
            cwd=folder,
            env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
            timeout=TIMEOUT_S,
            start_new_session=True,
        )
    answer = json.loads(completed.stdout)
    return Confined(**answer["confined"]), [
        Row(attempt.what, attempt.refused_by, attempt.what in answer["may"]) for attempt in TRIES
    ]


def table(confined: Confined, rows: list[Row]) -> str:
    """Writes what was found, for people."""
    wide = max(len(row.what) for row in rows)
    lines = [", ".join(f"{name}: {fact}" for name, fact in asdict(confined).items())]
    for row in rows:
        word, reason = "may" if row.may else "may not", row.refused_by
        if not row.is_right:
            word, reason = word.upper(), f"should be refused by {reason}" if reason else "it needs this"
        lines.append(f"  {word:7}  {row.what:{wide}}  {reason}".rstrip())
    return "\n".join(lines)


def _works(act: Callable[[Places], object], places: Places) -> bool:
    """Whether a process that does it ends well."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1] == 0
    try:
        act(places)
    except (OSError, ValueError, subprocess.SubprocessError):  # as which a limit that may not be raised shows
        os._exit(1)
    os._exit(0)


def _child(places: Places) -> None:
    files = Files(python_places(ROOT, ("device_agents", "service")), (Path(places.folder),))
    confined = confine(LIMITS, files, parent=places.parent)
    may = [attempt.what for attempt in TRIES if _works(attempt.act, places)]
    print(json.dumps({"confined": asdict(confined), "may": may}))


def main(arguments: list[str]) -> int:
    """Prints the table, or is the child. Returns the exit code."""
    if arguments[:1] == ["--child"]:
        _child(Places(**json.loads(arguments[1])))
        return 0
    confined, rows = probe()
    print(table(confined, rows))
    return 0 if all(row.is_right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
