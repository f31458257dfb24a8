"""Three minutes of a campaign: faults in flight over most parts, and nothing lost, doubled, wrong or stuck.

`make chaos` has the figures. This one mostly waits.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.play import play
from tests.chaos.points import POINTS
from tests.chaos.verdict import shown

pytestmark = pytest.mark.xdist_group("chaos")
SECONDS = 120.0
"""Of faults; the farm also starts, comes to rest and stops."""
FEWEST_POINTS, FEWEST_FAULTS = 6, 12
"""Far below what a quiet machine does."""


@pytest.mark.usefixtures("loopback")
def test_a_short_campaign_loses_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    records, findings = play(
        "sqlite", faults=1000, seconds=SECONDS, rng=random.Random(1), say=said.append, log=tmp_path / "log",
        is_long=False,
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
