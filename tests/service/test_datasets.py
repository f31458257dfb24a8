"""Data sets that lie: every trick of a zip archive is refused by name, in a process that can do nothing else."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_agents.wire import data_fit
from service.artefacts.datasets.archive import BadData
from service.artefacts.datasets.arrays import LABELS, ArrayInfo, samples_of
from service.artefacts.datasets.inspection import InspectionLimits, inspect_confined
from service.artefacts.datasets.npz import inspect_npz
from service.artefacts.datasets.service import check_fit
from service.base.problems import Invalid
from service.store.database.models import Bundle, Dataset
from tests.service.farms import TestFarm

X = np.arange(48, dtype=np.float32).reshape(4, 12)
Y = np.arange(4, dtype=np.int64)
LIMITS = InspectionLimits(unpacked_bytes=1 << 30, memory_bytes=1 << 30, cpu_s=60, wall_s=120)
DIRECTORY, LOCAL, END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"


def npz(*, compressed: bool = True, **arrays: Any) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, **arrays)
    return stream.getvalue()


GOOD = npz(x=X, y=Y)


def put(data: bytes, at: int, layout: str, *values: Any) -> bytes:
    packed = struct.pack("<" + layout, *values)
    return data[:at] + packed + data[at + len(packed) :]


def directory(data: bytes, entry: int = 0) -> int:
    """Where the directory's record of an entry starts."""
    at = -1
    for _ in range(entry + 1):
        at = data.index(DIRECTORY, at + 1)
    return at


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def archive(*entries: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as made:
        for name, data in entries:
            made.writestr(name, data)
    return stream.getvalue()


def handmade(**arrays: tuple[bytes, int, int]) -> bytes:
    """name -> (raw deflated bytes, size, checksum) as the headers are to say."""
    body, listing = b"", b""
    for key, (data, size_bytes, checksum) in arrays.items():
        name = f"{key}.npy".encode()
        sizes = struct.pack("<3L", checksum, len(data), size_bytes)
        listing += (
            DIRECTORY
            + struct.pack("<6H", 20, 20, 0, 8, 0, 33)
            + sizes
            + struct.pack("<5H2L", len(name), 0, 0, 0, 0, 0, len(body))
            + name
        )
        body += LOCAL + struct.pack("<5H", 20, 0, 8, 0, 33) + sizes + struct.pack("<2H", len(name), 0) + name + data
    end = END + struct.pack("<4H2LH", 0, 0, len(arrays), len(arrays), len(listing), len(body), 0)
    return body + listing + end


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def entry(data: bytes, *, extra: bytes = b"", size_bytes: int | None = None) -> tuple[bytes, int, int]:
    size = len(data) if size_bytes is None else size_bytes
    return deflated(data) + extra, size, zlib.crc32(data[:size])


def nested(levels: int) -> bytes:
    inner = npy(np.zeros(1 << 16, np.uint8))
    for _ in range(levels):
        inner = archive(("x.npy", inner))
    return inner


LIES: dict[str, tuple[bytes, str, str]] = {
    "two of a name": (
        archive(("x.npy", npy(X)), ("w.npy", npy(X)), ("y.npy", npy(Y))).replace(b"w.npy", b"x.npy"),
        "data.invalid",
        "same name",
    ),
    "up the tree": (archive(("../x.npy", npy(X)), ("y.npy", npy(Y))), "data.invalid", "not one array"),
    "absolute": (archive(("/x.npy", npy(X)), ("y.npy", npy(Y))), "data.invalid", "not one array"),
    "NUL in a name": (
        archive(("x.npy_.npy", npy(X)), ("y.npy", npy(Y))).replace(b"x.npy_", b"x.npy\0"),
        "data.invalid",
        "not one array",
    ),
    "folder": (archive(("x/", b""), ("y.npy", npy(Y))), "data.invalid", "not one array"),
    "folder of an array's name": (archive(("x.npy/", b""), ("y.npy", npy(Y))), "data.invalid", "not one array"),
    "archive in archive": (nested(3), "data.invalid", "not a NumPy array"),
    "many entries": (archive(*((f"a{n}.npy", npy(Y)) for n in range(33)), ("y.npy", npy(Y))), "data.invalid", "34"),
    "very many entries": (archive(*((f"a{n}.npy", b"") for n in range(20_000))), "data.invalid", "20,000"),
    "no entries": (archive(), "data.invalid", "0 arrays"),
    "encrypted": (put(GOOD, directory(GOOD) + 8, "H", 1), "data.invalid", "encrypted"),
    "another method": (
        archive(("x.npy", npy(X)), ("y.npy", npy(Y)), method=zipfile.ZIP_LZMA),
        "data.invalid",
        "method 14",
    ),
    "a comment": (GOOD[:-2] + struct.pack("<H", 4) + b"hello"[:4], "data.invalid", "npz"),
    "bytes in front": (b"#!/bin/sh\n" + GOOD, "data.invalid", "not where it says"),
    "bytes behind": (GOOD + b"more", "data.invalid", "zip archive's end"),
    "two disks": (put(GOOD, GOOD.rindex(END) + 4, "H", 1), "data.invalid", "several files"),
    "zip64's end": (put(GOOD, GOOD.rindex(END) + 8, "HH", 0xFFFF, 0xFFFF), "data.invalid", "65,535 arrays"),
    "directory elsewhere": (put(GOOD, GOOD.rindex(END) + 16, "L", 0xFFFFFFFF), "data.invalid", "not where it says"),
    "data elsewhere": (put(GOOD, directory(GOOD) + 42, "L", 7), "data.invalid", "not where"),
    "data beyond the end": (put(GOOD, directory(GOOD) + 42, "L", 1 << 30), "data.invalid", "not where"),
    "two names": (put(GOOD, GOOD.index(b"x.npy"), "5s", b"z.npy"), "data.invalid", "another name"),
    "stored longer": (
        put(npz(compressed=False, x=X, y=Y), directory(npz(compressed=False, x=X, y=Y)) + 20, "L", 9),
        "data.invalid",
        "stored in 9",
    ),
    "says more": (handmade(x=entry(npy(X), size_bytes=len(npy(X)) + 4), y=entry(npy(Y))), "data.invalid", "directory"),
    "says less": (handmade(x=entry(npy(X), size_bytes=len(npy(X)) - 4), y=entry(npy(Y))), "data.invalid", "directory"),
    "header says less": (handmade(x=entry(npy(X) + b"more"), y=entry(npy(Y))), "data.invalid", "directory says"),
    "holds more": (
        handmade(x=(deflated(npy(X) + b"m" * 9), len(npy(X)), zlib.crc32(npy(X))), y=entry(npy(Y))),
        "data.invalid",
        "holds more",
    ),
    "holds less": (handmade(x=(deflated(npy(X)[:-4]), len(npy(X)), 0), y=entry(npy(Y))), "data.truncated", "4 bytes"),
    "bytes after the end": (handmade(x=entry(npy(X), extra=b"tail"), y=entry(npy(Y))), "data.invalid", "belong to no"),
    "another checksum": (handmade(x=(deflated(npy(X)), len(npy(X)), 1), y=entry(npy(Y))), "data.invalid", "checksum"),
    "not deflated": (handmade(x=(b"\xff" * 300, 300, 0), y=entry(npy(Y))), "data.invalid", "not deflated"),
    "a bomb": (
        archive(("x.npy", npy(np.zeros((4, 80 << 20), np.uint8))), ("y.npy", npy(Y))),
        "limits.dataset-expansion",
        "more than 100 times",
    ),
    "a header's promise": (
        archive(("x.npy", npy(X)[:20] + b"9" * 90 + npy(X)[110:]), ("y.npy", npy(Y))),
        "data.invalid",
        "not a NumPy array",
    ),
}


def write(folder: Path, data: bytes) -> Path:
    path = folder / "d.npz"
    path.write_bytes(data)
    return path


def inspect(path: Path, limits: InspectionLimits = LIMITS) -> dict[str, ArrayInfo]:
    with path.open("rb") as file:
        return inspect_confined(file, limits)


@pytest.mark.parametrize("compressed", [True, False])
def test_what_numpy_writes_is_taken(tmp_path: Path, compressed: bool) -> None:
    arrays: dict[str, Any] = {
        "x": X,
        "y": Y,
        "input/ids:0": X.astype(np.uint8),
        "flags": X > 3,
        "halves": X[:, :0:-1].copy(),
    }
    found = inspect(write(tmp_path, npz(compressed=compressed, **arrays)))
    assert found == {
        name: ArrayInfo(array.dtype.name, array.shape, float(array.min()), float(array.max()), is_whole=True)
        for name, array in arrays.items()
    }


def test_the_range_of_an_array_is_known_but_for_labels_that_do_not_count(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "x": np.array([0.5, -2, 7], np.float32),
        "y": np.array([-100, 3, 1]),
        "mask": np.array([[-np.inf, 0]]),
    }
    found = inspect(write(tmp_path, npz(**arrays)))
    assert (found["x"].low, found["x"].high, found["x"].is_whole) == (-2.0, 7.0, False)
    assert (found["y"].low, found["y"].high) == (1.0, 3.0)
    assert found["mask"].low is None, "an infinity is no bound"


@pytest.mark.parametrize("name", LIES)
def test_an_archive_that_lies_is_refused_by_name(tmp_path: Path, name: str) -> None:
    data, code, message = LIES[name]
    with write(tmp_path, data).open("rb") as file, pytest.raises(BadData) as caught:
        inspect_npz(file, unpacked_limit_bytes=1 << 30)
    assert (caught.value.code, message in caught.value.message) == (code, True), caught.value.message


def test_one_array_under_two_names_is_refused(tmp_path: Path) -> None:
    """The classic bomb: many directory records, one set of bytes."""
    made = archive(("a.npy", npy(Y)), ("b.npy", npy(Y)), ("y.npy", npy(Y)))
    first, second = made.index(LOCAL), directory(made, 1)
    made = put(made, second + 42, "L", first).replace(b"b.npy", b"a.npy")
    for data, message in ((made, "same name"), (put(made, first + 30, "5s", b"b.npy"), "another name")):
        with write(tmp_path, data).open("rb") as file, pytest.raises(BadData, match=message):
            inspect_npz(file, unpacked_limit_bytes=1 << 30)


def test_an_array_inside_another_is_refused(tmp_path: Path) -> None:
    """Stored bytes of `x` that are themselves an entry `z` of the directory."""
    inner = archive(("z.npy", npy(Y)), method=zipfile.ZIP_STORED)
    inner = inner[: inner.index(DIRECTORY)]
    outer = archive(
        ("x.npy", npy(np.frombuffer(inner, np.uint8))), ("z.npy", npy(Y)), ("y.npy", npy(Y)), method=zipfile.ZIP_STORED
    )
    made = put(outer, directory(outer, 1) + 42, "L", outer.index(inner))
    with write(tmp_path, made).open("rb") as file, pytest.raises(BadData, match="overlaps"):
        inspect_npz(file, unpacked_limit_bytes=1 << 30)


def test_nothing_is_inflated_before_every_header_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`x` declares within the limits, `z` after it does not: neither is read beyond its header."""
    big = npy(np.zeros((4, 12 << 20), np.uint8))
    data = archive(("x.npy", big), ("z.npy", big), ("y.npy", npy(Y)))
    inflated = []
    real = zlib.decompressobj

    class Counting:
        def __init__(self, *arguments: Any) -> None:
            self.inner = real(*arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def decompress(self, *arguments: Any) -> bytes:
            out = self.inner.decompress(*arguments)
            inflated.append(len(out))
            return out

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    with write(tmp_path, data).open("rb") as file, pytest.raises(BadData) as caught:
        inspect_npz(file, unpacked_limit_bytes=64 << 20)
    assert (caught.value.code, caught.value.where) == ("limits.dataset-unpacked", "z")
    assert sum(inflated) <= 2 * (4 << 20)


def test_a_long_look_is_ended(tmp_path: Path) -> None:
    """No interpreter starts within a millisecond."""
    with pytest.raises(BadData) as caught:
        inspect(write(tmp_path, GOOD), replace(LIMITS, wall_s=0.001))
    assert caught.value.code == "limits.dataset-time"


def test_a_look_that_takes_much_memory_is_ended(tmp_path: Path) -> None:
    path = write(tmp_path, npz(compressed=False, x=np.ones((4, 1 << 20)), y=Y))
    with pytest.raises(BadData) as caught:
        inspect(path, replace(LIMITS, memory_bytes=1 << 20))
    assert caught.value.code == "limits.dataset-memory"


def test_the_child_is_confined_before_it_reads(tmp_path: Path) -> None:
    """A file that never ends keeps the child there to be looked at."""
    word = [sys.executable, "-m", "service.artefacts.datasets.inspection", str(os.getpid()), "1", str(1 << 30), "7"]
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    end = os.open(fifo, os.O_RDWR)
    child = subprocess.Popen(word, stdin=end, stdout=subprocess.PIPE)
    try:
        found: dict[str, str] = {}
        while found.get("Max cpu time") != "7":
            assert child.poll() is None
            lines = Path(f"/proc/{child.pid}/limits").read_text().splitlines()
            found = {line[:26].strip(): line[26:47].strip() for line in lines}
    finally:
        child.kill()
        child.communicate()
        os.close(end)
    assert found["Max address space"] == str(1 << 30)


def test_the_api_refuses_a_bomb_and_keeps_nothing(small_farm: TestFarm) -> None:
    answer = small_farm.http.post("/datasets", files={"file": ("d.npz", LIES["a bomb"][0])})
    assert (answer.status_code, answer.json()["code"]) == (422, "limits.dataset-expansion")
    assert "unpack to 335,544,320" in answer.json()["detail"]
    assert not list((small_farm.farm.settings.state / "files" / "sha256").glob("*/*"))


def test_the_api_process_parses_no_archive(small_farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("parsed in the API process")

    monkeypatch.setattr(zipfile, "ZipFile", never)
    monkeypatch.setattr(zlib, "decompressobj", never)
    assert small_farm.http.post("/datasets", files={"file": ("d.npz", GOOD)}).status_code == 201


def test_what_is_the_same_for_every_sample_has_one_and_may_be_infinite(tmp_path: Path) -> None:
    """A mask is made of infinities; samples are not, and nothing is NaN."""
    x, mask = np.zeros((4, 3), np.float32), np.full((1, 3, 3), -np.inf, np.float32)
    found = inspect(write(tmp_path, npz(x=x, mask=mask)))
    assert samples_of(found) == 4
    for name, bad in (("mask", npz(x=x, mask=mask * np.nan)), ("x", npz(x=x - np.inf, mask=mask))):
        with pytest.raises(BadData) as caught:
            inspect(write(tmp_path, bad))
        assert (caught.value.code, caught.value.where) == ("data.not-finite", name)
    with pytest.raises(BadData) as caught:
        inspect(write(tmp_path, npz(x=x, mask=mask[[0, 0]])))
    assert "mask[None]" in caught.value.hint


MASKED = {
    "inputs": [
        {"name": "src", "dtype": "f32", "shape": [3, 8, 5], "batch_axis": 1},
        {"name": "mask", "dtype": "f32", "shape": [3, 3], "batch_axis": None},
    ],
    "labels": {"name": "labels", "dtype": "i64", "shape": [3, 8], "batch_axis": 1},
}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, ""),
        ({"mask": [1, 3, 4]}, "data.shape"),
        ({"src": [3, 4, 5]}, "data.shape"),
        ({"y": [4, 2]}, "data.shape"),
        ({"y": [1, 3]}, "data.samples"),
    ],
)
def test_a_data_set_has_its_samples_first_wherever_the_model_has_them(change: dict[str, Any], code: str) -> None:
    shapes = {"src": [4, 3, 5], "mask": [1, 3, 3], "y": [4, 3], **change}
    arrays = {name: {"dtype": "int64" if name == "y" else "float32", "shape": shape} for name, shape in shapes.items()}
    dataset, bundle = Dataset(arrays=arrays, samples=4), Bundle(manifest=MASKED)
    if not code:
        check_fit(dataset, bundle, where="dataset")
        return
    with pytest.raises(Invalid) as caught:
        check_fit(dataset, bundle, where="dataset")
    assert caught.value.code == code


def test_labels_are_called_as_agents_call_them() -> None:
    assert LABELS == data_fit.LABELS
