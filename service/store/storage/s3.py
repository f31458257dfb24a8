"""Content-addressed files in an S3-compatible store: `<prefix>/sha256/ab/cdef…`.

A growing file is one object for each of its pieces, `<prefix>/incoming/<name>/<offset>-<bytes>`, because a store takes
no part under 5 MiB but the last, and a connection is cut where it is cut. Once whole, they are read in order into a
multipart upload under the digest, which is given up if the bytes are others.

What is known already is written again: whoever sends a file must not learn by calls or by time that another has it.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from service.store.storage.files import check_digest, write_hashed
from service.store.storage.s3_calls import PART_BYTES, S3Calls
from service.store.storage.store import MissingFile, StorageDown, StorageFull, StoredFile, check_name

MOST_PARTS = 9_000
"""Most parts that are used, of the 10,000 that a multipart upload may have."""


@dataclass(frozen=True, slots=True)
class _Piece:
    at_bytes: int
    end_bytes: int
    key: str


class S3Storage:
    """A `Storage` in one bucket. Every method may raise StorageFull and StorageDown."""

    def __init__(self, bucket: str, prefix: str = "", *, endpoint_url: str | None = None) -> None:
        self.prefix = f"{prefix}/" if prefix else ""
        self.bucket = S3Calls(bucket, endpoint_url=endpoint_url)

    def _key(self, digest: str) -> str:
        name = digest.removeprefix("sha256:")
        return f"{self.prefix}sha256/{name[:2]}/{name[2:]}"

    def put(self, stream: BinaryIO, *, limit_bytes: int, digest: str | None = None) -> StoredFile:
        """See `Storage.put`. The stream is hashed in a temporary file first: the key needs the digest."""
        with tempfile.TemporaryFile() as spool:
            stored = write_hashed(stream, spool, limit_bytes=limit_bytes)
            check_digest(digest, stored.digest)
            spool.seek(0)
            self.bucket.upload(spool, self._key(stored.digest))
        return stored

    def size(self, digest: str) -> int | None:
        """See `Storage.size`."""
        try:
            return int(self.bucket.call("head_object", Key=self._key(digest))["ContentLength"])
        except MissingFile:
            return None

    def read(self, digest: str) -> Iterator[bytes]:
        """See `Storage.read`."""
        return self._chunks(self._key(digest), digest)

    def _chunks(self, key: str, name: str) -> Iterator[bytes]:
        try:
            return self.bucket.chunks(key)
        except MissingFile:
            raise MissingFile(name) from None

    @contextmanager
    def local(self, digest: str) -> Iterator[Path]:
        """See `Storage.local`: a temporary copy."""
        with tempfile.NamedTemporaryFile() as copy:
            for chunk in self.read(digest):
                copy.write(chunk)
            copy.flush()
            yield Path(copy.name)

    def check(self) -> None:
        """See `Storage.check`."""
        self.bucket.call("head_bucket")

    def delete(self, digest: str) -> None:
        """See `Storage.delete`."""
        self.bucket.call("delete_object", Key=self._key(digest))

    def stored(self) -> Iterator[tuple[str, int, float]]:
        """See `Storage.stored`."""
        prefix = f"{self.prefix}sha256/"
        for entry in self._listed(prefix):
            name = entry["Key"].removeprefix(prefix).replace("/", "")
            yield f"sha256:{name}", int(entry["Size"]), entry["LastModified"].timestamp()

    def tidy(self, before: float) -> None:
        """See `Storage.tidy`: multipart uploads that nobody completed or gave up."""
        pages = self.bucket.pages("list_multipart_uploads", Prefix=self.prefix)
        for upload in (upload for page in pages for upload in page.get("Uploads", ())):
            if upload["Initiated"].timestamp() <= before:
                self.bucket.call("abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"])

    def free_bytes(self) -> int | None:
        """See `Storage.free_bytes`: it does not tell."""
        return None

    def append(self, name: str, piece: bytes | bytearray, *, at_bytes: int, reserve_bytes: int = 0) -> None:
        """See `Storage.append`. The length is in the key: nobody replaces a long piece by a short one."""
        key = f"{self._growing(name)}{at_bytes:016d}-{len(piece)}"
        self.bucket.call("put_object", Key=key, Body=bytes(piece))

    @property
    def _incoming(self) -> str:
        return f"{self.prefix}incoming/"

    def _growing(self, name: str) -> str:
        return f"{self._incoming}{check_name(name)}/"

    def adopt(self, name: str, *, size_bytes: int, digest: str) -> StoredFile:
        """See `Storage.adopt`."""
        pieces = _in_order(self._pieces(name), size_bytes)
        if pieces is None:
            raise MissingFile(name)
        chunks = self._checked(name, pieces, digest)
        self._upload_parts(self._key(digest), chunks, max(PART_BYTES, -(-size_bytes // MOST_PARTS)))
        self.discard(name)
        return StoredFile(digest, size_bytes)

    def _checked(self, name: str, pieces: Iterable[tuple[_Piece, int]], digest: str) -> Iterator[bytes]:
        """Yields the chunks of a growing file. Raises: DigestMismatch to whoever has taken the last one."""
        hasher = hashlib.sha256()
        for piece, skipped_bytes in pieces:
            for chunk in self._chunks(piece.key, name):
                part, skipped_bytes = chunk[skipped_bytes:], max(0, skipped_bytes - len(chunk))
                hasher.update(part)
                yield part
        check_digest(digest, "sha256:" + hasher.hexdigest())

    def _upload_parts(self, key: str, chunks: Iterator[bytes], part_bytes: int) -> None:
        target = {"Key": key, "UploadId": self.bucket.call("create_multipart_upload", Key=key)["UploadId"]}
        try:
            parts = []
            for number, part in enumerate(_parts(chunks, part_bytes), start=1):
                answer = self.bucket.call("upload_part", **target, PartNumber=number, Body=part)
                parts.append({"PartNumber": number, "ETag": answer["ETag"]})
            self.bucket.call("complete_multipart_upload", **target, MultipartUpload={"Parts": parts})
        except BaseException:
            with suppress(StorageDown, StorageFull):
                self.bucket.call("abort_multipart_upload", **target)
            raise

    def _pieces(self, name: str) -> list[_Piece]:
        pieces = []
        for entry in self._listed(self._growing(name)):
            at_bytes, _, size_bytes = entry["Key"].rpartition("/")[2].partition("-")
            pieces.append(_Piece(int(at_bytes), int(at_bytes) + int(size_bytes), entry["Key"]))
        return pieces

    def _listed(self, prefix: str) -> Iterator[dict[str, Any]]:
        for page in self.bucket.pages("list_objects_v2", Prefix=prefix):
            yield from page.get("Contents", ())

    def discard(self, name: str) -> None:
        """See `Storage.discard`."""
        for entry in self._listed(self._growing(name)):
            self.bucket.call("delete_object", Key=entry["Key"])

    def growing(self) -> Iterator[tuple[str, float]]:
        """See `Storage.growing`."""
        last: tuple[str, float] | None = None
        for entry in self._listed(self._incoming):  # sorted by key: the pieces of a file follow one another
            name, at = entry["Key"].removeprefix(self._incoming).partition("/")[0], entry["LastModified"].timestamp()
            if last is not None and last[0] != name:
                yield last
                last = None
            last = (name, max(at, last[1] if last else at))
        if last is not None:
            yield last


def _in_order(pieces: list[_Piece], size_bytes: int) -> list[tuple[_Piece, int]] | None:
    """Returns the pieces that make up the file, each with the bytes of it that came before; None if there is a gap."""
    chosen: list[tuple[_Piece, int]] = []
    at_bytes, best = 0, _Piece(0, 0, "")
    coming = deque(
        sorted((piece for piece in pieces if piece.end_bytes <= size_bytes), key=lambda piece: piece.at_bytes)
    )
    while at_bytes < size_bytes:
        while coming and coming[0].at_bytes <= at_bytes:
            best = max(best, coming.popleft(), key=lambda piece: piece.end_bytes)
        if best.end_bytes <= at_bytes:
            return None
        chosen.append((best, at_bytes - best.at_bytes))
        at_bytes = best.end_bytes
    return chosen


def _parts(chunks: Iterator[bytes], part_bytes: int) -> Iterator[bytes]:
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= part_bytes:
            yield bytes(buffer[:part_bytes])
            del buffer[:part_bytes]
    if buffer:
        yield bytes(buffer)
