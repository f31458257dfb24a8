"""Pages in a real browser: a silent console, nothing overflows, contrast, keyboard, pages that follow by themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import delete

from service.store.database.models import Event, Job, Run
from tests.dashboard.conftest import PATIENCE_MS, SeededFarm, make_farm
from tests.dashboard.screenshots import LOOKS, Look, open_page, pages_of, serving
from tests.dashboard.test_pages import pages_of_each_kind
from tests.sample import some, thinned

MEASURE = (Path(__file__).parent / "measure.js").read_text()
pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("loopback")]
KEY_ELEMENTS = {
    "overview": (".summary-line", "table"),
    "job-done": (".figures", "svg.arena-picture", "pre"),
    "job-compiling": ("progress",),
    "job-failed": (".notice.bad",),
    "runs": ("form.filters", "table input[type=checkbox]"),
    "run-profile": (
        ".figures",
        "#step-latency .live-chart",
        "svg.kernel-bars",
        "svg.phase-bar",
        "svg.arena-picture",
        "table",
    ),
    "run-train": ("#step-latency canvas", "#loss-curve canvas", "text=Trained weights"),
    "run-board": (".live-chart",),
    "run-failed": (".notice.bad",),
    "run-running": ("progress", "#loss-curve canvas"),
    "device": ("svg.attempt-strip", "table"),
    "benchmarks": ("svg.tradeoff-plot", "#hidden-runs", ".letter"),
    "compare": ("svg.interval-plot", ".compare table"),
    "compare-unlike": (".reasons .chip",),
    "compare-training": (".live-chart",),
}


@pytest.fixture(scope="module", params=LOOKS, ids=lambda look: look.name)
def window(
    request: pytest.FixtureRequest, web: Browser, address: str, seeded: SeededFarm
) -> Iterator[tuple[Look, Page]]:
    """A signed-in window in each look; the console is collected on it."""
    look: Look = request.param
    page = open_page(web, look, address, seeded.link())
    yield look, page
    page.context.close()


@pytest.mark.parametrize("name", thinned(pages_of_each_kind(), 16))
def test_a_page_in_each_look(name: str, window: tuple[Look, Page], seeded: SeededFarm) -> None:
    _, page = window
    noise: list[str] = []
    page.on("console", lambda message: noise.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.goto(pages_of(seeded)[name], wait_until="load")
    measured: dict[str, Any] = page.evaluate(MEASURE)
    expected = [line for line in noise if "404" not in line] if name == "problem-404" else noise
    assert expected == []
    assert measured["overflow"] <= 0, "the page scrolls sideways"
    assert measured["spilled"] == [], "a figure reaches into the next one"
    assert measured["texts"] > 10
    assert measured["failures"] == [], "text contrast below WCAG AA"
    assert measured["shapes"] == [], "graphic contrast below 3:1"
    assert measured["small"] == []
    assert measured["unnamed"] == []
    for selector in KEY_ELEMENTS.get(name, ("h1",)):
        expect(
            page.locator(f"main {selector}:visible").first if "=" not in selector else page.locator(selector).first
        ).to_be_visible()


def test_the_measure_finds_what_it_looks_for(web: Browser, address: str, seeded: SeededFarm) -> None:
    page = open_page(web, LOOKS[0], address, seeded.link())
    page.evaluate(
        """() => {
          const faint = document.createElement("p");
          faint.textContent = "faint words";
          document.styleSheets[0].insertRule("main .planted { color: #999; width: 4000px }");
          faint.className = "planted";
          document.querySelector("main .inner").append(faint, document.createElement("button"));
        }"""
    )
    measured = page.evaluate(MEASURE)
    assert any("faint words" in failure for failure in measured["failures"])
    assert measured["overflow"] > 1000
    assert len(measured["unnamed"]) == 1
    page.context.close()


def test_the_keyboard_reaches_the_content_and_shows_where_it_is(web: Browser, address: str, seeded: SeededFarm) -> None:
    page = open_page(web, LOOKS[0], address, seeded.link())
    page.goto("/dashboard/runs")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    box = page.locator(".skip").bounding_box()
    assert box is not None
    assert box["y"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    for _ in range(6):
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
    page.context.close()


def test_a_bar_leads_to_its_row_and_a_head_sorts(web: Browser, address: str, seeded: SeededFarm) -> None:
    page = open_page(web, LOOKS[0], address, seeded.link())
    page.goto(f"/dashboard/runs/{seeded.ids.sparse_run}")
    expect(page.locator("#roofline canvas")).to_be_visible()  # from then on nothing moves under the pointer
    page.locator(".on-wide .kernel-bars a").first.click()
    expect(page.locator("tr:target")).to_be_visible()
    name = page.locator(".on-wide .kernel-bars .bar-label").first.text_content()
    assert name
    assert name.rstrip("…") in page.evaluate("document.querySelector('tr:target').innerText")
    page.get_by_role("link", name="Share").click()
    page.wait_for_url("**sort=-share_percent**")
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Share")
    assert page.locator("#kernels th:has(.arrow)").all_inner_texts() == ["Share %"]
    page.get_by_role("link", name="Share").click()
    page.wait_for_url("**sort=share_percent**")
    page.context.close()


def test_choosing_runs_leads_to_their_comparison(web: Browser, address: str, seeded: SeededFarm) -> None:
    page = open_page(web, LOOKS[0], address, seeded.link())
    page.goto("/dashboard/runs?state=succeeded&model=mobilenet_v2&mode=profile&class=host")
    page.locator("input[name=run]").nth(1).check()
    page.locator("input[name=run]").nth(2).check()
    page.get_by_role("button", name="Compare the chosen").click()
    expect(page.get_by_role("heading", name="Side by side")).to_be_visible()
    assert page.url.count("run=") == 2
    page.get_by_label("Run B").select_option("")
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.get_by_text("Choose two to four runs")).to_be_visible()
    page.context.close()


def test_open_pages_follow_by_themselves(web: Browser, tmp_path: Path) -> None:
    scratch = make_farm(tmp_path)
    with serving(scratch) as address:
        page = open_page(web, LOOKS[0], address, scratch.link())
        page.goto(f"/dashboard/jobs/{scratch.ids.compiling_job}")
        expect(page.get_by_text("codegen: 61 of 112 kernels", exact=True)).to_be_visible()
        page.evaluate("window.stillHere = true")
        _change_job(scratch, "compiling", "link", 0.97)
        expect(page.get_by_text("97%")).to_be_visible()
        expect(page.locator("#announcement")).to_have_text("compiling, link")
        _change_job(scratch, "succeeded", "", 1.0)
        expect(page.locator("progress")).to_have_count(0)
        expect(page.locator("main .chip").first).to_have_text("succeeded")
        assert page.evaluate("window.stillHere"), "the page was loaded again instead of followed"
        page.goto(f"/dashboard/runs/{scratch.ids.running_run}")
        _advance_run(scratch, 160)
        expect(page.get_by_text("160 of 400 steps")).to_be_visible()
        page.context.close()
    scratch.farm.close()


def test_a_queued_runs_page_shows_its_curve_and_validations_as_they_come(web: Browser, tmp_path: Path) -> None:
    """It was opened before there was anything to show, and nobody loads it again."""
    scratch = make_farm(tmp_path)
    run_id = scratch.ids.running_run
    with scratch.farm.database.transaction() as session:
        session.execute(delete(Event).where(Event.subject == run_id))
        session.get_one(Run, run_id).state = "queued"
    with serving(scratch) as address:
        page = open_page(web, LOOKS[0], address, scratch.link())
        page.goto(f"/dashboard/runs/{run_id}")
        page.evaluate("window.isTheSame = true")
        for place in ("#run-curves", "#run-validations"):
            expect(page.locator(place)).to_be_hidden()
        with scratch.farm.database.transaction() as session:
            session.get_one(Run, run_id).state = "running"
            for step in (1, 2, 3):
                session.add(Event(subject=run_id, kind="step", body={"step": step, "loss": 1.0 / step, "attempt": 1}))
            told = {"message": "validation", "step": 3, "loss": 0.5, "accuracy": 0.25, "samples": 8, "attempt": 1}
            session.add(Event(subject=run_id, kind="eval", body=told))
        expect(page.locator("#run-curves canvas")).to_be_visible()
        expect(page.locator("#run-validations table")).to_contain_text("0.5")
        assert page.evaluate("window.isTheSame") is True, "it has been loaded again"
        page.context.close()
    scratch.farm.close()


def test_pages_read_the_same_without_javascript(web: Browser, address: str, seeded: SeededFarm) -> None:
    context = web.new_context(java_script_enabled=False, base_url=address)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(seeded.link())
    page.goto(f"/dashboard/runs/{seeded.ids.running_run}")
    expect(page.get_by_text("148 of 400 steps")).to_be_visible()
    expect(page.get_by_role("link", name="load it again")).to_be_visible()
    page.goto("/dashboard/benchmarks")
    page.get_by_label("Class").select_option("hardware")
    page.get_by_role("button", name="Apply").click()
    assert "class=hardware" in page.url
    context.close()


@pytest.mark.parametrize("name", thinned(["run-profile", "compare", "benchmarks", "job-done"], 2))
def test_a_printed_page_holds_its_tables_and_nothing_to_press(
    name: str, web: Browser, address: str, seeded: SeededFarm
) -> None:
    page = open_page(web, Look("paper", 718, 1000, "light"), address, seeded.link())
    page.goto(pages_of(seeded)[name])
    page.emulate_media(media="print")
    for hidden in ("nav", "button", "input", "select", "textarea", ".tools"):
        assert page.locator(f"{hidden}:visible").count() == 0, hidden
    cut = """() => [...document.querySelectorAll("main .scroll:not(details .scroll)")]
      .filter((one) => one.scrollHeight > one.clientHeight + 2 || one.scrollWidth > one.clientWidth + 2)
      .map((one) => one.getAttribute("aria-label"))"""
    assert page.evaluate(cut) == []
    page.context.close()


def test_a_tablet_has_the_whole_header(web: Browser, address: str, seeded: SeededFarm) -> None:
    page = open_page(web, Look("tablet", 768, 1000, "light"), address, seeded.link())
    page.goto("/dashboard/benchmarks")
    for link in some(page.locator("header nav a").all()):
        box = link.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 768, link.inner_text()
    page.context.close()


def _change_job(scratch: SeededFarm, state: str, stage: str, fraction: float) -> None:
    with scratch.farm.database.transaction() as session:
        job = session.get(Job, scratch.ids.compiling_job)
        assert job is not None
        job.state, job.stage, job.fraction = state, stage, fraction
        session.add(Event(subject=job.id, at=time.time(), kind="progress", body={"stage": stage}))


def _advance_run(scratch: SeededFarm, step: int) -> None:
    with scratch.farm.database.transaction() as session:
        run = session.get(Run, scratch.ids.running_run)
        assert run is not None
        run.steps_done = step
        session.add(Event(subject=run.id, at=time.time(), kind="step", body={"step": step, "loss": 0.5}))
