"""Compiled kernels on disk, found by what they were made from. Safe for any number of processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"PFK1"
_HEADER = struct.Struct(">4s32sQ")
"""Magic, SHA-256 of what follows the digest, workspace bytes; then the object file."""


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One kernel as a relocatable object that exports `__tvm_ffi_<symbol>`."""

    symbol: str
    object_bytes: bytes
    workspace_bytes: int


def read_entry(folder: Path, key: str, symbol: str) -> CompiledKernel | None:
    """The entry, or None if there is none or its bytes are damaged."""
    try:
        raw = _path(folder, key).read_bytes()
    except OSError:
        return None
    if len(raw) < _HEADER.size:
        return None
    magic, digest, workspace_bytes = _HEADER.unpack_from(raw)
    body = raw[_HEADER.size :]
    if magic != _MAGIC or digest != _digest(workspace_bytes, body):
        return None
    return CompiledKernel(symbol, body, workspace_bytes)


def write_entry(folder: Path, key: str, kernel: CompiledKernel) -> None:
    """Store an entry: written beside, then renamed, so that a reader sees all of it or none."""
    path = _path(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = _digest(kernel.workspace_bytes, kernel.object_bytes)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(_HEADER.pack(_MAGIC, digest, kernel.workspace_bytes) + kernel.object_bytes)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _path(folder: Path, key: str) -> Path:
    return folder / key[:2] / f"{key}.kernel"


def _digest(workspace_bytes: int, body: bytes) -> bytes:
    return hashlib.sha256(struct.pack(">Q", workspace_bytes) + body).digest()
