"""The page of a run in real Chromium: what a person does there with pointer and keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from service.store.database.models import Run
from tests.dashboard.conftest import PATIENCE_MS, SeededFarm
from tests.dashboard.screenshots import LOOKS, quiet_page
from tests.thorough.dashboard.test_live_charts import chart, point_at, reach, values

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("loopback")]


@pytest.fixture
def page(web: Browser, served: tuple[SeededFarm, str]) -> Iterator[Page]:
    with quiet_page(web, LOOKS[0], served[1], served[0].link()) as found:
        yield found


def test_what_the_device_was_like_is_read_beside_a_step(page: Page, served: tuple[SeededFarm, str]) -> None:
    page.goto(f"/dashboard/runs/{served[0].ids.pi_run}")
    steps, warmth = chart(page, "state-steps"), chart(page, "state-temperature_c")
    assert values(warmth)["temperature"] == "–"
    point_at(page, steps, 0.05)
    assert values(warmth)["temperature"] not in ("–", "")
    assert values(warmth)["seconds"] != "–"
    point_at(page, steps, 0.1, down_to=0.3)
    expect(warmth).to_have_attribute("data-to", steps.get_attribute("data-to") or "none")
    assert reach(warmth)[1] < 200
    page.locator("#state-steps").get_by_role("button", name="Show all").click()
    assert reach(warmth)[0] == 0


def test_a_dot_of_the_roofline_says_which_kernel_it_is(page: Page, served: tuple[SeededFarm, str]) -> None:
    page.goto(f"/dashboard/runs/{served[0].ids.sparse_run}")
    found = chart(page, "roofline")
    found.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    said = found.get_attribute("aria-valuetext") or ""
    assert said.startswith("FLOP per byte moved")
    assert any(name in said for name in ("update", "blocks", "classifier"))


def test_kernels_are_sorted_and_found_without_loading(page: Page, served: tuple[SeededFarm, str]) -> None:
    page.goto(f"/dashboard/runs/{served[0].ids.sparse_run}")
    page.evaluate("window.isTheSame = true")
    place = page.locator("#kernels")
    place.get_by_role("link", name="Of roof").click()
    expect(place.locator("th[aria-sort=descending]")).to_contain_text("Of roof")
    shares = [float(text) for text in place.locator("tbody tr td:last-child").all_inner_texts()]
    assert shares == sorted(shares, reverse=True)
    place.get_by_role("link", name="Of roof").click()
    assert float(place.locator("tbody tr td:last-child").first.inner_text()) == min(shares)
    place.get_by_label("Find a kernel").fill("depthwise")
    names = place.locator("tbody tr:visible th").all_inner_texts()
    assert names
    assert all("depthwise" in name for name in names)
    expect(place.locator("[data-found]")).to_have_text(f"{len(names)} of {len(shares)} shown")
    assert page.evaluate("window.isTheSame") is True


def test_kernels_are_found_without_javascript(web: Browser, served: tuple[SeededFarm, str]) -> None:
    context = web.new_context(java_script_enabled=False, base_url=served[1])
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(served[0].link())
    page.goto(f"/dashboard/runs/{served[0].ids.sparse_run}")
    page.get_by_label("Find a kernel").fill("depthwise")
    page.get_by_role("button", name="Find").click()
    page.wait_for_url("**depthwise**")
    names = page.locator("#kernels tbody tr:visible th").all_inner_texts()
    assert names
    assert all("depthwise" in name for name in names)
    page.get_by_label("Name optional").fill("without scripts")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("without scripts")
    context.close()


def test_a_run_is_named_and_found_by_its_tag(page: Page, served: tuple[SeededFarm, str]) -> None:
    page.goto(f"/dashboard/runs/{served[0].ids.full_run}")
    page.get_by_label("Name optional").fill("reference")
    page.get_by_label("Tags optional").fill("Paper, table-2")
    page.get_by_label("Note optional").fill("with a fan")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#said")).to_contain_text("saved")
    expect(page.get_by_role("heading", level=1)).to_have_text("reference")
    expect(page.locator(".said-note")).to_have_text("with a fan")
    page.get_by_role("link", name="table-2").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("reference")


def test_a_run_is_cancelled_after_a_question(page: Page, served: tuple[SeededFarm, str]) -> None:
    seeded = served[0]
    page.goto(f"/dashboard/runs/{seeded.ids.running_run}")
    page.locator("#run-acts summary").click()
    page.get_by_role("button", name="Yes: Cancel").click()
    expect(page.locator("#said")).to_contain_text("is asked to stop")
    with seeded.farm.database.read() as session:
        assert session.get_one(Run, seeded.ids.running_run).cancel_requested


def test_a_command_is_copied(page: Page, served: tuple[SeededFarm, str]) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"/dashboard/runs/{served[0].ids.train_run}")
    page.get_by_role("button", name="Copy: Command line").click()
    expect(page.get_by_role("button", name="Copy: Command line")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()").startswith("pockfarm run sha256:")


def test_a_page_that_follows_keeps_what_its_reader_zoomed_to(page: Page, served: tuple[SeededFarm, str]) -> None:
    from tests.dashboard.test_browser import _advance_run

    page.goto(f"/dashboard/runs/{served[0].ids.running_run}")
    found = chart(page, "loss-curve")
    point_at(page, found, 0.2, down_to=0.5)
    low, high = reach(found)
    assert high < 148
    _advance_run(served[0], 161)
    expect(page.get_by_text("161 of 400 steps")).to_be_visible()
    assert reach(chart(page, "loss-curve")) == pytest.approx((low, high))
