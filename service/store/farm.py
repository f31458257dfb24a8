"""The farm, as every request, task and sweep gets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, cast

from service.base.settings import Settings
from service.store.database.engine import Database
from service.store.outbox import Bell
from service.store.queue import Queue
from service.store.signing import Signer
from service.store.storage import Storage

T = TypeVar("T")


@dataclass(frozen=True)
class Farm:
    """Settings, database, storage, signing key and queue of one farm, and the parts of this process beside them."""

    settings: Settings
    database: Database
    storage: Storage
    signer: Signer
    queue: Queue
    bell: Bell
    parts: dict[type[object], object] = field(default_factory=dict, repr=False)
    """Objects that live as long as the process, by their class: caches, counters, tasks of domains."""

    def part(self, kind: type[T]) -> T:
        """Returns the process's object of this class. A class without arguments is created when it is first needed."""
        part = self.parts.get(kind)
        return cast(T, part if part is not None else self.parts.setdefault(kind, kind()))

    def close(self) -> None:
        """Closes the connections."""
        self.database.close()
