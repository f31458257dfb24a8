"""A disk that is full of other things is the board's, not the job's."""

from __future__ import annotations

import pytest

from device_agents.attempt import FULL_BYTES, _judged
from device_agents.wire import Outcome

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
