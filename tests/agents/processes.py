"""The processes of an agent, as the kernel lists them."""

from __future__ import annotations

import os
from pathlib import Path

from tests.agents.conftest import AgentProcess


def processes_of(state: Path) -> list[int]:
    """Processes whose working directory lies in the scratch folder."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                where = os.readlink(entry / "cwd")
            except OSError:
                continue
            if where.startswith(str(state / "scratch")):
                pids.append(int(entry.name))
    return pids


def heartbeat_process(agent: AgentProcess) -> int:
    """The agent's heartbeat process of the moment; 0 if there is none."""
    children = Path(f"/proc/{agent.process.pid}/task").glob("*/children")
    pids = [int(word) for path in children for word in path.read_text().split()]
    return next((pid for pid in pids if b"device_agents.farm.heartbeat" in command_of(pid)), 0)


def command_of(pid: int) -> bytes:
    """Nothing of a process that has ended since it was seen."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
