"""Restoring a backup into an empty farm: nothing is taken that does not fit its digest, nothing is overwritten."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO

from sqlalchemy import Connection, Table, delete, insert, select
from sqlalchemy.orm import Session

from service.base.private import make_private_folder
from service.base.settings import Settings
from service.operations.backup.form import BEGIN, END, FORM, KEYS, BackupError, Say, farm_tables, unseal
from service.operations.backup.unconfirmed import revive_nothing
from service.operations.backup.writing import key_files
from service.people.audit.command_entries import COMMAND
from service.store.database.engine import Database
from service.store.database.models import HOME, AuditEntry
from service.store.database.schema import current_revision, known_revisions, migrate, migrate_back, migrate_within
from service.store.database.set_aside import count_on
from service.store.storage import DigestMismatch, Storage, open_storage

ROWS_AT_ONCE = 500
MOST_BYTES = 1 << 50


@dataclass(slots=True)
class Read:
    """The contents that were read so far."""

    begin: dict[str, Any] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    keys: bytes | None = None
    is_whole: bool = False


class _Hashing(io.RawIOBase):
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._stream.read(len(buffer))
        self.digest.update(chunk)
        buffer[: len(chunk)] = chunk
        return len(chunk)


def restore_backup(settings: Settings, source: Path, *, passphrase: str | None, say: Say) -> Read:
    """Fills an empty farm from a backup, and lets nothing of it in silently (`unconfirmed.py`). All rows are written in
    one transaction, with the migration to the newest schema: either all of it is done, or the database stays empty.

    Raises: BackupError for a farm that is not empty, a file that is cut off, damaged or from newer code.
    """
    make_private_folder(settings.state)
    storage = open_storage(settings.storage, s3_endpoint_url=settings.s3_endpoint_url)
    try:
        with tarfile.open(source, mode="r|") as tar:
            read = _restore(settings, storage, iter(tar), tar, say)
    except (tarfile.TarError, EOFError) as error:
        raise BackupError(f"{source} is no backup, or is damaged: {error}; nothing was restored") from None
    except OSError as error:
        raise BackupError(f"{source}: {error.strerror or error}; nothing was restored") from None
    if read.keys is not None and passphrase is not None:
        _put_keys(settings, unseal(read.keys, passphrase), say)
    return read


def _restore(
    settings: Settings, storage: Storage, entries: Iterator[tarfile.TarInfo], tar: tarfile.TarFile, say: Say
) -> Read:
    read = Read()
    first = next(entries, None)
    if first is None or first.name != BEGIN:
        raise BackupError(f"this is no backup: it does not begin with {BEGIN}")
    with _member(tar, first, read) as stream:
        read.begin = json.loads(stream.read())
    _check_begin(settings, read.begin)
    with _empty_farm(settings, str(read.begin["schema"])) as connection:
        tables = {table.name: table for table in farm_tables(connection)}
        for entry in entries:
            with _member(tar, entry, read) as stream:
                _take(entry.name, stream, read, connection, tables, storage)
        if not read.is_whole:
            raise BackupError(f"the file is cut off: it has no {END}; nothing was restored")
        for table in tables.values():
            for column in table.primary_key.columns:
                count_on(connection, table.name, column.name)
        migrate_within(connection)
        with Session(connection, expire_on_commit=False) as session:
            lines = revive_nothing(session, settings, backup_at=float(read.begin["at"]))
            session.flush()
    for line in lines:
        say(line)
    say(f"{sum(read.rows.values()):,} rows restored")
    return read


def _check_begin(settings: Settings, begin: Mapping[str, Any]) -> None:
    if begin.get("form") != FORM:
        raise BackupError(f"the file's form is {begin.get('form')!r:.60}, this code reads {FORM}")
    if begin.get("schema") not in known_revisions()[0]:
        raise BackupError(
            f"the backup has schema {begin.get('schema')}, which this code does not know: "
            "restore it with the code that made it, or newer"
        )
    if begin["release_number"] > settings.release_number:
        raise BackupError(
            f"the backup is of release {begin['release_number']}, this farm's is {settings.release_number}: devices "
            f"that have seen that one refuse work of a lower: set POCKFARM_RELEASE_NUMBER={begin['release_number']}"
        )


FIRST_ROWS = (("organisations", HOME),)
"""(table, id) of rows that the migrations put in."""


@contextmanager
def _empty_farm(settings: Settings, schema: str) -> Iterator[Connection]:
    """Yields a transaction on an empty database of that schema. Raises: BackupError if it holds rows."""
    database = Database(settings.database)
    try:
        with database.engine.connect() as connection:
            now = current_revision(connection)
            _refuse_rows(connection)
        if now is not None and now != schema:
            migrate_back(settings.database)
        migrate(settings.database, schema)
        with database.engine.connect() as connection, _foreign_keys_unenforced(connection), connection.begin():
            _refuse_rows(connection)
            _forget_first_rows(connection)
            yield connection
    finally:
        database.close()


@contextmanager
def _foreign_keys_unenforced(connection: Connection) -> Iterator[None]:
    """Suspends foreign keys during the block, on SQLite, where migrations rebuild tables to which others refer. The
    last migration checks that no reference is broken.
    """
    driver: Any = connection.connection.dbapi_connection
    is_sqlite = connection.dialect.name == "sqlite"
    if is_sqlite:
        driver.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        if is_sqlite:
            driver.execute("PRAGMA foreign_keys=ON")


def _refuse_rows(connection: Connection) -> None:
    for table in farm_tables(connection):
        rows = select(table).limit(2)
        if table.name == AuditEntry.__tablename__:  # what was tried on this machine before, a restore too
            rows = rows.where(table.c.action.not_like(f"{COMMAND}%"))
        mappings = connection.execute(rows).mappings()
        if any((table.name, row.get("id")) not in FIRST_ROWS for row in mappings):
            raise BackupError(f"this farm is not empty (its table {table.name} has rows): restore into a new database")


def _forget_first_rows(connection: Connection) -> None:
    """Deletes the rows that a new database begins with: the backup has them too."""
    for table in farm_tables(connection):
        if table.name in dict(FIRST_ROWS):
            connection.execute(delete(table))


@contextmanager
def _member(tar: tarfile.TarFile, entry: tarfile.TarInfo, read: Read) -> Iterator[BinaryIO]:
    source = tar.extractfile(entry) if entry.isreg() else None
    if source is None:
        raise BackupError(f"{entry.name!r:.80} in the backup is no plain file; nothing was restored")
    stream = _Hashing(source)
    with io.BufferedReader(stream) as buffered:
        yield buffered
        while buffered.read(1 << 20):
            pass
    read.members[entry.name] = stream.digest.hexdigest()


def _take(
    name: str, stream: BinaryIO, read: Read, connection: Connection, tables: Mapping[str, Table], storage: Storage
) -> None:
    kind, _, rest = name.partition("/")
    if kind == "tables":
        table = tables.get(rest.split(".")[0])
        if table is None:
            raise BackupError(f"the backup has a table {rest!r:.60} that its schema does not have")
        read.rows[table.name] = read.rows.get(table.name, 0) + _insert(connection, table, stream)
    elif kind == "files":
        _keep(storage, rest.replace("/", ":"), stream, read)
    elif name == KEYS:
        read.keys = stream.read()
    elif name == END:
        _check_end(json.loads(stream.read()), read)
    else:
        raise BackupError(f"{name!r:.80} does not belong into a backup")


def _insert(connection: Connection, table: Table, stream: BinaryIO) -> int:
    count, rows = 0, []
    for line in stream:
        rows.append(json.loads(line))
        if len(rows) == ROWS_AT_ONCE:
            connection.execute(insert(table), rows)
            count, rows = count + len(rows), []
    if rows:
        connection.execute(insert(table), rows)
    return count + len(rows)


def _keep(storage: Storage, digest: str, stream: BinaryIO, read: Read) -> None:
    try:
        storage.put(stream, limit_bytes=MOST_BYTES, digest=digest)
    except DigestMismatch:
        read.lost.append(digest)  # as the backup says too, or it is damaged: see `_check_end`


def _check_end(end: Mapping[str, Any], read: Read) -> None:
    changed = sorted(name for name, digest in read.members.items() if end["members"].get(name) != digest)
    missing = sorted(set(end["members"]) - set(read.members))
    if changed or missing:
        raise BackupError(f"the backup is damaged at {', '.join((changed + missing)[:3])}; nothing was restored")
    if end["rows"] != {**dict.fromkeys(end["rows"], 0), **read.rows}:
        raise BackupError("the backup's tables are not as long as it says; nothing was restored")
    if set(read.lost) != set(end["lost"]):
        raise BackupError(f"stored files are damaged: {', '.join(read.lost[:3])}; nothing was restored")
    read.is_whole = True


def _put_keys(settings: Settings, keys: Mapping[str, bytes], say: Say) -> None:
    for path in key_files(settings):
        if path.name not in keys:
            continue
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(keys[path.name])
        except FileExistsError:
            raise BackupError(f"{path} is there already: move it away, or restore without the keys") from None
        say(f"{path} restored")
