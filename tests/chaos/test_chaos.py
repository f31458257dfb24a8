"""Three minutes of a campaign: faults in flight over most parts, and nothing lost, doubled, wrong or stuck.

`make chaos` has the figures. This one mostly waits.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.campaign import Campaign, Log, Record
from tests.chaos.field import ROOT, Field
from tests.chaos.play import play
from tests.chaos.points import ASKED, POINTS, document
from tests.chaos.topology import Topology
from tests.chaos.verdict import Findings, shown

pytestmark = pytest.mark.xdist_group("chaos")
SECONDS = 120.0
"""Of faults; the farm also starts, comes to rest and stops."""
FEWEST_POINTS, FEWEST_FAULTS = 8, 20
"""What a machine does that is busy with other tests; a quiet one, half as many again."""


@pytest.mark.usefixtures("loopback")
def test_a_short_campaign_loses_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    records, findings = play(
        "sqlite", faults=1000, seconds=SECONDS, rng=random.Random(1), say=said.append, log=tmp_path / "log",
        is_long=False, boards=4,
    )  # fmt: skip
    table = shown(records, findings)
    print(table)
    assert findings.is_good, table
    confirmed = [one for one in records if one.evidence]
    assert len(confirmed) >= FEWEST_FAULTS, said
    assert len({one.point for one in confirmed}) >= FEWEST_POINTS, said


def test_there_are_twelve_points_and_each_row_is_one_of_a_kind() -> None:
    assert len({one.point for one in POINTS}) >= 12
    assert len({(one.point, one.kind) for one in POINTS}) == len(POINTS)


def test_whatever_a_campaign_is_to_do_is_a_row_and_the_page_says_which() -> None:
    rows = [f"{one.point}: {one.kind}" for one in POINTS]
    named = [name for names in ASKED.values() for name in names]
    assert sorted(named) == sorted(rows), "each row is an answer to one thing that is asked for"
    assert all(ASKED.values())
    page = (ROOT / "docs/chaos.md").read_text()
    assert page.rstrip().endswith(document()), "renew its table: python -m tests.chaos.points"


def test_a_campaign_goes_on_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = [
        Record("API", "killed", "api-1", evidence, 1.0, 2.0, 20.0, session="first") for evidence in ("run", "run", "")
    ]
    for one in (*done, replace(done[0], session="cut off")):
        Log(log).add(one)
    Log(log).judge("first", {"lost": ["run_1"], "doubled": []})
    topology = Topology(str(tmp_path), "sqlite", {}, {"agent-1": 1}, {}, {})
    field = Field(topology, None, {}, {}, {}, None)  # type: ignore[arg-type]
    campaign = Campaign(field, 3, time.monotonic() + 60, random.Random(1), Log(log))
    assert campaign.confirmed() == 2, "neither what was not confirmed counts, nor what nobody has judged"
    assert Findings([], [], [], [], [], []).beside(Log(log).offenders()).lost == ["run_1"], "no session washes another"
    assert not campaign.is_over()
    chosen = campaign._next([one for one in POINTS if one.point == "API"])
    assert chosen is not None
    assert chosen.kind != "killed", "those that were tried least come first"
    campaign.records.append(done[0])
    assert campaign.is_over()
