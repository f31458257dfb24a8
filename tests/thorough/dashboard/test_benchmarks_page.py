"""Benchmarks and compare: filters, fronts over chosen axes, rows that are chosen, kernels beside each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from service.artefacts.bundles.manifest import precision
from service.base.problems import Invalid
from service.dashboard.charts.pareto import front_of
from service.dashboard.charts.scale import log_scale
from service.dashboard.pages.fronts import Axes, axes_of
from service.store.database.models import Bundle, Holding, Run
from tests.dashboard.conftest import SeededFarm, make_farm
from tests.dashboard.markup import check_page
from tests.dashboard.screenshots import LOOKS, open_page, serving
from tests.dashboard.seeder import digest
from tests.service.client import Client
from tests.thorough.dashboard.test_live_charts import chart

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("loopback")]


@pytest.fixture(scope="module")
def window(web: Browser, address: str, seeded: SeededFarm) -> Iterator[Page]:
    page = open_page(web, LOOKS[0], address, seeded.link())
    yield page
    page.context.close()


def rows(browser: Client, query: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = browser.get(f"/dashboard/benchmarks.json?{query}").json()["rows"]
    return found


def test_filters_of_what_explains_a_number(browser: Client) -> None:
    everything = rows(browser, "")
    assert rows(browser, "days=365") == everything
    counts = [sum(int(str(row["runs"])) for row in found) for found in (rows(browser, "days=1"), everything)]
    assert 0 < counts[0] < counts[1], "some are older than a day"
    assert rows(browser, f"data={digest('digits-a')}") == [row for row in everything if row["model"] == "small_cnn"]
    assert rows(browser, "data=synthetic") == [row for row in everything if row["model"] != "small_cnn"]
    built = rows(browser, f"compiler={digest('compiler')}")
    assert 0 < len(built) <= len(everything)
    assert browser.get("/dashboard/benchmarks?compiler=another").status_code == 422
    assert {row["verdict"] for row in rows(browser, "verdict=noisy")} <= {"noisy"}
    noisy = check_page(browser.get("/dashboard/benchmarks?verdict=noisy").text).visible_text()
    assert "noisy" in noisy
    page = check_page(browser.get("/dashboard/benchmarks?days=7&data=synthetic").text)
    chosen = [one.attributes["value"] for one in page.all("option") if "selected" in one.attributes]
    assert {"7", "synthetic"} <= set(chosen)


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ({"outputs": [{"dtype": "f32"}]}, "float32"),
        ({"outputs": [{"dtype": "f16"}]}, "float16"),
        ({"precision": "bf16", "outputs": [{"dtype": "f32"}]}, "bfloat16"),
        ({"precision": "i8", "outputs": []}, "int8"),
        ({"outputs": [{"dtype": "fp4"}]}, "fp4"),
        ({"outputs": [{"dtype": "f32"}], "frozen": {"kind": "int4"}}, "float32, frozen int4"),
        ({"precision": "bf16", "frozen": {"kind": "int8"}}, "bfloat16, frozen int8"),
        (
            {"precision": "f16", "frozen": {"kind": "int8", "products": "int8"}},
            "float16, frozen int8 multiplied as such",
        ),
        ({"precision": "f16", "frozen": "int8"}, "float16"),
        ({"outputs": []}, ""),
        ({}, ""),
    ],
)
def test_a_bundle_says_what_it_computes_with(manifest: dict[str, object], said: str) -> None:
    assert precision(manifest) == said


def cut_off(page: Page) -> list[str]:
    """What does not fit: tables that scroll sideways, and whatever stands out of the page."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("main .scroll, main, body")]
          .filter((one) => one.scrollWidth > one.clientWidth + 1)
          .map((one) => `${one.getAttribute("aria-label") || one.tagName}: ${one.scrollWidth} > ${one.clientWidth}`)"""
    )
    return found


def test_nothing_is_cut_off_on_a_wide_page(window: Page, seeded: SeededFarm) -> None:
    for query in ("", "?verdicts=all", "?class=hardware&x=energy&y=bundle", "?precision=int8"):
        window.goto(f"/dashboard/benchmarks{query}")
        assert cut_off(window) == [], query
    window.goto(f"/dashboard/runs/{seeded.ids.pi_run}")
    assert cut_off(window) == []
    window.evaluate("() => document.querySelectorAll('table').forEach((one) => { one.style.width = '5000px'; })")
    assert any("Kernels" in one for one in cut_off(window)), "the measure finds what it looks for"


def test_runs_are_found_by_precision_and_told_apart_by_it(tmp_path: Path, window: Page) -> None:
    scratch = make_farm(tmp_path)
    with scratch.farm.database.transaction() as session:
        full, half = (session.get_one(Run, run) for run in (scratch.ids.sparse_run, scratch.ids.full_run))
        bundle = session.get_one(Bundle, half.bundle_digest)
        one = session.get_one(Bundle, full.bundle_digest)
        bundle.manifest = bundle.manifest | {"outputs": [{"name": "logits", "dtype": "f16"}]}
        bundle.plan_digest, half.settings = one.plan_digest, full.settings
        holding = session.query(Holding).filter_by(digest=bundle.digest).one()
        holding.plan_name = "sparse"  # the same in all else that makes a configuration
    client = scratch.browser()
    halves, everything = rows(client, "precision=float16"), rows(client, "")
    assert {row["run"] for row in halves} >= {scratch.ids.full_run}
    assert {row["precision"] for row in halves} == {"float16"}
    whole = rows(client, "precision=float32")
    assert {row["precision"] for row in whole} == {"float32"}
    assert sorted(str(row["run"]) for row in [*halves, *whole]) == sorted(str(row["run"]) for row in everything)
    assert {scratch.ids.full_run, scratch.ids.sparse_run} <= {row["run"] for row in everything}, "two configurations"
    page = check_page(client.get("/dashboard/benchmarks?precision=float16").text)
    assert [one.attributes["value"] for one in page.all("option") if one.attributes["value"] in ("float16", "float32")]
    assert [row[2] for grid in page.tables for row in grid.rows[1:] if "sparse" in row[1]] != []
    told = check_page(client.get("/dashboard/benchmarks").text).tables
    assert ["Precision" in " ".join(grid.rows[0]) for grid in told].count(True) == 1, "where rows differ in it"
    assert "No measured run matches" in client.get("/dashboard/benchmarks?precision=int8").text
    web = window.context.browser
    assert web is not None
    with serving(scratch) as address:
        window = open_page(web, LOOKS[0], address, scratch.link())
        window.goto("/dashboard/benchmarks")
        window.get_by_label("Precision").select_option("float16")
        window.get_by_role("button", name="Apply").click()
        expect(window.locator("main tbody tr")).to_have_count(len(halves))
        window.get_by_label("Precision").select_option("")
        window.get_by_role("button", name="Apply").click()
        expect(window.get_by_role("columnheader", name="Precision")).to_have_count(1)
        assert cut_off(window) == []
        window.context.close()
    scratch.farm.close()


def test_hardware_comes_first(browser: Client) -> None:
    classes = [str(row["measurement_class"]) for row in rows(browser, "")]
    assert classes == sorted(classes, key=["hardware", "host", "emulated", "simulated"].index)


def test_fronts_have_the_axes_that_are_asked_for(browser: Client) -> None:
    text = browser.get("/dashboard/benchmarks?model=mobilenet_v2&class=hardware&x=energy&y=bundle&scale=log").text
    check_page(text)
    assert "On each device alone: energy and bundle size" in text
    assert re.findall(r'aria-label="bundle, MiB against mJ per step: 3 configurations', text), (
        "of the one with a sensor"
    )
    assert "bench pi 4, shelf 2</h4>" not in text, "it has no sensor"
    emulated = browser.get("/dashboard/benchmarks?class=emulated").text
    assert "front-pictures" not in emulated, "no times of an emulated board"


def test_axes_that_are_not_chosen_are_as_usual() -> None:
    assert axes_of("", "", "") == Axes("latency", "memory", False)
    assert axes_of("memory", "", "log") == Axes("memory", "latency", True)
    assert axes_of("", "energy", "") == Axes("latency", "energy", False)
    assert axes_of("", "latency", "") == Axes("memory", "latency", False)
    with pytest.raises(Invalid, match="memory is across already"):
        axes_of("memory", "memory", "")


def test_a_front_never_goes_back_up() -> None:
    assert front_of([(1, 5), (2, 6), (3, 2), (4, 1), (5, 4)]) == [(1, 5), (3, 5), (3, 2), (4, 2), (4, 1)]


def test_a_logarithmic_scale_has_equal_steps_for_equal_ratios() -> None:
    scale = log_scale([1.0, 1000.0], 0.0, 300.0)
    assert scale(10) - scale(1) == pytest.approx(scale(1000) - scale(100))
    assert set(scale.ticks()) >= {1.0, 10.0, 100.0, 1000.0}


def test_nothing_is_cut_off_at_1280(window: Page) -> None:
    window.goto("/dashboard/benchmarks?verdicts=all")
    cut = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    assert window.evaluate(cut) == 0


def test_rows_are_chosen_and_compared(window: Page) -> None:
    window.goto("/dashboard/benchmarks?class=host&model=mobilenet_v2")
    boxes = window.locator("form.picking input[type=checkbox]")
    boxes.nth(0).check()
    boxes.nth(1).check()
    window.get_by_role("button", name="Compare the chosen").click()
    expect(window.get_by_role("heading", name="Side by side")).to_be_visible()
    assert window.url.count("run=") == 2
    widths = window.evaluate(
        "[...document.querySelectorAll('.compare thead th')].slice(1).map((one) => one.offsetWidth)"
    )
    assert max(widths) - min(widths) <= 1
    expect(window.locator("#step-times .live-chart canvas")).to_be_visible()


def test_axes_are_chosen_and_a_dot_says_what_it_is(window: Page) -> None:
    window.goto("/dashboard/benchmarks?class=host&model=mobilenet_v2")
    form = window.get_by_role("form", name=re.compile("^Axes"))
    form.get_by_label("Across").select_option("bundle")
    form.get_by_label("Scale").select_option("log")
    form.get_by_role("button", name="Draw").click()
    assert "x=bundle" in window.url
    assert "scale=log" in window.url
    found = chart(window, "group-1-front-1")
    found.focus()
    window.keyboard.press("ArrowRight")
    assert "bundle, MiB" in (found.get_attribute("aria-valuetext") or "")


def test_kernels_stand_beside_each_other_where_times_may(browser: Client, seeded: SeededFarm) -> None:
    ids = seeded.ids
    alike = f"run={ids.full_run}&run={ids.sparse_run}"
    found = browser.get(f"/dashboard/compare.json?{alike}&of=kernels").json()["rows"]
    for row in found:
        if row["A_us"] is None or row["B_us"] is None:
            assert row["B_more_us"] is None
        else:
            assert row["B_more_us"] == pytest.approx(row["B_us"] - row["A_us"])
    sizes = [abs(row["B_more_us"]) for row in found if row["B_more_us"] is not None]
    assert sizes == sorted(sizes, reverse=True)
    page = check_page(browser.get(f"/dashboard/compare?{alike}").text)
    assert "where to look, not a finding" in page.visible_text()
    unlike = f"run={ids.sparse_run}&run={ids.emulated_run}"
    assert "Kernel by kernel" not in browser.get(f"/dashboard/compare?{unlike}").text
    assert browser.get(f"/dashboard/compare.json?{unlike}&of=kernels").status_code == 404
