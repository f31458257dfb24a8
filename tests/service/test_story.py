"""The rule-based test of states (`story_machine.py`), on both databases: a bounded, repeatable part of the campaign."""

from __future__ import annotations

from tests.service.farms import TestFarm
from tests.service.story_campaign import play

EXAMPLES, STEPS = 8, 40


def test_whatever_happens_in_which_order_the_record_is_exact(farm: TestFarm) -> None:
    seen = play(farm, examples=EXAMPLES, steps=STEPS)
    for what in ("leased", "recorded", "leased -> queued", "leased -> failed"):
        assert seen[what], (what, seen)
