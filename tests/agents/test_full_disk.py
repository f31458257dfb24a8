"""A disk that is full of other things is the board's, not the job's."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest

from device_agents.attempt import FULL_BYTES, _judged
from device_agents.errors import AttemptError
from device_agents.farm.client import _save
from device_agents.farm.retry import is_worth_retrying
from device_agents.wire import Blob, Outcome
from tests.small_disk import small_disk

GIB = 1 << 30
FAILED = Outcome("failed", "limits", "limits.disk", "weights: cannot write: No space left on device")
CRASHED = Outcome("failed", "compiler", "step.exit", "the binary ended with exit code 1")


@pytest.mark.parametrize("outcome", [FAILED, CRASHED])
def test_a_step_that_fails_on_a_board_without_room_is_put_down_to_the_board(outcome: Outcome) -> None:
    judged = _judged(outcome, free_bytes=0, free_after_bytes=1 << 20, total_bytes=GIB)
    assert (judged.state, judged.cause, judged.code) == ("failed", "device", "device.disk")
    assert outcome.message in judged.message


def test_a_job_that_filled_the_disk_itself_answers_for_it() -> None:
    assert _judged(FAILED, free_bytes=0, free_after_bytes=GIB * 3 // 4, total_bytes=GIB) == FAILED


@pytest.mark.parametrize(
    "outcome",
    [Outcome("succeeded"), Outcome("failed", "user", "data.nan", "x"), Outcome("cancelled", "user", "c", "x")],
)
def test_other_ends_stay(outcome: Outcome) -> None:
    assert _judged(outcome, free_bytes=0, free_after_bytes=0, total_bytes=GIB) == outcome


def test_with_room_nothing_changes() -> None:
    assert _judged(FAILED, free_bytes=FULL_BYTES, free_after_bytes=FULL_BYTES, total_bytes=GIB) == FAILED


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
    assert "bundle.pfb could not be written: No space left" in caught.value.message or "too large" in str(caught.value)
    assert caught.value.hint
    assert not is_worth_retrying(caught.value)
