"""npz to npy without NumPy: read back by NumPy, and hostile archives."""

from __future__ import annotations

import io
import pickle
import resource
import signal
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from device_agents.errors import AttemptError, BadData
from device_agents.job.dataset import split_npz

LIMIT_BYTES = 1 << 20


def save(path: Path, *, compressed: bool = True, **arrays: Any) -> Path:
    (numpy.savez_compressed if compressed else numpy.savez)(path, **arrays)
    return path


def raw(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    numpy.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def header(text: str, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + body


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kind", ["f4", "f8", "u1", "i8"])
def test_arrays_come_out_as_numpy_wrote_them(tmp_path: Path, compressed: bool, kind: str) -> None:
    x, y = numpy.arange(24).reshape(6, 2, 2).astype(kind), numpy.arange(6)
    files = split_npz(
        save(tmp_path / "d.npz", compressed=compressed, x=x, y=y), tmp_path / "out", ["image"], max_bytes=LIMIT_BYTES
    )
    assert files.samples == 6
    numpy.testing.assert_array_equal(numpy.load(files.inputs["image"]), x)
    numpy.testing.assert_array_equal(numpy.load(files.labels["y"]), y)


def test_inputs_by_name(tmp_path: Path) -> None:
    a, b = numpy.zeros((3, 1)), numpy.ones((3, 2))
    path = save(tmp_path / "d.npz", a=a, b=b, y=numpy.zeros(3))
    files = split_npz(path, tmp_path / "out", ["b", "a"], max_bytes=LIMIT_BYTES)
    assert numpy.load(files.inputs["b"]).shape == (3, 2)
    assert numpy.load(files.inputs["a"]).shape == (3, 1)


def test_an_input_may_be_called_as_the_labels_are(tmp_path: Path) -> None:
    image, mask, labels = numpy.zeros((3, 1)), numpy.ones((3, 2)), numpy.full(3, 7)
    path = raw(tmp_path / "two.npz", **{"input.y": npy(image), "mask": npy(mask), "y": npy(labels)})
    files = split_npz(path, tmp_path / "two", ["y", "mask"], max_bytes=LIMIT_BYTES)
    assert numpy.load(files.inputs["y"]).shape == (3, 1)
    numpy.testing.assert_array_equal(numpy.load(files.labels["y"]), labels)
    files = split_npz(save(tmp_path / "one.npz", x=image, y=labels), tmp_path / "one", ["y"], max_bytes=LIMIT_BYTES)
    assert numpy.load(files.inputs["y"]).shape == (3, 1)
    alone = save(tmp_path / "alone.npz", y=image)
    assert split_npz(alone, tmp_path / "alone", ["y"], max_bytes=LIMIT_BYTES, labels=()).samples == 3
    with pytest.raises(BadData, match=r"`y` \(as `input\.y` or `x`\)") as missing:
        split_npz(alone, tmp_path / "none", ["y"], max_bytes=LIMIT_BYTES)
    with pytest.raises(BadData, match=r"`y` and `input\.y`") as ambiguous:
        split_npz(path, tmp_path / "same", ["y", "input.y"], max_bytes=LIMIT_BYTES)
    assert (missing.value.code, ambiguous.value.code) == ("data.missing", "data.missing")


@pytest.mark.parametrize("name", ["labels", "../x", "/x", "a/b", "a=b", 'a "b"', "\u65e5\u672c", "n" * 1024])
def test_an_inputs_name_is_no_path(tmp_path: Path, name: str) -> None:
    path = raw(tmp_path / "d.npz", **{name: npy(X), "y": npy(Y)})
    files = split_npz(path, tmp_path / "out", [name], max_bytes=LIMIT_BYTES)
    assert files.inputs[name].parent == tmp_path / "out"
    numpy.testing.assert_array_equal(numpy.load(files.inputs[name]), X)


def test_labels_may_be_left_out_for_inference(tmp_path: Path) -> None:
    path = save(tmp_path / "d.npz", x=numpy.zeros((3, 1)))
    assert split_npz(path, tmp_path / "out", ["i"], max_bytes=LIMIT_BYTES, labels=()).labels == {}


def test_labels_are_the_arrays_that_the_bundle_names(tmp_path: Path) -> None:
    arrays = {
        "x": numpy.zeros((3, 1)),
        "boxes": numpy.ones((3, 4)),
        "input.boxes": numpy.ones((3, 2)),
        "y": numpy.zeros(3),
    }
    path = raw(tmp_path / "d.npz", **{name: npy(array) for name, array in arrays.items()})
    files = split_npz(path, tmp_path / "out", ["x", "boxes"], max_bytes=LIMIT_BYTES, labels=("boxes", "y"))
    assert list(files.labels) == ["boxes", "y"]
    assert numpy.load(files.labels["boxes"]).shape == (3, 4)
    assert numpy.load(files.inputs["boxes"]).shape == (3, 2)
    with pytest.raises(BadData, match="labels `masks`"):
        split_npz(path, tmp_path / "none", ["x"], max_bytes=LIMIT_BYTES, labels=("masks",))


X = numpy.zeros((4, 2), numpy.float32)
Y = numpy.zeros(4, numpy.int64)


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"x": npy(X)}, "data.missing"),
        ({"y": npy(Y), "z": npy(X)}, "data.missing"),
        ({"x": npy(X), "y": npy(numpy.zeros(5))}, "data.shape"),
        ({"x": npy(numpy.array([{}], dtype=object)), "y": npy(Y)}, "data.type"),
        ({"x": npy(numpy.zeros(4, "c8")), "y": npy(Y)}, "data.type"),
        ({"x": npy(numpy.zeros(4, ">f4")), "y": npy(Y)}, "data.type"),
        ({"x": npy(numpy.zeros((4, 2), order="F")), "y": npy(Y)}, "data.format"),
        ({"x": npy(numpy.float32(1)), "y": npy(Y)}, "data.shape"),
        ({"x": npy(numpy.zeros((0, 2))), "y": npy(Y)}, "data.shape"),
        ({"x": npy(X)[:-1], "y": npy(Y)}, "data.format"),
        ({"x": npy(X) + b"more", "y": npy(Y)}, "data.format"),
        ({"x": npy(numpy.zeros(LIMIT_BYTES, numpy.uint8)), "y": npy(Y)}, "data.size"),
        ({"x": header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**45}, 9)}}"), "y": npy(Y)}, "data.size"),
        ({"x": header("__import__('os').system('touch /tmp/owned')"), "y": npy(Y)}, "data.format"),
        ({"x": header("(" * 5000), "y": npy(Y)}, "data.format"),
        ({"x": pickle.dumps(X), "y": npy(Y)}, "data.format"),
        ({"x": b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 30), "y": npy(Y)}, "data.format"),
        ({"x": b"", "y": npy(Y)}, "data.format"),
        ({f"m{index}": b"" for index in range(200)}, "data.format"),
        ({"x": header("-" * 9000 + "1"), "y": npy(Y)}, "data.format"),
        ({"x": header("{'descr': '<f4', 'fortran_order': False, 'shape': (²,)}"), "y": npy(Y)}, "data.format"),
        ({"x": header("{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 2)}"), "y": npy(Y)}, "data.shape"),
        (
            {"x": header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': (4{', 1' * 99})}}"), "y": npy(Y)},
            "data.shape",
        ),
        ({"x": header("{'descr': '<f4', 'descr': '<f4', 'shape': (4,)}"), "y": npy(Y)}, "data.format"),
    ],
)
def test_bad_archives(tmp_path: Path, members: dict[str, bytes], code: str) -> None:
    with pytest.raises(BadData) as caught:
        split_npz(raw(tmp_path / "d.npz", **members), tmp_path / "out", ["i"], max_bytes=LIMIT_BYTES)
    assert caught.value.code == code


def test_zip_bomb_stops_at_the_declared_size(tmp_path: Path) -> None:
    text = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000,), }\n"
    path = raw(tmp_path / "d.npz", x=header(text, bytes(1 << 26)), y=npy(numpy.zeros(1000)))
    assert path.stat().st_size < 1 << 17
    with pytest.raises(BadData):
        split_npz(path, tmp_path / "out", ["i"], max_bytes=LIMIT_BYTES)
    assert sum(file.stat().st_size for file in (tmp_path / "out").iterdir()) < LIMIT_BYTES


def encrypted(data: bytes) -> bytes:
    at = data.index(b"PK\x01\x02") + 8
    return data[:at] + b"\x01\x00" + data[at + 2 :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (encrypted, "encrypted"),
        (lambda data: data.replace(b"z.npy", b"x.npy"), "two members of one name"),
        (lambda data: b"#!/bin/sh\n" + data, "not where it says"),
        (lambda data: data + b"more", "does not end as a zip"),
        (lambda data: data[:-2] + b"\x05\x00hello", "does not end as a zip"),
        (lambda data: data[:-6] + b"\xff\xff\xff\xff" + data[-2:], "not where it says"),
        (lambda data: data[: len(data) // 2], "does not end as a zip"),
    ],
)
def test_archives_that_lie_are_refused_by_name(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    path = raw(tmp_path / "d.npz", x=npy(X), z=npy(X), y=npy(Y))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BadData) as caught:
        split_npz(path, tmp_path / "out", ["i"], max_bytes=LIMIT_BYTES)
    assert (caught.value.code, message in caught.value.message) == ("data.format", True), caught.value.message


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_methods_that_may_ask_for_gigabytes_are_refused(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "d.npz", "w", method) as archive:
        archive.writestr("x.npy", npy(X))
        archive.writestr("y.npy", npy(Y))
    with pytest.raises(BadData, match=f"method {method}"):
        split_npz(tmp_path / "d.npz", tmp_path / "out", ["i"], max_bytes=LIMIT_BYTES)


def test_nothing_is_written_before_every_array_fits(tmp_path: Path) -> None:
    half = numpy.zeros(LIMIT_BYTES * 3 // 4, numpy.uint8)
    path = save(tmp_path / "d.npz", a=half, b=half, y=Y)
    with pytest.raises(BadData) as caught:
        split_npz(path, tmp_path / "out", ["a", "b"], max_bytes=LIMIT_BYTES)
    assert (caught.value.code, list((tmp_path / "out").iterdir())) == ("data.size", [])


def test_a_full_disk_is_the_devices_fault(tmp_path: Path) -> None:
    path = save(tmp_path / "d.npz", x=numpy.zeros((4, 1 << 16)), y=Y)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handled = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(AttemptError) as caught:
            split_npz(path, tmp_path / "out", ["i"], max_bytes=1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handled)
    assert (caught.value.code, caught.value.cause) == ("device.disk", "device")
    with pytest.raises(AttemptError, match="are free"):
        split_npz(promising(tmp_path / "huge.npz"), tmp_path / "out2", ["i"], max_bytes=1 << 62)


def promising(path: Path) -> Path:
    """Arrays that declare more than any disk has."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': (4, {1 << 45})}}"
    return raw(path, x=header(text, b"0"), y=npy(Y))


def test_not_a_zip(tmp_path: Path) -> None:
    (tmp_path / "d.npz").write_bytes(b"hello" * 1000)
    with pytest.raises(BadData) as caught:
        split_npz(tmp_path / "d.npz", tmp_path / "out", ["i"], max_bytes=LIMIT_BYTES)
    assert caught.value.code == "data.format"


def test_an_array_with_one_sample_may_be_the_same_for_all(tmp_path: Path) -> None:
    """Which the binary knows; any other number of samples is refused here."""
    x, mask, y = numpy.zeros((6, 2)), numpy.zeros((1, 2, 2)), numpy.arange(6)
    files = split_npz(
        save(tmp_path / "a.npz", mask=mask, x=x, y=y), tmp_path / "a", ["mask", "x"], max_bytes=LIMIT_BYTES
    )
    assert files.samples == 6
    with pytest.raises(BadData) as caught:
        split_npz(
            save(tmp_path / "b.npz", mask=mask[[0, 0]], x=x, y=y), tmp_path / "b", ["mask", "x"], max_bytes=LIMIT_BYTES
        )
    assert caught.value.code == "data.shape"
