"""Statements compiled once in a process, and not anew by the engine of each test's farm: that took a seventh of the
time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from sqlalchemy import Engine
from sqlalchemy.util import LRUCache

from service.store.database import engine as engines

KEPT: dict[str, tuple[Any, LRUCache[Any, Any]]] = {}
"""By the name of what made an engine: its dialect, which is part of a statement's key, and what was compiled."""


def _sharing(make: Callable[[str], Engine]) -> Callable[[str], Engine]:
    """`make`, whose engines have the dialect of one that has seen its server, and that one's statements."""

    def made(url: str) -> Engine:
        engine: Any = make(url)
        dialect, statements = KEPT.get(make.__name__, (None, None))
        if getattr(dialect, "server_version_info", None) is None:
            KEPT[make.__name__] = engine.dialect, LRUCache(4000)
            dialect, statements = KEPT[make.__name__]
        engine.dialect, engine._compiled_cache = dialect, statements
        return cast("Engine", engine)

    return made


def install() -> None:
    """For every engine of `Database` that is made from now on."""
    for name in ("_sqlite_engine", "_postgres_engine"):
        setattr(engines, name, _sharing(getattr(engines, name)))
