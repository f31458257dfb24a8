"""The farm of a campaign while it runs: its links, its processes, and a view of its database from outside."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Select, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from pockfarm.own_farm.state import StateFolder
from service.base.identifiers import secret_hash
from service.store.database.engine import Database
from service.store.database.models import LIVE_ATTEMPT_STATES, Attempt, Device, Job, Run
from tests.thorough.chaos import database
from tests.thorough.chaos.links import Link, MessageLink, Network, until
from tests.thorough.chaos.topology import AGENTS, APIS, SMALL_BOARD, WORKERS, Kind, Topology

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
UP_WITHIN_S = 240.0
ALL = "all"
BOARD_DISK_BYTES, FILES_DISK_BYTES = 24 << 20, 192 << 20
ROWS_DISK_BYTES: Mapping[Kind, int] = {"sqlite": 192 << 20, "postgresql": 640 << 20}


@dataclass
class Field:
    """What faults and checks work with."""

    topology: Topology
    network: Network
    farm: Mapping[str, MessageLink]
    """By agent."""
    broker: Mapping[str, Link]
    """By API and worker, as `database`, which is empty with SQLite."""
    database: Mapping[str, Link]
    rows: Database
    """Straight to the database."""
    small_disks: Mapping[str, Path] = field(default_factory=dict)
    """Small file systems that can be filled: of the agent that has one, of `files` and `rows`."""
    refusals: Counter[int] = field(default_factory=Counter)
    """Answers that said "not now", by status."""
    hit: set[str] = field(default_factory=set)
    """Jobs and runs that a fault has hit: the farm blames who dies twice of the same work, so none is hit again."""
    stopping: threading.Event = field(default_factory=threading.Event)
    held: Counter[str] = field(default_factory=Counter)
    """Jobs and runs that a fault holds now, and `ALL`; while the fault is on, not while its work recovers."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def holding(self, is_all: bool, work: Sequence[str]) -> Iterator[None]:
        """While a fault is on."""
        names = [ALL] if is_all else list(work)
        with self._lock:
            self.held.update(names)
        try:
            yield
        finally:
            with self._lock:
                self.held.subtract(names)

    def is_held(self, work: str) -> bool:
        return self.held[work] > 0

    @property
    def state(self) -> StateFolder:
        return StateFolder(self.topology.state)

    def pid(self, part: str) -> int | None:
        """The part's process of the moment."""
        status = self.state.status()
        return status.parts[part].pid if status and part in status.parts else None

    def is_up(self, part: str) -> bool:
        status = self.state.status()
        return status is not None and part in status.parts and status.parts[part].state == "up"

    def look(self, ask: Callable[[Session], T]) -> T | None:
        """What the database says; None while it is away."""
        try:
            with self.rows.read() as session:
                return ask(session)
        except SQLAlchemyError:
            return None

    def boards_there(self) -> int:
        """How many boards are neither cut from the farm nor gone."""
        held = [self.topology.held(name).exists() or link.stalled for name, link in self.farm.items()]
        return len(held) - sum(held)

    def no_room(self) -> int:
        """How many answers have said that a disk is full, or the database away."""
        told = [self.refusals, *(link.refusals for link in self.farm.values())]
        return sum(count[507] + count[503] for count in told)

    def count(self, query: Select[int]) -> int | None:
        """A number; None while the database is away."""
        found: int | None = self.look(lambda session: session.scalar(query))
        return found

    def run_on(self, agent: str) -> Run | None:
        """The run whose live attempt the agent has."""
        query = (
            select(Run)
            .join(Attempt, Attempt.run_id == Run.id)
            .join(Device, Device.id == Attempt.device_id)
            .where(Device.name == agent, Attempt.state.in_(LIVE_ATTEMPT_STATES))
        )
        return self.look(lambda session: session.scalar(query))

    def run(self, run_id: str) -> Run | None:
        return self.look(lambda session: session.get(Run, run_id))

    def job(self, job_id: str) -> Job | None:
        return self.look(lambda session: session.get(Job, job_id))

    def job_of(self, worker: str) -> Job | None:
        """The job that a process of the worker compiles."""
        query = select(Job).where(Job.worker.startswith(self.worker_prefix(worker)), Job.state == "compiling")
        return self.look(lambda session: session.scalar(query))

    def worker_prefix(self, worker: str) -> str:
        """Of the folders of its compiles."""
        return f"{socket.gethostname()}.{self.pid(worker)}."

    def run_of(self, lease_token: str) -> Run | None:
        """The run whose attempt the token is of, live or not."""
        query = (
            select(Run).join(Attempt, Attempt.run_id == Run.id).where(Attempt.token_hash == secret_hash(lease_token))
        )
        return self.look(lambda session: session.scalar(query))


@contextlib.contextmanager
def running_field(kind: Kind, *, boards: int, stopping: threading.Event) -> Iterator[Field]:
    """A whole farm, gone at the end. Its folder's name is short, for socket paths may have 107 characters only."""
    folder = Path(tempfile.mkdtemp(prefix="pf-chaos-", dir="/tmp"))
    folder.chmod(0o755)
    network = Network()
    mounted: dict[str, Path] = {}
    try:
        state = StateFolder(folder / "state")
        state.make()
        ports = {name: _free_port() for name in APIS}
        farm = {name: MessageLink(network, list(ports.values())) for name in AGENTS[:boards]}
        broker = {name: Link(network, [state.socket]) for name in (*APIS, *WORKERS)}
        rows = folder / "db" / ".s.PGSQL.5432"
        links = {name: Link(network, [rows]) for name in (*APIS, *WORKERS)} if kind == "postgresql" else {}
        topology = Topology(
            str(folder),
            kind,
            ports,
            *({name: link.port for name, link in some.items()} for some in (farm, broker, links)),
        )
        topology.save()
        for name in topology.agents:
            topology.clock_file(name).write_text("0")
            topology.agent_state(name).mkdir(parents=True)
        mounted |= _small_disks(topology)
        if kind == "postgresql":
            database.prepare(topology)
        with _supervised(topology):
            opened = Database(topology.database_url())
            try:
                yield Field(topology, network, farm, broker, links, opened, mounted, stopping=stopping)
            finally:
                opened.close()
    finally:
        network.close()
        for path in mounted.values():
            subprocess.run(["umount", "--lazy", str(path)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _supervised(topology: Topology) -> Iterator[None]:
    log = topology.path / "supervisor.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.thorough.chaos.supervised", topology.folder],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        state = StateFolder(topology.state)
        ready = until(lambda: _is_settled(state) or process.poll() is not None, UP_WITHIN_S)
        status = state.status()
        if not ready or status is None or not status.ready:
            raise RuntimeError(f"the farm does not come up:\n{log.read_text()[-4000:]}")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(90)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_settled(state: StateFolder) -> bool:
    status = state.status()
    return status is not None and (status.ready or bool(status.problem))


def _small_disks(topology: Topology) -> dict[str, Path]:
    """One board, the stored files and the database on file systems that can be filled, where we may mount any."""
    wanted = {
        SMALL_BOARD: (topology.agent_state(SMALL_BOARD), BOARD_DISK_BYTES),
        "files": (topology.storage, FILES_DISK_BYTES),
        "rows": (topology.rows, ROWS_DISK_BYTES[topology.database]),
    }
    for path, _ in wanted.values():
        path.mkdir(parents=True, exist_ok=True)
    return {name: path for name, (path, size_bytes) in wanted.items() if _mount(path, size_bytes)}


def _mount(path: Path, size_bytes: int) -> bool:
    options = ["-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(path)]
    return subprocess.run(["mount", *options], check=False, capture_output=True).returncode == 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def as_json(values: Sequence[Any]) -> str:
    """One line of a log."""
    return json.dumps(values, default=str)


def clock() -> float:
    """Seconds, for differences."""
    return time.monotonic()
