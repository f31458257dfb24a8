"""Checks an npz without unpacking it whole or trusting a size it declares.

Rules: plain zip entries `NAME.npy`, no pickles, numbers or booleans only, row-major, the same number of samples (first
axis) in every array, `y` and at least one other array, all numbers finite, unpacked size within the limit.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
import zlib
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy

MAX_ARRAYS = 32
MAX_RANK = 8
MAX_HEADER_BYTES = 10_000
CHUNK_BYTES = 1 << 22
LABELS = "y"
DTYPES = ("float32", "float64", "int64", "int32", "uint8", "int8", "int16", "uint16", "bool")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")


class BadData(Exception):
    """The file cannot be used; `code` is stable, `where` names the array."""

    def __init__(self, code: str, message: str, *, where: str = "dataset", hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.where = where
        self.hint = hint


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """One array: NumPy's dtype name and shape; the first extent is samples."""

    dtype: str
    shape: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"dtype": self.dtype, "shape": list(self.shape)}


def inspect_npz(file: BinaryIO, *, unpacked_limit_bytes: int) -> dict[str, ArrayInfo]:
    """Every array of a seekable npz, fully read and checked. Raises: BadData."""
    try:
        with zipfile.ZipFile(file) as archive:
            arrays = _inspect(archive, unpacked_limit_bytes)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError) as error:
        raise BadData("data.invalid", f"not a readable npz: {str(error)[:200]}",
                      hint="write it with numpy.savez(file, x=…, y=…)") from None  # fmt: skip
    _check_samples(arrays)
    return arrays


def _inspect(archive: zipfile.ZipFile, limit_bytes: int) -> dict[str, ArrayInfo]:
    entries = archive.infolist()
    if not 1 <= len(entries) <= MAX_ARRAYS:
        raise BadData("data.invalid", f"{len(entries)} arrays, expected 1 to {MAX_ARRAYS}")
    arrays: dict[str, ArrayInfo] = {}
    left_bytes = limit_bytes
    for entry in entries:
        name = entry.filename.removesuffix(".npy")
        if name == entry.filename or not _NAME.fullmatch(name) or ".." in name or name in arrays:
            raise BadData("data.invalid", f"entry {entry.filename!r:.100} is not one array NAME.npy")
        with archive.open(entry) as stream:
            arrays[name] = _inspect_array(name, stream, left_bytes)
        left_bytes -= _size_bytes(arrays[name])
    return arrays


def _inspect_array(name: str, stream: IO[bytes], left_bytes: int) -> ArrayInfo:
    shape, is_fortran, dtype = _header(name, stream)
    if dtype.name not in DTYPES or not dtype.isnative:
        raise BadData("data.dtype", f"elements of type {dtype.str!r}, expected one of {', '.join(DTYPES)}", where=name,
                      hint="convert with array.astype(numpy.float32)")  # fmt: skip
    if is_fortran and len(shape) > 1:
        raise BadData("data.layout", "column-major array", where=name, hint="save numpy.ascontiguousarray(array)")
    if not 1 <= len(shape) <= MAX_RANK or any(extent < 1 for extent in shape):
        raise BadData("data.shape", f"shape {list(shape)}, expected samples first and 1 to {MAX_RANK} axes, none empty",
                      where=name)  # fmt: skip
    info = ArrayInfo(dtype.name, shape)
    if _size_bytes(info) > left_bytes:
        raise BadData(
            "limits.dataset-unpacked",
            f"{_size_bytes(info):,} bytes unpacked, {left_bytes:,} are left of the limit",
            where=name,
            hint="split the data set",
        )
    _check_content(name, stream, info, dtype)
    return info


def _header(name: str, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(stream)
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"npy version {version}")
        shape, is_fortran, dtype = readers[version](stream, max_header_size=MAX_HEADER_BYTES)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise BadData("data.invalid", f"not a NumPy array: {str(error)[:200]}", where=name) from None
    return shape, is_fortran, dtype


def _size_bytes(info: ArrayInfo) -> int:
    return math.prod(info.shape) * np.dtype(info.dtype).itemsize


def _check_content(name: str, stream: IO[bytes], info: ArrayInfo, dtype: np.dtype[Any]) -> None:
    reader = io.BufferedReader(cast(Any, stream), CHUNK_BYTES)
    left_bytes, done = _size_bytes(info), 0
    while left_bytes:
        chunk = reader.read(min(CHUNK_BYTES, left_bytes))
        if not chunk or len(chunk) % dtype.itemsize:
            raise BadData("data.truncated", f"ends {left_bytes - len(chunk):,} bytes early", where=name)
        if dtype.kind == "f":
            _check_finite(name, np.frombuffer(chunk, dtype), done, info.shape)
        left_bytes -= len(chunk)
        done += len(chunk) // dtype.itemsize
    if reader.read(1):
        raise BadData("data.invalid", "holds more bytes than its shape needs", where=name)


def _check_finite(name: str, values: np.ndarray[Any, Any], first: int, shape: tuple[int, ...]) -> None:
    finite = np.isfinite(values)
    if finite.all():
        return
    at = int(np.argmin(finite))
    place = [int(index) for index in np.unravel_index(first + at, shape)]
    raise BadData("data.not-finite", f"element {place} is {values[at]}", where=name, hint="clean NaN and Inf first")


def _check_samples(arrays: dict[str, ArrayInfo]) -> None:
    if LABELS not in arrays or len(arrays) < 2:
        raise BadData("data.arrays", f"arrays {sorted(arrays)}: expected the labels `y` and at least one input",
                      hint="numpy.savez(file, x=inputs, y=labels), or inputs by their names in the model")  # fmt: skip
    counts = {name: info.shape[0] for name, info in arrays.items()}
    if len(set(counts.values())) != 1:
        raise BadData("data.samples", f"different numbers of samples: {counts}",
                      hint="the first axis of every array is samples")  # fmt: skip
