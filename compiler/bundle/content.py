"""Content of a bundle's files: bytes, or something large that is written chunk by chunk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, Union

import numpy as np

from compiler.tensors import Array

Chunk = Union[bytes, memoryview]


class Streamed(Protocol):
    """Content that yields the same bytes each time it is read, never whole in memory."""

    @property
    def size_bytes(self) -> int:
        """Returns the size of all chunks."""

    def chunks(self) -> Iterator[Chunk]:
        """The bytes in order."""


Content = Union[bytes, Streamed]


def size_of(content: Content) -> int:
    """Returns the size of the content in bytes."""
    return len(content) if isinstance(content, bytes) else content.size_bytes


def chunks_of(content: Content) -> Iterator[Chunk]:
    """The bytes in order."""
    return iter((content,)) if isinstance(content, bytes) else content.chunks()


def elements_of(array: Array) -> memoryview:
    """An array's bytes in order, where they lie if they lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def write_file(path: Path, chunks: Iterable[Chunk]) -> None:
    """A file that is there whole or not at all; what is read may be the one that is replaced. Raises: OSError."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
