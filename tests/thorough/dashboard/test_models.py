"""The pages of models and plans: the graph before and after, bytes, best results; very large graphs stay readable."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from service.dashboard.charts.lanes import lanes
from service.dashboard.facts import BundleFacts
from service.dashboard.layer_graph import MOST_GROUPS, layer_graph
from tests.dashboard.conftest import SeededFarm
from tests.dashboard.markup import check_page
from tests.dashboard.screenshots import LOOKS, open_page
from tests.dashboard.seeder import digest
from tests.service.client import Client

MODEL = f"/dashboard/models/{digest('mobilenet_v2')}"


def told(report: dict[str, Any]) -> BundleFacts:
    return BundleFacts(digest("x"), 1, "x86-64-v3", "model", "plan", {}, report)


def row(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "operators": ["matmul"], "nodes": 3, "from": [], "forward": 3, **more}


def test_layers_are_gathered_by_module_and_edges_with_them() -> None:
    rows = [row(f"/layers.{n // 4}/part.{n % 4}/MatMul", **{"from": [n - 1] if n else []}) for n in range(400)]
    rows[-1] |= {"backward": 2, "update": 1, "from": [0, 398]}
    graph = layer_graph(told({"layers": {"rows": rows, "rows_left_out": 7}}))
    assert graph is not None
    assert graph.is_whole
    assert graph.left_out == 7
    assert len(graph.groups) <= MOST_GROUPS
    assert sum(one.layers for one in graph.groups) == 400
    assert sum(one.before for one in graph.groups) == 1200
    last = graph.groups[-1]
    assert (last.after["backward"], last.after["update"]) == (2, 1)
    assert 0 in last.sources
    assert sum(one.after["update"] for one in graph.groups) == 1


def test_thousands_of_unlike_layers_are_a_picture_of_a_few_kilobytes() -> None:
    rows = [row(f"node_{n}", nodes=1 + n % 7) for n in range(2000)]
    graph = layer_graph(told({"layers": {"rows": rows}}))
    assert graph is not None
    assert len(graph.groups) <= MOST_GROUPS
    assert sum(one.layers for one in graph.groups) == 2000
    assert len(lanes(graph.groups, 1198.0)) < 40_000


def test_an_older_bundle_shows_its_table_of_layers_and_says_so() -> None:
    entry = {"name": "head", "operator": "conv2d", "learns": ["weight"], "backward_flops": 5}
    graph = layer_graph(told({"plan": {"rows": [entry]}}))
    assert graph is not None
    assert not graph.is_whole
    assert graph.groups[0].after == {"forward": 1, "backward": 1, "update": 1}
    assert layer_graph(told({})) is None
    assert layer_graph(told({"layers": {"rows": ["?"]}, "plan": 3})) is None


def test_a_models_page_leads_to_its_plans_over_devices(browser: Client) -> None:
    listing = check_page(browser.get("/dashboard/models").text)
    names = [cells[0] for cells in listing.tables[0].rows[1:]]
    assert {"mobilenet_v2", "small_cnn"} <= set(names)
    page = check_page(browser.get(MODEL).text)
    tables = {grid.caption: grid for grid in page.tables}
    assert len(tables["Bundles"].rows) == 10, "a head, and three plans for three targets"
    best = tables["Best valid result per device"]
    assert "build-box" in {cells[0] for cells in best.rows[1:]}
    plan = check_page(browser.get(f"{MODEL}/plans/{digest('sparse')}").text)
    tables = {grid.caption: grid for grid in plan.tables}
    assert {cells[0] for cells in tables["Bundles"].rows[1:]} == {"sparse"}
    assert len({cells[1] for cells in tables["Bundles"].rows[1:]}) == 3
    for missing in (f"/dashboard/models/{digest('none')}", f"{MODEL}/plans/{digest('none')}"):
        assert browser.get(missing).status_code == 404


@pytest.mark.xdist_group("browser")
@pytest.mark.usefixtures("loopback")
def test_a_person_finds_where_gradients_stop(web: Browser, address: str, seeded: SeededFarm) -> None:
    page = open_page(web, LOOKS[0], address, seeded.link())
    page.goto("/dashboard/models")
    page.get_by_role("link", name="mobilenet_v2").click()
    page.get_by_role("navigation", name="Bundles").get_by_role("link", name="bias-only for raspberry-pi-4").click()
    picture = page.locator("#graph svg.graph-lanes:visible")
    drawn = {phase: picture.locator(f"rect.phase-{phase}").count() for phase in ("forward", "backward", "update")}
    assert drawn["forward"] > drawn["backward"] >= drawn["update"] > 0
    page.locator("#graph summary").click()
    expect(page.get_by_role("rowheader", name="blocks.3").first).to_be_visible()
    page.get_by_role("table", name="Bundles").get_by_role("link", name="sparse").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("mobilenet_v2, plan sparse")
    page.context.close()
