"""Arguments that callers give either as the thing itself, or as the file that holds it."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import BinaryIO

from pockfarm.errors import UsageError

STANDARD_INPUT = "-"
"""Given in place of a file's name."""


def standard_input(what: str) -> bytes:
    """All that comes there. Raises: UsageError (nothing does, or it was read for something else before)."""
    data = sys.stdin.buffer.read()
    if not data:
        raise UsageError(
            "nothing came on the standard input", where=f"{what} -", hint="it can be given to one option only"
        )
    return data


def file_or_input(path: Path, what: str) -> Path | bytes:
    """The file, or what came on the standard input in its place. Raises: as `standard_input`."""
    return standard_input(what) if str(path) == STANDARD_INPUT else path


def opened(source: bytes | Path) -> BinaryIO:
    """A stream of it. Raises: UsageError."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    try:
        return source.open("rb")
    except OSError as problem:
        raise unread(source, problem) from None


def unread(path: Path, problem: OSError) -> UsageError:
    """The error of a file that cannot be read."""
    if isinstance(problem, IsADirectoryError):
        return UsageError(problem.strerror, where=path, hint="name a file in it")
    if isinstance(problem, FileNotFoundError):
        return UsageError(problem.strerror, where=path, hint=f"relative names are looked for in {Path.cwd()}")
    return UsageError(problem.strerror, where=path, hint="may you read it?")


def bytes_of(source: bytes | Path) -> bytes:
    """All of it. Raises: UsageError."""
    if isinstance(source, bytes):
        return source
    try:
        return source.read_bytes()
    except OSError as problem:
        raise unread(source, problem) from None


def text_of(source: str | Path) -> str:
    """The text, or that of the file. Raises: UsageError."""
    if isinstance(source, str):
        return source
    try:
        return bytes_of(source).decode()
    except UnicodeDecodeError:
        raise UsageError("not UTF-8 text", where=source) from None
