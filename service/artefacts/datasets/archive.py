"""A zip archive's entries, looked at without trust: what its directory says is checked before a byte is inflated.

Only what `numpy.savez` writes is taken: plain files, stored or deflated, one after the other, each once, at most
`MAX_ENTRIES`. The directory's sizes are promises: `Entry.read` ends where the promise does, and refuses one that is not
kept to the byte (more, less, another checksum, bytes after the end).
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

MAX_ENTRIES = 32
MAX_DIRECTORY_BYTES = 64 << 10
READ_BYTES = 64 << 10
CHUNK_BYTES = 4 << 20
_END = struct.Struct("<4s4H2LH")
_LOCAL = struct.Struct("<4s5H3L2H")
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
_HINT = "write it with numpy.savez(file, x=…, y=…)"


class BadData(Exception):
    """The file cannot be used; `code` is stable, `where` names the array."""

    def __init__(self, code: str, message: str, *, where: str = "dataset", hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.where = where
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Entry:
    """An array's file in the archive; sizes and checksum as the directory promises them."""

    file: BinaryIO
    name: str
    """Name of the array, without `.npy`."""
    start: int
    """Offset of its bytes in the file."""
    stored_bytes: int
    size_bytes: int
    is_deflated: bool
    checksum: int

    def read(self) -> Iterator[bytes]:
        """Yields the entry's bytes in chunks of at most `CHUNK_BYTES`, exactly `size_bytes` in all. Raises: BadData."""
        done_bytes, checksum = 0, 0
        for chunk in self._inflated() if self.is_deflated else self._raw():
            done_bytes, checksum = done_bytes + len(chunk), zlib.crc32(chunk, checksum)
            if done_bytes > self.size_bytes:
                raise self._lie(f"holds more than the {self.size_bytes:,} bytes that the archive's directory says")
            yield chunk
        if done_bytes < self.size_bytes:
            raise BadData("data.truncated", f"ends {self.size_bytes - done_bytes:,} bytes early", where=self.name)
        if checksum != self.checksum:
            raise self._lie("has another checksum than the archive's directory says")

    def _raw(self) -> Iterator[bytes]:
        for first in range(0, self.stored_bytes, READ_BYTES):
            self.file.seek(self.start + first)
            yield self.file.read(min(READ_BYTES, self.stored_bytes - first))

    def _inflated(self) -> Iterator[bytes]:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            for data in self._raw():
                while data and not inflater.eof:
                    yield inflater.decompress(data, CHUNK_BYTES)
                    data = inflater.unconsumed_tail
                if inflater.eof and (inflater.unused_data or data):
                    raise self._lie("is followed by bytes that belong to no array")
            while not inflater.eof:
                chunk = inflater.decompress(inflater.unconsumed_tail, CHUNK_BYTES)
                if not chunk:
                    return
                yield chunk
        except zlib.error as error:
            raise self._lie(f"is not deflated data: {error}") from None

    def _lie(self, what: str) -> BadData:
        return BadData("data.invalid", f"the entry {what}", where=self.name, hint=_HINT)


def read_entries(file: BinaryIO) -> tuple[Entry, ...]:
    """Returns the entries of a seekable zip archive, in the order in which they lie in the file. Raises: BadData."""
    directory_start = _check_end(file)
    try:
        with zipfile.ZipFile(file) as archive:
            members = [_entry(file, info) for info in archive.infolist()]
    except (zipfile.BadZipFile, struct.error, EOFError, RuntimeError, OSError, ValueError) as error:
        raise _bad(f"not a readable npz: {str(error)[:200]}") from None
    members.sort(key=lambda entry: entry.start)
    _check_layout(members, directory_start)
    return tuple(members)


def _bad(message: str) -> BadData:
    return BadData("data.invalid", message, hint=_HINT)


def _check_end(file: BinaryIO) -> int:
    """Returns where the directory starts, as the record that ends the file gives it. Accepts no comment, no second disk
    and few entries only.
    """
    file_bytes = file.seek(0, 2)
    file.seek(max(0, file_bytes - _END.size))
    record = file.read(_END.size)
    if len(record) < _END.size or record[:4] != b"PK\x05\x06":
        raise _bad("not a readable npz: no zip archive's end at the end of the file")
    _, disk, first_disk, here, entries, directory_bytes, start, comment_bytes = _END.unpack(record)
    if disk or first_disk or here != entries or comment_bytes:
        raise _bad("the archive spans several files, or has a comment")
    if not 1 <= entries <= MAX_ENTRIES:
        raise _bad(f"{entries:,} arrays, expected 1 to {MAX_ENTRIES}")
    if directory_bytes > MAX_DIRECTORY_BYTES or start + directory_bytes != file_bytes - _END.size:
        raise _bad(f"the archive's directory is not where it says, or longer than {MAX_DIRECTORY_BYTES:,} bytes")
    return int(start)


def _entry(file: BinaryIO, info: zipfile.ZipInfo) -> Entry:
    name = info.filename.removesuffix(".npy")
    if (
        name == info.filename
        or not _NAME.fullmatch(name)
        or ".." in name
        or "//" in name
        or info.orig_filename != info.filename
    ):
        raise _bad(f"entry {info.orig_filename!r:.100} is not one array NAME.npy")
    if info.flag_bits & _ENCRYPTED:
        raise _bad(f"entry {name}.npy is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _bad(f"entry {name}.npy is compressed by method {info.compress_type}, expected stored or deflated")
    is_deflated = info.compress_type == zipfile.ZIP_DEFLATED
    if not is_deflated and info.compress_size != info.file_size:
        raise _bad(f"entry {name}.npy is stored in {info.compress_size:,} bytes and says {info.file_size:,}")
    file.seek(info.header_offset)
    local = file.read(_LOCAL.size)
    if len(local) < _LOCAL.size or local[:4] != b"PK\x03\x04":
        raise _bad(f"entry {name}.npy is not where the archive's directory says")
    *_, name_bytes, extra_bytes = _LOCAL.unpack(local)
    if file.read(name_bytes) != info.filename.encode():
        raise _bad(f"entry {name}.npy has another name in the archive's directory")
    start = info.header_offset + _LOCAL.size + name_bytes + extra_bytes
    return Entry(file, name, start, info.compress_size, info.file_size, is_deflated, info.CRC)


def _check_layout(entries: list[Entry], directory_start: int) -> None:
    """Raises: BadData if two entries share a name or bytes, or one reaches into the directory."""
    names = [entry.name for entry in entries]
    if len(set(names)) != len(names):
        raise _bad(f"two entries have the same name: {next(n for n in names if names.count(n) > 1)}.npy")
    ends = [*(entry.start for entry in entries[1:]), directory_start]
    for entry, end in zip(entries, ends, strict=True):
        if entry.start + entry.stored_bytes > end:
            raise _bad(f"entry {entry.name}.npy overlaps what follows it")
