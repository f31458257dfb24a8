"""Writing a backup: one snapshot of the database, whatever goes on meanwhile, and every file that its rows name."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from sqlalchemy import Table, select
from sqlalchemy.orm import Session

from compiler.external import MAX_LISTING_BYTES, Listing
from service.base.settings import Settings
from service.operations.backup.form import BEGIN, DIGEST, END, FORM, KEYS, BackupError, Say, farm_tables, seal, to_line
from service.store.database.engine import Database
from service.store.database.schema import check_schema, known_revisions
from service.store.storage import Storage, open_storage

ROWS_AT_ONCE = 1000
PART_BYTES = 64 << 20


def key_files(settings: Settings) -> tuple[Path, ...]:
    """Returns the files with the farm's keys, by their names in a backup too; files that are not there are left out.

    None is an API key: a restored farm makes its operator another.
    """
    return settings.signing_key_path, settings.next_signing_key_path, settings.key_list_path


@dataclass(slots=True)
class Written:
    """The contents of the archive so far."""

    tar: tarfile.TarFile
    members: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    digests: set[str] = field(default_factory=set)
    """Digests that occur in rows: of stored files, and of much else."""

    def add(self, name: str, data: bytes) -> None:
        """Adds a member whose bytes are at hand."""
        self.add_stream(name, io.BytesIO(data), len(data))

    def add_stream(self, name: str, stream: IO[bytes], size: int) -> str:
        """Adds a member that is read from a stream. Returns its digest."""
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = size, 0o600
        reader = _Hashing(stream)
        self.tar.addfile(entry, reader)
        self.members[name] = reader.digest.hexdigest()
        return self.members[name]


class _Hashing(io.RawIOBase):
    """A stream that is hashed as it is read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        chunk = self._stream.read(size)
        self.digest.update(chunk)
        return chunk


def write_backup(settings: Settings, to: Path, *, passphrase: str | None, say: Say) -> list[str]:
    """Writes the farm's record to a new file. Damaged or lost files that its rows name are left out and returned.

    `passphrase`: the farm's key files go in too, encrypted by it; None: they stay out. Raises: BackupError.
    """
    if to.exists():
        raise BackupError(f"{to} is there already; name another file")
    draft = to.with_name(to.name + ".partial")
    storage = open_storage(settings.storage, s3_endpoint_url=settings.s3_endpoint_url)
    database = Database(settings.database)
    try:
        check_schema(database)
        with os.fdopen(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                lost = _write(Written(tar), settings, database, storage, passphrase, say)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(to)
    finally:
        database.close()
        draft.unlink(missing_ok=True)
    return lost


def _write(
    out: Written, settings: Settings, database: Database, storage: Storage, passphrase: str | None, say: Say
) -> list[str]:
    keys = {path.name: path.read_bytes() for path in key_files(settings) if path.exists()}
    out.add(
        BEGIN,
        json.dumps(
            {
                "form": FORM,
                "schema": known_revisions()[1],
                "release_number": settings.release_number,
                "at": time.time(),
                "with_keys": passphrase is not None,
            }
        ).encode(),
    )
    with database.snapshot() as session:
        for table in farm_tables(session.connection()):
            _write_table(out, session, table)
    say(f"{sum(out.rows.values()):,} rows of {len(out.rows)} tables")
    lost = _write_files(out, storage, say)
    if passphrase is not None:
        out.add(KEYS, seal(keys, passphrase))
    out.add(END, json.dumps({"members": out.members, "rows": out.rows, "lost": lost}).encode())
    return lost


def _write_table(out: Written, session: Session, table: Table) -> None:
    out.rows[table.name] = 0
    for number, part in enumerate(_parts(out, session, table)):
        with part:
            size = part.tell()
            part.seek(0)
            out.add_stream(f"tables/{table.name}.{number}.jsonl", part, size)


def _parts(out: Written, session: Session, table: Table) -> Iterator[IO[bytes]]:
    """Yields the table's lines in temporary files of bounded size (a member says its size before its bytes)."""
    part = tempfile.TemporaryFile()  # noqa: SIM115 (whoever gets it closes it)
    for row in session.execute(select(table), execution_options={"yield_per": ROWS_AT_ONCE}).mappings():
        line = to_line(dict(row))
        out.digests.update("sha256:" + digest.decode() for digest in DIGEST.findall(line))
        out.rows[table.name] += 1
        part.write(line)
        if part.tell() >= PART_BYTES:
            yield part
            part = tempfile.TemporaryFile()  # noqa: SIM115 (whoever gets it closes it)
    yield part


def _write_files(out: Written, storage: Storage, say: Say) -> list[str]:
    """Writes every stored file that is named by a row, or by a listing among those files. Returns the files whose bytes
    are not what they should be.
    """
    lost, remaining, queued, total = [], sorted(out.digests), set(out.digests), 0
    while remaining:
        digest = remaining.pop()
        size = storage.size(digest)
        if size is None:
            continue  # the digest of something else, or of a file that retention has removed
        if size <= MAX_LISTING_BYTES:
            more = _listed(b"".join(storage.read(digest))) - queued
            queued |= more
            remaining += more
        with storage.local(digest) as path, path.open("rb") as stream:
            written_digest = out.add_stream(f"files/{digest.replace(':', '/')}", stream, size)
        total += size
        if written_digest != digest.removeprefix("sha256:"):
            lost.append(digest)
    say(f"{total:,} bytes of stored files")
    return lost


def _listed(data: bytes) -> set[str]:
    listing = Listing.parse(data)
    return set() if listing is None else {listing.model, *listing.external.values()}
