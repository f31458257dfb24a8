"""Checks an npz without unpacking it whole or trusting a size it declares.

Rules: plain zip entries `NAME.npy`, no pickles, numbers or booleans only, row-major, the same number of samples (first
axis) in every array, at least one beside the labels `y`, all numbers finite. An array with one sample beside others
with more is the same for every sample, such as a mask: it may hold infinities. Headers come first: what all arrays
declare must fit the limits, and the archive's directory must agree, before any array is inflated.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from service.artefacts.datasets.archive import BadData, Entry, read_entries
from service.artefacts.datasets.arrays import ITEM_BYTES, LABELS, ArrayInfo, samples_of

MAX_RANK = 8
IGNORED = -100
"""The label that losses pass over, if nobody names another: no part of an array's range."""
MAX_HEADER_BYTES = 10_000
MAX_EXPANSION = 100
"""Times its own size that a file may unpack to, beyond `FREE_EXPANSION_BYTES`; deflate's own limit is 1032."""
FREE_EXPANSION_BYTES = 64 << 20


def inspect_npz(file: BinaryIO, *, unpacked_limit_bytes: int) -> dict[str, ArrayInfo]:
    """Returns every array of a seekable npz, fully read and checked. Raises: BadData."""
    entries, file_bytes = read_entries(file), file.seek(0, 2)
    arrays: dict[str, ArrayInfo] = {}
    heads: dict[str, tuple[ArrayInfo, int]] = {}
    for entry in entries:
        heads[entry.name] = _head(entry)
        arrays[entry.name] = heads[entry.name][0]
        _check_sizes(entry.name, sum(info.size_bytes for info in arrays.values()), file_bytes, unpacked_limit_bytes)
    for entry in entries:
        info, header_bytes = heads[entry.name]
        if entry.size_bytes != header_bytes + info.size_bytes:
            raise BadData(
                "data.invalid",
                f"the array needs {info.size_bytes:,} bytes and the archive's directory says "
                f"{entry.size_bytes - header_bytes:,}",
                where=entry.name,
            )
    _check_samples(arrays)
    several = samples_of(arrays) > 1
    for entry in entries:
        info, header_bytes = heads[entry.name]
        arrays[entry.name] = _read(entry, info, header_bytes, is_same=several and info.shape[0] == 1)
    return arrays


def _head(entry: Entry) -> tuple[ArrayInfo, int]:
    """Returns what the array's header declares, and the header's length. At most `MAX_HEADER_BYTES` and a chunk are
    read.
    """
    stream = io.BytesIO(next(entry.read(), b"")[: MAX_HEADER_BYTES + 16])
    shape, is_fortran, dtype = _header(entry.name, stream)
    name = entry.name
    if dtype.name not in ITEM_BYTES or not dtype.isnative:
        raise BadData(
            "data.dtype",
            f"array {name!r} has elements of type {dtype.str!r:.60}, expected one of {', '.join(ITEM_BYTES)}",
            where=name,
            hint=_conversion(name, dtype.kind),
        )
    if is_fortran and len(shape) > 1:
        raise BadData(
            "data.layout", f"array {name!r} is column-major", where=name, hint=f"save numpy.ascontiguousarray({name})"
        )
    if not 1 <= len(shape) <= MAX_RANK or any(type(extent) is not int or extent < 1 for extent in shape):
        raise BadData(
            "data.shape",
            f"array {name!r} has shape {list(shape)!r:.100}, expected samples first and 1 to "
            f"{MAX_RANK} axes, none empty",
            where=name,
            hint="give it a sample or more: what it holds was perhaps filtered away",
        )
    return ArrayInfo(dtype.name, shape), stream.tell()


def _conversion(name: str, kind: str) -> str:
    """Suggests how to make numbers of elements of such a kind, as NumPy calls kinds."""
    if kind in "iu":
        return f"convert with {name}.astype(numpy.int64)"
    if kind == "c":
        return f"complex numbers become two: numpy.stack([{name}.real, {name}.imag], 1)"
    if kind in "OUS":
        return (
            f"number the words: numpy.unique({name}, return_inverse=True)[1]; rows of unequal length are padded first"
        )
    return f"convert with {name}.astype(numpy.float32)"


def _header(name: str, stream: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(stream)
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"npy version {version}")
        shape, is_fortran, dtype = readers[version](stream, max_header_size=MAX_HEADER_BYTES)
    except Exception as error:  # NumPy evaluates the header as a Python literal, and raises whatever comes of it
        raise BadData("data.invalid", f"not a NumPy array: {str(error)[:200]}", where=name) from None
    return shape, is_fortran, dtype


def _check_sizes(name: str, total_bytes: int, file_bytes: int, limit_bytes: int) -> None:
    if total_bytes > limit_bytes:
        raise BadData(
            "limits.dataset-unpacked",
            f"{total_bytes:,} bytes unpacked, the limit is {limit_bytes:,}",
            where=name,
            hint="split the data set",
        )
    if total_bytes > max(FREE_EXPANSION_BYTES, MAX_EXPANSION * file_bytes):
        raise BadData(
            "limits.dataset-expansion",
            f"{file_bytes:,} bytes that unpack to {total_bytes:,}: more than {MAX_EXPANSION} times as many",
            where=name,
            hint="leave out samples that are all the same, or write it with numpy.savez (not compressed)",
        )


def _read(entry: Entry, info: ArrayInfo, header_bytes: int, *, is_same: bool) -> ArrayInfo:
    """Returns the array with its range. Raises: BadData if a number is not finite; in an array that all samples share,
    if one is NaN.
    """
    dtype = np.dtype(info.dtype)
    first, low, high, is_whole = 0, np.inf, -np.inf, True
    for values in _elements(entry, header_bytes, dtype):
        if dtype.kind == "f":
            finite = ~np.isnan(values) if is_same else np.isfinite(values)
            _check_finite(entry.name, values, first, info.shape, finite)
            is_whole = is_whole and bool((values == np.trunc(values)).all())
        first += len(values)
        counted = values[values != IGNORED] if dtype.kind == "i" else values
        if counted.size:
            low, high = min(low, float(counted.min())), max(high, float(counted.max()))
    is_bounded = bool(np.isfinite([low, high]).all())
    return replace(info, low=low, high=high, is_whole=is_whole) if is_bounded else info


def _elements(entry: Entry, header_bytes: int, dtype: np.dtype[Any]) -> Iterator[np.ndarray[Any, Any]]:
    skip, rest = header_bytes, b""
    for chunk in entry.read():
        data = rest + chunk[skip:]
        skip = max(0, skip - len(chunk))
        whole = len(data) - len(data) % dtype.itemsize
        yield np.frombuffer(data[:whole], dtype)
        rest = data[whole:]


def _check_finite(
    name: str, values: np.ndarray[Any, Any], first: int, shape: tuple[int, ...], finite: np.ndarray[Any, Any]
) -> None:
    if finite.all():
        return
    at = int(np.argmin(finite))
    place = [int(index) for index in np.unravel_index(first + at, shape)]
    raise BadData("data.not-finite", f"element {place} is {values[at]}", where=name, hint="clean NaN and Inf first")


def _check_samples(arrays: dict[str, ArrayInfo]) -> None:
    if not arrays.keys() - {LABELS}:
        raise BadData(
            "data.arrays",
            f"arrays {sorted(arrays)}: expected at least one input, and labels such as `y`",
            hint="numpy.savez(file, x=inputs, y=labels), or inputs by their names in the model",
        )
    counts = {name: info.shape[0] for name, info in arrays.items()}
    if len(set(counts.values()) - {1}) > 1:
        raise BadData(
            "data.samples",
            f"different numbers of samples: {counts}",
            hint="the first axis is samples; what is the same for all has 1 there: mask[None]",
        )
