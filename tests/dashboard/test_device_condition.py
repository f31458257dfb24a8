"""A device's storage and temperature on its page, and the picture of a week: joined, broken, or absent with why."""

from __future__ import annotations

import re

import pytest

from service.dashboard import queries
from service.dashboard.charts.heat import GAP_S, heat_plot, stretches
from service.dashboard.pages import device_condition
from service.dashboard.pages.device_condition import heat_table
from service.devices.conditions import temperatures
from service.store.database.models import QUARTER_S, DeviceCondition
from tests.dashboard.conftest import SeededFarm
from tests.dashboard.markup import check_page

WEEK = [(1e9 + place * QUARTER_S, 40.0 + place % 7) for place in range(672) if not 100 <= place < 120]


def words(seeded: SeededFarm, device_id: str) -> str:
    answer = seeded.browser().get(f"/dashboard/devices/{device_id}")
    assert answer.status_code == 200
    return check_page(answer.text).visible_text()


def test_a_page_says_what_was_told_and_when(seeded: SeededFarm) -> None:
    said = words(seeded, seeded.ids.pi)
    assert re.search(r"Storage\s*12\.0 GiB of 29\.0 GiB free, [\dmins ]+ ago", said)
    assert re.search(r"Temperature\s*61 \N{DEGREE SIGN}C, [\dmins ]+ ago", said)
    assert re.search(r"Its agent keeps\s*37\.0 MiB", said)


def test_a_page_says_that_nothing_was_told(seeded: SeededFarm) -> None:
    said = words(seeded, seeded.ids.host)
    assert re.search(r"Storage\s*not told: its agent is older", said)
    assert "Its agent has told no temperature" in said


def test_storage_that_is_nearly_full_needs_attention(seeded: SeededFarm) -> None:
    said = check_page(seeded.browser().get("/dashboard").text).visible_text()
    assert "The storage of orin-nano-01 is nearly full" in said
    assert "2.00 GiB of 59.0 GiB are free" in said


def test_the_picture_joins_what_follows_and_breaks_where_nothing_was_told() -> None:
    before, after = stretches(WEEK)
    assert (len(before), len(after)) == (100, 552)
    drawn = str(heat_plot(WEEK, 900.0))
    assert drawn.count('class="heat-line"') == 2
    assert "40.0 to 46.0" in drawn
    assert stretches([]) == []
    lone = [*WEEK[:3], (WEEK[2][0] + 10 * GAP_S, 50.0)]
    assert str(heat_plot(lone, 900.0)).count("<circle") == 1


def test_the_file_holds_the_same_with_an_empty_row_in_each_gap(seeded: SeededFarm) -> None:
    rows = heat_table(WEEK).rows
    told = [row.values["hottest_c"] for row in rows]
    assert [heat for heat in told if heat is not None] == [heat for _, heat in WEEK]
    assert told.index(None) == 100
    assert told.count(None) == 1
    assert heat_table([]).rows == ()
    answer = seeded.browser().get(f"/dashboard/devices/{seeded.ids.pi}/temperatures.csv")
    assert answer.status_code == 200
    with seeded.farm.database.read() as session:
        assert len(answer.text.splitlines()) == 2 + len(temperatures(session, seeded.ids.pi))


@pytest.mark.parametrize(
    ("condition", "points", "why"),
    [
        (DeviceCondition(temperature_c=40.0), WEEK[:1], "begins with the second"),
        (DeviceCondition(), [], "finds no temperature sensor"),
        (DeviceCondition(temperature_c=40.0), [], "no temperature in the last week"),
        (None, [], "Its agent has told no temperature"),
    ],
)
def test_where_there_is_no_chart_the_page_says_why(
    seeded: SeededFarm,
    monkeypatch: pytest.MonkeyPatch,
    condition: DeviceCondition | None,
    points: list[tuple[float, float]],
    why: str,
) -> None:
    monkeypatch.setattr(device_condition, "temperatures", lambda *_: points)
    with seeded.farm.database.read() as session:
        found = queries.device(session, seeded.ids.host)
        assert found is not None
        part = device_condition.heat_part(session, found, condition)
    assert part.figure is None
    assert why in part.why
