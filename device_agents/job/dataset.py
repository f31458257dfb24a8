"""A data set as it travels (npz) to the files the binary reads (`.npy`), without NumPy, pickle or trust.

An npz is a zip of `.npy` members. The archive's end and the wanted members' directory records and headers come first:
plain members, stored or deflated, of a numeric little-endian type in C order, each of exactly the bytes that its shape
declares, all together within the byte budget. Then each is streamed out; one that does not keep its promise ends there.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from device_agents.errors import AttemptError, BadData

MAX_MEMBERS = 64
MAX_DIRECTORY_BYTES = 1 << 17
MAX_HEADER_BYTES = 10_000
MAX_RANK = 8
CHUNK_BYTES = 1 << 18
TYPES = ("<f4", "<f8", "<f2", "<i4", "<i8", "<i2", "|i1", "|u1", "|b1", "<u2", "<u4", "<u8")
"""NumPy type strings that are plain numbers; which of them a model takes is the binary's to say."""
NAMES = dict(
    zip(
        TYPES,
        (
            "float32",
            "float64",
            "float16",
            "int32",
            "int64",
            "int16",
            "int8",
            "uint8",
            "bool",
            "uint16",
            "uint32",
            "uint64",
        ),
    )
)
_MAGIC = b"\x93NUMPY"
LABELS = "y"
"""The array of labels, unless a bundle says otherwise."""
_INPUT = "input."
"""The prefix of an input's name that is the same as the labels'."""
_END = struct.Struct("<4s4H2LH")
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_HEADER = re.compile(
    r"\s*\{\s*(?:(?:'descr':\s*(?P<kind>'[^']{0,60}'|\[.{0,2000}\])|'fortran_order':\s*(?P<fortran>True|False)"
    r"|'shape':\s*\((?P<shape>[-0-9, ]{0,400})\))\s*,?\s*){3}\}\s*",
    re.DOTALL,
)
"""Matches the header that NumPy writes: three fields in any order. Matched, not evaluated: evaluating a literal can end
an interpreter.
"""


@dataclass(frozen=True)
class DataFiles:
    """Arrays on disk, ready for the binary."""

    inputs: Mapping[str, Path]
    labels: Mapping[str, Path]
    """The files of the labels by array, in the bundle's order."""
    samples: int

    @property
    def size_bytes(self) -> int:
        """Returns the size on disk."""
        return sum(file.stat().st_size for file in (*self.inputs.values(), *self.labels.values()))


def split_data_sets(
    archives: tuple[Path | None, Path | None],
    folder: Path,
    inputs: Sequence[str],
    *,
    max_bytes: int,
    labels: Sequence[str] = (LABELS,),
) -> tuple[DataFiles | None, DataFiles | None]:
    """The data set of a run and what training is validated on, each as by `split_npz`, both within the byte budget."""
    data, validation = archives
    files = split_npz(data, folder / "data", inputs, max_bytes=max_bytes, labels=labels) if data else None
    if validation is None:
        return files, None
    left_bytes = max_bytes - (files.size_bytes if files else 0)
    try:
        return files, split_npz(validation, folder / "validation", inputs, max_bytes=left_bytes, labels=labels)
    except BadData as error:
        raise BadData(error.code, f"of the validation data set: {error.message}", hint=error.hint) from None


def split_npz(
    archive: Path, folder: Path, inputs: Sequence[str], *, max_bytes: int, labels: Sequence[str] = (LABELS,)
) -> DataFiles:
    """Rewrites `archive` as one `.npy` file per model input and one per array of `labels`, in `folder`.

    The archive holds one array per model input, by its name (or `x` when there is one input), and each array of labels
    by its own (`y` in most bundles); an input that is called as one of them is `input.y` (or `x`). Samples are the
    first axis; an array with one may be the same for all samples, which the binary knows.
    Raises: `BadData` (`data.format`, `data.missing`, `data.shape`, `data.type`, `data.size`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _check_end(archive)
        with zipfile.ZipFile(archive) as npz:
            return _split(npz, folder, inputs, max_bytes, labels)
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OSError, ValueError) as error:
        raise BadData("data.format", f"{archive.name} is not a readable npz: {error}") from None


@dataclass(frozen=True)
class Head:
    """The declaration of an array of an npz."""

    name: str
    member: str
    dtype: str
    """The element type as NumPy names it: `float32`."""
    shape: tuple[int, ...]
    header_bytes: int


def heads(archive: Path) -> list[Head]:
    """Returns every array of an npz, checked by its directory and headers as for a job. Raises: `BadData`."""
    try:
        _check_end(archive)
        with zipfile.ZipFile(archive) as npz:
            if len(set(npz.namelist())) != len(npz.namelist()) or not npz.namelist():
                raise BadData("data.format", "the npz has no members, or two of one name")
            return [_head(npz, member) for member in npz.infolist()]
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OSError, ValueError) as error:
        raise BadData("data.format", f"{archive.name} is not a readable npz: {error}") from None


def _head(npz: zipfile.ZipFile, member: zipfile.ZipInfo) -> Head:
    if not member.filename.endswith(".npy"):
        raise BadData("data.format", f"{member.filename!r:.80} in the npz is no array")
    _look(npz, member)
    with npz.open(member) as source:
        header_bytes, descr, shape = read_head(source, member.filename)
    return Head(member.filename.removesuffix(".npy"), member.filename, NAMES[descr], shape, header_bytes)


def read_head(source: IO[bytes], name: str) -> tuple[int, str, tuple[int, ...]]:
    """Bytes of the header of a `.npy`, NumPy's type string, and the shape (() for one number). Raises: `BadData`."""
    prefix, header = _read_header(source, name)
    fields = _HEADER.fullmatch(header.decode("latin-1"))
    if fields is not None and fields["shape"] == "":
        header = header.replace(b"()", b"(1,)", 1)
        _check_header(header, name)
        return len(prefix), str(fields["kind"]).strip("'"), ()
    _, shape = _check_header(header, name)
    assert fields is not None
    return len(prefix), fields["kind"].strip("'"), shape


def _check_end(archive: Path) -> None:
    """The record that ends the file bounds the directory before it is read whole."""
    with archive.open("rb") as file:
        file_bytes = file.seek(0, 2)
        file.seek(max(0, file_bytes - _END.size))
        record = file.read(_END.size)
    if len(record) < _END.size or record[:4] != b"PK\x05\x06":
        raise BadData("data.format", f"{archive.name} is not a readable npz: it does not end as a zip archive does")
    _, disk, first_disk, here, members, directory_bytes, start, comment_bytes = _END.unpack(record)
    if members > MAX_MEMBERS:
        raise BadData("data.format", f"the npz has {members} members, the limit is {MAX_MEMBERS}")
    is_whole = not (disk or first_disk or comment_bytes) and here == members
    if not is_whole or directory_bytes > MAX_DIRECTORY_BYTES or start + directory_bytes != file_bytes - _END.size:
        raise BadData("data.format", "the npz's directory is not where it says, or is too long")


@dataclass(frozen=True)
class _Array:
    """A wanted member, as its header and the archive's directory declare it."""

    member: zipfile.ZipInfo
    header_bytes: int
    data_bytes: int
    samples: int


def _split(
    npz: zipfile.ZipFile, folder: Path, inputs: Sequence[str], max_bytes: int, labels: Sequence[str]
) -> DataFiles:
    members = npz.namelist()
    if len(set(members)) != len(members):
        raise BadData("data.format", "the npz has two members of one name")
    wanted_members = [_input_member(name, inputs, members, labels) for name in inputs]
    wanted_members += [_labels_member(name, members) for name in labels]
    arrays = [_look(npz, npz.getinfo(member)) for member in wanted_members]
    _check_room(arrays, folder, max_bytes)
    files = [folder / f"array{index}.npy" for index in range(len(arrays))]
    for file, array in zip(files, arrays):
        with npz.open(array.member) as source:
            _copy(source, file, array)
    label_files = dict(zip(labels, files[len(inputs) :]))
    return DataFiles(dict(zip(inputs, files)), label_files, max(array.samples for array in arrays))


def _check_room(arrays: Sequence[_Array], folder: Path, max_bytes: int) -> None:
    """Raises: `BadData` (over the budget, numbers of samples differ), `AttemptError` (no room on the disk)."""
    left_bytes = max_bytes
    for array in arrays:
        if array.data_bytes > left_bytes:
            raise BadData(
                "data.size",
                f"{array.member.filename} declares {array.data_bytes:,} bytes, {left_bytes:,} are left of the limit",
            )
        left_bytes -= array.header_bytes + array.data_bytes
    samples = {array.member.filename.removesuffix(".npy"): array.samples for array in arrays}
    if len(set(samples.values()) - {1}) > 1:
        raise BadData("data.shape", f"arrays have different numbers of samples (first axis): {samples}")
    free_bytes = shutil.disk_usage(folder).free
    if max_bytes - left_bytes > free_bytes:
        raise _no_room(f"the data set unpacks to {max_bytes - left_bytes:,} bytes, {free_bytes:,} are free")


def _no_room(message: str) -> AttemptError:
    return AttemptError("device.disk", message, cause="device", hint="make room on the device's disk")


def _input_member(name: str, inputs: Sequence[str], members: Sequence[str], labels: Sequence[str]) -> str:
    """The member that holds an input: of its name, or `x` for the only one; labels' names are theirs, if they are read.

    `input.y` goes where no labels are read, too: one file serves to train and to infer.
    """
    is_taken = name == LABELS or name in labels
    names = [f"{_INPUT}{name}" if is_taken else name, *(["x"] if len(inputs) == 1 and "x" not in labels else [])]
    names += [name] if is_taken and name not in labels else []
    if is_taken and names[0] in inputs:
        raise BadData("data.missing", f"inputs `{name}` and `{names[0]}` would be one array", hint="rename an input")
    member = next((candidate for candidate in names if f"{candidate}.npy" in members), None)
    if member is None:
        raise _missing(f"the model's input `{name}` (as `{'` or `'.join(names)}`)", members)
    return f"{member}.npy"


def _labels_member(name: str, members: Sequence[str]) -> str:
    if f"{name}.npy" not in members:
        raise _missing(f"the labels `{name}`", members)
    return f"{name}.npy"


def _missing(what: str, members: Sequence[str]) -> BadData:
    there = ", ".join(sorted(member.removesuffix(".npy")[:60] for member in members[:10]))
    return BadData("data.missing", f"the data set has no array for {what}; it holds: {there}")


def _look(npz: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Array:
    """Reads the member's header, and no more of it. Raises: `BadData`."""
    name = member.filename
    if member.flag_bits & _ENCRYPTED:
        raise BadData("data.format", f"{name} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadData("data.format", f"{name} is compressed by method {member.compress_type}: stored or deflated go")
    with npz.open(member) as source:
        prefix, header = _read_header(source, name)
    item_bytes, shape = _check_header(header, name)
    data_bytes = item_bytes
    for length in shape:
        data_bytes *= length
    return _Array(member, len(prefix), data_bytes, shape[0])


def _copy(source: IO[bytes], to: Path, array: _Array) -> None:
    promised_bytes, copied_bytes = array.header_bytes + array.data_bytes, 0
    try:
        descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            while chunk := source.read(CHUNK_BYTES):
                copied_bytes += len(chunk)
                if copied_bytes > promised_bytes:
                    break
                file.write(chunk)
    except OSError as error:
        raise _no_room(f"{to.name} could not be written: {error}") from None
    if copied_bytes != promised_bytes:
        word = "more" if copied_bytes > promised_bytes else f"only {copied_bytes - array.header_bytes:,}"
        raise BadData("data.format", f"{array.member.filename} declares {array.data_bytes:,} bytes and holds {word}")


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
    fields = _HEADER.fullmatch(header.decode("latin-1"))
    if fields is None or None in fields.groups():
        raise BadData("data.format", f"{member} has a damaged header")
    kind = fields["kind"].strip("'")
    if kind not in TYPES:
        hint = "save it with NumPy as a plain array of numbers"
        raise BadData("data.type", f"{member} has type {kind!r:.60}; known: {', '.join(TYPES)}", hint=hint)
    shape = tuple(_length(text) for text in fields["shape"].replace(" ", "").split(",") if text)
    if not 1 <= len(shape) <= MAX_RANK or 0 in shape:
        raise BadData(
            "data.shape", f"{member} has shape ({fields['shape']:.80}); 1 to {MAX_RANK} axes of at least 1 are expected"
        )
    if fields["fortran"] == "True" and len(shape) > 1:
        raise BadData("data.format", f"{member} is in Fortran order", hint="numpy.ascontiguousarray before saving")
    return int(kind[2:]), shape


def _length(text: str) -> int:
    """An extent; 0 for what is none."""
    return int(text) if text.isdigit() and len(text) <= 14 else 0
