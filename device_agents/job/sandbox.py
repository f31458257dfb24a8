"""The confinement of a job on this machine: tried once at start, reported honestly, applied by `launch.py`.

Namespaces are made by us and not by bubblewrap: SIGTERM must reach the binary itself (it ends after its current step),
and nothing needs to be installed on a board. What each level is and how it is probed: docs/isolation.md.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from device_agents.job import cgroup, seccomp
from device_agents.job.forbidden import received
from device_agents.job.users import JobUsers, borrowed, is_mapped
from device_agents.own_file import own_file
from device_agents.wire.filters import KILL_PROCESS, TELL, TRAP

NOBODY = 65534
PROBE_TIMEOUT_S = 20.0
MAX_FILES = 256
MAX_THREADS = 512
"""Threads of the user that a job runs as, at most, where that user is its own."""
ADDRESS_SLACK_BYTES = 1 << 30
"""Address space beyond the memory limit: thread stacks, the executable, allocator arenas."""
NO_CORE = {"RLIMIT_CORE": 0}
PROBED_CALL = "socket(AF_UNIX)"
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
"""Files that an emulator that is no static file needs beside itself."""


@dataclass(frozen=True)
class Sandbox:
    """The means that are applied to each process of a job."""

    level: int
    """0-4, as in `wire.DeviceDescription.isolation_level`: what was found to hold."""
    namespaces: bool = False
    """Own processes, network, IPC, and an empty root."""
    syscalls: str = "any"
    """The list of system calls: `binary`, `emulator` or, for programs that the operator trusts, `any`."""
    landlock: bool = False
    users: JobUsers | None = None
    """The users of which each job gets one. Needs root."""
    uid: int | None = None
    """User (and group) of this job; None: the agent's own."""
    shown: tuple[str, ...] = ()
    """Files and folders that a job may read besides its own: the emulator's, a driver's."""
    nodes: tuple[str, ...] = ()
    """Device nodes that a job may open: an accelerator's."""
    drives: bool = False
    """Whether jobs load a driver: it maps more address space than it uses, and compiles into a folder of its own."""
    cgroup_parent: cgroup.Parent | None = None
    tells: bool = False
    """A forbidden call waits until the agent has read which one it is, and then dies with the job."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Findings of the probe, by the names of `launch.py`, and `why` something is missing."""

    def command(
        self,
        argv: Sequence[str],
        *,
        rlimits: Mapping[str, int],
        group: cgroup.JobCgroup | None = None,
        say: int = 1,
        probe: bool = False,
        hidden: str = "",
    ) -> list[str]:
        """The command line that ends up as `argv`, confined. Start it in a new session, in the job's folder.

        `say`: the descriptor that the launcher reports on; the binary does not get it, unless it is its output. A
        sandbox that `tells` needs a Unix socket there.
        """
        program = _filter(self.syscalls, tells=self.tells)
        plan = {
            "argv": list(argv),
            "namespaces": self.namespaces,
            "landlock": self.landlock,
            "tells": self.tells and program is not None,
            "filter": base64.b64encode(program).decode() if program else None,
            "uid": self.uid,
            "shown": list(self.shown),
            "nodes": list(self.nodes),
            "drives": self.drives,
            "cgroups": group.joined_by if group else [],
            "parent": os.getpid(),
            "rlimits": dict(rlimits),
            "say": say,
            "probe": probe,
            "facts": own_file("job/launch_facts.py") if probe else "",
            "hidden": hidden,
        }
        return [sys.executable, "-I", "-S", own_file("job/launch.py"), json.dumps(plan)]

    @contextmanager
    def of_one_job(self) -> Iterator[Sandbox]:
        """Yields the sandbox with a user of the job's own, where there are any. Raises: `AttemptError` when all are
        taken.
        """
        if self.users is None:
            yield self
            return
        with borrowed(self.users) as uid:
            yield replace(self, uid=uid)

    @property
    def is_own_user(self) -> bool:
        """Whether jobs run as a user who is not the agent's."""
        return self.users is not None or (self.uid is not None and self.uid != os.geteuid())

    def job_rlimits(self, *, memory_bytes: int, disk_bytes: int, cpu_s: float, emulated: bool) -> dict[str, int]:
        """The limits of one process of a job, and of the job where the filter keeps it to one process."""
        sparse = emulated or self.drives
        limits = job_rlimits(memory_bytes=memory_bytes, disk_bytes=disk_bytes, cpu_s=cpu_s, sparse=sparse)
        if self.users is not None:
            limits["RLIMIT_NPROC"] = MAX_THREADS
        return limits


def job_rlimits(*, memory_bytes: int, disk_bytes: int, cpu_s: float, sparse: bool) -> dict[str, int]:
    """The resource limits of one process of a job.

    `sparse`: the mappings of an emulator or a driver would break a limit on address space, so private memory is
    limited.
    """
    memory = "RLIMIT_DATA" if sparse else "RLIMIT_AS"
    return {
        memory: memory_bytes + ADDRESS_SLACK_BYTES,
        "RLIMIT_CPU": max(1, int(cpu_s)),
        "RLIMIT_FSIZE": disk_bytes,
        "RLIMIT_NOFILE": MAX_FILES,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 1 << 16,
        "RLIMIT_MSGQUEUE": 0,
    }


def probe(
    *,
    hide: Path | None = None,
    users: JobUsers | None = None,
    uid: int | None = None,
    runner: Sequence[str] = (),
    with_cgroup: bool = True,
    readable_paths: Sequence[str] = (),
    most: int = 4,
    nodes: Sequence[str] | None = None,
) -> Sandbox:
    """The strongest sandbox that works here, found by trying it: each part is left out only if it fails.

    `hide`: a folder that jobs must not see (the agent's state); `users`: to give each job one, or `uid`, the user of
    all jobs, where the agent is root; `runner`: the emulator in front of binaries;
    `shown`: more that jobs may read; `most`: the highest level that is wanted. `nodes`: device nodes that jobs may
    open, of those that load a driver, for which there is no list of system calls: such a job has level 1 at most.
    """
    drives = nodes is not None
    kind = "any" if most < 2 or drives else "emulator" if runner else "binary"
    readable_paths = (*readable_paths, *(_needed_by(runner[0]) if runner else ()))
    users, uid = (users, uid) if os.geteuid() == 0 else (None, None)
    if users is not None and not is_mapped(users, Path("/proc/self/uid_map").read_text()):
        users, uid = None, NOBODY  # a container that has few numbers
    parent = cgroup.prepare() if with_cgroup and most >= 4 else None
    why: dict[str, str] = {}
    best = Sandbox(0, facts={"why": why})
    whole = Sandbox(
        0, most >= 3, kind, most >= 2, users, None if users else uid, readable_paths, tuple(nodes or ()), drives=drives
    )
    for candidate in _weaker_and_weaker(whole):
        facts = _try(candidate, hide, why)
        if facts is not None:
            best = replace(candidate, facts={**facts, "why": why})
            break
    best = _with_listener(best, hide)
    best = _with_cgroup(best, parent if best.facts.get("uid") is not None else None)
    return replace(best, level=level_of(best))


def level_of(sandbox: Sandbox) -> int:
    """The level that the facts make; each has all those below it."""
    has = sandbox.facts.get
    if not has("no_new_privileges") or not has("no_capabilities"):
        return 0
    if not (has("filter") and has("one_process")):
        return 1
    if not all(has(name) for name in ("own_processes", "no_network", "empty_root", "read_only")):
        return 2
    return 4 if has("cgroup") else 3


def _weaker_and_weaker(whole: Sandbox) -> Iterator[Sandbox]:
    """Own user first to stay, namespaces before that, Landlock and the filter first to go."""
    for users, uid in dict.fromkeys(((whole.users, whole.uid), (None, None))):
        for namespaces in dict.fromkeys((whole.namespaces, False)):
            for syscalls in dict.fromkeys((whole.syscalls, "any")):
                for landlock in dict.fromkeys((whole.landlock, False)):
                    yield replace(
                        whole, users=users, uid=uid, namespaces=namespaces, syscalls=syscalls, landlock=landlock
                    )


def _try(sandbox: Sandbox, hide: Path | None, why: dict[str, str]) -> dict[str, Any] | None:
    """Returns the findings of a process in it; None when it cannot be set up."""
    if sandbox.syscalls != "any" and _filter(sandbox.syscalls) is None:
        why["filter"] = f"there is no list of system calls for {platform.machine()}"
        return None
    with _to_probe(sandbox, hide) as (confined, folder):
        command = confined.command([], rlimits=NO_CORE, probe=True, hidden=str(hide or folder))
        try:
            process = subprocess.run(
                command, cwd=folder, capture_output=True, timeout=PROBE_TIMEOUT_S, start_new_session=True, check=False
            )
            report = json.loads(
                process.stdout or json.dumps({"message": process.stderr.decode("utf-8", "replace")[-200:]})
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            report = {"message": str(error)}
    if report.get("facts", {}).get("writes_out"):
        return dict(report["facts"])
    key = (
        "landlock" if "Landlock" in report.get("message", "") else "namespaces" if sandbox.namespaces else "privileges"
    )
    why.setdefault(key, str(report.get("message", "nothing was said"))[:200])
    return None


@contextmanager
def _to_probe(sandbox: Sandbox, hide: Path | None) -> Iterator[tuple[Sandbox, str]]:
    """Yields the sandbox as it is for one job, and that job's folder."""
    with tempfile.TemporaryDirectory(dir=hide) as folder, sandbox.of_one_job() as confined:
        os.mkdir(f"{folder}/out")
        os.chmod(folder, 0o755)
        if confined.uid is not None:
            os.chown(f"{folder}/out", confined.uid, confined.uid)
        yield confined, folder


def _with_listener(sandbox: Sandbox, hide: Path | None) -> Sandbox:
    """Tried too: a process that asks for a socket, of which the agent must hear just that."""
    if not sandbox.facts.get("filter"):
        return sandbox
    telling = replace(sandbox, tells=True)
    with _to_probe(telling, hide) as (confined, folder):
        forbidden_call = _reported_call(confined, folder)
    return replace(
        telling if forbidden_call == PROBED_CALL else sandbox,
        facts={**sandbox.facts, "tells": forbidden_call == PROBED_CALL},
    )


def _reported_call(sandbox: Sandbox, folder: str) -> str:
    hear, say = socket.socketpair()
    with hear, say:
        command = sandbox.command([], rlimits=NO_CORE, probe=True, say=say.fileno())
        quiet = subprocess.DEVNULL
        with subprocess.Popen(
            command, cwd=folder, pass_fds=(say.fileno(),), stdout=quiet, stderr=quiet, start_new_session=True
        ) as child:
            say.close()
            try:
                hear.settimeout(PROBE_TIMEOUT_S)
                listener = received(hear)[1]
                return listener.wait(PROBE_TIMEOUT_S) if listener else ""
            except OSError:
                return ""
            finally:
                os.killpg(child.pid, signal.SIGKILL)


def _with_cgroup(sandbox: Sandbox, parent: cgroup.Parent | None) -> Sandbox:
    """Tried too: a group is made, and its limit read back."""
    job = parent.make(f"probe-{os.getpid()}", 1 << 26) if parent else None
    if parent is None or job is None:
        return sandbox
    holds = job.is_limited()
    job.remove()
    facts = {**sandbox.facts, "cgroup": parent.version if holds else 0}
    return replace(sandbox, cgroup_parent=parent if holds else None, facts=facts)


@lru_cache(maxsize=8)
def _filter(policy: str, *, tells: bool = False) -> bytes | None:
    if policy == "any":
        return None
    kill = TELL if tells else KILL_PROCESS if _kills_processes() else TRAP
    return seccomp.program(policy, kill=kill)


def _kills_processes() -> bool:
    """Linux 4.14 and later; before, SIGSYS is sent, which ends a process too unless it has another idea."""
    action = ctypes.c_uint(KILL_PROCESS)
    number = {"x86_64": 317, "aarch64": 277}.get(platform.machine(), -1)
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(ctypes.c_long(number), 2, 0, ctypes.byref(action)) == 0)


def _needed_by(program: str) -> tuple[str, ...]:
    """A static emulator needs itself; another one the system's libraries too."""
    program = shutil.which(program) or program
    needed = tuple(dict.fromkeys((os.path.realpath(program), program)))
    try:
        with open(program, "rb") as file:
            head = file.read(4096)
    except OSError:
        return needed
    return (*needed, *LIBRARIES) if b"/ld-linux" in head or b"/ld-musl" in head else needed
