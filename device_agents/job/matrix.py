"""The probe matrix of this machine: what confines a job here, how that was tried, and what is missing and why."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from device_agents.job.cgroup import memory_switched_off
from device_agents.job.sandbox import Sandbox
from device_agents.wire import ISOLATION_LEVELS

DEAF = "the kernel is older than 5.0, or another listens already: reports only say that there was one"


@dataclass(frozen=True)
class Row:
    """A part of the confinement."""

    level: int
    """The level that needs it; 0: more than any level asks for."""
    name: str
    holds: bool
    how: str
    """The probe that was made, or why the part does not hold."""


def matrix(sandbox: Sandbox, *, command_line: str | None = None, cgroups: str | None = None) -> list[Row]:
    """`command_line` and `cgroups` are /proc/cmdline and /proc/cgroups."""
    has = sandbox.facts.get
    why: Mapping[str, str] = has("why", {})
    off = memory_switched_off(_read("/proc/cmdline", command_line), _read("/proc/cgroups", cgroups))
    space, group = why.get("namespaces", "not set up"), has("cgroup", 0)
    no_group = off or "no writable cgroup with the memory and pids controllers (systemd: Delegate=yes, or be root)"
    user = f"user {sandbox.users} is each job's own" if sandbox.users else f"shared user {has('uid')}"
    shared = f"jobs run as user {has('uid')}, who is not of one job alone"

    def row(level: int, name: str, fact: object, tried: str, missing: str) -> Row:
        return Row(level, name, bool(fact), tried if fact else missing)

    unlisted = "nobody has a list of what drivers call" if sandbox.drives else "the operator wants none"
    lowered = unlisted if sandbox.syscalls == "any" else "refused by the kernel"
    privileges = why.get("privileges", "")
    return [
        row(1, "no privileges", has("no_capabilities"), "capget and the bounding set are empty", privileges),
        row(1, "no new privileges", has("no_new_privileges"), "prctl says so", privileges),
        row(
            2,
            "system calls",
            has("filter"),
            f"a socket ends with SIGSYS ({sandbox.syscalls} list)",
            why.get("filter", lowered),
        ),
        row(2, "one process", has("one_process"), "fork ends with SIGSYS", why.get("filter", lowered)),
        row(3, "own processes", has("own_processes"), "its parent is in another space", space),
        row(3, "no network", has("no_network"), "no interface but lo", space),
        row(3, "empty root", has("empty_root"), "/etc and the agent's state are not there", space),
        row(3, "read-only folder", has("read_only"), "a file beside out/ cannot be made", space),
        row(4, "memory and processes", group, f"cgroup v{group}: a limit was set and read back", no_group),
        row(0, "own user", sandbox.users, user, shared),
        row(
            0,
            "forbidden calls by name",
            has("tells"),
            "the agent was told of a socket, which was not made",
            lowered if sandbox.syscalls == "any" else DEAF,
        ),
        row(
            0,
            "Landlock",
            has("landlock"),
            f"version {has('landlock')}: a FIFO in out/ is refused",
            why.get("landlock", "the kernel has none"),
        ),
        row(0, "own /proc", has("proc"), "/proc/self/status is there", "cannot be mounted in this container"),
        row(0, "limited out/", True, "looked at four times a second while a job runs", ""),
    ]


def table(sandbox: Sandbox, rows: list[Row]) -> str:
    """Returns the rows as a table for people."""
    wide = max(len(row.name) for row in rows)
    gives = ", ".join(ISOLATION_LEVELS[1 : sandbox.level + 1]) or ISOLATION_LEVELS[0]
    lines = [f"isolation level {sandbox.level}: {gives}"]
    for row in rows:
        level = str(row.level) if row.level else "-"
        lines.append(f"  {level}  {row.name:{wide}}  {'yes' if row.holds else 'NO '}  {row.how}")
    return "\n".join(lines)


def described(rows: list[Row]) -> dict[str, str]:
    """Returns the rows for the description of the device: facts beside its numbers."""
    missing = [f"{row.name}: {row.how}" for row in rows if not row.holds]
    facts = {"isolation": ", ".join(row.name for row in rows if row.holds)}
    return {**facts, "isolation_lacks": "; ".join(missing)[:1000]} if missing else facts


def _read(path: str, given: str | None) -> str:
    if given is not None:
        return given
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def say(text: str) -> None:
    """Prints a text, also to a reader (`| head`) that goes away when it has seen enough."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # nothing may be left to be flushed at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
