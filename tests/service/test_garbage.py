"""Garbage collection: what nothing refers to goes, after its grace; what is referred to stays, whatever comes."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import String, delete, event, select, update

from service import admin
from service.store.database.models import Base, FileUse, Holding, Job, ListedFile
from service.store.garbage.collecting import Collected, Collection
from service.store.garbage.references import NO_REFERENCES, holds_digest, referred, referring_columns
from tests.service.board import leased
from tests.service.farms import TestFarm, open_test_farm
from tests.service.tenants import do_training
from tests.service.test_external_models import DATA, digest, named, send
from tests.service.test_uploads import begin, path_of, piece
from tests.service.test_uploads import send as upload
from tests.waiting import HANG_S


def collect(farm: TestFarm, *, grace_s: float = 0.0, dry_run: bool = False) -> Collected:
    return Collection(farm.farm.database, farm.farm.storage, grace_s, dry_run=dry_run).run()


def twice(farm: TestFarm) -> Collected:
    """A file without a reference is noted by the first pass, and removed by the second."""
    collect(farm)
    return collect(farm)


def put(farm: TestFarm, data: bytes) -> str:
    return farm.farm.storage.put(io.BytesIO(data), limit_bytes=1 << 20).digest


def kept(farm: TestFarm) -> set[str]:
    return {digest for digest, _, _ in farm.farm.storage.stored()}


def needed(farm: TestFarm) -> set[str]:
    """What rows refer to, as a plain look at every row finds it."""
    found: set[str] = set()
    with farm.farm.database.read() as session:
        for column in referring_columns():
            found |= set(session.scalars(select(column).where(column.is_not(None))))
        found |= set(session.scalars(select(ListedFile.digest).where(ListedFile.listing.in_(found))))
    return found


def forget_holdings(farm: TestFarm, *digests: str) -> None:
    with farm.farm.database.transaction() as session:
        session.execute(delete(Holding).where(Holding.digest.in_(digests)))


def test_every_column_that_holds_a_digest_is_a_reference_or_says_why_not() -> None:
    columns = {str(column): column for table in Base.metadata.sorted_tables for column in table.columns}
    named_digest = {
        name for name, column in columns.items() if "digest" in column.name and isinstance(column.type, String)
    }
    typed = {name for name, column in columns.items() if holds_digest(column)}
    assert named_digest <= typed, "a column that is called a digest has another type"
    asked = {str(column) for column in referring_columns()}
    passed = {name for name in typed if columns[name].foreign_keys}
    assert asked | passed | NO_REFERENCES.keys() == typed
    assert not asked & NO_REFERENCES.keys()
    assert {
        "jobs.model_digest",
        "bundles.digest",
        "datasets.digest",
        "runs.trained_weights_digest",
        "attempts.weights_digest",
        "uploads.digest",
        "holdings.digest",
    } <= asked


def test_what_is_in_use_stays_and_what_is_not_goes(farm: TestFarm) -> None:
    bundle, dataset, board = farm.bundle(), farm.dataset(), farm.board()
    farm.run(bundle=bundle, mode="train", steps=2, dataset=dataset)
    weights = do_training(board, b"weights")
    job = send(farm, named(DATA), *DATA.values()).json()
    finished = upload(farm, b"an upload")
    open_path = path_of(begin(farm, b"half an upload"))
    piece(farm, open_path, 0, b"half")
    orphan = put(farm, b"nobody's")
    found = twice(farm)
    assert [one for one, _ in found.removed] == [orphan]
    assert found.unfinished == []
    parts = {digest(held) for held in DATA.values()}
    assert {bundle, dataset, weights, job["model"]["digest"], finished, *parts} <= kept(farm)
    assert needed(farm) >= kept(farm)
    assert farm.http.get(open_path).json()["received_bytes"] == 4
    assert [one for one, _ in twice(farm).removed] == []


def test_nothing_goes_before_its_grace_or_in_a_dry_run(farm: TestFarm) -> None:
    orphan = put(farm, b"nobody's")
    assert collect(farm, dry_run=True).removed == []
    assert collect(farm, grace_s=3600).removed == []
    collect(farm)
    assert collect(farm, grace_s=3600).removed == []
    assert [one for one, _ in collect(farm, dry_run=True).removed] == [orphan]
    assert orphan in kept(farm)
    assert collect(farm).removed_bytes == len(b"nobody's")
    assert orphan not in kept(farm)


def test_a_file_that_comes_back_is_kept_anew(farm: TestFarm) -> None:
    twice_put = put(farm, b"model")
    assert [one for one, _ in twice(farm).removed] == [twice_put]
    assert farm.compile(b"model").status_code == 202
    assert twice(farm).removed == []
    assert b"".join(farm.farm.storage.read(twice_put)) == b"model"


def test_a_reference_to_a_file_that_has_just_gone_is_refused_and_works_again(
    farm: TestFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector comes between the bytes and the row."""
    put(farm, b"model")
    collect(farm)
    storage = farm.farm.storage
    original = storage.put

    def overtaken(stream: io.BytesIO, *, limit_bytes: int, digest: str | None = None) -> object:
        stored = original(stream, limit_bytes=limit_bytes, digest=digest)
        monkeypatch.setattr(storage, "put", original)
        assert [one for one, _ in collect(farm).removed] == [stored.digest]
        return stored

    monkeypatch.setattr(storage, "put", overtaken)
    refused = farm.compile(b"model")
    assert (refused.status_code, refused.json()["code"]) == (503, "infra.file-removed")
    assert refused.headers["retry-after"] == "1"
    assert farm.compile(b"model").status_code == 202
    assert needed(farm) <= kept(farm)


def test_a_collector_that_dies_leaves_no_reference_without_its_file(
    farm: TestFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = put(farm, b"nobody's")
    collect(farm)
    remove = farm.farm.storage.delete

    def dies(digest: str) -> None:
        raise ConnectionError("before the file is gone")

    def dies_after(digest: str) -> None:
        remove(digest)
        raise ConnectionError("after the file is gone")

    for fault in (dies, dies_after):
        monkeypatch.setattr(farm.farm.storage, "delete", fault)
        with pytest.raises(ConnectionError):
            collect(farm)
    assert orphan not in kept(farm)
    monkeypatch.setattr(farm.farm.storage, "delete", remove)
    assert farm.compile(b"nobody's").status_code == 202
    assert orphan in kept(farm)
    assert twice(farm).removed == []


def test_while_a_file_is_removed_a_new_reference_waits(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears that the file is gone, or puts it again: it never refers to nothing."""
    put(farm, b"model")
    collect(farm)
    remove, answers = farm.farm.storage.delete, []
    request = threading.Thread(target=lambda: answers.append(farm.compile(b"model")))

    def remove_later(digest: str) -> None:
        if threading.current_thread() is not collector:
            return remove(digest)  # a request that was refused takes back what was stored for it
        has_asked = threading.Event()

        def note(*_: object) -> None:
            if threading.current_thread() is not collector:
                has_asked.set()

        event.listen(farm.farm.database.engine, "before_cursor_execute", note)
        request.start()
        assert has_asked.wait(HANG_S)
        remove(digest)

    collector = threading.current_thread()
    monkeypatch.setattr(farm.farm.storage, "delete", remove_later)
    collect(farm)
    request.join(HANG_S)
    assert answers[0].status_code in (202, 503)
    assert needed(farm) <= kept(farm)
    assert farm.compile(b"model").status_code == 202
    assert needed(farm) <= kept(farm)


def test_many_who_refer_and_let_go_while_collectors_work(farm: TestFarm) -> None:
    models = [f"model {number}".encode() for number in range(3)]
    over = threading.Event()

    def refer(seed: int) -> list[int]:
        statuses = []
        for turn in range(12):
            model = models[(seed + turn) % 3]
            answer = farm.compile(model, spec=f"memory_limit_bytes: {10**9 + 100 * seed + turn}")
            statuses.append(answer.status_code)
            if answer.status_code == 202:
                assert digest(model) in kept(farm), "a reference without its file"
                let_go(answer.json()["id"], digest(model))
        return statuses

    def let_go(job_id: str, model: str) -> None:
        with farm.farm.database.transaction() as session:
            session.execute(update(Job).where(Job.id == job_id).values(model_digest="sha256:" + "0" * 64))
            if session.scalar(select(Job.id).where(Job.model_digest == model).limit(1)) is None:
                session.execute(delete(Holding).where(Holding.digest == model))

    def sweep_up() -> int:
        removed = 0
        while not over.is_set():
            removed += len(collect(farm).removed)
        return removed

    with ThreadPoolExecutor(5) as threads:
        collectors = [threads.submit(sweep_up) for _ in range(2)]
        users = [threads.submit(refer, seed) for seed in range(3)]
        statuses = [status for user in users for status in user.result(HANG_S)]
        over.set()
        removed = sum(one.result(HANG_S) for one in collectors)
    assert set(statuses) <= {202, 503}
    assert statuses.count(202) > 0
    assert removed > 0, "no collector came between"


@pytest.fixture(scope="module", params=["sqlite"])
def steady_farm(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestFarm]:
    folder = tmp_path_factory.mktemp("steady")
    (folder / "farm.db").write_bytes(migrated_sqlite.read_bytes())
    with open_test_farm(folder / "state", f"sqlite:///{folder / 'farm.db'}") as opened:
        yield opened


MODELS = [b"one", b"two", b"three"]


@settings(max_examples=25)
@given(
    turns=st.lists(
        st.tuples(st.sampled_from(["put", "compile", "let-go", "step", "begin"]), st.integers(0, 2)), max_size=25
    )
)
def test_in_any_order_what_is_referred_to_is_there(steady_farm: TestFarm, turns: list[tuple[str, int]]) -> None:
    """Passes of two collectors go on one step at a time between what users do."""
    farm = steady_farm
    passes = [Collection(farm.farm.database, farm.farm.storage, 0.0).steps() for _ in range(2)]
    for number, (act, which) in enumerate(turns):
        model = MODELS[which]
        if act == "put":
            put(farm, model)
        elif act == "compile":
            asked = farm.compile(model, spec=f"memory_limit_bytes: {time.time_ns() % 10**15 + number}")
            assert asked.status_code == 202
        elif act == "let-go":
            with farm.farm.database.transaction() as session:
                session.execute(delete(Holding).where(Holding.digest == digest(model)))
                gone = {"model_digest": "sha256:" + "0" * 64}
                session.execute(update(Job).where(Job.model_digest == digest(model)).values(**gone))
        elif act == "step":
            next(passes[which % 2], None)
        else:
            passes[which % 2] = Collection(farm.farm.database, farm.farm.storage, 0.0).steps()
        assert needed(farm) - {"sha256:" + "0" * 64} <= kept(farm), (number, act)


def test_listings_of_older_farms_are_learnt_before_anything_goes(farm: TestFarm) -> None:
    job = send(farm, named(DATA), *DATA.values()).json()
    parts = {digest(held) for held in DATA.values()}
    with farm.farm.database.transaction() as session:
        session.execute(delete(ListedFile))
        session.execute(delete(FileUse))
        session.execute(delete(Holding))
    assert twice(farm).removed == []
    assert parts <= kept(farm)
    with farm.farm.database.read() as session:
        assert referred(session, parts) == parts
    with farm.farm.database.transaction() as session:
        session.execute(delete(Job).where(Job.id == job["id"]))
    assert {one for one, _ in twice(farm).removed} >= parts


def test_pieces_of_no_upload_and_what_the_dead_began_go(small_farm: TestFarm, tmp_path: Path) -> None:
    small_farm.farm.storage.append("upl_nobodys", b"x", at_bytes=0)
    path = path_of(begin(small_farm, b"mine"))
    piece(small_farm, path, 0, b"mi")
    left = small_farm.farm.settings.state / "files" / "incoming" / "tmpleft"
    left.write_bytes(b"of a process that was killed")
    os.utime(left, (1, 1))
    assert collect(small_farm, dry_run=True).unfinished == ["upl_nobodys"]
    assert left.exists()
    assert collect(small_farm).unfinished == ["upl_nobodys"]
    assert [name for name, _ in small_farm.farm.storage.growing()] == [path.rpartition("/")[2]]
    assert not left.exists()


def test_the_sweeper_collects_a_little_at_a_time(sqlite_url: str, tmp_path: Path) -> None:
    with open_test_farm(tmp_path / "s", sqlite_url, gc_s=1e-9, gc_grace_s=0) as farm:
        orphan = put(farm, b"nobody's")
        for _ in range(6):
            farm.sweep()
        assert orphan not in kept(farm)
    with open_test_farm(tmp_path / "s", sqlite_url, gc_s=0, gc_grace_s=0) as farm:
        orphan = put(farm, b"nobody's")
        for _ in range(6):
            farm.sweep()
        assert orphan in kept(farm)


def test_the_operator_collects_by_hand(
    small_farm: TestFarm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    orphan = put(small_farm, b"nobody's")
    chosen = small_farm.farm.settings
    for name in ("state", "database_url"):
        monkeypatch.setenv(f"POCKFARM_{name.upper()}", str(getattr(chosen, name)))
    monkeypatch.setenv("POCKFARM_GC_GRACE_S", "0")
    assert admin.main(["gc"]) == 0
    assert "0 removed, 0 bytes" in capsys.readouterr().out
    assert admin.main(["gc", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"{orphan}  8 bytes" in said
    assert "1 would be removed, 8 bytes" in said
    assert orphan in kept(small_farm)
    assert admin.main(["gc"]) == 0
    assert orphan not in kept(small_farm)


def test_a_live_attempt_keeps_what_it_works_with(farm: TestFarm) -> None:
    bundle = farm.bundle()
    board = farm.board()
    farm.run(bundle=bundle)
    work = leased(board)
    forget_holdings(farm, bundle)
    assert twice(farm).removed == []
    assert board.put_weights(work, b"weights", digest(b"weights")).status_code == 201
    assert twice(farm).removed == []
    assert {bundle, digest(b"weights")} <= kept(farm)
