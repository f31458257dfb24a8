"""Where what a container calls its own is on this machine: its host names and ports, its volumes, its files."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.thorough.topology.compose import ROOT, Container

HOST = "127.0.0.1"
PORTS = {"database": 5432, "broker": 6379, "storage": 8333, "proxy": 8080, "api": 8000}
"""What each server listens on in its container."""
SHARED = frozenset({"state", "uploads", "backups", "kernels"})
"""Volumes that the replicas of a service have together. Those of others count as on machines of their own."""


@dataclass
class Places:
    """Free ports of the loopback, and a folder for volumes."""

    folder: Path
    given: Mapping[str, Path] = field(default_factory=dict)
    """Volumes that are there already."""
    ports: dict[str, int] = field(default_factory=dict)
    """By the name of the process."""

    def reserve(self, names: Iterable[str]) -> None:
        """A port for each server's process."""
        self.ports |= {name: free_port() for name in names}

    def volume(self, name: str, process: str) -> Path:
        """The folder of a volume as that process has it."""
        shared = self.folder / name if name in SHARED else self.folder / f"{name}.{process}"
        found = self.given.get(name, shared)
        found.mkdir(parents=True, exist_ok=True, mode=0o700)
        return found

    def here(self, text: str, container: Container, process: str) -> str:
        """The text with everything that the container names put where it is here."""
        for name, mount in container.volumes.items():
            source = ROOT / name if name.startswith(".") else self.volume(name, process)
            text = text.replace(mount, str(source))
        text = text.replace("/app/", f"{ROOT}/")
        return re.sub(rf"\b({'|'.join(self._hosts())}):(\d+)\b", lambda match: self._here(match, process), text)

    def _hosts(self) -> list[str]:
        return [re.escape(HOST), *(f"pockfarm-{name}" for name in self.ports), *self.ports]

    def _here(self, match: re.Match[str], process: str) -> str:
        host, port = match.group(1).removeprefix("pockfarm-"), int(match.group(2))
        name = process if host == HOST else host
        listens_on = PORTS[name.rpartition("-")[0] or name]
        if port != listens_on:
            raise ValueError(f"{match.group(0)}: {name} listens on {listens_on}")
        return f"{HOST}:{self.ports[name]}"


def free_port() -> int:
    """A port of the loopback that nobody has now."""
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])
