"""Data sets that the board's operator lets runs use, and that never leave it.

`NAME=PATH` (or `NAME=PATH,weights-stay`): an npz as the farm takes it, or a folder of class folders with one `.npy` for
each sample, `PATH/cat/001.npy`; classes are numbered by name. Of a folder an npz is made once, in the agent's own
state: samples as `x`, class numbers as `y`. What a data set is (digest, shapes, counts) is found out once, and again
when a file of it has changed by its time, size or place on the disk. Links are not followed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
import struct
import threading
import zipfile
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from device_agents.errors import AttemptError, BadData, EnrolmentError
from device_agents.job.dataset import CHUNK_BYTES, LABELS, Head, heads, read_head
from device_agents.wire import MAX_CLASSES, OwnArray, OwnData, OwnDataset, ProtocolError, from_json, to_json

log = logging.getLogger("device_agents")
OPTION = re.compile(r"(?P<name>[a-z0-9][a-z0-9._-]{0,62})=(?P<path>[^,]+)(?P<stay>,weights-stay)?")
MAX_FILES = 1_000_000
STAY = "weights-stay"
HOW = f"--data NAME=PATH, or NAME=PATH,{STAY}; names have lower-case letters, digits and ._-"
_FIRST = (1980, 1, 1, 0, 0, 0)
_LABEL_CODES = {"int64": "q", "int32": "i"}


@dataclass(frozen=True)
class Allowed:
    """The path of a data set that the operator allows, under a name."""

    name: str
    path: Path
    weights_stay: bool = False


def parse_allowed(options: Sequence[str]) -> tuple[Allowed, ...]:
    """The options `--data`. Raises: `EnrolmentError`."""
    allowed: dict[str, Allowed] = {}
    for option in options:
        match = OPTION.fullmatch(option)
        if match is None:
            raise EnrolmentError(f"--data {option!r:.200} is not understood: {HOW}")
        if match["name"] in allowed:
            raise EnrolmentError(f"--data {match['name']}: two data sets of one name")
        allowed[match["name"]] = Allowed(match["name"], Path(match["path"]).absolute(), match["stay"] is not None)
    return tuple(allowed.values())


class LocalDatasets:
    """The allowed data sets, and what is known of them. Safe to use from several threads."""

    def __init__(self, allowed: Sequence[Allowed], folder: Path) -> None:
        self._allowed = {dataset.name: dataset for dataset in allowed}
        self._folder = folder
        self._lock = threading.Lock()
        self._described_by_name: dict[str, tuple[str, OwnDataset]] = {}
        self._problems: dict[str, str] = {}

    def look(self) -> tuple[OwnDataset, ...]:
        """Returns the data sets that are there now. One that cannot be used is left out, and said in the log, once for
        each cause.
        """
        if not self._allowed:
            return ()
        with self._lock:
            datasets = [self._look_at(dataset) for dataset in self._allowed.values()]
        return tuple(dataset for dataset in datasets if dataset is not None)

    def archive(self, reference: OwnData) -> Path:
        """The npz of a data set, for one job. Raises: `AttemptError` if it is not what the farm was told of."""
        with self._lock:
            allowed = self._allowed.get(reference.name)
            dataset = self._look_at(allowed) if allowed else None
            if allowed is None or dataset is None:
                raise _changed(reference.name, "is not there, or cannot be used, any more")
            if dataset.digest != reference.digest:
                raise _changed(
                    reference.name, f"is {dataset.digest[:19]}... now, and no more {reference.digest[:19]}..."
                )
            return self._archive_path(allowed) if allowed.path.is_dir() else allowed.path

    def weights_stay(self, name: str) -> bool:
        """Whether what is trained on it stays on the board."""
        allowed = self._allowed.get(name)
        return allowed is None or allowed.weights_stay

    def _archive_path(self, allowed: Allowed) -> Path:
        return self._folder / f"{allowed.name}.npz"

    def _look_at(self, allowed: Allowed) -> OwnDataset | None:
        try:
            mark = _mark(allowed.path)
            remembered = self._described_by_name.get(allowed.name) or self._remembered(allowed)
            if remembered is None or remembered[0] != mark or remembered[1].weights_stay != allowed.weights_stay:
                remembered = (mark, self._described(allowed))
                if _mark(allowed.path) != mark:
                    raise BadData("data.changed", "it changes while it is read")
                self._remember(allowed, remembered)
                log.info("data set %s: %s, %d samples", allowed.name, remembered[1].digest, remembered[1].samples)
            self._described_by_name[allowed.name] = remembered
            self._problems.pop(allowed.name, None)
            return remembered[1]
        except (AttemptError, OSError, ProtocolError) as error:
            self._described_by_name.pop(allowed.name, None)
            if self._problems.get(allowed.name) != str(error):
                log.warning("data set %s (%s) is not offered: %s", allowed.name, allowed.path, error)
                self._problems[allowed.name] = str(error)
            return None

    def _described(self, allowed: Allowed) -> OwnDataset:
        if allowed.path.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            make_npz(allowed.path, self._archive_path(allowed))
            return described(allowed, self._archive_path(allowed))
        return described(allowed, allowed.path)

    def _remembered(self, allowed: Allowed) -> tuple[str, OwnDataset] | None:
        """Returns the description that an earlier start of the agent worked out."""
        try:
            record = json.loads((self._folder / f"{allowed.name}.json").read_text())
            if record["path"] != str(allowed.path) or (
                allowed.path.is_dir() and not self._archive_path(allowed).is_file()
            ):
                return None
            return str(record["mark"]), from_json(OwnDataset, record["dataset"], "dataset")
        except (OSError, ValueError, KeyError, TypeError, ProtocolError):
            return None

    def _remember(self, allowed: Allowed, described_dataset: tuple[str, OwnDataset]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        record = {"path": str(allowed.path), "mark": described_dataset[0], "dataset": to_json(described_dataset[1])}
        draft = self._folder / f"{allowed.name}.json.new"
        draft.write_text(json.dumps(record))
        os.replace(draft, self._folder / f"{allowed.name}.json")


def _changed(name: str, problem: str) -> AttemptError:
    return AttemptError(
        "data.changed",
        f"the board's data set {name} {problem}",
        cause="infra",
        hint="send the run again: the farm has been told what the board has now",
    )


def described(allowed: Allowed, npz: Path) -> OwnDataset:
    """Describes an npz for the farm; every byte of it is read. Raises: `BadData`, OSError."""
    digest, size_bytes = _digest(npz)
    array_heads = heads(npz)
    samples = max(head.shape[0] for head in array_heads)
    uneven = [head.name for head in array_heads if head.shape[0] not in (1, samples)]
    if uneven:
        raise BadData("data.shape", f"arrays have different numbers of samples (first axis): {', '.join(uneven)[:200]}")
    arrays = tuple(OwnArray(head.name, head.dtype, head.shape) for head in array_heads)
    counts = next((_counts(npz, head) for head in array_heads if head.name == LABELS), None)
    return OwnDataset(allowed.name, digest, size_bytes, samples, arrays, counts, allowed.weights_stay)


def _digest(path: Path) -> tuple[str, int]:
    hasher, size_bytes = hashlib.sha256(), 0
    with _opened(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            hasher.update(chunk)
            size_bytes += len(chunk)
    return f"sha256:{hasher.hexdigest()}", size_bytes


def _opened(path: Path) -> IO[bytes]:
    """A plain file, never what a link leads to, nor a device or pipe. Raises: `BadData`, OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadData("data.format", f"{path.name} is no plain file")
    return os.fdopen(descriptor, "rb")


def _counts(npz: Path, head: Head) -> tuple[int, ...] | None:
    """Samples of each class; None if these are no class numbers from 0. Raises: `BadData`."""
    code = _LABEL_CODES.get(head.dtype)
    if code is None or len(head.shape) != 1:
        return None
    counts: dict[int, int] = {}
    try:
        with zipfile.ZipFile(npz) as archive, archive.open(head.member) as source:
            source.read(head.header_bytes)
            for values in _values(source, code):
                for value in values:
                    counts[value] = counts.get(value, 0) + 1
                if len(counts) > MAX_CLASSES:
                    return None
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError) as error:
        raise BadData("data.format", f"{npz.name} is not a readable npz: {error}") from None
    if not counts or min(counts) < 0 or max(counts) >= MAX_CLASSES:
        return None
    return tuple(counts.get(number, 0) for number in range(max(counts) + 1))


def _values(source: IO[bytes], code: str) -> Iterator[array[int]]:
    rest = b""
    while chunk := source.read(CHUNK_BYTES):
        whole = rest + chunk
        values: array[int] = array(code)
        end = len(whole) - len(whole) % values.itemsize
        values.frombytes(whole[:end])
        rest = whole[end:]
        yield values
    if rest:
        raise ValueError("the labels end within a number")


def _mark(path: Path) -> str:
    """Changes when a file of the data set does: times, sizes and places of all of them."""
    if not path.is_dir():
        return _mark_of([("", path)])
    return _mark_of([(f"{name}/{file.name}", file) for name, files in class_files(path) for file in files])


def _mark_of(files: Sequence[tuple[str, Path]]) -> str:
    hasher = hashlib.sha256()
    for name, path in files:
        facts = path.lstat()
        hasher.update(f"{name}\0{facts.st_mtime_ns}\0{facts.st_size}\0{facts.st_ino}\0{facts.st_mode}\n".encode())
    return hasher.hexdigest()


def class_files(folder: Path) -> list[tuple[str, list[Path]]]:
    """The classes of a folder by name, each with its samples by name. Raises: `BadData`, OSError."""
    classes = []
    count = 0
    for entry in sorted(os.scandir(folder), key=lambda folder_entry: folder_entry.name):
        if entry.name.startswith("."):
            continue
        if not entry.is_dir(follow_symlinks=False):
            raise BadData(
                "data.format",
                f"{entry.name!r:.80} is no folder: a folder of a data set holds one "
                "folder for each class, and nothing else",
                hint="or name an npz file",
            )
        files = []
        for sample in sorted(os.scandir(entry.path), key=lambda file_entry: file_entry.name):
            if sample.name.startswith("."):
                continue
            if not sample.name.endswith(".npy") or not sample.is_file(follow_symlinks=False):
                raise BadData(
                    "data.format",
                    f"class {entry.name!r:.80} holds {sample.name!r:.80}, which is no .npy file of one sample",
                )
            files.append(Path(sample.path))
            count += 1
            if count > MAX_FILES:
                raise BadData("data.size", f"more than {MAX_FILES:,} samples", hint="make an npz of them")
        classes.append((entry.name, files))
    if not classes or len(classes) > MAX_CLASSES or not all(files for _, files in classes):
        raise BadData("data.format", f"1 to {MAX_CLASSES:,} classes, each with a sample, are expected")
    return classes


def make_npz(folder: Path, to: Path) -> None:
    """An npz of a folder of classes, the same bytes for the same samples. Raises: `BadData`, OSError."""
    classes = class_files(folder)
    files = [file for _, samples in classes for file in samples]
    with _opened(files[0]) as first:
        _, descr, shape = read_head(first, files[0].name)
    labels: array[int] = array("q", [n for n, (_, samples) in enumerate(classes) for _ in samples])
    draft = to.with_suffix(".npz.new")
    try:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
            with archive.open(zipfile.ZipInfo("x.npy", _FIRST), "w", force_zip64=True) as out:
                out.write(npy_header(descr, (len(files), *shape)))
                for file in files:
                    _append(file, out, descr, shape)
            with archive.open(zipfile.ZipInfo("y.npy", _FIRST), "w", force_zip64=True) as out:
                out.write(npy_header("<i8", (len(files),)))
                out.write(labels.tobytes())
        draft.chmod(0o600)
        os.replace(draft, to)
    finally:
        draft.unlink(missing_ok=True)


def _append(file: Path, out: IO[bytes], descr: str, shape: tuple[int, ...]) -> None:
    with _opened(file) as source:
        _, own_descr, own_shape = read_head(source, file.name)
        if (own_descr, own_shape) != (descr, shape):
            raise BadData(
                "data.shape",
                f"{file.parent.name}/{file.name} holds {own_descr} {list(own_shape)}, the "
                f"first sample {descr} {list(shape)}: samples are alike"[:500],
            )
        left_bytes = int(descr[2:])
        for extent in shape:
            left_bytes *= extent
        while chunk := source.read(min(CHUNK_BYTES, left_bytes + 1)):
            left_bytes -= len(chunk)
            if left_bytes < 0:
                break
            out.write(chunk)
    if left_bytes:
        raise BadData(
            "data.format", f"{file.parent.name}/{file.name} holds another number of bytes than its header says"
        )


def npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    """Returns the header as NumPy writes it, format 1.0."""
    extents = f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {extents}, }}"
    padding = -(len(text) + 11) % 64
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + padding + 1) + (text + " " * padding + "\n").encode()
