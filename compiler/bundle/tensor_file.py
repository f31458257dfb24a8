"""Named tensors as a safetensors file: the same bytes for the same tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from compiler.bundle.content import Chunk, elements_of
from compiler.element_types import ELEMENT_TYPES
from compiler.tensors import Array, TensorType

_ALIGNMENT = 8
"""Of what stands behind the header."""


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint; its elements are put in order when they are written, and not kept so."""

    type: TensorType
    elements: Callable[[], Array]


@dataclass(frozen=True)
class Checkpoint:
    """A safetensors file, written tensor by tensor. Source: the safetensors format, version 0.4."""

    tensors: Mapping[str, Stored]
    metadata: Mapping[str, str]

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return len(self._header) + sum(tensor.type.size_bytes for tensor in self.tensors.values())

    def chunks(self) -> Iterator[Chunk]:
        """The file's bytes in order."""
        yield self._header
        for name in self._order:
            yield elements_of(self.tensors[name].elements())

    @cached_property
    def _order(self) -> list[str]:
        """Wide elements first, which aligns each tensor to its own; the order of the format's own library."""
        kinds = {name: ELEMENT_TYPES[tensor.type.dtype] for name, tensor in self.tensors.items()}
        return sorted(kinds, key=lambda name: (-kinds[name].item_bytes, not kinds[name].is_real, name))

    @cached_property
    def _header(self) -> bytes:
        entries: dict[str, object] = {"__metadata__": dict(self.metadata)}
        begin = 0
        for name in self._order:
            kind = self.tensors[name].type
            end = begin + kind.size_bytes
            entries[name] = {"dtype": kind.dtype.upper(), "shape": kind.shape, "data_offsets": (begin, end)}
            begin = end
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        return len(text).to_bytes(8, "little") + text
