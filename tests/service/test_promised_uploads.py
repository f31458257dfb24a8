"""What is declared takes no room from anybody: bytes do, as they come, within each organisation's share of the disk."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.base.identifiers import digest_of
from service.store.storage import FileStorage
from tests.service.farms import TestFarm, open_test_farm
from tests.service.test_uploads import begin, finish, path_of, piece, send
from tests.small_disk import SmallDisk, small_disk

MIB = 1 << 20
DISK_BYTES = 24 * MIB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small", DISK_BYTES) as mounted:
        yield mounted


@pytest.fixture
def crowded_farm(disk: SmallDisk, tmp_path: Path, migrated_sqlite: Path) -> Iterator[TestFarm]:
    """Its files, and nothing else, are on the small disk, of which it leaves a quarter alone."""
    shutil.copy(migrated_sqlite, tmp_path / "farm.db")
    url, files = f"sqlite:///{tmp_path / 'farm.db'}", f"file://{disk.folder / 'files'}"
    with open_test_farm(
        tmp_path / "state", url, storage_url=files, disk_reserve_bytes=6 * MIB, storage_share=0.5
    ) as farm:
        yield farm


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, str(answer.json().get("code"))


def test_nine_promises_without_a_byte_stop_nobody(crowded_farm: TestFarm) -> None:
    greedy, honest = crowded_farm.tenant("greedy"), crowded_farm.tenant("honest")
    for _ in range(9):
        assert begin(greedy, kind="data", size_bytes=8 * MIB).status_code == 202
    data = b"honest" * 100_000
    assert honest.http.head(f"/files/{send(honest, data)}").status_code == 200


def test_a_tenant_takes_its_share_of_the_disk_and_no_more(crowded_farm: TestFarm) -> None:
    """Half of what it has and what is free: others find the rest, and the upload goes on when there is room."""
    greedy, honest = crowded_farm.tenant("greedy"), crowded_farm.tenant("honest")
    data = bytes(6 * MIB)
    first, second = (path_of(begin(greedy, data, "data")) for _ in range(2))
    assert piece(greedy, first, 0, data).status_code == 202
    assert piece(greedy, second, 0, data[:MIB]).status_code == 202
    answer = piece(greedy, second, MIB, data[MIB:])
    assert code_of(answer) == (403, "quota.storage_bytes")
    body = answer.json()
    assert body["use"] == 7 * MIB
    assert 8 * MIB < body["limit"] <= 9 * MIB, "half of the 18 MiB beyond the reserve"
    assert "ask for more room" in body["hint"]
    assert int(greedy.http.head(second).headers["upload-offset"]) == MIB, "what was confirmed stands"
    quota = {quota["name"]: quota for quota in greedy.http.get("/organisation").json()["quotas"]}["storage_bytes"]
    assert (quota["limit"], quota["use"]) == (body["limit"], body["use"])
    send(honest, bytes(4 * MIB), "data")
    more = crowded_farm.http.patch(f"/organisations/{greedy.organisation_id}", json={"quotas": {"storage_bytes": 2e9}})
    assert more.status_code == 200, more.text
    assert piece(greedy, second, MIB, data[MIB:]).status_code == 202
    assert finish(greedy, second, digest_of(data)).status_code == 201


def test_what_could_never_fit_is_refused_before_its_first_byte(crowded_farm: TestFarm) -> None:
    tenant = crowded_farm.tenant("hopeful")
    assert code_of(begin(tenant, kind="data", size_bytes=10 * MIB)) == (403, "quota.storage_bytes")
    assert code_of(begin(crowded_farm, kind="data", size_bytes=20 * MIB)) == (507, "infra.disk-full")
    assert begin(crowded_farm, kind="data", size_bytes=16 * MIB).status_code == 202, "the farm's own has no share"


def test_two_that_fill_the_disk_at_once_leave_its_reserve(crowded_farm: TestFarm, disk: SmallDisk) -> None:
    farm, pieces = crowded_farm, [bytes([number]) * MIB for number in range(14)]
    paths, refusals = [path_of(begin(farm, bytes(14 * MIB), "data")) for _ in range(2)], list[tuple[int, int, str]]()
    start = threading.Barrier(2)

    def fill(path: str) -> None:
        start.wait()
        answers = (piece(farm, path, number * MIB, data) for number, data in enumerate(pieces))
        number, refusal = next((number, answer) for number, answer in enumerate(answers) if answer.status_code != 202)
        refusals.append((number, *code_of(refusal)))

    threads = [threading.Thread(target=fill, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(status, code) for _, status, code in refusals] == [(507, "infra.disk-full")] * 2
    assert shutil.disk_usage(disk.folder).free >= 6 * MIB
    offsets = [int(farm.http.head(path).headers["upload-offset"]) for path in paths]
    assert offsets in ([at * MIB for at, _, _ in refusals], [at * MIB for at, _, _ in reversed(refusals)])
    assert farm.http.delete(paths[0]).status_code == 204
    at = offsets[1]
    assert piece(farm, paths[1], at, bytes(14 * MIB - at)).status_code == 202, "it goes on once there is room"


def test_two_processes_that_write_pieces_leave_the_reserve(disk: SmallDisk) -> None:
    """Each has a store of its own; a piece that would go below it leaves nothing of itself."""
    stores = [FileStorage(disk.folder / "files") for _ in range(2)]
    free_bytes = stores[0].free_bytes()
    assert free_bytes is not None
    room_bytes = free_bytes - 8 * MIB
    refused: list[str] = []
    start = threading.Barrier(2)

    def fill(number: int) -> None:
        start.wait()
        try:
            for at_bytes in range(0, room_bytes + MIB, MIB):
                stores[number].append(f"upl-{number}", bytes(MIB), at_bytes=at_bytes, reserve_bytes=8 * MIB)
        except OSError as error:
            refused.append(str(error.strerror))

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == ["No space left on device"] * 2
    assert 8 * MIB <= shutil.disk_usage(disk.folder).free < 9 * MIB + 2 * 4096
