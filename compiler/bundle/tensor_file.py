"""Named tensors as a safetensors file: the same bytes for the same tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from compiler.bundle.content import Chunk, elements_of
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.alignment import ALIGNMENT_BYTES
from compiler.tensors import Array, TensorType

_LENGTH_BYTES = 8
_ALIGNMENT = 8
"""The alignment of the data behind the header."""
_PAGE = 16 << 10
"""The alignment of tensors that are mapped into memory: the largest pages that boards commonly have."""


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
        """Returns the size of the file."""
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
        return sorted(kinds, key=lambda name: (-kinds[name].item_bytes, not kinds[name].is_real, self._gap(name), name))

    def _gap(self, name: str) -> bool:
        """Whether memory has a gap behind bytes of frozen weights, which therefore are not mapped."""
        kind = self.tensors[name].type
        return kind.dtype == "i8" and kind.size_bytes % ALIGNMENT_BYTES != 0

    @property
    def _before_mapped(self) -> tuple[int, int]:
        """Returns how many bytes of tensors stand before those that a step maps into memory, and the alignment of their
        start.
        """
        sizes = [(tensor.type.dtype, tensor.type.size_bytes) for tensor in self.tensors.values()]
        has_bytes = any(dtype == "i8" for dtype, _ in sizes)
        return (
            (sum(size for dtype, size in sizes if ELEMENT_TYPES[dtype].item_bytes > 1), _PAGE)
            if has_bytes
            else (0, _ALIGNMENT)
        )

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
        before, multiple = self._before_mapped
        text += b" " * (-(_LENGTH_BYTES + len(text) + before) % multiple)
        return len(text).to_bytes(8, "little") + text
