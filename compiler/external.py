"""A model whose tensors lie in files beside it: where those may lie, and what identifies the model then.

To whatever keeps files by their digest such a model is one file too, its *listing*: a short text that names the digests
of the ONNX file and, by location, of its data files. The digest of the listing is the model's.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import stat
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Union

from compiler.errors import ModelError

SCHEMA = "pockfarm.model/1"
MAX_FILES = 64
MAX_LOCATION_CHARACTERS = 200
MAX_LISTING_BYTES = 64 << 10
ONE_FILE = "onnx.save(model, path, save_as_external_data=True, all_tensors_to_one_file=True, location='model.data')"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BEGIN = b'{"external":'
CHUNK_BYTES = 1 << 20

External = Mapping[str, Union[bytes, memoryview, mmap.mmap]]
"""Data files by location: bytes, or a mapping of a file into memory."""
NO_EXTERNAL: External = {}


def check_location(location: str, where: str = "external data") -> str:
    """A path below the model's own folder. Raises: ModelError for any other."""
    parts = location.split("/")
    plain = location.isprintable() and "\\" not in location and ":" not in location
    if not plain or len(location) > MAX_LOCATION_CHARACTERS or any(part in ("", ".", "..") for part in parts):
        raise ModelError(
            f"location {location[:MAX_LOCATION_CHARACTERS]!r} is not a plain path below the model's folder",
            where=where,
            hint=f"save it again with its data beside it: {ONE_FILE}",
        )
    return location


@dataclass(frozen=True)
class Listing:
    """Digests of an ONNX file and of its data files by location."""

    model: str
    external: Mapping[str, str]

    def to_bytes(self) -> bytes:
        """Returns the canonical text: the same bytes for the same meaning. No ONNX file begins like it."""
        body = {"external": dict(self.external), "model": self.model, "schema": SCHEMA}
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of the text."""
        return "sha256:" + hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def parse(cls, data: bytes) -> Listing | None:
        """The listing, or None for bytes that do not begin as one. Raises: ModelError (begins so, and is none)."""
        if not data.startswith(_BEGIN):
            return None
        try:
            body = json.loads(data)
            listing = cls(body["model"], parse_digests(body["external"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise _no_listing() from None
        if not isinstance(listing.model, str) or not _DIGEST.fullmatch(listing.model) or listing.to_bytes() != data:
            raise _no_listing()
        return listing


def parse_digests(body: object) -> dict[str, str]:
    """Location -> digest, as plain data says it. Raises: ModelError naming the location."""
    if not isinstance(body, dict) or not body:
        raise ModelError(
            "expected a mapping of locations to digests", where="external", hint='such as {"model.data": "sha256:…"}'
        )
    if len(body) > MAX_FILES:
        raise ModelError(f"{len(body)} data files, the limit is {MAX_FILES}", where="external", hint=ONE_FILE)
    for location, digest in body.items():
        check_location(str(location), "external")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ModelError(
                f"the digest of {location!r} is {str(digest)[:80]!r}",
                where="external",
                hint="give sha256: and 64 hex digits, as sha256sum prints them",
            )
    return dict(body)


def _no_listing() -> ModelError:
    return ModelError("begins as a listing of a model's files, and is none", where="model", hint="send the ONNX file")


def model_digest(model: bytes, external: External = NO_EXTERNAL) -> str:
    """Identifies a model: returns the digest of its bytes, or of its listing if it has data files."""
    digest = digest_of([model])
    return Listing(digest, {name: digest_of([data]) for name, data in external.items()}).digest if external else digest


def digest_of(chunks: Iterable[bytes | memoryview | mmap.mmap]) -> str:
    """`sha256:<hex>` of what comes."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return "sha256:" + digest.hexdigest()


def file_digest(stream: BinaryIO) -> str:
    """`sha256:<hex>` of a file from its beginning, where it is left again."""
    stream.seek(0)
    digest = digest_of(iter(lambda: stream.read(CHUNK_BYTES), b""))
    stream.seek(0)
    return digest


def open_data_file(folder: Path, location: str) -> BinaryIO:
    """A data file: a plain file below the model's folder, reached without following any link.

    Raises: ModelError (another kind of path or file, or none there).
    """
    *folders, name = check_location(location).split("/")
    if sys.platform == "win32":
        return _open_by_path(folder, location)
    with ExitStack() as stack:
        try:
            at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, at)
            for part in folders:
                at = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                stack.callback(os.close, at)
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        except OSError as problem:
            raise ModelError(
                f"its data file {location!r} cannot be opened: {problem.strerror}",
                where="model",
                hint=f"it must lie beside the model, in {folder}, and be no link",
            ) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ModelError(
            f"its data file {location!r} is no plain file", where="model", hint="put the data itself there"
        )
    return os.fdopen(descriptor, "rb")


def _open_by_path(folder: Path, location: str) -> BinaryIO:
    """Opens the file where none can be opened beside an open folder (Windows): nobody must exchange a folder
    meanwhile.
    """
    path = folder
    for part in location.split("/"):
        path = path / part
        if path.is_symlink():
            raise ModelError(
                f"its data file {location!r} is reached by a link",
                where="model",
                hint=f"it must lie beside the model, in {folder}, and be no link",
            )
    if path.exists() and not path.is_file():
        raise ModelError(
            f"its data file {location!r} is no plain file", where="model", hint="put the data itself there"
        )
    try:
        return path.open("rb")
    except OSError as problem:
        raise ModelError(
            f"its data file {location!r} cannot be opened: {problem.strerror}",
            where="model",
            hint=f"it must lie beside the model, in {folder}, and be no link",
        ) from None


def mapped(stream: BinaryIO) -> mmap.mmap | bytes:
    """The whole file in memory, page by page as it is read."""
    if os.fstat(stream.fileno()).st_size == 0:
        return b""
    return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
