"""A farm to be measured: a real API process on a real database and a real broker, and its processor time."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
from sqlalchemy import create_engine, text

from service.store.database.schema import migrate
from tests.service.board import Board
from tests.service.farms import open_test_farm
from tests.service.postgres import running_postgres
from tests.service.valkey import running_valkey

ROOT = Path(__file__).parents[2]
Kind = Literal["sqlite", "postgresql"]
TICKS = os.sysconf("SC_CLK_TCK")
BUNDLE_TARGET = "x86-64-v3"
UNLIMITED = {"OPEN_RUNS_PER_KEY": "100000000", "OPEN_JOBS_PER_KEY": "100000000", "QUEUE_S": "864000"}


@dataclass
class LoadedFarm:
    """A farm that is up."""

    kind: Kind
    url: str
    port: int
    key: str
    bundle: str
    boards: list[Board]
    api: subprocess.Popen[bytes]
    postgres_folder: Path | None
    state: Path

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def api_cpu_s(self) -> float:
        """Processor time that the API process has used."""
        return _cpu_s(self.api.pid)

    def database_cpu_s(self) -> float:
        """Processor time of all of PostgreSQL's processes that live; 0 for SQLite, whose work is the API's own."""
        if self.postgres_folder is None:
            return 0.0
        main = int((self.postgres_folder / "data" / "postmaster.pid").read_text().split()[0])
        return sum(_cpu_s(pid) for pid in (main, *_children(main)))

    def peak_rss_bytes(self, *, forget: bool = False) -> int:
        """The most memory that the API process has held; `forget`: counted from now on."""
        if forget:
            Path(f"/proc/{self.api.pid}/clear_refs").write_text("5")
        lines = Path(f"/proc/{self.api.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

    def sql(self, *statements: str) -> None:
        """Run statements behind the farm's back, each of the database's own kind."""
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))
        engine.dispose()

    def one(self, statement: str) -> str:
        """The one value that a statement gives."""
        engine = create_engine(self.url)
        with engine.connect() as connection:
            found = str(connection.scalar(text(statement)))
        engine.dispose()
        return found

    def database_bytes(self) -> int:
        """What the database takes on disk."""
        if self.kind == "sqlite":
            return Path(self.url.removeprefix("sqlite:///")).stat().st_size
        return int(self.one("SELECT pg_database_size(current_database())"))


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found


@contextmanager
def loaded_farm(kind: Kind, *, boards: int) -> Iterator[LoadedFarm]:
    """A farm with so many enrolled boards and one bundle, in folders that are gone afterwards."""
    _allow_many_files()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pf-load-", dir="/tmp")))
        valkey = stack.enter_context(running_valkey())
        postgres = stack.enter_context(running_postgres()) if kind == "postgresql" else None
        url = postgres.make_database() if postgres else f"sqlite:///{folder / 'farm.db'}"
        migrate(url)
        key, bundle, made = _prepare(folder / "state", url, boards)
        port = _free_port()
        log = stack.enter_context((folder / "api.log").open("wb"))
        settings = {
            "STATE": folder / "state",
            "DATABASE_URL": url,
            "BROKER_URL": f"redis+socket://{valkey}",
            "LOG_FORMAT": "json",
            **UNLIMITED,
        }
        environment = {**os.environ, **{f"POCKFARM_{name}": str(value) for name, value in settings.items()}}
        api = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "uvicorn",
                "service.app:served",
                "--factory",
                "--port",
                str(port),
                "--no-access-log",
                "--timeout-graceful-shutdown",
                "2",
                "--backlog",
                "2048",
            ],
            env=environment | {"PYTHONPATH": str(ROOT)},
            cwd=folder,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
        farm = LoadedFarm(
            kind, url, port, key, bundle, made, api, postgres.folder if postgres else None, folder / "state"
        )
        try:
            _wait_until_up(farm, folder / "api.log")
            yield farm
        finally:
            api.send_signal(signal.SIGINT)
            try:
                api.wait(timeout=20)
            except subprocess.TimeoutExpired:
                api.kill()
            if os.environ.get("KEEP_LOG"):
                shutil.copy(folder / "api.log", os.environ["KEEP_LOG"])


def _prepare(state: Path, url: str, boards: int) -> tuple[str, str, list[Board]]:
    """A key, a bundle and boards, made through the API in this process."""
    with open_test_farm(state, url, open_runs_per_key=1 << 30) as farm:
        key = farm.http.headers["Authorization"].removeprefix("Bearer ")
        return key, farm.bundle(target=BUNDLE_TARGET), [farm.board(name=f"board {n}") for n in range(boards)]


def _allow_many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_until_up(farm: LoadedFarm, log: Path) -> None:
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at and farm.api.poll() is None:
        try:
            if httpx.get(f"{farm.address}/healthz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise RuntimeError(f"the API did not come up:\n{log.read_text()[-2000:]}")
