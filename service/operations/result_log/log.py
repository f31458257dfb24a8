"""Appending to the log, and reading proofs from it.

Results are appended after they were recorded, in a transaction of their own: a report never waits for the log. Two
processes that append at once want the same index; one of them fails and finds the work done.
"""

from __future__ import annotations

import time
from contextlib import suppress

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from device_agents.wire import Envelope, dumps, loads, merkle
from device_agents.wire.receipt import CHECKPOINT_TYPE, Checkpoint, LogEntry, Receipt, Signed
from service.store.database.models import Attempt, Device, LoggedResult, LogHead, LogNode, Result, Run
from service.store.envelopes import signed
from service.store.farm import Farm
from service.store.key_list import rooted

BATCH = 200
HEAD_S = 6 * 3600.0
"""Seconds between two heads that are stored. Results that are newer than the last of them could be removed from the log
without any stored head showing it.
"""


def log_results(farm: Farm) -> None:
    """Appends what is recorded and not logged yet, the oldest first."""
    try:
        with farm.database.transaction() as session:
            _append(session)
    except IntegrityError:
        return  # another process has appended these


def _append(session: Session) -> None:
    query = (
        select(Result, Attempt, Device)
        .join(Attempt, Attempt.id == Result.attempt_id)
        .join(Device, Device.id == Attempt.device_id)
        .where(Result.log_index.is_(None))
        .order_by(Result.recorded_at, Result.attempt_id)
        .limit(BATCH)
        .with_for_update(of=Result, skip_locked=True)
    )
    rows = session.execute(query).all()
    if not rows:
        return
    tree = _Tree(session)
    for index, (result, attempt, device) in enumerate(rows, start=size(session)):
        entry = LogEntry(
            index,
            result.run_id,
            attempt.n,
            device.id,
            device.public_key,
            result.digest,
            result.state,
            result.recorded_at,
        )
        session.add(LoggedResult(place=index, attempt_id=attempt.id, entry=dumps(entry).decode()))
        result.log_index = index
        tree.append(index, entry.leaf())
    session.flush()


class _Tree:
    """Complete subtrees by level and position, read once each."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[tuple[int, int], str] = {}

    def complete(self, level: int, position: int) -> str:
        """Its hash."""
        if (level, position) not in self._known:
            self._known[level, position] = self._session.get_one(LogNode, (level, position)).hash
        return self._known[level, position]

    def append(self, index: int, leaf: str) -> None:
        """Adds a leaf, and the subtrees that it completes."""
        level, position, node_hash = 0, index, leaf
        while True:
            self._session.add(LogNode(level=level, position=position, hash=node_hash))
            self._known[level, position] = node_hash
            if not position & 1:
                return
            node_hash = merkle.node_hash(self.complete(level, position - 1), node_hash)
            level, position = level + 1, position >> 1


def size(session: Session) -> int:
    """Returns how many results the log has."""
    last = session.scalar(select(func.max(LoggedResult.place)))
    return 0 if last is None else last + 1


def checkpoint(session: Session, farm: Farm) -> Envelope:
    """Returns the log as it is now, signed."""
    return farm.signer.sign(CHECKPOINT_TYPE, dumps(_head(session)))


def _head(session: Session) -> Checkpoint:
    count = size(session)
    return Checkpoint(count, merkle.root(count, _Tree(session).complete), time.time())


def head(session: Session, farm: Farm) -> Signed:
    """Returns the same as `checkpoint`, with the keys' chain to the root."""
    return signed(farm, CHECKPOINT_TYPE, _head(session))


def keep_head(farm: Farm) -> None:
    """Signs and stores the log's head if it has grown and the last was stored `HEAD_S` ago."""
    now = time.time()
    with farm.database.read() as session:
        last = session.scalars(select(LogHead).order_by(LogHead.size.desc()).limit(1)).first()
        if (last is not None and last.at > now - HEAD_S) or size(session) <= (last.size if last is not None else 0):
            return
        head = _head(session)
        paper = signed(farm, CHECKPOINT_TYPE, head)
    with suppress(IntegrityError), farm.database.transaction() as session:  # another process has kept it
        session.add(LogHead(size=head.size, paper=dumps(paper).decode(), at=now))


def kept_heads(session: Session, after: int, limit: int) -> list[LogHead]:
    """Returns the kept heads of more results than `after`, the oldest first."""
    return list(session.scalars(select(LogHead).where(LogHead.size > after).order_by(LogHead.size).limit(limit)))


def consistency(session: Session, first: int, second: int) -> tuple[str, ...]:
    """Returns the proof that the log of `first` results is the beginning of that of `second` (0 < first <= second <=
    its size).
    """
    return merkle.consistency(first, second, _Tree(session).complete)


def leaves(session: Session, start: int, limit: int) -> list[str]:
    """Returns the hashes of entries from an index on."""
    query = select(LogNode.hash).where(LogNode.level == 0, LogNode.position >= start)
    return list(session.scalars(query.order_by(LogNode.position).limit(limit)))


def receipt(session: Session, farm: Farm, run: Run) -> Receipt | None:
    """Returns the receipt of the result that counts; None if it is not in the log."""
    query = (
        select(Result.envelope, LoggedResult.entry)
        .join(LoggedResult, LoggedResult.attempt_id == Result.attempt_id)
        .where(Result.run_id == run.id, Result.state == "recorded")
    )
    row = session.execute(query).one_or_none()
    if row is None:
        return None
    entry, listed = loads(LogEntry, row[1]), rooted(farm.settings.key_list_path)
    signed = checkpoint(session, farm)
    head = loads(Checkpoint, signed.payload_bytes())
    return Receipt(
        schema="pockfarm.receipt/1",
        entry=entry,
        proof=merkle.inclusion(entry.index, head.size, _Tree(session).complete),
        checkpoint=signed,
        report=loads(Envelope, row[0]),
        signing_key=farm.signer.server_key(),
        root=listed.root if listed else None,
        key_list=listed.key_list if listed else None,
    )
