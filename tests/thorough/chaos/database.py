"""PostgreSQL as a part of the campaign's farm: in the foreground, so that the supervisor can keep it up."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psycopg

from pockfarm.own_farm.parts import Part
from tests.service.postgres import as_postgres, find_binaries
from tests.thorough.chaos.topology import Topology


def prepare(topology: Topology) -> None:
    """An empty cluster, with durable commits: it is going to be killed."""
    folder = topology.rows
    if os.geteuid() == 0:
        folder.chmod(0o755)
        shutil.chown(folder, "postgres")
    command = [
        str(find_binaries() / "initdb"),
        "-D",
        str(folder / "data"),
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
    ]
    subprocess.run([*as_postgres(), *command], check=True, stdout=subprocess.DEVNULL, cwd=folder, timeout=120)


def postgres(topology: Topology) -> Part:
    """The part. A crash leaves its lock file behind, which PostgreSQL itself judges."""
    folder = topology.rows

    def command() -> Sequence[str]:
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(folder),
            "max_connections": "200",
            "max_wal_size": "128MB",
            "min_wal_size": "32MB",
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return [*as_postgres(), str(find_binaries() / "postgres"), "-D", str(folder / "data"), *words]

    return Part(
        "postgres",
        "database",
        command,
        lambda: answers(folder),
        up_within_s=60,
        stop_within_s=20,
        is_alive=lambda: answers(folder),
    )


def answers(folder: Path) -> bool:
    """Whether the server answers a query. The first time, the farm's database is made."""
    try:
        with psycopg.connect(
            f"host={folder} user=postgres dbname=postgres connect_timeout=2", autocommit=True
        ) as server:
            if server.execute("SELECT 1 FROM pg_database WHERE datname = 'farm'").fetchone() is None:
                server.execute("CREATE DATABASE farm TEMPLATE template0")
    except psycopg.Error:
        return False
    return True
