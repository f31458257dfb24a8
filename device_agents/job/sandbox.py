"""How a job is confined on this machine: tried once at start, reported honestly, applied by `launch.py`.

Namespaces are made by us and not by bubblewrap: SIGTERM must reach the binary itself (it ends after its current step),
and nothing needs to be installed on a board. seccomp and Landlock are not used; the report's level says what is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from device_agents.job import cgroup

_LAUNCHER = str(Path(__file__).with_name("launch.py"))
NOBODY = 65534
PROBE_TIMEOUT_S = 20.0
MAX_FILES = 256
ADDRESS_SLACK_BYTES = 1 << 30
"""Address space beyond the memory limit: thread stacks, the executable, allocator arenas."""
MEMORY_SLACK_BYTES = 64 << 20
"""Memory beyond the limit of the job's cgroup: page cache in flight and the launcher."""


@dataclass(frozen=True)
class Sandbox:
    """What is applied to each process of a job."""

    level: int
    """0-4, as in `wire.DeviceDescription.isolation_level`."""
    uid: int | None = None
    """User (and group) that jobs run as; None: the agent's own. Needs root."""
    hide: Path | None = None
    """The agent's state folder, covered from level 3 on."""
    cgroup_parent: Path | None = None

    def command(
        self, argv: Sequence[str], *, rlimits: Mapping[str, int], group: Path | None, say: int = 1
    ) -> list[str]:
        """The command line that ends up as `argv`, confined. Start it in a new session, in the job's folder.

        `say`: the descriptor that the launcher reports on; the binary does not get it, unless it is its output.
        """
        plan = {
            "argv": list(argv),
            "level": min(self.level, 3),
            "uid": self.uid,
            "hide": str(self.hide) if self.hide else None,
            "cgroup": str(group) if group else None,
            "parent": os.getpid(),
            "rlimits": dict(rlimits),
            "say": say,
        }
        return [sys.executable, "-I", "-S", _LAUNCHER, json.dumps(plan)]


def job_rlimits(*, memory_bytes: int, disk_bytes: int, cpu_s: float, emulated: bool) -> dict[str, int]:
    """The resource limits of one process of a job.

    Under emulation the emulator's own mappings would break a limit on address space, so private memory is limited.
    """
    memory = "RLIMIT_DATA" if emulated else "RLIMIT_AS"
    return {
        memory: memory_bytes + ADDRESS_SLACK_BYTES,
        "RLIMIT_CPU": max(1, int(cpu_s)),
        "RLIMIT_FSIZE": disk_bytes,
        "RLIMIT_NOFILE": MAX_FILES,
        "RLIMIT_CORE": 0,
    }


def probe(*, hide: Path | None, uid: int | None, with_cgroup: bool = True) -> Sandbox:
    """The strongest sandbox that works here, found by trying it."""
    uid = uid if os.geteuid() == 0 else None
    candidates = (Sandbox(level, uid, hide) for level in (3, 2, 1))
    working = next((sandbox for sandbox in candidates if _works(sandbox)), Sandbox(0))
    parent = cgroup.prepare() if with_cgroup else None
    if parent is None:
        return working
    return replace(working, cgroup_parent=parent, level=4 if working.level == 3 else working.level)


def _works(sandbox: Sandbox) -> bool:
    with tempfile.TemporaryDirectory(dir=sandbox.hide) as folder:
        command = sandbox.command([], rlimits={"RLIMIT_CORE": 0}, group=None)
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, timeout=PROBE_TIMEOUT_S, start_new_session=True, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0 and b'"launch"' in done.stdout
