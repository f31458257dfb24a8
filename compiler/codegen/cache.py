"""Compiled kernels on disk, found by what they were made from. Safe for any number of processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compiler.cache_folder import KERNELS
from compiler.codegen.artefacts import Artefact, CompiledKernel, Launch, Resources

_MAGIC = b"PFK3"
_PREFIX = struct.Struct(">4s32sI")
"""Magic, SHA-256 of what follows the prefix, bytes of the head; then the head (JSON: launch records, form and size of
each artefact), then the artefacts."""


def read_entry(folder: Path, key: str, symbol: str) -> CompiledKernel | None:
    """The entry, or None if there is none, its bytes are damaged, or it is of another symbol. Its time of change says
    when it was last read: what was not for long is removed first."""
    path = _path(folder, key)
    try:
        raw = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    if len(raw) < _PREFIX.size:
        return None
    magic, digest, head_bytes = _PREFIX.unpack_from(raw)
    body = raw[_PREFIX.size :]
    if magic != _MAGIC or digest != hashlib.sha256(body).digest():
        return None
    kernel = _unpacked(json.loads(body[:head_bytes]), body[head_bytes:])
    return kernel if kernel.symbol == symbol else None


def write_entry(folder: Path, key: str, kernel: CompiledKernel) -> None:
    """Store an entry: written beside, then renamed, so that a reader sees all of it or none."""
    path = _path(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(_packed(kernel))
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _packed(kernel: CompiledKernel) -> bytes:
    parts = [[artefact.form, len(artefact.content)] for artefact in kernel.artefacts]
    fields = {"symbol": kernel.symbol, "workspace_bytes": kernel.workspace_bytes}
    launches = [asdict(launch) for launch in kernel.launches]
    head = json.dumps({**fields, "launches": launches, "artefacts": parts}).encode()
    body = head + b"".join(artefact.content for artefact in kernel.artefacts)
    return _PREFIX.pack(_MAGIC, hashlib.sha256(body).digest(), len(head)) + body


def _unpacked(head: dict[str, Any], content: bytes) -> CompiledKernel:
    artefacts, start = [], 0
    for form, size_bytes in head["artefacts"]:
        artefacts.append(Artefact(form, content[start : start + size_bytes]))
        start += size_bytes
    launches = tuple(map(_launch, head["launches"]))
    return CompiledKernel(head["symbol"], head["workspace_bytes"], launches, tuple(artefacts))


def _launch(row: dict[str, Any]) -> Launch:
    parsed = {"operands": tuple(row["operands"]), "resources": Resources(**row["resources"])}
    return Launch(**{**row, **parsed})


def _path(folder: Path, key: str) -> Path:
    return folder / KERNELS / key[:2] / f"{key}.kernel"
