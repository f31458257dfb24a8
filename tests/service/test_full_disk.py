"""A farm on a disk that runs full: each door says so in the same words, keeps nothing by halves, and opens again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from service import admin
from service.artefacts.jobs import claims
from service.base.identifiers import digest_of
from tests.service.board import leased
from tests.service.farms import TestFarm, npz, open_test_farm
from tests.service.test_disk import kept_files
from tests.service.test_uploads import begin, finish, path_of, piece
from tests.small_disk import SmallDisk, small_disk
from workers.compile_child import DISK_FULL
from workers.compiling import Compile

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]
Door = Callable[[], httpx.Response]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small", 16 * MIB) as made:
        yield made


@pytest.fixture
def full_farm(disk: SmallDisk, migrated_sqlite: Path) -> Iterator[TestFarm]:
    """Database and files are on the small disk."""
    shutil.copy(migrated_sqlite, disk.folder / "farm.db")
    with open_test_farm(disk.folder / "state", f"sqlite:///{disk.folder / 'farm.db'}", disk_reserve_bytes=MIB) as farm:
        yield farm


def test_every_door_says_it_and_opens_again(full_farm: TestFarm, disk: SmallDisk) -> None:
    farm, data = full_farm, np.random.default_rng(1).bytes(2 * MIB)
    board, bundle = farm.board(), farm.bundle()
    farm.run(bundle=bundle)
    work = leased(board)
    upload = path_of(begin(farm, data, "data"))
    assert piece(farm, upload, 0, data[:MIB]).status_code == 202
    x = np.zeros((9_000, 16), np.float32)
    doors: dict[str, Door] = {
        "a model": lambda: farm.compile(data),
        "a piece": lambda: piece(farm, upload, MIB, data[MIB:]),
        "a data set": lambda: farm.http.post("/datasets", files={"file": ("d.npz", npz(x=x, y=np.zeros(9_000)))}),
        "weights": lambda: board.put_weights(work, data, digest_of(data)),
        "the database": lambda: farm.http.post("/keys", json={"name": "k" * 200}),
        "a run": lambda: farm.http.post("/runs", json={"bundle": bundle}),
    }
    before = kept_files(farm)
    with disk.full():
        said = {name: ask() for name, ask in doors.items()}
        assert farm.http.get("/jobs").status_code == 200, "what is there can be read"
        assert farm.anonymous.get("/readyz").json()["parts"]["disk"] == "full"
    for name, answer in said.items():
        assert (answer.status_code, answer.json()["code"]) == (507, DISK_FULL), f"{name}: {answer.text}"
        assert answer.json()["where"] in ("storage", "database")
        assert "make room" in answer.json()["hint"]
    assert [path for path in kept_files(farm) if path not in before] == []
    assert int(farm.http.head(upload).headers["upload-offset"]) == MIB, "what was confirmed stands"
    answers = {name: ask().status_code for name, ask in doors.items()}
    assert answers == {
        "a model": 202,
        "a piece": 202,
        "a data set": 201,
        "weights": 201,
        "the database": 201,
        "a run": 202,
    }
    assert finish(farm, upload, digest_of(data)).status_code == 201


def test_a_worker_without_room_gives_the_job_back(small_farm: TestFarm, disk: SmallDisk) -> None:
    """Its folder is on the small disk; the job is tried again, and ends with the words when no worker has room."""
    farm, folder = small_farm, disk.folder / "job"
    job_id = farm.compile(b"model" * 1000).json()["id"]
    for attempt in range(farm.farm.settings.compile_attempts):
        with farm.farm.database.transaction() as session:
            claim = claims.claim(session, job_id, lease_s=30)
        assert claim is not None, f"attempt {attempt}"
        folder.mkdir()
        with disk.full():
            Compile(farm.farm.settings, farm.farm.database, farm.farm.storage, claim, folder).run()
        shutil.rmtree(folder)
    ended = farm.http.get(f"/jobs/{job_id}").json()
    assert (ended["state"], ended["ending"]["code"], ended["ending"]["where"]) == ("failed", DISK_FULL, "worker")
    assert ended["ending"]["cause"] == "infra"


def test_a_backup_without_room_leaves_nothing(
    full_farm: TestFarm, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full_farm.bundle()
    monkeypatch.setenv("POCKFARM_STATE", str(full_farm.farm.settings.state))
    monkeypatch.setenv("POCKFARM_DATABASE_URL", full_farm.farm.settings.database)
    target = disk.folder / "farm.backup"
    with disk.full():
        assert admin.main(["backup", str(target)]) == 1
    assert "the disk is full" in capsys.readouterr().err
    assert list(disk.folder.glob("farm.backup*")) == []
    assert admin.main(["backup", str(target)]) == 0


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    script = """
import logging
from service.base.logs import set_up_logs
from service.base.settings import Settings
set_up_logs(Settings(), "api")
logging.getLogger("service").error("nobody reads this")
print("goes on")
"""
    with open("/dev/full", "wb") as full:
        completed = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            stdout=subprocess.PIPE,
            stderr=full,
            cwd=ROOT,
            check=False,
            timeout=60,
        )
    assert (completed.stdout, completed.returncode) == (b"goes on\n", 0)
