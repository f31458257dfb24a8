"""A data file beside a model (`compiler.external`), with other elements in places: never whole in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

from compiler.bundle.content import Chunk, elements_of
from compiler.external import CHUNK_BYTES
from compiler.frontend.file.references import payload_bytes
from compiler.tensors import Array

_ALIGNMENT = 64
"""The alignment of what is appended."""


@dataclass(frozen=True)
class DataFile:
    """`original` is the file as it was; `places` are arrays by the byte that they begin at, which lie apart."""

    original: memoryview
    places: dict[int, Array] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Returns the size of the file as it is now."""
        return max([len(self.original), *(begin + array.nbytes for begin, array in self.places.items())])

    def append(self, array: Array) -> int:
        """Puts an array behind everything else and returns the byte that it begins at."""
        begin = -(-self.size_bytes // _ALIGNMENT) * _ALIGNMENT
        self.places[begin] = array
        return begin

    def chunks(self) -> Iterator[Chunk]:
        """The file's bytes in order."""
        at = 0
        for begin, array in sorted(self.places.items(), key=lambda place: place[0]):
            yield from self._original_bytes(at, begin)
            yield elements_of(array)
            at = begin + array.nbytes
        yield from self._original_bytes(at, len(self.original))

    def _original_bytes(self, begin: int, end: int) -> Iterator[Chunk]:
        """Yields what the file held there; nothing was there behind its end."""
        for at in range(begin, min(end, len(self.original)), CHUNK_BYTES):
            yield self.original[at : min(at + CHUNK_BYTES, end)]
        if end > max(begin, len(self.original)):
            yield b"\0" * (end - max(begin, len(self.original)))


def location_of(tensor: Any) -> tuple[str, int]:
    """(location, first byte) of a tensor (protobuf) that lies in a data file."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return entries["location"], int(entries.get("offset", "0"))


def refer(tensor: Any, location: str, begin: int) -> None:
    """Makes a tensor (protobuf) lie in a data file, with as many bytes as its shape needs."""
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = tensor.EXTERNAL
    nbytes = payload_bytes(prod(tensor.dims), tensor.data_type)
    for key, value in (("location", location), ("offset", begin), ("length", nbytes)):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
