"""Commands and children on a full disk: what was there stays, nothing by halves, and the words say it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pockfarm import cli
from pockfarm.commands import machine
from pockfarm.files.written import write_whole
from service import admin, root
from service.app import create_app
from service.artefacts.datasets.inspection import InspectionLimits, inspect_confined
from service.base.private import replace_file
from service.base.settings import Settings
from service.store.signing import load_signer
from tests.service.farms import RecordingQueue, npz
from tests.small_disk import SmallDisk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small", 1 << 20) as made:
        yield made


def left(disk: SmallDisk) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in disk.folder.iterdir() if path.name != "ballast"}


def test_a_root_key_that_could_not_be_written_is_not_there(disk: SmallDisk, capsys: pytest.CaptureFixture[str]) -> None:
    path = disk.folder / "root.json"
    with disk.full():
        assert root.main(["create", str(path)]) == 1
    assert "no key was made" in capsys.readouterr().err
    assert left(disk) == {}
    assert root.main(["create", str(path)]) == 0
    assert root.main(["create", str(path)]) == 1
    assert "name a file that is not there yet" in capsys.readouterr().err


def test_a_request_and_a_list_are_whole_or_those_of_before(
    disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("POCKFARM_STATE", str(state))
    state.mkdir(mode=0o700)
    load_signer(state / "signing-key.json", release_number=1)
    root.create(tmp_path / "root.json")
    request, signed = disk.folder / "request.json", disk.folder / "list.json"
    ask = ["key-request", str(request)]
    sign = ["sign", str(request), str(signed), "--root", str(tmp_path / "root.json")]
    assert admin.main(ask) == 0
    assert root.main(sign) == 0
    before = left(disk)
    assert set(before) == {"request.json", "list.json"}
    with disk.full():
        assert admin.main(ask) == 1
        assert ": the disk is full; " in capsys.readouterr().err
        assert root.main(sign) == 1
        assert "what was there stays" in capsys.readouterr().err
    assert left(disk) == before


def test_a_draft_without_room_is_taken_away(disk: SmallDisk) -> None:
    replace_file(disk.folder / "kept", b"old")
    with disk.full(), pytest.raises(OSError, match=r"No space|too large"):
        replace_file(disk.folder / "kept", b"new" * 100_000)
    assert left(disk) == {"kept": b"old"}


def test_a_full_temporary_folder_is_not_the_fault_of_a_data_set(
    disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d.npz"
    path.write_bytes(npz(x=np.zeros((4, 2), np.float32), y=np.zeros(4)))
    monkeypatch.setattr(tempfile, "tempdir", str(disk.folder))
    with path.open("rb") as file, disk.full():
        found = inspect_confined(file, InspectionLimits(1 << 20, 1 << 30, 30, 60.0))
    assert sorted(found) == ["x", "y"]


def test_the_temporary_folder_is_found_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python chooses it by writing a file, and finds none when every disk is full."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    url = f"sqlite:///{tmp_path / 'farm.db'}"
    create_app(Settings(state=tmp_path / "state", database_url=url), queue=RecordingQueue())
    assert tempfile.tempdir is not None


def test_a_command_without_room_is_no_defect(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = disk.folder / "run.receipt.json"

    def write(_: object) -> int:
        write_whole(target, b"x" * 100_000)
        return 0

    monkeypatch.setattr(machine, "_status", write)
    target.write_bytes(b"old")
    with disk.full():
        assert cli.main(["status"]) == cli.NO_ROOM
    said = capsys.readouterr().err
    assert "defect" not in said
    assert f"{target} cannot be written" in said
    assert "make room there" in said
    assert left(disk) == {"run.receipt.json": b"old"}
