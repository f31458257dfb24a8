"""Lists of the administration have every entry, in pages and by name; limits are shown and changed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from service.dashboard.pages.admin.listing import PAGE_ROWS
from service.store.database.models import (
    HOME,
    AgentRelease,
    ApiKey,
    EnrolmentToken,
    MaintenanceWindow,
    Organisation,
    User,
    Webhook,
)
from tests.dashboard.conftest import SeededFarm, make_farm
from tests.dashboard.markup import check_page
from tests.dashboard.screenshots import LOOKS, open_page, serving
from tests.dashboard.seeder import digest
from tests.dashboard.test_forms import SAME, open_as, token_in
from tests.service.client import Client

MANY = 130
KINDS: dict[str, tuple[type[Any], str]] = {
    "keys": (ApiKey, "API keys"),
    "enrolment": (EnrolmentToken, "tokens"),
    "people": (User, "people"),
    "organisations": (Organisation, "organisations"),
    "windows": (MaintenanceWindow, "windows"),
    "releases": (AgentRelease, "releases"),
    "webhooks": (Webhook, "webhooks"),
}
WORDS = ("_ADD_", "50% more", "plain")
"""In names: what a search must take as it is typed, and not as a pattern."""


def made(name: str, at: int) -> Any:
    """One more entry of a list, older than the seeded ones."""
    said, now = f"{WORDS[at % 3]} {at:03d}", time.time()
    rows: dict[str, Any] = {
        "keys": lambda: ApiKey(
            id=f"key_0{at:025d}", name=said, role="user", scopes="read", secret_hash=digest(said)[7:]
        ),
        "enrolment": lambda: EnrolmentToken(
            id=f"tok_0{at:025d}", name=said, token_hash=digest(said)[7:], expires_at=now
        ),
        "people": lambda: User(id=f"usr_0{at:025d}", organisation_id=HOME, name=said),
        "organisations": lambda: Organisation(id=f"org_0{at:025d}", name=said),
        "windows": lambda: MaintenanceWindow(
            id=f"mnt_0{at:025d}", organisation_id=HOME, starts_at=now, ends_at=now + 9, reason=said
        ),
        "releases": lambda: AgentRelease(
            id=f"rel_0{at:025d}",
            sequence=1000 + at,
            version=said,
            digest=digest(said),
            size_bytes=1,
            oldest_python="3.9",
            protocol="1",
            is_rollback=False,
            conditions=[],
            state="offered",
            halt_reason="",
        ),
        "webhooks": lambda: Webhook(
            id=f"hook_0{at:025d}",
            api_key_id="key_seed",
            url=f"https://x.example/{said}",
            events=["run.ended"],
            secret="s",
        ),
    }
    return rows[name]()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeededFarm]:
    """A farm with long lists."""
    found = make_farm(tmp_path_factory.mktemp("farm"))
    with found.farm.database.transaction() as session:
        session.add_all(made(name, at) for name in KINDS for at in range(MANY))
    yield found
    found.farm.close()


@pytest.fixture(scope="module")
def admin(scratch: SeededFarm) -> Client:
    return scratch.browser()


def ids_on(page: str, name: str) -> list[str]:
    start = made(name, 0).id.split("_")[0]
    return re.findall(rf'<tr id="({start}_[0-9a-z]+)"', page)


@pytest.mark.parametrize("name", KINDS)
def test_every_entry_is_on_one_page(name: str, scratch: SeededFarm, admin: Client) -> None:
    kind, noun = KINDS[name]
    with scratch.farm.database.read() as session:
        there = [row for (row,) in session.query(kind.id).order_by(kind.id.desc())]
    found: list[str] = []
    address, pages = f"/dashboard/admin/{name}", 0
    while address:
        page = admin.get(address).text
        assert f"{len(there)} {noun}; " in check_page(page).visible_text()
        shown = ids_on(page, name)
        assert 0 < len(shown) <= PAGE_ROWS
        found, pages = found + shown, pages + 1
        older = re.search(r'<a href="([^"]+)" rel="next">Older</a>', page)
        address = older[1] if older else ""
    assert found == there
    assert pages > 2


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("typed", "word"), [("_add_", "_ADD_"), ("50%", "50% more"), ("plain 128", "plain 128")])
def test_an_entry_is_found_by_part_of_its_name(name: str, typed: str, word: str, admin: Client) -> None:
    page = admin.get(f"/dashboard/admin/{name}", params={"find": typed})
    count = sum(word in f"{WORDS[at % 3]} {at:03d}" for at in range(MANY))
    text = check_page(page.text).visible_text()
    assert (
        f"{count} {KINDS[name][1] if count > 1 else KINDS[name][1].replace('people', 'person').removesuffix('s')} with"
        in text
    )
    assert len(ids_on(page.text, name)) == min(count, 30 if name == "releases" else PAGE_ROWS)
    assert f'name="find" value="{typed}"' in page.text


@pytest.mark.parametrize("name", KINDS)
def test_a_search_that_finds_nothing_leads_back(name: str, admin: Client) -> None:
    page = check_page(admin.get(f"/dashboard/admin/{name}?find=nobody").text)
    assert f"0 {KINDS[name][1]} with “nobody”." in page.visible_text()
    assert f"/dashboard/admin/{name}" in [one.attributes.get("href") for one in page.all("a")]


def test_a_later_page_keeps_what_is_sought(admin: Client) -> None:
    page = admin.get("/dashboard/admin/keys?find=0").text
    older = re.search(r'<a href="([^"]+)" rel="next">Older</a>', page)
    assert older is not None
    second = admin.get(older[1].replace("&amp;", "&")).text
    assert 'name="find" value="0"' in second
    assert re.search(r'<a href="/dashboard/admin/keys\?find=0">Newest</a>', second)


def test_limits_use_and_days_are_shown_with_whose_they_are(scratch: SeededFarm, admin: Client) -> None:
    detail = {one["name"]: one for one in admin.get("/organisation").json()["quotas"]}
    limits, stays = check_page(admin.get(f"/dashboard/admin/organisations/{scratch.ids.tenant}").text).tables
    by_name = {row[-1]: row for row in limits.rows[1:]}
    assert by_name.keys() == detail.keys()
    assert by_name["open_runs"][1:4] == ["0", "50", "this organisation"]
    assert by_name["storage_bytes"][1:4] == ["0 B", "no limit", "this organisation"]
    assert by_name["keys"][3] == "all"
    assert {row[-1]: row[1] for row in stays.rows[1:]}["weights"] == "90 days"
    home, _ = check_page(admin.get("/dashboard/admin/organisation").text).tables
    assert {row[-1]: row[1] for row in home.rows[1:]}["open_runs"] == f"{detail['open_runs']['use']:.0f}"


def test_a_tenant_sees_its_own_and_changes_nothing(scratch: SeededFarm) -> None:
    reader = open_as(scratch, "read")
    page = reader.get("/dashboard/admin/organisation")
    assert page.status_code == 200
    assert 'method="post"' not in page.text
    assert reader.get(f"/dashboard/admin/organisations/{scratch.ids.tenant}").status_code == 403
    refused = reader.post(
        f"/dashboard/admin/organisations/{scratch.ids.tenant}/limits", data={"keys": "1"}, headers=SAME
    )
    assert refused.status_code == 403


@pytest.mark.parametrize(
    ("form", "typed", "words"),
    [
        ("limits", {"keys": "many"}, "'many' is not a number"),
        ("limits", {"keys": "-1"}, "greater than or equal to 0"),
        ("limits", {"keys": "inf"}, "finite"),
        ("stays", {"weights": "0"}, "greater than 0"),
        ("stays", {"weights": "unlimited"}, "'unlimited' is not a number"),
        ("name", {"name": "lab"}, "there is an organisation"),
        ("name", {"name": ""}, "at least 1 character"),
    ],
)
def test_a_refused_change_is_told_beside_its_field(
    form: str, typed: dict[str, str], words: str, scratch: SeededFarm, admin: Client
) -> None:
    address = f"/dashboard/admin/organisations/{scratch.ids.tenant}"
    token = token_in(admin.get(address).text)
    before = state_of(scratch)
    answer = admin.post(f"{address}/{form}", data={"form_token": token, **typed}, headers=SAME)
    assert answer.status_code in (409, 422)
    (error,) = re.findall(r'<p class="error" id="([^"]+)">.*?</p>', answer.text, re.DOTALL)
    assert error == f"change-{form}-{next(iter(typed))}-error"
    assert words in check_page(answer.text).visible_text()
    assert state_of(scratch) == before


def test_a_form_of_another_site_changes_no_limit(scratch: SeededFarm, admin: Client) -> None:
    before = state_of(scratch)
    for token, headers in (("0" * 40, SAME), ("", SAME)):
        for form in ("name", "limits", "stays"):
            address = f"/dashboard/admin/organisations/{scratch.ids.tenant}/{form}"
            answer = admin.post(address, data={"form_token": token, "keys": "0", "name": "x"}, headers=headers)
            assert answer.status_code == 403
    assert state_of(scratch) == before


def state_of(scratch: SeededFarm) -> tuple[object, ...]:
    with scratch.farm.database.read() as session:
        organisation = session.get_one(Organisation, scratch.ids.tenant)
        return organisation.name, dict(organisation.quotas), dict(organisation.retention)


@pytest.mark.xdist_group("browser")
@pytest.mark.usefixtures("loopback")
def test_limits_are_changed_by_hand(web: Browser, scratch: SeededFarm) -> None:
    with serving(scratch) as address:
        page = open_page(web, LOOKS[0], address, scratch.link())
        page.goto("/dashboard/admin")
        page.get_by_role("link", name="Organisations", exact=True).click()
        page.get_by_label("Find by name").fill("acme")
        page.get_by_role("button", name="Find").click()
        expect(page.locator("#count")).to_have_text("1 organisation with “acme”.")
        page.get_by_role("link", name="acme").click()
        limits = page.locator("form#change-limits")
        expect(limits.get_by_label("Jobs that have not ended")).to_have_value("")
        expect(limits.get_by_label("Runs that have not ended")).to_have_value("50")
        expect(limits.get_by_label("Bytes of files")).to_have_value("unlimited")
        limits.get_by_label("Jobs that have not ended").fill("12")
        limits.get_by_label("Runs that have not ended").fill("")
        limits.get_by_role("button", name="Set the limits").click()
        expect(page.locator("#said")).to_have_text("The limits of acme are set")
        days = page.locator("form#change-stays")
        days.get_by_label("Events of jobs and runs").fill("forever")
        days.get_by_label("Trained weights").fill("30")
        days.get_by_role("button", name="Set the days").click()
        expect(page.locator("#said")).to_contain_text("stay is set")
        page.locator("form#change-name").get_by_label("Name").fill("acme works")
        page.get_by_role("button", name="Rename it").click()
        expect(page.get_by_role("heading", name="acme works")).to_be_visible()
        page.context.close()
    assert state_of(scratch) == (
        "acme works",
        {"open_jobs": 12.0, "storage_bytes": None},
        {"weights": 30.0, "events": None},
    )
