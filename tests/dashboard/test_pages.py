"""Every page through HTTP: structure, headers, access, data files that equal their tables, hostile names."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.routing import iter_route_contexts
from sqlalchemy import select

from device_agents.wire import MODES
from service.dashboard import addresses, render
from service.dashboard.format import latency
from service.dashboard.routes import router
from service.store.database.models import Device, Run
from tests.dashboard.conftest import BROWSER, SeededFarm, make_app
from tests.dashboard.markup import check_page
from tests.dashboard.screenshots import pages_of
from tests.dashboard.seeder import Seeder
from tests.sample import sample
from tests.service.client import Client

HOSTILE = "<script>alert(1)</script>\"'&={{7*7}}"


def page_names() -> list[str]:
    """Names of all pages, without a farm."""
    import dataclasses

    from tests.dashboard.seed import Seeded

    ids = Seeded(**{field.name: "x" for field in dataclasses.fields(Seeded)})
    return list(pages_of(SeededFarm(app=None, farm=None, ids=ids)))  # type: ignore[arg-type]


KINDS = (
    "overview",
    "job-done",
    "job-compiling",
    "job-failed",
    "runs",
    "run-profile",
    "run-board",
    "run-train",
    "run-failed",
    "run-running",
    "device",
    "queue",
    "regressions-one",
    "admin",
    "admin-enrolment",
    "benchmarks",
    "compare",
    "compare-training",
    "plan",
    "problem-404",
)
"""One of each kind of page: lists, pictures, live charts, forms, notices, tables to compare."""


def pages_of_each_kind() -> list[Any]:
    """Names of all pages; `make test` takes one of each kind."""
    return sample(page_names(), KINDS)


@pytest.mark.parametrize("name", page_names())
def test_a_page_is_well_formed_and_safe(name: str, seeded: SeededFarm, browser: Client) -> None:
    answer = browser.get(pages_of(seeded)[name])
    assert answer.status_code == (404 if name == "problem-404" else 200)
    check_page(answer.text)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "style-src 'self'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    ours = ("http://www.w3.org/2000/svg", "http://127.0.0.1", "(or http://)")  # the last are words about webhooks
    assert "http://" not in re.sub("|".join(map(re.escape, ours)), "", answer.text)


@pytest.mark.parametrize("name", pages_of_each_kind())
def test_no_figure_has_its_unit_twice(name: str, seeded: SeededFarm, browser: Client) -> None:
    page = browser.get(pages_of(seeded)[name]).text
    pairs = re.findall(r'<span class="value">([^<]*) <span class="unit">([^<]*)</span>', page)
    assert [figure for figure, unit in pairs if figure.split()[-1:] == [unit]] == []
    assert pairs or not name.startswith("run-s")


@pytest.mark.parametrize("name", pages_of_each_kind())
def test_no_figure_below_nought_has_a_hyphen(name: str, seeded: SeededFarm, browser: Client) -> None:
    page = check_page(browser.get(pages_of(seeded)[name]).text)
    cells = [cell for grid in page.tables for row in grid.rows for cell in row]
    assert [cell for cell in cells if re.match(r"-[\d.]", cell)] == []
    if name == "compare":
        assert [cell for cell in cells if re.fullmatch(r"−[\d.,]+ (ns|µs|ms|s)", cell)]


def test_every_route_of_the_dashboard_needs_a_session(seeded: SeededFarm) -> None:
    stranger = seeded.stranger()
    found = [(method, str(one.path)) for one in iter_route_contexts(router.routes) for method in one.methods or ()]
    served = [(method, path) for method, path in found if path != "/" and not path.startswith(addresses.STATIC)]
    assert len(served) >= 17
    for method, path in served:
        filled = re.sub(r"\{\w+\}", "x", path.replace("{ending}", "csv"))
        assert stranger.request(method, filled).status_code == 401, path


def test_a_stranger_is_told_how_to_get_in(seeded: SeededFarm) -> None:
    answer = seeded.stranger().get("/dashboard")
    page = check_page(answer.text)
    assert answer.status_code == 401
    assert "one-time link" in page.visible_text()
    assert "pockfarm link" in page.visible_text()
    style = next(element for element in page.all("link") if element.attributes["rel"] == "stylesheet")
    assert seeded.stranger().get(style.attributes["href"]).status_code == 200


def test_a_link_opens_once(seeded: SeededFarm) -> None:
    link, client = seeded.link(), seeded.stranger()
    assert client.get(link).url.path == "/dashboard"
    again = seeded.stranger().get(link)
    assert again.status_code == 403
    assert "no longer opens" in check_page(again.text).visible_text()


def test_programs_still_get_problem_documents(seeded: SeededFarm, browser: Client) -> None:
    answer = browser.get("/dashboard/runs/none", headers={"accept": "application/json"})
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "run.unknown"
    data = browser.get("/dashboard/runs/none/steps.csv")
    assert data.headers["content-type"] == "application/problem+json"


def test_static_files_are_the_listed_ones_and_cached(browser: Client) -> None:
    for name in render.STATIC_FILES:
        answer = browser.get(render.static_address(name))
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert browser.get("/dashboard/static/..%2froutes.py").status_code == 404
    folder = Path(render.HERE / "static")
    assert {path.name for path in folder.iterdir()} == set(render.STATIC_FILES)


@pytest.mark.parametrize(
    ("page", "data", "key"),
    [
        ("/dashboard/runs", "/dashboard/runs", "run"),
        ("/dashboard/runs?mode=train&sort=median_ms", "/dashboard/runs{}?mode=train&sort=median_ms", "run"),
        ("/dashboard/jobs", "/dashboard/jobs", "job"),
        ("/dashboard/devices?sort=-memory_gib", "/dashboard/devices{}?sort=-memory_gib", "device"),
    ],
)
def test_csv_and_json_hold_the_rows_of_the_page_in_its_order(page: str, data: str, key: str, browser: Client) -> None:
    data = data if "{}" in data else data + "{}"
    rows = list(csv.DictReader(io.StringIO(browser.get(data.format(".csv")).text)))
    body = browser.get(data.format(".json")).json()
    shown = next(grid for grid in check_page(browser.get(page).text).tables if len(grid.rows) > 1)
    assert len(rows) == len(body["rows"]) == len(shown.rows) - 1 > 0
    for row, entry, cells in zip(rows, body["rows"], shown.rows[1:], strict=True):
        assert row[key] == entry[key]
        assert any(cell.startswith(row[key]) for cell in cells)
        for name, value in entry.items():
            assert row[name] == ("" if value is None else str(value)), name


def test_the_numbers_on_the_page_are_those_of_the_file(seeded: SeededFarm, browser: Client) -> None:
    run = seeded.ids.sparse_run
    kernels = browser.get(f"/dashboard/runs/{run}/kernels.json?sort=-time_us").json()["rows"]
    page = check_page(browser.get(f"/dashboard/runs/{run}?sort=-time_us").text)
    shown = next(grid for grid in page.tables if grid.caption == "Kernels of one step").rows[1:]
    assert [row[1] for row in shown] == [entry["kernel"] for entry in kernels]
    assert [row[3] for row in shown] == [latency(entry["time_us"] / 1000) for entry in kernels]
    times = [entry["time_us"] for entry in kernels]
    assert times == sorted(times, reverse=True)
    assert sum(entry["share_percent"] for entry in kernels) == pytest.approx(100)


def test_the_report_is_what_the_run_page_shows(seeded: SeededFarm, browser: Client) -> None:
    run = seeded.ids.train_run
    losses = list(csv.DictReader(io.StringIO(browser.get(f"/dashboard/runs/{run}/losses.csv").text)))
    steps = list(csv.DictReader(io.StringIO(browser.get(f"/dashboard/runs/{run}/steps.csv").text)))
    report = browser.get(f"/runs/{run}/report").json()["report"]
    assert [float(row["loss"]) for row in losses] == report["losses"]
    assert [float(row["step_us"]) for row in steps] == report["measurement"]["step_us"]
    text = check_page(browser.get(f"/dashboard/runs/{run}").text).visible_text()
    assert f"{report['measurement']['median_us']:.0f} µs" in text
    assert "no sensor" in text


def test_every_download_of_a_run_answers(seeded: SeededFarm, browser: Client) -> None:
    page = check_page(browser.get(f"/dashboard/runs/{seeded.ids.train_run}").text)
    hrefs = [e.attributes["href"] for e in page.all("a") if e.attributes["href"].endswith((".csv", ".json", "/report"))]
    assert len(hrefs) >= 10
    for href in set(hrefs):
        assert browser.get(href).status_code == 200, href


def test_filters_restrict_and_stay_in_links(seeded: SeededFarm, browser: Client) -> None:
    answer = browser.get("/dashboard/runs?state=failed&device=" + seeded.ids.quarantined)
    page = check_page(answer.text)
    rows = page.tables[0].rows[1:]
    assert len(rows) == 3
    assert all("failed" in " ".join(row) for row in rows)
    files = [e.attributes["href"] for e in page.all("a") if ".csv" in e.attributes["href"]]
    assert files[0].startswith("/dashboard/runs.csv?state=failed&device=")
    assert len(browser.get(files[0].replace(".csv", ".json")).json()["rows"]) == 3
    nothing = check_page(browser.get("/dashboard/runs?model=small_cnn&class=hardware").text)
    assert "No run matches" in nothing.visible_text()


def test_pages_by_cursor_show_each_run_once(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    farm = app.state.farm
    with farm.database.transaction() as session:
        rows = Seeder(session, 1.7e9)
        device = rows.device("d", "x86-64", "host", ["x86-64-v3"])
        from tests.dashboard.layers import small_layers

        bundle = rows.bundle("m", "full", "x86-64-v3", small_layers(1), {"dense"})
        made = [rows.run(bundle, device, state="cancelled", age_s=100 - i).id for i in range(120)]
    client = SeededFarm(app, farm, None).browser()  # type: ignore[arg-type]
    seen: list[str] = []
    address = "/dashboard/runs"
    for _ in range(3):
        page = check_page(client.get(address).text)
        seen += [e.attributes["value"] for e in page.all("input") if e.attributes.get("name") == "run"]
        older = [e.attributes["href"] for e in page.all("a") if e.attributes.get("rel") == "next"]
        address = older[0] if older else ""
    assert seen == list(reversed(made))
    assert not address
    farm.close()


def test_hostile_names_are_text_everywhere(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    farm = app.state.farm
    with farm.database.transaction() as session:
        rows = Seeder(session, 1.7e9)
        device = rows.device(HOSTILE, "x86-64", "host", ["x86-64-v3"], cpu_model=HOSTILE)
        from tests.dashboard.layers import Layer

        bundle = rows.bundle(HOSTILE, HOSTILE, "x86-64-v3", [Layer(HOSTILE, 1000, 64, 64)], {HOSTILE})
        job = rows.job(HOSTILE, HOSTILE, "x86-64-v3", state="succeeded", bundle=bundle)
        bad = rows.job("=cmd()", "p", "t", state="failed", message=HOSTILE, cause="model", hint=HOSTILE, place=HOSTILE)
        run = rows.run(bundle, device, report={"median_us": 10.0})
    client = SeededFarm(app, farm, None).browser()  # type: ignore[arg-type]
    paths = [
        "",
        "/jobs",
        f"/jobs/{job.id}",
        f"/jobs/{bad.id}",
        "/runs",
        f"/runs/{run.id}",
        "/devices",
        f"/devices/{device.id}",
        "/benchmarks",
        f"/compare?run={run.id}&run={run.id}",
        f"/runs?model={quote(HOSTILE)}",
    ]
    assert f"{HOSTILE}: has no channel axis" in check_page(client.get(f"/dashboard/jobs/{job.id}").text).visible_text()
    for path in paths:
        answer = client.get("/dashboard" + path)
        assert answer.status_code == 200, path
        assert "<script>alert" not in answer.text, path
        page = check_page(answer.text)
        assert "49" not in page.visible_text().split(), path
    assert HOSTILE in check_page(client.get(f"/dashboard/runs/{run.id}").text).visible_text()
    assert "'=cmd()" in client.get("/dashboard/jobs.csv").text
    farm.close()


def test_an_empty_farm_says_the_next_step(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    client = SeededFarm(app, app.state.farm, None).browser()  # type: ignore[arg-type]
    for path, words in (
        ("", "pockfarm compile"),
        ("/jobs", "pockfarm compile"),
        ("/runs", "pockfarm run"),
        ("/devices", "pockfarm devices enrol"),
        ("/queue", "pockfarm run"),
        ("/regressions", "pockfarm run"),
        ("/admin/enrolment", "Make a token"),
        ("/admin/webhooks", "Nobody is told yet"),
        ("/admin/windows", "Plan a window"),
        ("/benchmarks", "pockfarm run"),
        ("/compare", "pockfarm run"),
    ):
        assert words in check_page(client.get("/dashboard" + path).text).visible_text(), path
    app.state.farm.close()


def test_a_report_of_another_protocol_leaves_the_summary(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    farm = app.state.farm
    with farm.database.transaction() as session:
        rows = Seeder(session, 1.7e9)
        device = rows.device("d", "x86-64", "host", ["x86-64-v3"])
        from service.store.database.models import Result
        from tests.dashboard.layers import small_layers

        bundle = rows.bundle("m", "full", "x86-64-v3", small_layers(1), {"dense"})
        run = rows.run(bundle, device, report={"median_us": 500.0})
        result = session.query(Result).filter_by(run_id=run.id).one()
        result.report = json.loads('{"schema": "pockfarm.report/0"}')
    client = SeededFarm(app, farm, None).browser()  # type: ignore[arg-type]
    assert client.get(f"/dashboard/runs/{run.id}").status_code == 200
    rows_now = client.get("/dashboard/runs.json").json()["rows"]
    assert rows_now[0]["median_ms"] == pytest.approx(0.5, rel=0.05)
    assert client.get(f"/dashboard/runs/{run.id}/kernels.csv").status_code == 404
    farm.close()


def test_an_open_run_follows_its_events_and_a_closed_one_does_not(seeded: SeededFarm, browser: Client) -> None:
    def events(run: str) -> str:
        page = check_page(browser.get(f"/dashboard/runs/{run}").text)
        return page.all("main")[0].attributes.get("data-events", "")

    running = seeded.ids.running_run
    assert events(running) == f"/runs/{running}/events"
    assert browser.get(events(running), headers={"accept": "application/json"}).status_code == 200
    assert events(seeded.ids.sparse_run) == ""
    text = check_page(browser.get(f"/dashboard/runs/{running}").text).visible_text()
    assert "148 of 400 steps" in text


def test_health_of_devices(seeded: SeededFarm, browser: Client) -> None:
    with (
        seeded.farm.database.transaction() as session
    ):  # the rows are older than this test, on a slow machine by minutes
        session.scalars(select(Device).where(Device.name == "bench pi 4, shelf 2")).one().last_seen_at = time.time()
    rows = {row["device"]: row["health"] for row in browser.get("/dashboard/devices.json").json()["rows"]}
    assert rows["bench pi 4, shelf 2"] == "busy"
    assert rows["phone-gen2-03"] == "quarantined"
    assert rows["pi-4, window sill"] == "offline"
    with seeded.farm.database.read() as session:
        names = {device.name for device in session.query(Device)}
        assert names == set(rows)
        assert session.query(Run).count() > 10


def test_data_files_are_refused_to_strangers_as_problems(seeded: SeededFarm) -> None:
    answer = Client(seeded.app, headers=BROWSER).get("/dashboard/runs.csv")
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_run_list_can_be_narrowed_to_every_mode_there_is(browser: Client) -> None:
    page = browser.get("/dashboard/runs").text
    [choices] = re.findall(r'<select[^>]*name="mode".*?</select>', page, re.DOTALL)
    assert re.findall(r'<option value="(\w+)"', choices) == list(MODES)
    assert browser.get("/dashboard/runs?mode=tune").status_code == 200


def test_a_jobs_page_says_what_learns_and_its_file_has_every_layer(seeded: SeededFarm, browser: Client) -> None:
    address = f"/dashboard/jobs/{seeded.ids.done_job}"
    grids = check_page(browser.get(address).text).tables
    shown = next(grid for grid in grids if "What learns" in grid.rows[0])
    rows = browser.get(f"{address}/plan.json").json()["rows"]
    learning = [row for row in rows if row["learns"]]
    assert 0 < len(learning) < len(rows) - 1
    assert len(shown.rows) == 1 + len(learning) + 1
    assert sum(row["weight_bytes"] for row in learning) == rows[-1]["weight_bytes"] > 0
