"""A farm's storage that is full or away while a compile needs it: the job waits or is tried again, and says so."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any, BinaryIO

import pytest

from service.store.storage import StorageDown, StoredFile
from tests.service.farms import TestFarm
from tests.waiting import HANG_S, until
from tests.workers.test_compiling import farm, run_compile, show
from workers import compiling
from workers import retries as patience

__all__ = ["farm"]


@pytest.fixture
def without_room(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The farm's storage has no room for bundles as often as the list has entries."""
    left, put = [errno.ENOSPC, errno.EDQUOT], farm.farm.storage.put

    def full_at_first(stream: BinaryIO, **how: Any) -> StoredFile:
        if left:
            stream.read(10)
            number = left.pop()
            raise OSError(number, os.strerror(number))
        return put(stream, **how)

    monkeypatch.setattr(farm.farm.storage, "put", full_at_first)
    monkeypatch.setattr(patience, "FIRST_S", 0.01)
    return left


def test_a_compiled_bundle_waits_for_room_in_the_storage(farm: TestFarm, without_room: list[int]) -> None:
    job_id, left = farm_job(farm, without_room)
    run_compile(farm, job_id)
    job = show(farm, job_id)
    assert (job["state"], job["attempts"], left) == ("succeeded", 1, [])
    events = farm.http.get(f"/jobs/{job_id}/events", headers={"Accept": "application/json"}).json()
    assert compiling.NO_ROOM in [event["body"].get("stage") for event in events]


def test_a_bundle_waits_no_longer_than_it_may(farm: TestFarm, without_room: list[int]) -> None:
    job_id, left = farm_job(farm, without_room)
    run_compile(farm, job_id, compile_room_s=0.0)
    job = show(farm, job_id)
    assert (job["state"], job["attempts"], len(left)) == ("queued", 1, 1)


def test_a_job_that_waits_for_room_can_be_cancelled(farm: TestFarm, without_room: list[int]) -> None:
    job_id, left = farm_job(farm, without_room)
    left += [errno.ENOSPC] * 10_000
    worker = threading.Thread(target=run_compile, args=(farm, job_id))
    worker.start()
    until(lambda: show(farm, job_id)["stage"] == compiling.NO_ROOM)
    farm.http.post(f"/jobs/{job_id}/cancel")
    worker.join(timeout=HANG_S)
    assert show(farm, job_id)["state"] == "cancelled"


@pytest.mark.parametrize("door", ["put", "read"])
def test_a_store_that_is_away_is_no_fault_of_the_job(
    farm: TestFarm, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    """Away for a moment when the bundle is there: it waits. Away when the model is wanted: it is tried again."""
    job_id = farm.compile(b"fine").json()["id"]
    real, away = getattr(farm.farm.storage, door), [StorageDown("no answer")]

    def away_at_first(*arguments: Any, **how: Any) -> Any:
        if away:
            raise away.pop()
        return real(*arguments, **how)

    monkeypatch.setattr(farm.farm.storage, door, away_at_first)
    monkeypatch.setattr(patience, "FIRST_S", 0.01)
    run_compile(farm, job_id)
    job = show(farm, job_id)
    assert (job["state"], job["attempts"]) == (("succeeded", 1) if door == "put" else ("queued", 1))


def test_a_store_that_stays_away_ends_the_job_with_its_name(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = farm.compile(b"fine").json()["id"]

    def away(*_: Any) -> Any:
        raise StorageDown("no answer")

    monkeypatch.setattr(farm.farm.storage, "read", away)
    for _ in range(farm.farm.settings.compile_attempts):
        run_compile(farm, job_id)
    job = show(farm, job_id)
    assert (job["ending"]["cause"], job["ending"]["code"]) == ("infra", "infra.storage")


def farm_job(farm: TestFarm, without_room: list[int]) -> tuple[str, list[int]]:
    """A model that the farm took while it had room, and what stands before its bundle's way into the storage."""
    kept = list(without_room)
    without_room.clear()
    job_id = farm.compile(b"fine").json()["id"]
    without_room += kept
    return job_id, without_room
