"""Values that were read lately: they are asked for again and again and change now and then.

A value is kept for a second. A commit of this process that has touched a table which it was read from makes it be
forgotten at once; what other processes commit is seen a second later at most.

Numbers that take long to find, over very many rows, are kept longer (`recall_dear`), whatever is committed meanwhile: a
farm spends at most a fiftieth of its time on each.

What can never change is kept as long as there is room (`lasting.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from sqlalchemy import event
from sqlalchemy.orm import ORMExecuteState, Session

from service.store.database.lasting import Lasting

T = TypeVar("T")
KEPT_S = 1.0
MOST_KEPT = 10_000
DEAR_S, RESTS = 0.02, 50
"""Time from which a search is dear, and the factor of its rest: a dear one is not repeated until that many times as
long has passed.
"""
MEMORY = "memory"
"""Key in `Session.info` of the memory of its database."""
_CHANGED = "changed"
UNREMEMBERED: Mapping[str, bool] = {"pockfarm_unremembered": True}
"""Execution options of an UPDATE of columns that no remembered value was read from."""


@dataclass(slots=True)
class Memory:
    """The memory of one process and database. Values must not be changed by whoever gets them, and be no rows of a
    session.
    """

    lasting: Lasting = field(default_factory=Lasting)
    _kept: dict[Hashable, tuple[float, frozenset[str], object]] = field(default_factory=dict)
    _dear: dict[Hashable, tuple[float, object]] = field(default_factory=dict)
    _tidied_at: float = 0.0
    _changes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def recall(self, key: Hashable, tables: frozenset[str], read: Callable[[], T]) -> T:
        """Returns the value of this key, read anew if it was not read lately. None, for a missing value, is not
        cached.
        """
        cached = self.get(key)
        if cached is not None:
            return cast(T, cached)
        before = self._changes
        value = read()
        if value is not None:
            self._keep(key, tables, value, before)
        return value

    def recall_dear(self, key: Hashable, read: Callable[[], T]) -> T:
        """Returns the value of this key. One that took `DEAR_S` or more to read is cached for `RESTS` times as long as
        it took. For keys that are few, such as one for an organisation.
        """
        until, value = self._dear.get(key, (float("-inf"), None))
        began = time.monotonic()
        if began < until:
            return cast(T, value)
        computed = read()
        took_s = time.monotonic() - began
        if took_s >= DEAR_S:
            self._dear[key] = (began + (1 + RESTS) * took_s, computed)
        return computed

    def get(self, key: Hashable) -> object | None:
        """Returns the value of this key if it was read lately; nothing is read."""
        slot = self._kept.get(key)
        return slot[2] if slot is not None and time.monotonic() < slot[0] else None

    def _keep(self, key: Hashable, tables: frozenset[str], value: object, before: int) -> None:
        now = time.monotonic()
        with self._lock:
            if self._changes != before:
                return  # somebody has committed since: it may be what was there before
            if now - self._tidied_at > KEPT_S or len(self._kept) >= MOST_KEPT:
                fresh = [(cached_key, slot) for cached_key, slot in self._kept.items() if now < slot[0]]
                self._kept, self._tidied_at = dict(fresh[:MOST_KEPT]), now
            if len(self._kept) < MOST_KEPT:
                self._kept[key] = (now + KEPT_S, tables, value)

    def forget(self, tables: Collection[str]) -> None:
        """Forgets what was read from these tables, since a commit has changed them."""
        if not tables:
            return
        with self._lock:
            self._changes += 1
            self._kept = {key: slot for key, slot in self._kept.items() if slot[1].isdisjoint(tables)}


def recalled(session: Session, key: Hashable, tables: frozenset[str], read: Callable[[], T]) -> T:
    """Returns the same as `Memory.recall`, but reads anew for a session that has changed one of the tables itself or
    has no memory.
    """
    memory: Memory | None = session.info.get(MEMORY)
    if memory is None or not tables.isdisjoint(session.info.get(_CHANGED, ())):
        return read()
    return memory.recall(key, tables, read)


def recalled_if_dear(session: Session, key: Hashable, read: Callable[[], T]) -> T:
    """Returns the same as `Memory.recall_dear`, but reads anew for a session without a memory."""
    memory: Memory | None = session.info.get(MEMORY)
    return read() if memory is None else memory.recall_dear(key, read)


def lasting_of(session: Session) -> Lasting:
    """Returns the lasting values of the session's database; of a session without a memory nothing is known."""
    memory: Memory | None = session.info.get(MEMORY)
    return Lasting() if memory is None else memory.lasting


def changed_tables(session: Session) -> frozenset[str]:
    """Returns the tables that a session has written, once it has committed."""
    return frozenset(session.info.pop(_CHANGED, ()))


def _note(session: Session, names: Collection[str]) -> None:
    session.info.setdefault(_CHANGED, set()).update(names)


def watch_changes(kind: type[Session]) -> None:
    """Makes sessions of this kind note which tables they write."""

    @event.listens_for(kind, "before_flush")
    def note_rows(session: Session, _context: object, _instances: object) -> None:
        rows: list[Any] = [*session.new, *session.dirty, *session.deleted]
        _note(session, {row.__tablename__ for row in rows})

    @event.listens_for(kind, "do_orm_execute")
    def note_statement(state: ORMExecuteState) -> None:
        mapper = None if state.is_select else state.bind_mapper
        if mapper is not None and not state.execution_options.get("pockfarm_unremembered"):
            _note(state.session, [mapper.class_.__tablename__])
