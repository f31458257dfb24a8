"""A private PostgreSQL server for a test session: own cluster, unix socket only, gone at the end."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, text


class PostgresServer:
    """A running cluster; `make_database` gives a fresh, empty database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={self.folder}"

    def make_database(self, template: str = "template0") -> str:
        """The URL of a new database: an empty one, or a copy of another that nobody is connected to."""
        self.count += 1
        name = f"farm_{os.getpid()}_{self.count}"
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
        engine.dispose()
        return self.url(name)


def find_binaries() -> Path:
    """The folder of initdb and postgres. Raises: RuntimeError naming what to install."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    raise RuntimeError("these tests need a PostgreSQL server: apt-get install postgresql")


def as_postgres() -> list[str]:
    """What to put before a command of the server's, which refuses to run as root: `setpriv` becomes the user
    `postgres`, so that signals reach the server itself."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam("postgres")
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A cluster, started as the user `postgres` when we are root (the server refuses to run as root)."""
    binaries = find_binaries()
    folder = Path(tempfile.mkdtemp(prefix="pf-pg-", dir="/tmp"))
    prefix: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
        prefix = ["runuser", "-u", "postgres", "--"]
    data = folder / "data"
    run = {"check": True, "stdout": subprocess.DEVNULL, "stdin": subprocess.DEVNULL, "cwd": folder, "timeout": 120}
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off -c max_connections=200"
    try:
        subprocess.run(
            [
                *prefix,
                str(binaries / "initdb"),
                "-D",
                str(data),
                "-U",
                "postgres",
                "-A",
                "trust",
                "-N",
                "-E",
                "UTF8",
                "--locale=C",
            ],
            **run,
        )  # type: ignore[call-overload]
        control = [*prefix, str(binaries / "pg_ctl"), "-D", str(data), "-w"]
        subprocess.run([*control, "-o", options, "-l", str(folder / "log"), "start"], **run)  # type: ignore[call-overload]
        try:
            yield PostgresServer(folder)
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **run)  # type: ignore[call-overload]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
