"""The rule-based test of states (`story_machine.py`): a bounded, repeatable part of the campaign, on PostgreSQL, and
stories by hand on both databases."""

from __future__ import annotations

from collections import Counter

import pytest

from device_agents import wire as p
from tests.sample import sample
from tests.service.farms import TestFarm
from tests.service.story_campaign import play, telling
from tests.service.story_jobs import ATTEMPTS
from tests.service.story_machine import Story

EXAMPLES, STEPS = 8, 40
DEATHS = (p.Outcome("failed", "device", "step.killed", "killed"),) * 2


@pytest.mark.parametrize("database_url", sample(("sqlite", "postgresql"), {"postgresql"}), indirect=True)
def test_whatever_happens_in_which_order_the_record_is_exact(farm: TestFarm) -> None:
    seen = play(farm, examples=EXAMPLES, steps=STEPS)
    for what in ("leased", "recorded", "leased -> queued", "leased -> failed"):
        assert seen[what], (what, seen)


def begun(farm: TestFarm) -> tuple[Story, Counter[str]]:
    """A story by hand, and what it sees."""
    seen: Counter[str] = Counter()
    story: Story = telling(farm, seen)()
    story.begin()
    story.nothing_is_lost_doubled_or_untold()
    return story, seen


def test_a_story_by_hand_gets_where_the_others_may_not(farm: TestFarm) -> None:
    """To a job that loses worker after worker, and to a board that proves that it works again."""
    story, seen = begun(farm)
    look = story.nothing_is_lost_doubled_or_untold
    story.compile(1)
    for _ in range(ATTEMPTS):
        story.claim(0)
        look()
        story.worker_dies()
        look()
    story.finish(0, "succeed")
    story.work_off(2)
    look()
    story.strike_out(0)
    look()
    for outcome in (p.Outcome("failed", "device", "device.disk", "full"), p.Outcome("succeeded")):
        story.wait(700.0)
        story.prove(0, outcome)
        look()
    assert seen["job: worker lost"] == ATTEMPTS
    for what in (
        "job: compiling -> failed",
        "job: claim lost",
        "job: queued -> succeeded",
        "canary failed",
        "canary succeeded",
    ):
        assert seen[what] == 1, (what, seen)


def test_a_story_by_hand_in_which_runs_go_on_until_they_may_not(farm: TestFarm) -> None:
    """One device's fault ends no run, two deaths do, and whoever waits too long expires: in just that sweep."""
    story, seen = begun(farm)
    look = story.nothing_is_lost_doubled_or_untold
    for outcome in (p.Outcome("failed", "device", "device.disk", "full"), *DEATHS):
        story.want_all()
        look()
        for lease in [one for one in story.leases() if one.is_live]:
            story.report(lease, outcome, False)
            look()
    assert seen["leased -> failed"] > 0
    story.submit(0, "")
    for seconds in (20000.0, 1500.0):
        story.wait(seconds)
        story.sweep()
        look()
    assert seen["queued -> expired"] == 0
    story.wait(200.0)
    story.sweep()
    look()
    assert seen["queued -> expired"] > 0


def test_a_story_by_hand_in_which_boards_never_end(farm: TestFarm) -> None:
    """Whoever lives on past its clock loses the run, and two such boards are a verdict on the run."""
    story, seen = begun(farm)
    look = story.nothing_is_lost_doubled_or_untold
    run, ends = story.tracks[next(iter(story.tracks))], ("queued", "failed")
    for end in ends:
        story.want_all()
        look()
        story.never_end([lease.run for lease in story.leases() if lease.is_live].index(run))
        look()
        assert run.state == end
    assert seen["taken back: limits.run-time"] == len(ends), seen
