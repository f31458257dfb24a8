"""Tensors whose elements lie in a file beside the model: what a reference says, and whether it can be so.

Source: ONNX `TensorProto.external_data` (keys location, offset, length); elements are little-endian, as in `raw_data`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.errors import ModelError
from compiler.external import check_location

MAX_OFFSET_DIGITS = 18
ITEM_BITS = {
    1: 32,
    2: 8,
    3: 8,
    4: 16,
    5: 16,
    6: 32,
    7: 64,
    9: 8,
    10: 16,
    11: 64,
    12: 32,
    13: 64,
    14: 64,
    15: 128,
    16: 16,
    17: 8,
    18: 8,
    19: 8,
    20: 8,
    21: 4,
    22: 4,
    23: 4,
    24: 8,
    25: 2,
    26: 2,
}
"""Bits of an element as `raw_data` holds it, by ONNX element type."""


@dataclass(frozen=True)
class Reference:
    """Which bytes of which file a tensor's elements are."""

    location: str
    offset: int
    length: int | None
    """None: as many as the shape needs."""

    @classmethod
    def read(cls, entries: Mapping[str, str], where: str) -> Reference:
        """Raises: ModelError."""
        if not entries.get("location"):
            raise ModelError(
                "lies in another file and does not say which (no location)", where=where, hint="is the file damaged?"
            )
        length = _number(entries["length"], "length", where) if "length" in entries else None
        return cls(
            check_location(entries["location"], where), _number(entries.get("offset", "0"), "offset", where), length
        )


def payload_bytes(elements: int, data_type: int) -> int:
    """Returns the bytes that elements of an ONNX type take; those of less than a byte are packed."""
    return (elements * ITEM_BITS[data_type] + 7) // 8


def _number(text: str, name: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_OFFSET_DIGITS):
        raise ModelError(
            f"{name} {text[:40]!r} of its external data is no number of bytes", where=where, hint="is the file damaged?"
        )
    return int(text)


def check_range(reference: Reference, needed_bytes: int, sizes: Mapping[str, int], where: str) -> None:
    """The bytes are there, and as many as the shape needs. Raises: ModelError."""
    name = reference.location
    if name not in sizes:
        raise ModelError(
            f"its data lies in another file, {name!r}, which was not given",
            where=where,
            hint="build from the model's path, with that file beside it, or send it along",
        )
    if reference.length is not None and reference.length != needed_bytes:
        raise ModelError(
            f"its shape needs {needed_bytes:,} bytes, and it refers to {reference.length:,} of {name!r}",
            where=where,
            hint="is the file damaged?",
        )
    end = reference.offset + needed_bytes
    if end > sizes[name]:
        raise ModelError(
            f"needs bytes {reference.offset:,} to {end:,} of {name!r}, which has {sizes[name]:,}",
            where=where,
            hint="is that data file the model's own, and whole?",
        )


def check_apart(ranges: list[tuple[str, int, int, str]]) -> None:
    """No two tensors share bytes: (location, begin, end, tensor) of each. Raises: ModelError."""
    ordered = sorted(span for span in ranges if span[2] > span[1])
    for (file, _, end, first), (other, begin, _, second) in zip(ordered, ordered[1:]):
        if file == other and begin < end:
            raise ModelError(
                f"shares bytes {begin:,} to {end:,} of {file!r} with {first}",
                where=second,
                hint="save the model again: every tensor has bytes of its own",
            )
