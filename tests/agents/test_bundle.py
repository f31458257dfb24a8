"""Hostile and damaged bundles: nothing but checked plain files comes out."""

from __future__ import annotations

import contextlib
import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agents.errors import BadBundle
from device_agents.job.bundle import make_executable, read_manifest, unpack
from tests.agents.fake_step import archive, bundle, manifest

FILES = {"bin/step": b"#!/bin/sh\n", "weights.safetensors": b"5.0"}


def entry(name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", data: bytes = b"x") -> bytes:
    """A good bundle with one more entry."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for good, content in {**FILES, "manifest.json": manifest(FILES)}.items():
            member = tarfile.TarInfo(good)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        member.size = len(data) if kind == tarfile.REGTYPE else 0
        tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def refused(tmp_path: Path, data: bytes) -> BadBundle:
    file = tmp_path / "bundle.pfb"
    file.write_bytes(data)
    (tmp_path / "in").mkdir()
    with pytest.raises(BadBundle) as caught:
        unpack(file, tmp_path / "in" / "bundle")
    return caught.value


@pytest.mark.parametrize(
    "data",
    [
        entry("../outside"),
        entry("/etc/outside"),
        entry("a/../../outside"),
        entry("bin/./x"),
        entry(".hidden"),
        entry("a\\b"),
        entry("a" * 300),
        entry("a/b/c/d/e"),
        entry("link", tarfile.SYMTYPE, link="/etc/passwd"),
        entry("link", tarfile.LNKTYPE, link="bin/step"),
        entry("folder", tarfile.DIRTYPE),
        entry("fifo", tarfile.FIFOTYPE),
        entry("device", tarfile.CHRTYPE),
        entry("bin/step"),
        entry("bin/step/below"),
    ],
)
def test_unsafe_entries(tmp_path: Path, data: bytes) -> None:
    assert refused(tmp_path, data).code == "bundle.unsafe"
    assert not list(tmp_path.parent.rglob("outside"))
    assert not [
        path for path in tmp_path.rglob("*") if path.is_symlink() or (path.is_file() and path.stat().st_mode & 0o111)
    ]


def test_link_then_write_through_it(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        link = tarfile.TarInfo("bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        tar.addfile(link)
        member = tarfile.TarInfo("bin/owned")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    assert refused(tmp_path, stream.getvalue()).code == "bundle.unsafe"
    assert not (tmp_path / "owned").exists()


def test_declared_size_beyond_the_limit_is_refused_before_writing(tmp_path: Path) -> None:
    member = tarfile.TarInfo("bin/step")
    member.size = 1 << 40
    (tmp_path / "b.pfb").write_bytes(member.tobuf() + b"x" * 512)
    with pytest.raises(BadBundle, match="limit") as caught:
        unpack(tmp_path / "b.pfb", tmp_path / "out", max_total_bytes=1 << 20)
    assert caught.value.code == "bundle.unsafe"
    assert not (tmp_path / "out" / "bin").exists()


def test_too_many_entries(tmp_path: Path) -> None:
    assert "entries" in str(refused(tmp_path, archive({f"f{index}": b"" for index in range(100)})))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a tar at all" * 100,
        bundle()[:2000],
        archive(FILES),
        archive({**FILES, "manifest.json": b"{"}),
        archive({**FILES, "manifest.json": b'{"schema": "pockfarm.bundle/9"}'}),
        archive({**FILES, "manifest.json": manifest({**FILES, "bin/step": b"other"})}),
        archive({**FILES, "extra": b"x", "manifest.json": manifest(FILES)}),
        archive({**FILES, "manifest.json": manifest({**FILES, "gone": b""})}),
        bundle(inputs=[]),
        bundle(inputs=[{"name": "x"}]),
        bundle(inputs=3),
    ],
)
def test_damaged_bundles(tmp_path: Path, data: bytes) -> None:
    assert refused(tmp_path, data).code == "bundle.invalid"


def test_good_bundle_is_executable_only_when_said_so(tmp_path: Path) -> None:
    (tmp_path / "b.pfb").write_bytes(bundle())
    unpacked = unpack(tmp_path / "b.pfb", tmp_path / "bundle")
    assert unpacked.inputs == ("input",)
    assert unpacked.batch == 4
    assert not unpacked.step.stat().st_mode & 0o111
    make_executable(unpacked)
    assert unpacked.step.stat().st_mode & 0o777 == 0o755
    assert read_manifest(tmp_path / "b.pfb")["target"] == "x86-64-v3"


@settings(max_examples=150)
@given(position=st.integers(0, 6000), value=st.integers(0, 255))
def test_flipped_bytes_never_escape(tmp_path_factory: pytest.TempPathFactory, position: int, value: int) -> None:
    folder = tmp_path_factory.mktemp("flip")
    data = bytearray(bundle())
    data[position % len(data)] = value
    (folder / "b.pfb").write_bytes(bytes(data))
    with contextlib.suppress(BadBundle):
        unpack(folder / "b.pfb", folder / "bundle")
    assert {path.name for path in folder.iterdir()} <= {"b.pfb", "bundle"}
