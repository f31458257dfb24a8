"""What operators do in a real browser: the queue, a slower device, a board let in; on a phone, and without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from service.people.keys.service import create_key, create_link
from service.store.database.models import ApiKey, Device
from tests.dashboard.conftest import BROWSER, PATIENCE_MS, SeededFarm, make_farm
from tests.dashboard.screenshots import LOOKS, open_page, pages_of, serving
from tests.dashboard.test_forms import SAME, open_as, token_in
from tests.service.client import Client

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("loopback")]
PHONE = next(look for look in LOOKS if look.name == "phone")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeededFarm]:
    """A farm that these tests change."""
    made = make_farm(tmp_path_factory.mktemp("farm"))
    yield made
    made.farm.close()


@pytest.fixture(scope="module")
def address(scratch: SeededFarm) -> Iterator[str]:
    with serving(scratch) as address:
        yield address


@pytest.fixture
def window(web: Browser, address: str, scratch: SeededFarm) -> Iterator[Page]:
    """A signed-in window of an administrator."""
    page = open_page(web, LOOKS[0], address, scratch.link())
    yield page
    page.context.close()


def test_a_run_that_nobody_can_take_is_found_and_cancelled(window: Page) -> None:
    window.goto("/dashboard")
    window.get_by_role("link", name="3 runs wait, and no device can take them").click()
    expect(window.get_by_role("heading", name="Queue")).to_be_visible()
    window.get_by_role("link", name="any that runs raspberry-pi-4 · tag rack=7", exact=True).click()
    lane = window.get_by_role("region", name="any that runs raspberry-pi-4 · tag rack=7", exact=True)
    expect(lane).to_contain_text("lacks the tag rack=7")
    lane.get_by_role("button", name="Cancel").click()
    expect(window.locator("#said")).to_contain_text("is cancelled")
    expect(window.get_by_text("Nothing waits in this lane any more")).to_be_visible()
    window.get_by_role("link", name="The whole queue").click()
    expect(window.get_by_text("2 that nobody can take now")).to_be_visible()
    expect(window.locator("#said")).to_have_count(0)


def test_places_in_a_lane_go_by_age(window: Page) -> None:
    window.goto("/dashboard/queue")
    lanes = window.get_by_role("region", name="By what they wait for, the oldest first")
    lanes.get_by_role("link", name="raspberry-pi-4", exact=True).click()
    rows = window.locator("main tbody tr")
    expect(rows).to_have_count(3)
    assert [rows.nth(at).locator("td").first.inner_text() for at in range(3)] == ["1", "2", "3"]
    waits = [rows.nth(at).locator("time").get_attribute("datetime") or "" for at in range(3)]
    assert waits == sorted(waits)


def test_a_slower_device_is_acknowledged_with_a_note(window: Page, scratch: SeededFarm) -> None:
    window.goto("/dashboard/regressions")
    expect(window.get_by_text("1.062× slower (1.058 to 1.066×)").first).to_be_visible()
    window.get_by_text("Say that it is known").first.click()
    window.get_by_label("Why it is so, or what will be done").fill("new compiler: looked at")
    window.get_by_role("button", name="It is known").click()
    expect(window.locator("#said")).to_contain_text("is known of")
    expect(window.get_by_text("Nothing open")).to_be_visible()
    expect(window.get_by_text("new compiler: looked at")).to_be_visible()
    window.goto("/dashboard")
    expect(window.get_by_text("has become slower")).to_have_count(0)


def test_of_runs_apart_at_most_a_likely_is_said(window: Page) -> None:
    window.goto("/dashboard/regressions")
    row = window.get_by_role("row").filter(has_text="keyword_cnn · full")
    said = row.locator("td").nth(1).inner_text()
    assert said.startswith(("likely 1.08", "likely 1.09")), said
    row.get_by_role("link", name="keyword_cnn · full").click()
    chart = window.locator("figure#history")
    expect(chart.get_by_text("10 runs by bundles of 2 compilers")).to_be_visible()
    assert chart.locator("svg.history-plot .change-line").count() >= 1


def test_what_a_new_compiler_made_slower_is_known_once_somebody_notes_why(window: Page) -> None:
    window.goto("/dashboard/regressions")
    row = window.get_by_role("row").filter(has_text="keyword_cnn · full")
    expect(row).to_contain_text("open")
    row.get_by_role("link", name="say why").click()
    window.get_by_label("Note optional").fill("its convolution is written anew")
    window.get_by_role("button", name="Save").click()
    expect(window.locator("#said")).to_contain_text("saved")
    window.goto("/dashboard/regressions")
    expect(row).to_contain_text("acknowledged")
    expect(row).to_contain_text("its convolution is written anew")
    expect(row.get_by_role("link", name="say why")).to_have_count(0)


def test_a_token_comes_with_the_line_to_paste(window: Page, address: str) -> None:
    window.goto("/dashboard/admin")
    window.get_by_role("link", name="Enrol a board").click()
    window.get_by_label("Name of the board").fill("shelf-9")
    window.get_by_role("button", name="Make the token and its line").click()
    line = window.locator("#made pre").inner_text()
    assert line.startswith(f"curl -fsS {address}/enrol.sh | POCKFARM_ENROL_TOKEN=")
    assert line.endswith(" POCKFARM_NAME=shelf-9 sh")
    window.goto("/dashboard/admin/enrolment")
    expect(window.get_by_role("row").filter(has_text="shelf-9")).to_contain_text("in force")
    assert line.split("TOKEN=")[1].split()[0] not in window.content()


def test_a_device_is_quarantined_released_and_tagged(window: Page, scratch: SeededFarm) -> None:
    window.goto(f"/dashboard/devices/{scratch.ids.host}")
    window.locator("summary", has_text="Quarantine").click()
    window.locator("form#quarantine textarea").fill("its fan is loud")
    window.get_by_role("button", name="Quarantine it").click()
    expect(window.locator("#said")).to_contain_text("build-box is quarantined")
    expect(window.get_by_text("its fan is loud").first).to_be_visible()
    window.get_by_role("button", name="Release").click()
    expect(window.locator("#said")).to_contain_text("it gets work again")
    for typed, refused in (("rack=7 quiet", False), ("Rack=7", True)):
        window.locator("summary", has_text="Tags").click()
        window.locator("form#tags input[name=tags]").fill(typed)
        window.get_by_role("button", name="Set the tags").click()
        if refused:
            expect(window.locator("form#tags")).to_contain_text("is no tag")
            expect(window.locator("form#tags input[name=tags]")).to_have_value(typed)
    with scratch.farm.database.read() as session:
        assert session.get_one(Device, scratch.ids.host).tags == {"rack": "7", "quiet": ""}


def test_a_device_is_renamed(window: Page, scratch: SeededFarm) -> None:
    window.goto(f"/dashboard/devices/{scratch.ids.host}")
    window.locator("summary", has_text="Name").click()
    for typed, refused in (("orin-nano-01", True), ("/etc", True), ("bench left", False)):
        window.locator("form#rename input[name=name]").fill(typed)
        window.get_by_role("button", name="Rename it").click()
        if refused:
            expect(window.locator("form#rename .error")).to_be_visible()
            expect(window.locator("form#rename input[name=name]")).to_have_value(typed)
    expect(window.locator("#said")).to_contain_text("It is called bench left")
    expect(window.get_by_role("heading", level=1)).to_have_text("bench left")
    expect(window.locator(".facts")).to_contain_text(["build-box"])
    with scratch.farm.database.transaction() as session:
        session.get_one(Device, scratch.ids.host).given_name = None


def test_it_all_works_without_scripts(web: Browser, address: str, scratch: SeededFarm) -> None:
    context = web.new_context(java_script_enabled=False, base_url=address)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(scratch.link())
    page.goto("/dashboard/admin/keys")
    page.locator("#new-key").get_by_label("Name").fill("by hand")
    page.get_by_label("Days until it expires").fill("7")
    page.get_by_role("button", name="Make the key").click()
    expect(page.get_by_text("The key by hand is made")).to_be_visible()
    page.goto("/dashboard/admin/keys")
    row = page.get_by_role("row").filter(has_text="by hand")
    row.locator("summary").click()
    row.get_by_role("button", name="Yes: Revoke").click()
    expect(page.locator("#said")).to_contain_text("The key by hand is revoked")
    expect(page.get_by_role("row").filter(has_text="by hand")).to_contain_text("revoked")
    context.close()


@pytest.mark.parametrize("name", ["runs", "devices", "queue", "jobs", "benchmarks", "model", "compare", "regressions"])
def test_a_phone_shows_what_counts_without_scrolling_sideways(
    name: str, web: Browser, address: str, scratch: SeededFarm
) -> None:
    page = open_page(web, PHONE, address, scratch.link())
    page.goto(pages_of(scratch)[name])
    seen = page.evaluate(
        """() => [...document.querySelectorAll("main .scroll table")].map((table) => {
          const right = table.closest(".scroll").getBoundingClientRect().right;
          const heads = [...table.tHead.rows[0].cells].filter((cell) => cell.getBoundingClientRect().width > 0);
          return heads.filter((cell) => cell.getBoundingClientRect().right <= right + 1).map((cell) => cell.innerText);
        })"""
    )
    needed = {
        "runs": {"Verdict", "Median"},
        "devices": {"Health", "Canary"},
        "jobs": {"State"},
        "queue": {"May start"},
        "benchmarks": {"Verdict", "Step median"},
        "model": {"Device", "Best step median"},
        "compare": {"Metric", "A full", "B sparse"},
        "regressions": {"Model and plan", "What may be said"},
    }
    assert any(needed[name] <= {head.strip().splitlines()[0] for head in heads if head.strip()} for heads in seen), seen
    page.context.close()


def test_those_who_only_read_are_offered_nothing_to_do(scratch: SeededFarm) -> None:
    reader = open_as(scratch, "read")
    for path in ("/dashboard/queue", "/dashboard/regressions", f"/dashboard/devices/{scratch.ids.pi}"):
        text = reader.get(path).text
        assert 'method="post"' not in text, path
        assert ">Admin<" not in text, path
    operator = open_as(scratch, "read", "operate")
    text = operator.get(f"/dashboard/devices/{scratch.ids.pi}").text
    assert 'method="post"' in text
    token = token_in(text)
    refused = reader.post(f"/dashboard/devices/{scratch.ids.pi}/release", data={"form_token": token}, headers=SAME)
    assert refused.status_code == 403


def test_the_front_page_says_causes_once_each(tmp_path: Path) -> None:
    fresh = make_farm(tmp_path)
    browser = fresh.browser()
    text = browser.get("/dashboard").text
    for words in (
        "pi-4, window sill is offline",
        "phone-gen2-03 is quarantined",
        "2 runs failed: lease.expired",
        "Agent 0.2.0 is halted",
        "1 webhook cannot be told",
        "1 API key ends soon",
        "1 enrolment token ran out unused",
    ):
        assert text.count(words) == 1, words
    listed = browser.get("/dashboard/runs?state=failed&code=lease.expired").text
    assert listed.count(">failed<") >= 1 or "failed" in listed
    rows = browser.get("/dashboard/runs.json?state=failed&code=lease.expired").json()["rows"]
    assert len(rows) == 2
    rows = browser.get("/dashboard/devices.json?health=offline").json()["rows"]
    assert [row["device"] for row in rows] == ["pi-4, window sill"]
    reader = _reader(fresh)
    assert "API key ends soon" not in reader.get("/dashboard").text
    fresh.farm.close()


def _reader(scratch: SeededFarm) -> Client:
    with scratch.farm.database.transaction() as session:
        key, _ = create_key(session, name="reader", scopes=("read",))
        assert session.get(ApiKey, key.id)
        token, _ = create_link(session, key_id=key.id, lifetime_s=60)
    client = Client(scratch.app, headers=BROWSER)
    assert client.get(f"/open/{token}").status_code == 200
    return client
