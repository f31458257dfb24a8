"""A disk that is full of other things is the board's, not the job's."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from device_agents.attempt import Attempt
from device_agents.errors import AttemptError
from device_agents.farm.client import _save
from device_agents.farm.gate import admit
from device_agents.farm.retry import is_worth_retrying
from device_agents.farm.state import StateFolder
from device_agents.job import disk
from device_agents.job.confinement import Confinement
from device_agents.job.disk import FULL_BYTES, Room, room_left, with_cause
from device_agents.job.sandbox import Sandbox
from device_agents.job.step import run_process
from device_agents.wire import Blob, Envelope, Limits, Outcome
from tests.service.board import description
from tests.small_disk import small_disk

GIB = 1 << 30
FAILED = Outcome("failed", "limits", "limits.disk", "weights: cannot write: No space left on device")
UNOPENED = Outcome("failed", "user", "user.output", "out/weights: cannot write beside it: No space left on device")
CRASHED = Outcome("failed", "compiler", "step.exit", "the binary ended with exit code 1")


@pytest.mark.parametrize("outcome", [FAILED, UNOPENED, CRASHED])
def test_a_step_that_fails_on_a_board_without_room_is_put_down_to_the_board(outcome: Outcome) -> None:
    outcome_without_room = with_cause(outcome, Room(0, GIB, written_bytes=1 << 20))
    assert (outcome_without_room.state, outcome_without_room.cause, outcome_without_room.code) == (
        "failed",
        "device",
        "device.disk",
    )
    assert outcome.message in outcome_without_room.message


def test_a_job_that_filled_the_disk_itself_answers_for_it() -> None:
    assert with_cause(FAILED, Room(0, GIB, written_bytes=GIB * 3 // 4)) == FAILED


@pytest.mark.parametrize(
    "outcome",
    [Outcome("succeeded"), Outcome("failed", "user", "data.nan", "x"), Outcome("cancelled", "user", "c", "x")],
)
def test_other_ends_stay(outcome: Outcome) -> None:
    assert with_cause(outcome, Room(0, GIB, 0)) == outcome


def test_with_room_nothing_changes() -> None:
    assert with_cause(FAILED, Room(FULL_BYTES, GIB, 0)) == FAILED


def test_the_room_is_what_there_is_and_what_the_job_wrote(tmp_path: Path) -> None:
    """Not what came free since: it may have been given back by whoever took it."""
    with small_disk(tmp_path / "small", 4 << 20) as disk:
        (disk.folder / "job").mkdir()
        (disk.folder / "job" / "weights").write_bytes(bytes(1 << 20))
        with disk.full():
            found = room_left(disk.folder, disk.folder / "job")
        assert with_cause(CRASHED, found).code == "device.disk"
        assert found.written_bytes == 1 << 20
        assert room_left(disk.folder, disk.folder / "job").free_bytes > 1 << 20


def test_a_full_disk_is_looked_for_where_the_step_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here whoever took the room gives it back while what is left is handed on."""
    monkeypatch.setattr(Attempt, "_enter", lambda *_: None)
    monkeypatch.setattr(Attempt, "_work", lambda *_: None)
    monkeypatch.setattr(Attempt, "_finish", lambda self, outcome, started_at: outcome)
    with small_disk(tmp_path / "small", 4 << 20) as disk, contextlib.ExitStack() as held:

        def fail(*_: object) -> Outcome:
            held.enter_context(disk.full())
            return CRASHED

        monkeypatch.setattr(Attempt, "_outcome", fail)
        attempt: Any = Attempt.__new__(Attempt)
        state = SimpleNamespace(scratch=disk.folder / "scratch")
        state.scratch.mkdir()
        attempt._folder, attempt._stays = state.scratch / "job", True
        attempt._station = SimpleNamespace(client=SimpleNamespace(state=state))
        attempt._heartbeat, attempt._events, attempt._checkpoints = Part(), Part(), Part(end=lambda **_: held.close())
        ended: Any = attempt.run()
    assert (ended.cause, ended.code) == ("device", "device.disk")


class Part(contextlib.nullcontext[None]):
    """Of an attempt, with what the test needs of it."""

    lost = ""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.__dict__.update(more)


def test_a_download_without_room_is_the_boards_and_is_not_tried_again(tmp_path: Path) -> None:
    data = b"bundle" * 100_000
    blob = Blob(f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
    with small_disk(tmp_path / "small", 1 << 20) as disk:
        answer: Any = io.BytesIO(data)  # a connection's answer is read like a file
        with disk.full(), pytest.raises(AttemptError) as caught:
            _save(answer, blob, disk.folder / "bundle.pfb", lambda: None)
        answer.seek(0)
        _save(answer, blob, disk.folder / "bundle.pfb", lambda: None)
        assert (disk.folder / "bundle.pfb").read_bytes() == data
    assert (caught.value.cause, caught.value.code) == ("device", "device.disk")
    assert caught.value.message.startswith("bundle.pfb ")
    assert caught.value.hint
    assert not is_worth_retrying(caught.value)


def test_no_file_of_a_job_outgrows_the_disks_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_free_bytes", lambda _: disk.RESERVE_BYTES * 2 + (1 << 20))
    watch = disk.DiskWatch(tmp_path, GIB)
    assert watch.room_bytes() == disk.RESERVE_BYTES + (1 << 20)
    monkeypatch.setattr(disk, "_free_bytes", lambda _: 4096)
    assert watch.room_bytes() == 2048


def test_a_file_that_the_disk_cut_off_is_put_down_to_the_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a real process, with the limit that a job gets on a disk with so little room."""
    monkeypatch.setattr(disk, "_free_bytes", lambda _: disk.RESERVE_BYTES + (1 << 20))
    (tmp_path / "out").mkdir()
    watch = disk.DiskWatch(tmp_path / "out", GIB)
    confinement = Confinement(Sandbox(0), watch, None)
    job = SimpleNamespace(limits=Limits(run_s=20, memory_bytes=GIB, disk_bytes=GIB), folder=tmp_path)
    words = ["/bin/sh", "-c", "exec dd if=/dev/zero of=out/x bs=65536 count=1000 2>/dev/null"]
    process = confinement.process(words, job, SimpleNamespace(is_emulated=False), run_s=20, deadline_s=1e12)  # type: ignore[arg-type]
    ending = run_process(process, on_event=lambda _: None, on_stderr=lambda _: None, should_stop=lambda: None)
    assert (tmp_path / "out" / "x").stat().st_size == max(1 << 20, (disk.RESERVE_BYTES + (1 << 20)) // 2)
    with pytest.raises(AttemptError) as caught:
        confinement.check(ending, process)
    assert (caught.value.code, caught.value.cause) == ("device.disk", "device")


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, "device.disk"), (errno.EDQUOT, "device.disk"), (errno.EIO, "device.system")],
)
def test_a_board_that_cannot_remember_an_assignment_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    state = StateFolder(tmp_path / "board")
    monkeypatch.setattr(state, "identity", refuse)
    outcome = admit(Envelope("", "", ()), state, description())
    assert isinstance(outcome, Outcome)
    assert (outcome.cause, outcome.code) == ("device", code)
    assert bool(outcome.hint) == (code == "device.disk")


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "device.disk"), (errno.EIO, "device.system")])
def test_an_attempt_that_the_system_fails_says_why(number: int, code: str) -> None:
    def fail() -> None:
        raise OSError(number, "no")

    attempt = Attempt.__new__(Attempt)
    attempt._assignment = cast(Any, SimpleNamespace(run_id="run"))
    outcome = attempt._outcome(fail)
    assert (outcome.cause, outcome.code) == ("device", code)
