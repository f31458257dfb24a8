"""The farm of a campaign: which processes there are, and what each is told.

    agents 1, 2 ... -> link -> API 1 and 2 -> link -> database, broker <- link <- workers 1 and 2

Every arrow is a `Link` of the campaign's own (`links.py`), so that it can be cut. The processes are kept up by the
product's own supervisor (`supervised.py`), which is part of what is tested. Settings are the shipped defaults, but for
the compiler, which is slow on purpose. The database, the stored files and one board's state lie on small file systems
of their own, where this machine lets us mount some.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["sqlite", "postgresql"]
AGENTS = ("agent-1", "agent-2", "agent-3", "agent-4", "agent-5", "agent-6")
"""At most; a campaign has some of them."""
SMALL_BOARD = "agent-1"
APIS = ("api-1", "api-2")
WORKERS = ("worker-1", "worker-2")
COMPILER = "tests.thorough.chaos.slow_compiler:compile_training"


@dataclass(frozen=True)
class Topology:
    """Where everything is. The campaign makes one, the process of the supervisor reads it."""

    folder: str
    database: Kind
    api_ports: dict[str, int]
    farm_ports: dict[str, int]
    """Of the link that an agent takes for the farm, by agent."""
    broker_ports: dict[str, int]
    """Of the link to the broker, by API and worker."""
    database_ports: dict[str, int]

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(self.farm_ports)

    def save(self) -> None:
        """Leave it for the supervisor's process."""
        (Path(self.folder) / "topology.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> Topology:
        """What the campaign saved."""
        return cls(**json.loads((folder / "topology.json").read_text()))

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def state(self) -> Path:
        return self.path / "state"

    @property
    def storage(self) -> Path:
        return self.path / "files"

    @property
    def rows(self) -> Path:
        """The folder of the database: its file, or PostgreSQL's socket and data."""
        return self.path / "db"

    def agent_state(self, name: str) -> Path:
        return self.path / "agents" / name

    def clock_file(self, name: str) -> Path:
        """What the clock of an agent is off, in seconds."""
        return self.path / f"{name}.clock"

    def held(self, name: str) -> Path:
        """While this file is there, the supervisor does not start the part again."""
        return self.path / f"{name}.held"

    def database_url(self, part: str | None = None) -> str:
        """Directly, or by the part's own link."""
        if self.database == "sqlite":
            return f"sqlite:///{self.rows / 'farm.db'}"
        if part is None:
            return f"postgresql+psycopg://postgres@/farm?host={self.rows}"
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.database_ports[part]}/farm"
