"""Tensors whose elements lie in a file beside the model: what a reference says, and whether it can be so.

Source: ONNX `TensorProto.external_data` (keys location, offset, length); elements are little-endian, as in `raw_data`.

Advice on what to do in the exporter that made a file: the same for each tool, in its own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from compiler.errors import ModelError
from compiler.external import check_location

Topic = Literal["opset", "decided", "sums"]
_NAMES: Mapping[str, str] = {
    "keras2onnx": "keras2onnx",
    "paddle2onnx": "paddle",
    "paddlepaddle": "paddle",
    "pytorch": "pytorch",
    "tf2onnx": "tf2onnx",
}
"""The tool, by the name of the producer in files, in small letters."""
_ADVICE: Mapping[Topic, Mapping[str, str]] = {
    "opset": {
        "": "export again in opset 18",
        "keras2onnx": "convert the model by tf2onnx (--opset 18): keras2onnx has no newer one",
        "paddle": "export again with paddle2onnx --opset_version 18",
        "pytorch": "export again with torch.onnx.export(..., opset_version=18)",
        "tf2onnx": "convert again with python -m tf2onnx.convert ... --opset 18",
    },
    "decided": {
        "": "bind the input shapes in the spec, or export with the branch or loop decided",
        "pytorch": "bind the input shapes in the spec, or export with the branch or loop decided "
        "(torch.onnx.export, dynamo=True)",
        "tf2onnx": "bind the input shapes in the spec, or convert again with fixed shapes "
        "(python -m tf2onnx.convert ... --inputs x:0[1,96] or the like)",
    },
    "sums": {
        "": "if they should add up, write the node with reduction='add'",
        "pytorch": "if they should add up (index_add of PyTorch's TorchScript exporter), export with dynamo=True",
    },
}


def advice(topic: Topic, producer: str) -> str:
    """The line for what made the file (`producer_name`); a general one where that is not known."""
    rows = _ADVICE[topic]
    return rows.get(_NAMES.get(producer.strip().lower(), ""), rows[""])


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
    """The bytes of a file that a tensor's elements are."""

    location: str
    offset: int
    length: int | None
    """The number of bytes; None: as many as the shape needs."""

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
