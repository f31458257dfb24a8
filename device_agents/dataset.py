"""A data set as it travels (npz) to the files the binary reads (`.npy`), without NumPy, pickle or trust.

An npz is a zip of `.npy` members. Each wanted member is streamed out under a byte budget (zip bombs end there), and its
header is checked: version, a numeric little-endian type, C order, and exactly the bytes that its shape declares.
"""

from __future__ import annotations

import ast
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from device_agents.errors import BadData

MAX_MEMBERS = 64
MAX_HEADER_BYTES = 1 << 16
MAX_RANK = 8
CHUNK_BYTES = 1 << 18
TYPES = ("<f4", "<f8", "<f2", "<i4", "<i8", "<i2", "|i1", "|u1", "|b1", "<u2", "<u4", "<u8")
"""NumPy type strings that are plain numbers; which of them a model takes is the binary's to say."""
_MAGIC = b"\x93NUMPY"
_LABELS = "y"


@dataclass(frozen=True)
class DataFiles:
    """Arrays on disk, ready for the binary."""

    inputs: Mapping[str, Path]
    labels: Path | None
    samples: int


def split_npz(
    archive: Path, folder: Path, inputs: Sequence[str], *, max_bytes: int, with_labels: bool = True
) -> DataFiles:
    """Rewrite `archive` as one `.npy` file per model input and one for the labels, in `folder`.

    The archive holds one array per model input, by its name (or `x` when there is one input), and the labels as `y`.
    Raises: `BadData` (`data.format`, `data.missing`, `data.shape`, `data.type`, `data.size`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(archive) as npz:
            return _split(npz, folder, inputs, max_bytes, with_labels)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError) as error:
        raise BadData("data.format", f"{archive.name} is not a readable npz: {error}") from None


def _split(npz: zipfile.ZipFile, folder: Path, inputs: Sequence[str], max_bytes: int, with_labels: bool) -> DataFiles:
    members = npz.namelist()
    if len(members) > MAX_MEMBERS:
        raise BadData("data.format", f"the npz has {len(members)} members, the limit is {MAX_MEMBERS}")
    names = (*inputs, _LABELS) if with_labels else tuple(inputs)
    wanted = {name: _member_of(name, inputs, members) for name in names}
    left_bytes, samples = max_bytes, {}
    files = {}
    for index, (name, member) in enumerate(wanted.items()):
        files[name] = folder / f"array{index}.npy"
        with npz.open(member) as source:
            written_bytes, samples[name] = _copy_array(source, files[name], member, left_bytes)
        left_bytes -= written_bytes
    if len(set(samples.values())) > 1:
        raise BadData("data.shape", f"arrays have different numbers of samples (first axis): {samples}")
    return DataFiles({name: files[name] for name in inputs}, files.get(_LABELS), samples[inputs[0]])


def _member_of(name: str, inputs: Sequence[str], members: Sequence[str]) -> str:
    if f"{name}.npy" in members:
        return f"{name}.npy"
    if name != _LABELS and len(inputs) == 1 and "x.npy" in members:
        return "x.npy"
    there = ", ".join(sorted(member.removesuffix(".npy")[:60] for member in members[:10]))
    what = "the labels `y`" if name == _LABELS else f"the model's input `{name}`"
    raise BadData("data.missing", f"the data set has no array for {what}; it holds: {there}")


def _copy_array(source: IO[bytes], to: Path, member: str, left_bytes: int) -> tuple[int, int]:
    """Returns bytes written and the length of the first axis."""
    prefix, header = _read_header(source, member)
    item_bytes, shape = _check_header(header, member)
    declared_bytes = item_bytes
    for length in shape:
        declared_bytes *= length
    if declared_bytes > left_bytes:
        raise BadData("data.size", f"{member} declares {declared_bytes:,} bytes, {left_bytes:,} are left of the limit")
    descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    copied_bytes = 0
    with os.fdopen(descriptor, "wb") as file:
        file.write(prefix)
        while chunk := source.read(CHUNK_BYTES):
            copied_bytes += len(chunk)
            if copied_bytes > declared_bytes:
                break
            file.write(chunk)
    if copied_bytes != declared_bytes:
        word = "more" if copied_bytes > declared_bytes else f"only {copied_bytes:,}"
        raise BadData("data.format", f"{member} declares {declared_bytes:,} bytes and holds {word}")
    return len(prefix) + copied_bytes, shape[0]


def _read_header(source: IO[bytes], member: str) -> tuple[bytes, bytes]:
    start = source.read(8)
    if len(start) < 8 or start[:6] != _MAGIC or start[6] not in (1, 2):
        raise BadData("data.format", f"{member} is not a .npy file")
    length_field = source.read(2 if start[6] == 1 else 4)
    length = struct.unpack("<H" if start[6] == 1 else "<I", length_field)[0] if len(length_field) in (2, 4) else 0
    if not 0 < length <= MAX_HEADER_BYTES:
        raise BadData("data.format", f"{member} has a header of {length:,} bytes, the limit is {MAX_HEADER_BYTES:,}")
    header = source.read(length)
    return start + length_field + header, header


def _check_header(header: bytes, member: str) -> tuple[int, tuple[int, ...]]:
    """Returns bytes per item and the shape."""
    try:
        fields = ast.literal_eval(header.decode("latin-1").strip())
        kind, fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        raise BadData("data.format", f"{member} has a damaged header") from None
    if not isinstance(kind, str) or kind not in TYPES:
        hint = "save it with NumPy as a plain array of numbers"
        raise BadData("data.type", f"{member} has type {kind!r:.60}; known: {', '.join(TYPES)}", hint=hint)
    if fortran:
        raise BadData("data.format", f"{member} is in Fortran order", hint="numpy.ascontiguousarray before saving")
    if not isinstance(shape, tuple) or not 1 <= len(shape) <= MAX_RANK or not all(_is_length(n) for n in shape):
        raise BadData(
            "data.shape", f"{member} has shape {shape!r:.80}; 1 to {MAX_RANK} axes of at least 1 are expected"
        )
    return int(kind[2:]), shape


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 48
