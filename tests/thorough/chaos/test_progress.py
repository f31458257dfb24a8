"""What counts as standing still while a campaign goes on."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from tests.thorough.chaos.progress import LONGEST_LOOK_S, STILL_S, Open, Stillness

LOOKS = int(STILL_S / LONGEST_LOOK_S) + 3
FREE = frozenset({"agent-1"})


def found(takers: frozenset[str] | None, *, held: Collection[str] = (), idle: Collection[str] = ()) -> list[str]:
    stillness = Stillness()
    for _ in range(LOOKS):
        stillness.note({"run_1": Open(("x", 1), takers)}, LONGEST_LOOK_S, held=held, idle=idle)
    return list(stillness.found)


@pytest.mark.parametrize(
    ("takers", "held", "idle", "is_stuck"),
    [
        (None, (), (), True),  # somebody has it and does nothing
        (None, ("run_1",), (), False),  # the fault that holds it is on
        (FREE, (), ("agent-1",), True),  # a board is free and does not take it
        (FREE, (), (), False),  # all boards are busy or away
        (FREE, (), ("agent-2",), False),  # the free one has had it
    ],
)
def test_time_counts_only_if_it_could_have_been_used(
    takers: frozenset[str] | None, held: Collection[str], idle: Collection[str], is_stuck: bool
) -> None:
    assert found(takers, held=held, idle=idle) == ["run_1"] * is_stuck


def test_progress_begins_anew_and_what_stood_still_once_is_told_though_it_went_on_later() -> None:
    stillness = Stillness()
    for step in range(LOOKS):
        stillness.note({"run_1": Open(("running", step), None)}, LONGEST_LOOK_S, held=(), idle=())
    assert not stillness.found
    for _ in range(LOOKS):
        stillness.note({"run_1": Open(("running", -1), None)}, LONGEST_LOOK_S, held=(), idle=())
    stillness.note({}, LONGEST_LOOK_S, held=(), idle=())
    assert "run_1: no progress for more than 120 s: ('running', -1)" in stillness.found["run_1"]
