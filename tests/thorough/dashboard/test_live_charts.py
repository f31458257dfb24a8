"""Charts that the library draws, in real Chromium: what people do with them, and what is left without it."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from service.dashboard import library, render
from service.dashboard.charts.interactive import Chart, Line
from tests.dashboard.conftest import PATIENCE_MS, SeededFarm
from tests.dashboard.screenshots import LOOKS, open_page, quiet_page

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("loopback")]
MOST_BYTES = 250_000
"""Of scripts that a browser keeps, compressed, all together."""


@pytest.fixture
def page(web: Browser, address: str, seeded: SeededFarm) -> Iterator[Page]:
    """A signed-in window; anything that the policy refuses, or that fails, ends the test."""
    with quiet_page(web, LOOKS[0], address, seeded.link()) as found:
        yield found


def chart(page: Page, figure: str) -> Locator:
    found = page.locator(f"#{figure} .live-chart")
    expect(found.locator("canvas")).to_be_visible()
    return found


def reach(found: Locator) -> tuple[float, float]:
    """Where x begins and ends."""
    expect(found).to_have_attribute("data-from", re.compile("."))
    return float(found.get_attribute("data-from") or "nan"), float(found.get_attribute("data-to") or "nan")


def point_at(page: Page, found: Locator, share: float, *, down_to: float | None = None) -> None:
    """The pointer at a share of the plot's width; dragged on to another one."""
    over = found.locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + share * box["width"], middle)
    if down_to is not None:
        page.mouse.down()
        page.mouse.move(box["x"] + down_to * box["width"], middle, steps=4)
        page.mouse.up()


def values(found: Locator) -> dict[str, str]:
    """What the legend says at the cursor."""
    rows = found.locator(".u-legend .u-series")
    return {row.locator(".u-label").inner_text(): row.locator(".u-value").inner_text() for row in rows.all()}


def dots_at(page: Page, found: Locator, left: float, top: float) -> dict[str, float]:
    """What the legend says of the dots that the pointer is near to; shares of the plot's width and height."""
    box = found.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + left * box["width"], box["y"] + top * box["height"])
    shown = {label: value for label, value in values(found).items() if label != "step" and value != "–"}
    return {label: float(value.replace(",", "")) for label, value in shown.items()}


def test_a_pointer_shows_the_values_of_the_step_it_is_at(page: Page, seeded: SeededFarm) -> None:
    page.goto(f"/dashboard/runs/{seeded.ids.train_run}")
    found = chart(page, "loss-curve")
    point_at(page, found, 0.5)
    said = values(found)
    table = page.request.get(f"/dashboard/runs/{seeded.ids.train_run}/losses.json").json()
    row = table["rows"][int(said["step"]) - 1]
    assert float(said["training"]) == pytest.approx(row["loss"], rel=1e-3)


def test_dragging_zooms_and_a_button_shows_all_again(page: Page, seeded: SeededFarm) -> None:
    page.goto(f"/dashboard/runs/{seeded.ids.train_run}")
    found = chart(page, "loss-curve")
    whole = reach(found)
    assert whole == (1, 280)
    point_at(page, found, 0.25, down_to=0.5)
    low, high = reach(found)
    assert low == pytest.approx(70, abs=8)
    assert high == pytest.approx(140, abs=8)
    page.locator("#loss-curve").get_by_role("button", name="Show all").click()
    assert reach(found) == whole


def test_runs_that_are_compared_are_read_and_zoomed_together(page: Page, seeded: SeededFarm) -> None:
    compared = (seeded.ids.full_run, seeded.ids.sparse_run)
    page.goto("/dashboard/compare?" + "&".join(f"run={run}" for run in compared))
    found = chart(page, "step-times")
    whole = reach(found)
    found.locator(".u-over").scroll_into_view_if_needed()
    said = {letter: value for top in range(5, 100, 5) for letter, value in dots_at(page, found, 0.2, top / 100).items()}
    for letter, run in zip("AB", compared, strict=True):
        steps = page.request.get(f"/dashboard/runs/{run}/steps.json").json()["rows"]
        near = [row["step_us"] / 1000 for row in steps[: len(steps) // 2]]
        assert any(said[letter] == pytest.approx(ms, rel=1e-3) for ms in near)
    point_at(page, found, 0.25, down_to=0.5)
    low, high = reach(found)
    assert whole[0] < low < high < whole[1]
    assert high - low == pytest.approx((whole[1] - whole[0]) / 4, rel=0.15)
    page.locator("#step-times").get_by_role("button", name="Show all").click()
    assert reach(found) == whole


def test_all_of_it_can_be_done_with_keys(page: Page, seeded: SeededFarm) -> None:
    page.goto(f"/dashboard/runs/{seeded.ids.train_run}")
    found = chart(page, "loss-curve")
    found.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert values(found)["step"] == "2"
    expect(found).to_have_attribute("aria-valuetext", re.compile("^step 2: training"))
    page.keyboard.press("+")
    assert reach(found)[1] < 280
    page.keyboard.press("0")
    assert reach(found) == (1, 280)


def test_smoothing_is_the_readers_choice(page: Page, seeded: SeededFarm) -> None:
    page.goto(f"/dashboard/runs/{seeded.ids.train_run}")
    found = chart(page, "loss-curve")
    slider = page.locator("#loss-curve input[type=range]")
    seen = []
    for place in ("0", "100"):
        slider.fill(place)
        point_at(page, found, 0.03)
        seen.append(values(found)["training, mean"])
    raw = values(found)["training"]
    assert seen[0] != seen[1]
    near, far = (abs(float(one) - float(raw)) for one in seen)
    assert near < far, "the wider mean is further from a falling curve's first steps"


def test_the_step_chart_has_every_step_and_the_medians_of_the_page(page: Page, seeded: SeededFarm) -> None:
    page.goto(f"/dashboard/runs/{seeded.ids.sparse_run}")
    found = chart(page, "step-latency")
    point_at(page, found, 0.0)
    page.keyboard.press("Tab")
    found.focus()
    page.keyboard.press("ArrowRight")
    said = values(found)
    figure = page.locator(".figures .value").first.inner_text()
    assert f"{float(said['median']):.1f} ms" == " ".join(figure.split())
    table = page.request.get(f"/dashboard/runs/{seeded.ids.sparse_run}/steps.json").json()
    assert float(said["step time"]) == pytest.approx(table["rows"][0]["step_us"] / 1000, rel=1e-3)


def test_dark_has_its_own_colours_and_comes_without_loading_again(page: Page, seeded: SeededFarm) -> None:
    page.goto(f"/dashboard/runs/{seeded.ids.train_run}")
    found = chart(page, "loss-curve")
    stroke = "document.querySelector('#loss-curve .u-legend .u-series:nth-child(2) .u-marker').style.borderColor"
    light = page.evaluate(stroke)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"() => {stroke} !== '{light}'")
    expect(found.locator("canvas")).to_be_visible()


def test_without_javascript_the_pictures_are_there(web: Browser, address: str, seeded: SeededFarm) -> None:
    context = web.new_context(base_url=address, java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(seeded.link())
    page.goto(f"/dashboard/runs/{seeded.ids.train_run}")
    for picture in ("step", "loss"):
        expect(page.locator(f".on-wide svg.{picture}-plot")).to_be_visible()
    assert page.locator("canvas").count() == 0
    context.close()


def test_temperatures_are_read_at_the_pointer_and_break_where_none_was_told(page: Page, seeded: SeededFarm) -> None:
    page.goto(f"/dashboard/devices/{seeded.ids.pi}")
    found = chart(page, "temperatures")
    rows = page.request.get(f"/dashboard/devices/{seeded.ids.pi}/temperatures.json").json()["rows"]
    assert reach(found)[1] == pytest.approx(rows[-1]["day"])
    point_at(page, found, 0.25)
    said = {label: value for label, value in values(found).items() if label == "hottest"}
    near = min(rows, key=lambda row: abs(row["day"] - 0.25 * rows[-1]["day"]))
    assert float(said["hottest"]) == pytest.approx(near["hottest_c"], abs=2.0)
    (gap,) = (number for number, row in enumerate(rows) if row["hottest_c"] is None)
    assert rows[gap + 1]["day"] - rows[gap - 1]["day"] > 1.0


def test_without_the_package_the_pictures_are_there(
    page: Page, seeded: SeededFarm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(library, "PACKAGES", tmp_path)
    page.goto(f"/dashboard/runs/{seeded.ids.train_run}")
    expect(page.locator(".on-wide svg.loss-plot")).to_be_visible()
    assert page.locator("script[src*=uPlot]").count() == 0
    assert render.static_file("uPlot.iife.min.js") is None


def test_a_table_that_cannot_be_had_leaves_the_picture(web: Browser, address: str, seeded: SeededFarm) -> None:
    page = open_page(web, LOOKS[0], address, seeded.link())
    page.route("**/losses.json", lambda route: route.abort())
    page.goto(f"/dashboard/runs/{seeded.ids.train_run}")
    chart(page, "step-latency")
    expect(page.locator("#loss-curve .on-wide svg")).to_be_visible()
    page.context.close()


def test_what_a_browser_keeps_is_small(seeded: SeededFarm) -> None:
    client = seeded.browser()
    names = [name for name in (*render.STATIC_FILES, *library.FILES) if name.endswith((".js", ".css"))]
    sizes = {}
    for name in names:
        answer = client.get(render.static_address(name))
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        sizes[name] = len(gzip.compress(answer.content))
    assert sizes["uPlot.iife.min.js"] > 10_000
    assert sum(sizes.values()) <= MOST_BYTES


def test_a_chart_is_told_in_few_words() -> None:
    told = json.loads(
        Chart((Line("loss", "series-1", column="loss"),), "step", "loss", source="/a.json", x="step").text
    )
    assert told == {
        "x_title": "step",
        "y_title": "loss",
        "source": "/a.json",
        "x": "step",
        "lines": [{"label": "loss", "ink": "series-1", "column": "loss"}],
    }
