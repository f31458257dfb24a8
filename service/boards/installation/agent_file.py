"""The agent as one file: a zip archive that Python runs, the same bytes for the same sources wherever it is made."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

import device_agents.wire

SOURCES = Path(device_agents.wire.__file__).resolve().parents[1]
START = "unpack.py"
"""Becomes the archive's `__main__.py`."""
FIRST_LINE = b"#!/usr/bin/env python3\n"
EARLIEST = (1980, 1, 1, 0, 0, 0)


@cache
def agent_file() -> bytes:
    """Returns the agent's archive. Nothing is compressed, so no version of zlib shows; no time, owner or order of a
    folder does either.
    """
    out = io.BytesIO(FIRST_LINE)
    out.seek(0, io.SEEK_END)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "__main__.py", (SOURCES / START).read_bytes())
        for path in sorted(SOURCES.rglob("*.py")):
            _add(archive, f"{SOURCES.name}/{path.relative_to(SOURCES).as_posix()}", path.read_bytes())
    return out.getvalue()


def agent_digest() -> str:
    """Returns the SHA-256 of the archive, in hexadecimal."""
    return hashlib.sha256(agent_file()).hexdigest()


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, EARLIEST)
    entry.create_system, entry.external_attr = 3, 0o100644 << 16
    archive.writestr(entry, data)
