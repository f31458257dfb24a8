"""Reads protobuf's wire format field by field, without a schema and without allocating by a declared size."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.errors import LimitExceeded, ModelError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_CONTINUES = bytes(range(128, 256))
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}

Field = tuple[int, int, int, int]
"""(number, wire type, begin, end): a varint's value is `begin`; the others occupy data[begin:end]."""


class WireReader:
    """Walks messages inside one buffer and counts the fields it has seen.

    Raises: ModelError for bytes that are not protobuf; LimitExceeded past `field_limit` fields.
    """

    def __init__(self, data: bytes, field_limit: int) -> None:
        self.data = data
        self._field_limit = field_limit
        self._seen = 0

    def fields(self, begin: int, end: int, where: str) -> Iterator[Field]:
        """Yields every field of the message in data[begin:end], in file order."""
        position = begin
        while position < end:
            self._count(where)
            tag, position = self._varint(position, end, where)
            number, wire = tag >> 3, tag & 7
            if number == 0:
                raise ModelError("is not a protobuf message (field number 0)", where=where, hint="is the file damaged?")
            if wire == VARINT:
                value, position = self._varint(position, end, where)
                yield number, wire, value, position
                continue
            size, position = self._size(wire, position, end, where)
            yield number, wire, position, position + size
            position += size

    def packed_varints(self, begin: int, end: int) -> int:
        """Number of varints in data[begin:end]: the bytes that end one."""
        return len(self.data[begin:end].translate(None, _CONTINUES))

    def varints(self, begin: int, end: int, where: str) -> Iterator[int]:
        """The varints packed in data[begin:end]."""
        position = begin
        while position < end:
            self._count(where)
            value, position = self._varint(position, end, where)
            yield value

    def text(self, begin: int, end: int, limit_bytes: int, where: str) -> str:
        """data[begin:end] as UTF-8. Raises: LimitExceeded above `limit_bytes`, ModelError if it is not UTF-8."""
        if end - begin > limit_bytes:
            raise LimitExceeded(f"a name of {end - begin:,} bytes, the limit is {limit_bytes:,}", where=where)
        if b"\0" in self.data[begin:end]:
            raise ModelError("a name holds a NUL character, at which C ends a text", where=where, hint="rename it")
        try:
            return self.data[begin:end].decode()
        except UnicodeDecodeError:
            raise ModelError("a name is not UTF-8", where=where, hint="is the file damaged?") from None

    def _count(self, where: str) -> None:
        self._seen += 1
        if self._seen > self._field_limit:
            raise LimitExceeded(
                f"more than {self._field_limit:,} protobuf fields", where=where, hint="store tensors as raw_data"
            )

    def _size(self, wire: int, position: int, end: int, where: str) -> tuple[int, int]:
        if wire == BYTES:
            size, position = self._varint(position, end, where)
        elif wire in _FIXED_BYTES:
            size = _FIXED_BYTES[wire]
        else:
            raise ModelError(f"protobuf wire type {wire} is not used by ONNX", where=where, hint="is the file damaged?")
        if size > end - position:
            raise ModelError(
                f"a field declares {size:,} bytes, {end - position:,} are left",
                where=where,
                hint="is the file cut off?",
            )
        return size, position

    def _varint(self, position: int, end: int, where: str) -> tuple[int, int]:
        value = shift = 0
        while position < end and shift < 70:
            byte = self.data[position]
            position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value & 0xFFFF_FFFF_FFFF_FFFF, position
            shift += 7
        raise ModelError("a number does not end", where=where, hint="is the file cut off?")


def signed(value: int) -> int:
    """A varint read as int64."""
    return value - (1 << 64) if value >> 63 else value
