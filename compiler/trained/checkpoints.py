"""A checkpoint's tensors where they lie. Source: the safetensors format, version 0.4."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Union

import numpy as np

from compiler.bundle.content import Chunk
from compiler.bundle.tensor_file import Checkpoint, Stored
from compiler.element_types import ELEMENT_TYPES, EMITTED, emitted_of_numpy
from compiler.errors import ModelError
from compiler.tensors import Array, TensorType

Held = Union[bytes, memoryview, mmap.mmap]
"""A file's bytes, in memory or mapped into it."""
_DTYPES = {row.name.upper(): row.numpy for row in (*EMITTED, ELEMENT_TYPES["i8"])}
"""Bytes are of frozen weights, in a bundle's own file."""
_LENGTH_BYTES = 8


def tensors_of(checkpoint: Held, where: str = "checkpoint") -> dict[str, Array]:
    """Returns every tensor by name, as a view. Raises: ModelError for what is no checkpoint of ours."""
    data = memoryview(checkpoint)
    begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    try:
        header = json.loads(bytes(data[_LENGTH_BYTES:begin]))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        odd = next((name for name, entry in entries.items() if entry["dtype"] not in _DTYPES), None)
        if odd is not None:
            raise ModelError(
                f"tensor {odd!r:.100} is {entries[odd]['dtype']!r:.20}; taken are {', '.join(_DTYPES)}",
                where=where,
                hint="save it in float32",
            )
        return {
            name: _tensor(data[begin:], _DTYPES[entry["dtype"]], tuple(entry["shape"]), *entry["data_offsets"])
            for name, entry in entries.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as problem:
        raise ModelError(f"not a safetensors file of ours: {_words(problem)}", where=where) from None


def metadata_of(checkpoint: Held, where: str = "checkpoint") -> dict[str, str]:
    """The texts that a file says beside its tensors. Raises: ModelError for what is no safetensors file."""
    data = memoryview(checkpoint)
    try:
        header = json.loads(bytes(data[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")]))
        return {str(name): str(text) for name, text in dict(header.get("__metadata__", {})).items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as problem:
        raise ModelError(f"not a safetensors file: {_words(problem)}", where=where) from None


def _words(problem: Exception) -> str:
    """Returns an error's words without the file's bytes, which an error of decoding would print."""
    return "its header is no text" if isinstance(problem, UnicodeDecodeError) else f"{problem!r:.200}"


def _tensor(data: memoryview, dtype: np.dtype[np.generic], shape: tuple[int, ...], begin: int, end: int) -> Array:
    if end - begin != prod(shape) * dtype.itemsize:
        raise ValueError(f"{end - begin} bytes for shape {shape}")
    return np.frombuffer(data[begin:end], dtype).reshape(shape) if end > begin else np.zeros(shape, dtype)


def tensors_file(tensors: Mapping[str, Array], metadata: Mapping[str, str] = MappingProxyType({})) -> Iterator[Chunk]:
    """A safetensors file of arrays. Raises: ModelError for an array that is no tensor of a checkpoint."""
    stored = {name: Stored(_type(name, array), partial(np.asarray, array)) for name, array in tensors.items()}
    return Checkpoint(stored, dict(metadata)).chunks()


def _type(name: str, array: Array) -> TensorType:
    element = emitted_of_numpy(array.dtype)
    if element is None:
        raise ModelError(f"{array.dtype} is no element type of a checkpoint", where=f"tensor {name!r:.100}")
    return TensorType(element.name, array.shape)


def same_bits(first: Array, second: Array) -> bool:
    """Whether the elements are the same bits; compared part by part, where they lie."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not first.ndim:
        return first.tobytes() == second.tobytes()
    rows = max(1, _PART_BYTES // max(first[:1].nbytes, 1))
    parts = (slice(begin, begin + rows) for begin in range(0, len(first), rows))
    return all(first[part].tobytes() == second[part].tobytes() for part in parts)


_PART_BYTES = 1 << 20
