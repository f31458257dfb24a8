"""The page of a run: what its forms do and who may use them, what it gives to take along, how kernels are found."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from sqlalchemy import select

from device_agents.measure.measurement import measure
from device_agents.wire import Block, DeviceState, KernelTime
from pockfarm.cli import parser
from service.dashboard import queries
from service.dashboard.charts.roofline import roof_line
from service.dashboard.format import latency, latency_parts, significant
from service.dashboard.pages.roofline import roof_of
from service.dashboard.pages.timeline import moments
from service.store.database.models import Run
from tests.dashboard.conftest import SeededFarm, make_farm
from tests.dashboard.markup import PageReader, check_page
from tests.dashboard.test_forms import SAME, open_as, token_in
from tests.service.client import Client


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeededFarm]:
    """A farm that these tests change."""
    made = make_farm(tmp_path_factory.mktemp("farm"))
    yield made
    made.farm.close()


@pytest.fixture(scope="module")
def user(scratch: SeededFarm) -> Client:
    """A browser that may read and submit."""
    return open_as(scratch, "read", "submit")


def post(browser: Client, run_id: str, act: str, **typed: str) -> str:
    """The text of the page that follows."""
    page = browser.get(f"/dashboard/runs/{run_id}")
    once = {
        field.attributes["name"]: field.attributes["value"]
        for field in check_page(page.text).all("input")
        if field.attributes.get("name") == "once"
    }
    data = {"form_token": token_in(page.text), **once, **typed}
    answer = browser.post(f"/dashboard/runs/{run_id}/{act}", data=data, headers=SAME)
    assert answer.status_code == 200, answer.text
    return check_page(answer.text).visible_text()


def words(page: PageReader) -> str:
    return page.visible_text()


def test_a_run_is_named_tagged_and_noted(scratch: SeededFarm, user: Client) -> None:
    run = scratch.ids.full_run
    said = post(user, run, "about", name="base line", tags="Night, cold-room", note="with the <fan> off")
    for text in (
        "Name, tags and note are saved",
        "base line",
        "cold-room",
        "with the <fan> off",
        "mobilenet_v2 · full",
    ):
        assert text in said
    listed = check_page(user.get("/dashboard/runs?tag=night").text)
    assert [row[1].split("mobilenet")[0] for row in listed.tables[0].rows[1:]] == ["base line"]
    chosen = [one.attributes["value"] for one in listed.all("option") if "selected" in one.attributes]
    assert chosen == ["night"]
    files = user.get("/dashboard/runs.json?tag=night").json()["rows"]
    assert [(row["name"], row["tags"]) for row in files] == [("base line", "cold-room, night")]
    post(user, run, "about", name="", tags="", note="")
    assert user.get(f"/runs/{run}").json()["tags"] == []


def test_what_cannot_be_said_comes_back_as_typed(scratch: SeededFarm, user: Client) -> None:
    run = scratch.ids.full_run
    token = token_in(user.get(f"/dashboard/runs/{run}").text)
    typed = {"form_token": token, "name": "kept", "tags": "a/b", "note": ""}
    answer = user.post(f"/dashboard/runs/{run}/about", data=typed, headers=SAME)
    assert answer.status_code == 422
    fields = {
        field.attributes["name"]: field.attributes
        for field in check_page(answer.text).all("input")
        if field.attributes.get("id", "").startswith("about-")
    }
    assert (fields["name"]["value"], fields["tags"]["value"]) == ("kept", "a/b")
    assert fields["tags"]["aria-invalid"] == "true"
    assert user.get(f"/runs/{run}").json()["name"] == ""


def test_an_open_run_is_cancelled_and_an_ended_one_made_again(scratch: SeededFarm, user: Client) -> None:
    assert "is asked to stop" in post(user, scratch.ids.running_run, "cancel")
    with scratch.farm.database.read() as session:
        assert session.get_one(Run, scratch.ids.running_run).cancel_requested
        before = session.query(Run).count()
    page = user.get(f"/dashboard/runs/{scratch.ids.running_run}").text
    assert "/retry" not in page
    ended = user.get(f"/dashboard/runs/{scratch.ids.full_run}").text
    assert "/cancel" not in ended
    assert before > 0


def test_run_again_makes_a_run_of_the_same(scratch: SeededFarm, user: Client) -> None:
    page = f"/dashboard/runs/{scratch.ids.full_run}"
    sent = {"form_token": token_in(user.get(page).text), "once": "the same click"}
    first, second = (user.post(f"{page}/retry", data=sent, headers=SAME, follow_redirects=False) for _ in range(2))
    assert first.status_code == 303, first.text[:300]
    assert first.headers["location"] == second.headers["location"], "a form that is sent twice makes one run"
    with scratch.farm.database.read() as session:
        old = session.get_one(Run, scratch.ids.full_run)
        new = session.get_one(Run, first.headers["location"].rsplit("/", 1)[1])
        assert new.id != old.id
        assert new.state == "queued"
        for name in ("bundle_digest", "target", "dataset_digest", "weights_digest", "mode"):
            assert getattr(new, name) == getattr(old, name), name
        assert (new.settings.steps, new.settings.seed) == (old.settings.steps, old.settings.seed)
    assert "Queued: the same bundle" in user.get(first.headers["location"]).text


def test_who_may_only_read_sees_no_buttons_and_is_refused(scratch: SeededFarm) -> None:
    reader = open_as(scratch, "read")
    text = reader.get(f"/dashboard/runs/{scratch.ids.full_run}").text
    assert "/retry" not in text
    assert "about-name" not in text
    for act in ("cancel", "retry", "about"):
        answer = reader.post(f"/dashboard/runs/{scratch.ids.full_run}/{act}", data={"name": "x"}, headers=SAME)
        assert answer.status_code == 403


def copied(page: str) -> dict[str, str]:
    """Texts to take along by their labels."""
    found, label = {}, ""
    for part in page.split('<div class="words">')[1:]:
        label = part.split(">", 1)[1].split("</h3>")[0].rsplit(">", 1)[-1]
        code = part.split("<code>")[1].split("</code>")[0]
        found[label] = PageReader(f"<p>{code}</p>").text
    return {label: "".join(text) for label, text in found.items()}


@pytest.mark.parametrize("name", ["sparse_run", "train_run", "second_train_run", "compare_run", "sustained_run"])
def test_what_is_copied_asks_for_the_same_run(scratch: SeededFarm, user: Client, name: str) -> None:
    run_id = getattr(scratch.ids, name)
    shown, run = copied(user.get(f"/dashboard/runs/{run_id}").text), user.get(f"/runs/{run_id}").json()
    options = parser().parse_args(shlex.split(shown["Command line"])[1:])
    assert options.device == run["device_id"]
    if run["mode"] == "compare":
        assert options.bundles == [run["bundle_digest"], *run["others"]]
    else:
        assert (options.bundle, options.mode) == (run["bundle_digest"], run["mode"])
        assert options.dataset == run["dataset_digest"]
        assert (options.steps or 20) == run["steps"] or run["mode"] == "sustained"
        assert options.weights == run["weights_digest"]
    curl = shlex.split(shown["curl"].replace("\\\n", " "))
    body = json.loads(curl[curl.index("-d") + 1])
    assert (body["bundle"], body["mode"], body["device"]) == (run["bundle_digest"], run["mode"], run["device_id"])
    assert any(isinstance(node, ast.Call) for node in ast.walk(ast.parse(shown["Python"])))


def test_a_citation_names_what_anyone_can_check(scratch: SeededFarm, user: Client) -> None:
    shown = copied(user.get(f"/dashboard/runs/{scratch.ids.sparse_run}").text)
    run = user.get(f"/runs/{scratch.ids.sparse_run}").json()
    assert run["id"] in shown["Sentence"]
    assert run["bundle_digest"] in shown["Sentence"]
    assert "95%" in shown["Sentence"]
    emulated = copied(user.get(f"/dashboard/runs/{scratch.ids.emulated_run}").text)
    assert "step median" not in emulated["Sentence"], "its time says nothing"


def test_contents_lead_to_parts_that_are_there(user: Client, scratch: SeededFarm) -> None:
    for run in (
        scratch.ids.pi_run,
        scratch.ids.train_run,
        scratch.ids.sustained_run,
        scratch.ids.failed_run,
        scratch.ids.running_run,
    ):
        page = check_page(user.get(f"/dashboard/runs/{run}").text)
        links = [one.attributes["href"] for one in page.all("a") if one.attributes.get("href", "").startswith("#")]
        assert len(links) >= 4


def test_kernels_are_found_by_part_of_their_names(user: Client, scratch: SeededFarm) -> None:
    text = user.get(f"/dashboard/runs/{scratch.ids.sparse_run}?find=DEPTHWISE&sort=-roof_percent").text
    page = check_page(text)
    grid = next(one for one in page.tables if one.caption == "Kernels of one step")
    hidden = [
        "hidden" in one.attributes for one in page.all("tr") if one.attributes.get("id", "").startswith("kernel-")
    ]
    shown = [row for row, is_hidden in zip(grid.rows[1:], hidden, strict=True) if not is_hidden]
    assert shown
    assert all("depthwise" in row[1] for row in shown)
    assert len(shown) == sum("depthwise" in row[1] for row in grid.rows[1:])
    shares = [float(row[-1]) for row in shown]
    assert shares == sorted(shares, reverse=True)
    assert f"{len(shown)} kernels found" in page.visible_text()


def test_a_queued_run_says_why_and_where_it_stands(scratch: SeededFarm, user: Client) -> None:
    queued, *_ = [row["id"] for row in user.get("/dashboard/runs.json?state=queued").json()["rows"]]
    said = check_page(user.get(f"/dashboard/runs/{queued}").text).visible_text()
    for label in ("Queued for", "Position", "May start", "Expires"):
        assert label in said


def test_a_running_run_says_how_long_it_takes_yet(scratch: SeededFarm, user: Client) -> None:
    text = check_page(user.get(f"/dashboard/runs/{scratch.ids.running_run}").text).visible_text()
    assert "Elapsed" in text
    assert "Step time now498 ms" in text
    assert "Steps end in about2 min 06 s" in text, "252 steps, one each half second"
    rows = user.get(f"/dashboard/runs/{scratch.ids.running_run}/sent.json").json()["rows"]
    assert (len(rows), rows[0]["step"], rows[-1]["step_ms"]) == (148, 1, 498.0)


def kernel(index: int, us: float, flops: int, moved: int) -> KernelTime:
    return KernelTime(index, f"k{index}", "forward", us, flops, moved, 0)


def test_the_roof_is_what_the_best_kernels_reached() -> None:
    kernels = [kernel(0, 100.0, 2_000_000, 10_000), kernel(1, 50.0, 100_000, 400_000), kernel(2, 40.0, 0, 160_000)]
    roof = roof_of(kernels)
    assert roof is not None
    assert (roof.gflop_per_s, roof.gb_per_s) == (20.0, 8.0)
    assert [roof.percent(one) for one in kernels] == pytest.approx([100.0, 100.0, 50.0])
    assert roof_line(0.125, 10.0, 20.0, 8.0) == ((0.125, 1.0), (2.5, 20.0), (10.0, 20.0))
    assert roof_of([kernel(0, 1.0, 0, 5)]) is None, "nothing is computed"


def best_of(user: Client, runs: Iterable[str]) -> tuple[float, float]:
    """GFLOP/s and GB/s, from the files of kernels."""
    rows = [row for run in runs for row in user.get(f"/dashboard/runs/{run}/kernels.json").json()["rows"]]
    large = [row for row in rows if row["share_percent"] >= 0.1]
    return max(row["gflop_per_s"] for row in large), max(row["gib_per_s"] for row in large) * 1.024**3


def test_the_roof_is_the_best_of_a_devices_valid_runs(scratch: SeededFarm, user: Client) -> None:
    query = f"state=succeeded&mode=profile&verdict=valid&device={scratch.ids.pi}"
    runs = [row["id"] for row in user.get(f"/dashboard/runs.json?{query}").json()["rows"]]
    assert scratch.ids.pi_run in runs
    rate, traffic = best_of(user, runs)
    assert best_of(user, [scratch.ids.pi_run]) != pytest.approx((rate, traffic)), "another run was better"
    text = check_page(user.get(f"/dashboard/runs/{scratch.ids.pi_run}").text).visible_text()
    assert f" {len(runs)} valid runs of this device with 2 threads, " in text
    assert f" {significant(rate)} GFLOP/s and {significant(traffic)} GB/s, " in text
    for row in user.get(f"/dashboard/runs/{scratch.ids.pi_run}/kernels.json").json()["rows"]:
        if row["mflop"]:
            limit = min(rate, row["flop_per_byte"] * traffic)
            assert row["roof_percent"] == pytest.approx(100 * row["gflop_per_s"] / limit)


def test_a_run_that_does_not_count_has_its_own_roof(scratch: SeededFarm, user: Client) -> None:
    for run in (scratch.ids.throttled_run, scratch.ids.noisy_run):
        text = check_page(user.get(f"/dashboard/runs/{run}").text).visible_text()
        assert " kernels of this run alone reached" in text, run
        rows = user.get(f"/dashboard/runs/{run}/kernels.json").json()["rows"]
        assert max(row["roof_percent"] or 0 for row in rows) == pytest.approx(100.0)


def test_looks_at_a_device_reach_over_all_of_the_steps(scratch: SeededFarm) -> None:
    with scratch.farm.database.read() as session:
        ids = session.scalars(select(Run.id).where(Run.state == "succeeded", Run.is_canary.is_(False))).all()
        found = [queries.run(session, run) for run in ids]
    reports = [one.report for one in found if one is not None and one.report is not None]
    assert len(reports) > 20
    for report in reports:
        looks = [state.at for state in report.device_states]
        began = report.started_at + report.transfer_s
        assert looks[0] <= began + 2
        assert looks[-1] == pytest.approx(began + report.run_s, abs=7)
        assert report.finished_at > began + report.run_s
        steps = list(moments(report))
        if report.measurement is not None:
            assert sum(report.measurement.step_us) / 1e6 < report.run_s
            assert len(steps) == len(report.measurement.step_us)
            assert began <= looks[0] + steps[0][0] < looks[0] + steps[-1][0] <= looks[-1] + 1e-6
            assert steps[-1][0] > 0.9 * (looks[-1] - looks[0]), "one axis of time"


def test_steps_stand_on_the_devices_time(scratch: SeededFarm) -> None:
    with scratch.farm.database.read() as session:
        run = queries.run(session, scratch.ids.sparse_run)
    assert run is not None
    assert run.report is not None
    blocks = [Block((1e6, 1e6)), Block((2e6,))]
    looks, measured = (DeviceState(100.5), DeviceState(111.0)), measure(blocks, batch=1, warmup_steps=0, threads=1)
    report = replace(
        run.report, started_at=100.0, transfer_s=1.0, run_s=10.0, device_states=looks, measurement=measured
    )
    assert list(moments(report)) == [(4.5, 1000.0), (5.5, 1000.0), (10.5, 2000.0)]
    assert list(moments(replace(report, device_states=()))) == []


def test_an_emulated_runs_times_are_results_nowhere(scratch: SeededFarm, user: Client) -> None:
    run = scratch.ids.emulated_run
    with scratch.farm.database.read() as session:
        row = session.get_one(Run, run)
        assert row.median_us is not None, "its report has times"
        written = latency(row.median_us / 1000)
    compare = f"/dashboard/compare?run={run}&run={scratch.ids.pi_run}"
    pages = [
        f"/dashboard/runs/{run}",
        "/dashboard/runs?measurement_class=emulated",
        compare,
        "/dashboard/benchmarks?verdict=function",
        f"/dashboard/devices/{row.device_id}",
    ]
    for page in pages:
        text = check_page(user.get(page).text).visible_text()
        assert written not in text, page
        assert " kernels of this run alone" not in text
    (listed,) = [entry for entry in user.get("/dashboard/runs.json").json()["rows"] if entry["id"] == run]
    assert [listed[name] for name in ("median_ms", "p90_ms", "samples_per_second")] == [None] * 3
    assert user.get(f"/dashboard/runs/{run}/kernels.json").json()["rows"] == []
    summary = user.get(f"/runs/{run}").json()["summary"]
    assert [summary[name] for name in ("median_us", "p90_us", "samples_per_second")] == [None] * 3


def test_a_median_is_written_alike_wherever_it_stands(scratch: SeededFarm, user: Client) -> None:
    for run in (scratch.ids.pi_run, scratch.ids.noisy_run, scratch.ids.throttled_run):
        with scratch.farm.database.read() as session:
            row = session.get_one(Run, run)
        assert row.median_us is not None
        written = " ".join(latency_parts(row.median_us / 1000))
        compare = f"/dashboard/compare?run={run}&run={scratch.ids.emulated_run}"
        for page in (f"/dashboard/runs/{run}", compare, f"/dashboard/runs?device={row.device_id}"):
            assert re.search(rf"(?<![\d.]){re.escape(written)}", check_page(user.get(page).text).visible_text()), page
