"""The one table of a campaign: what is done to which part.

| column    | says |
|-----------|------|
| point     | the part that is hit |
| kind      | what is done to it |
| lane      | who are the candidates; each candidate has one fault at a time |
| find      | the finder of a victim with something in flight (`victims.py`) |
| harm      | the fault (`faults/`) |
| is_alone  | no other fault meanwhile: it is felt everywhere |
| marks     | the work that was in flight is not hit again |
| within_s  | recovery from the end of the fault, at p95 |
| is_long   | only in campaigns of some length |
| is_aside  | who is to be alone does not wait for it |
| needs_s   | and only while so much time is left |
| most      | and no more often than this |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from device_agents.wire import EVENTS_PATH, HEARTBEAT_PATH, LEASE_PATH, REPORT_PATH, WEIGHTS_PATH
from service.base.settings import Settings
from tests.thorough.chaos import victims
from tests.thorough.chaos.faults import clock, disk, gone, killed, messages, parted, server, stopped
from tests.thorough.chaos.faults.fault import Harm
from tests.thorough.chaos.links import Rule, Trick
from tests.thorough.chaos.topology import APIS, WORKERS, Kind

WITHIN_S = 20.0
NEVER_BACK = "never comes back"
SHORT = (4.0, 8.0, 15.0)
LONG_PAUSE = stopped.pause(stopped.LONG_PAUSE_S)
MANY = 1 << 30


@dataclass(frozen=True)
class Point:
    """One row."""

    point: str
    kind: str
    lane: str
    find: victims.Finder
    harm: Harm
    is_alone: bool = False
    marks: bool = True
    within_s: float = WITHIN_S
    is_long: bool = False
    is_aside: bool = False
    needs_s: float = 0.0
    most: int = MANY


def _path(path: str) -> str:
    """As a regular expression over request lines."""
    return path.replace("{lease_token}", "[^/]+")


def _message(trick: Trick, of: str, path: str) -> Point:
    harm = messages.disturb(trick, _path(path), counts=_gives_work if path == LEASE_PATH else Rule.counts)
    return Point("message", f"{trick} {of}", "agents", victims.agent, harm, marks=False)


def _gives_work(status: int) -> bool:
    """An answer to a poll that has an assignment in it."""
    return status == 200


POINTS: tuple[Point, ...] = (
    Point("API", "killed", "apis", victims.api, killed.kill, marks=False),
    Point("API", "stopped", "apis", victims.api, stopped.stop, marks=False),
    Point("API", "paused", "apis", victims.api, stopped.pause(is_of_work=False), marks=False),
    Point("outbox", "API killed before it rang", "servers", victims.api, server.silence, marks=False),
    Point("worker", "killed", "workers", victims.worker, killed.kill),
    Point("worker", "stopped", "workers", victims.worker, stopped.stop),
    Point("worker", "paused for 12 s", "workers", victims.worker, LONG_PAUSE),
    Point("worker", "paused", "workers", victims.worker, stopped.pause()),
    Point("worker process", "killed", "workers", victims.pool_process, killed.kill),
    Point("worker process", "stopped", "workers", victims.pool_process, stopped.stop),
    Point("worker process", "paused for 12 s", "workers", victims.pool_process, LONG_PAUSE),
    Point("compile child", "killed", "workers", victims.compile_child, killed.kill),
    Point("compile child", "stopped", "workers", victims.compile_child, stopped.stop),
    Point("compile child", "paused", "workers", victims.compile_child, stopped.pause()),
    Point("agent", "killed", "agents", victims.agent, killed.kill),
    Point("agent", "stopped", "agents", victims.agent, stopped.stop),
    Point("agent", "paused", "agents", victims.agent, stopped.pause()),
    Point(
        "agent",
        NEVER_BACK,
        "agents",
        victims.agent,
        gone.vanish,
        within_s=Settings().lease_s + 15,
        is_long=True,
        needs_s=120,
        most=6,
    ),
    Point("heartbeat", "killed", "agents", victims.heartbeat, killed.kill),
    Point("heartbeat", "stopped", "agents", victims.heartbeat, stopped.stop),
    Point("heartbeat", "paused for 12 s", "agents", victims.heartbeat, LONG_PAUSE),
    Point("heartbeat", "paused", "agents", victims.heartbeat, stopped.pause()),
    Point("job", "killed", "agents", victims.binary, killed.kill),
    Point("job", "paused", "agents", victims.binary, stopped.pause()),
    Point("broker", "killed", "broker", victims.server, killed.kill, is_alone=True, marks=False),
    Point("broker", "stopped", "broker", victims.server, stopped.stop, is_alone=True, marks=False),
    Point("broker", "flushed", "broker", victims.server, server.flush, marks=False),
    Point("database", "killed", "database", victims.server, killed.kill, is_alone=True, marks=False),
    Point("database", "restarted", "database", victims.server, server.restart, is_alone=True, marks=False),
    Point("database", "paused", "database", victims.server, stopped.pause(), is_alone=True, marks=False),
    Point("network", "agent parted", "agents", victims.agent, parted.part(SHORT), marks=False),
    Point("network", "agent cut off", "agents", victims.agent, parted.cut(SHORT), marks=False),
    Point("network", "agent slow", "agents", victims.agent, parted.slow(SHORT), marks=False),
    Point(
        "network",
        "agent parted for 60 s",
        "agents",
        victims.agent,
        parted.part_for_long(60),
        is_long=True,
        needs_s=180,
        most=4,
    ),
    Point(
        "network",
        "agent parted for 600 s",
        "agents",
        victims.agent,
        parted.part_for_long(600),
        is_long=True,
        is_aside=True,
        needs_s=620,
        most=1,
    ),
    Point("network", "API and broker parted", "apis", victims.api, parted.part(SHORT, "broker"), marks=False),
    Point("network", "API and database parted", "api-rows", victims.api, parted.part(SHORT, "database"), marks=False),
    Point("network", "worker and broker cut", "workers", victims.worker, parted.cut(SHORT, "broker"), marks=False),
    Point("network", "worker and database cut", "worker-rows", victims.worker, parted.cut(SHORT, "database")),
    Point("network", "worker and database parted", "worker-rows", victims.worker, parted.part(SHORT, "database")),
    _message("drop-request", "heartbeat", HEARTBEAT_PATH),
    _message("drop-answer", "heartbeat", HEARTBEAT_PATH),
    _message("drop-answer", "events", EVENTS_PATH),
    _message("duplicate", "events", EVENTS_PATH),
    _message("overtake", "events", EVENTS_PATH),
    _message("drop-answer", "lease", LEASE_PATH),
    _message("duplicate", "lease", LEASE_PATH),
    _message("drop-answer", "weights or report", f"({_path(WEIGHTS_PATH)}|{_path(REPORT_PATH)})"),
    _message("drop-answer", "report", REPORT_PATH),
    _message("duplicate", "report", REPORT_PATH),
    _message("overtake", "report", REPORT_PATH),
    Point("disk", "board's full", "small-disks", victims.agent, disk.fill),
    Point("disk", "stored files' full", "files", victims.disk, disk.fill_farm, is_alone=True, marks=False),
    Point("disk", "database's full", "rows", victims.disk, disk.fill_farm, is_alone=True, marks=False),
    Point("clock", "an hour ahead", "clocks", victims.agent, clock.jump(3600), is_long=True),
    Point("clock", "an hour behind", "clocks", victims.agent, clock.jump(-3600), is_long=True),
)


ASKED: Mapping[str, Sequence[str]] = {
    "API killed": ("API: killed",),
    "API stopped": ("API: stopped", "API: paused"),
    "outbox: the doorbell that was written is not rung": ("outbox: API killed before it rang",),
    "worker killed": ("worker: killed", "worker process: killed"),
    "worker stopped": (
        "worker: stopped",
        "worker: paused",
        "worker: paused for 12 s",
        "worker process: stopped",
        "worker process: paused for 12 s",
    ),
    "compile child killed": ("compile child: killed",),
    "compile child stopped": ("compile child: stopped", "compile child: paused"),
    "agent killed": ("agent: killed", "agent: never comes back"),
    "agent stopped": ("agent: stopped", "agent: paused"),
    "heartbeat killed": ("heartbeat: killed",),
    "heartbeat stopped": ("heartbeat: stopped", "heartbeat: paused", "heartbeat: paused for 12 s"),
    "job killed": ("job: killed",),
    "job stopped": ("job: paused",),
    "broker killed": ("broker: killed",),
    "broker stopped": ("broker: stopped",),
    "broker flushed": ("broker: flushed",),
    "PostgreSQL killed": ("database: killed",),
    "PostgreSQL restarted": ("database: restarted",),
    "PostgreSQL stopped": ("database: paused",),
    "partition of up to 10 minutes": (
        "network: agent parted",
        "network: agent parted for 60 s",
        "network: agent parted for 600 s",
        "network: agent cut off",
        "network: agent slow",
        "network: API and broker parted",
        "network: API and database parted",
        "network: worker and broker cut",
        "network: worker and database cut",
        "network: worker and database parted",
    ),
    "full disk of a board": ("disk: board's full",),
    "full disk of the stored files": ("disk: stored files' full",),
    "full disk of the database": ("disk: database's full",),
    "clock off": ("clock: an hour ahead", "clock: an hour behind"),
    "messages duplicated": ("message: duplicate events", "message: duplicate lease", "message: duplicate report"),
    "messages reordered": ("message: overtake events", "message: overtake report"),
    "messages dropped": (
        "message: drop-request heartbeat",
        "message: drop-answer heartbeat",
        "message: drop-answer events",
        "message: drop-answer lease",
        "message: drop-answer weights or report",
        "message: drop-answer report",
    ),
}
"""What a campaign has to do to a farm, and the rows above that do it: `docs/chaos.md` is made of this."""


def document() -> str:
    """The table of the documentation."""
    notes = {f"{one.point}: {one.kind}": one for one in POINTS}
    lines = ["| what fails | point of the campaign |", "|---|---|"]
    lines += [
        f"| {asked} | {', '.join(name + _note(notes[name]) for name in names)} |" for asked, names in ASKED.items()
    ]
    return "\n".join(lines)


def _note(point: Point) -> str:
    only = ["PostgreSQL only"] * (point.lane in ("database", "api-rows", "worker-rows"))
    only += ["long campaigns only"] * point.is_long
    only += ["where file systems may be mounted"] * (point.lane in ("small-disks", "files", "rows"))
    return f" ({', '.join(only)})" if only else ""


def candidates(kind: Kind, agents: Sequence[str], small_disks: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Parts by lane; none where this machine or this kind of database cannot do it."""
    has_rows = kind == "postgresql"
    disks = [name for name in small_disks if name in ("files", "rows")]
    return {
        "apis": APIS,
        "api-rows": APIS if has_rows else (),
        "workers": WORKERS,
        "worker-rows": WORKERS if has_rows else (),
        "agents": agents,
        "small-disks": [name for name in small_disks if name in agents],
        **{name: [name] if name in disks else [] for name in ("files", "rows")},
        "clocks": agents,
        "servers": APIS,
        "broker": ("valkey",),
        "database": ("postgres",) if has_rows else (),
    }


if __name__ == "__main__":
    print(document())
