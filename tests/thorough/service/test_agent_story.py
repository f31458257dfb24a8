"""Stories of real agents (`agent_story.py`), on both databases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.agents.fake_step import bundle
from tests.agents.live_farm import live_farm
from tests.sample import sample
from tests.service.agent_story import ALL_ACTS, MISHAPS, AgentStory

EXAMPLES, STEPS = 5, 8
NEVER_S = 3600.0
DATABASES = ("sqlite", "postgresql")
CHOSEN = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, phases=(Phase.generate,))


@pytest.fixture
def story(database_url: str, tmp_path: Path, loopback: None) -> Iterator[type[AgentStory]]:
    """The machine, at a farm that sweeps when it is told to."""
    with live_farm(tmp_path / "farm", database_url=database_url, sweep_s=NEVER_S, lease_s=60.0) as farm:
        built = {}
        for kind in ("normal", "crash"):
            file = tmp_path / kind
            file.write_bytes(bundle(kind))
            built[kind] = farm.keep_bundle(file)
        yield type("Story", (AgentStory,), {"farm": farm, "built": built, "folder": tmp_path, "seen": Counter()})


@pytest.mark.parametrize("database_url", sample(DATABASES, {"sqlite"}), indirect=True)
def test_agents_and_farm_lose_nothing_between_them(story: type[AgentStory]) -> None:
    run_state_machine_as_test(story, settings=CHOSEN)
    print(dict(sorted(story.seen.items())))
    for what in ("worked", *ALL_ACTS, "normal succeeded", "crash failed"):
        assert story.seen[what], (what, story.seen)


@pytest.mark.parametrize("database_url", sample(DATABASES, {"postgresql"}), indirect=True)
def test_each_mishap_once(story: type[AgentStory]) -> None:
    telling = story()
    telling.begin()
    for pick, mishap in enumerate(MISHAPS):
        telling.submit(0)
        for one in (mishap, None):
            telling.work(pick, one)
            telling.nothing_is_doubled_or_untold()
        telling.release(pick)
    telling.teardown()
    assert {what for what in story.seen if " at " in what} == {f"{what} at {moment}" for moment, what in MISHAPS}
    assert story.seen["normal succeeded"] > len(MISHAPS) / 2
