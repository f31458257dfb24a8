"""Forms: what is asked for is done and said once; what is refused comes back as typed; no other site may post them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.dashboard.visitors import SAID_COOKIE
from service.people.keys.service import create_key, create_link
from tests.dashboard.conftest import BROWSER, SeededFarm, make_farm
from tests.dashboard.markup import check_page
from tests.service.client import Client

SAME = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeededFarm]:
    """A farm that these tests change."""
    made = make_farm(tmp_path_factory.mktemp("farm"))
    yield made
    made.farm.close()


def open_as(scratch: SeededFarm, *scopes: str) -> Client:
    """A browser whose key has these scopes."""
    with scratch.farm.database.transaction() as session:
        key, _ = create_key(session, name="-".join(scopes), scopes=scopes)
        token, _ = create_link(session, key_id=key.id, lifetime_s=60)
    client = Client(scratch.app, headers=BROWSER)
    assert client.get(f"/open/{token}").status_code == 200
    return client


def token_in(page: str) -> str:
    """That of the page's forms."""
    found = set(re.findall(r'name="form_token" value="([0-9a-f]{40})"', page))
    assert len(found) == 1
    return found.pop()


def test_a_key_is_made_shown_once_and_revoked(scratch: SeededFarm) -> None:
    browser = open_as(scratch, "read", "admin")
    token = token_in(browser.get("/dashboard/admin/keys").text)
    typed = {"form_token": token, "name": "ci on build-3", "may": "submit", "days": "30"}
    made = browser.post("/dashboard/admin/keys", data=typed, headers=SAME)
    assert made.status_code == 201
    text = check_page(made.text).visible_text()
    secret = re.findall(r"pf_[0-9a-f]{64}", text)[0]
    program = Client(scratch.app, headers={"Authorization": f"Bearer {secret}"})
    assert program.get("/jobs").status_code == 200
    assert program.get("/keys").status_code == 403, "it may submit, and no more"
    (key,) = (one for one in browser.get("/keys").json() if one["name"] == "ci on build-3")
    assert key["scopes"] == ["read", "submit"]
    assert secret not in browser.get("/dashboard/admin/keys").text
    address = f"/dashboard/admin/keys/{key['id']}/revoke"
    gone = browser.post(address, data={"form_token": token}, headers=SAME, follow_redirects=False)
    assert (gone.status_code, gone.headers["location"]) == (303, "/dashboard/admin/keys")
    assert program.get("/jobs").status_code == 401
    said = "The key ci on build-3 is revoked"
    assert said in browser.get("/dashboard/admin/keys").text
    assert said not in browser.get("/dashboard/admin/keys").text, "said once"


def test_a_refused_form_keeps_what_was_typed(scratch: SeededFarm) -> None:
    browser = open_as(scratch, "read", "admin")
    token = token_in(browser.get("/dashboard/admin/keys").text)
    typed = {"form_token": token, "name": 'a "name" <b>', "may": "operate", "days": "soon"}
    answer = browser.post("/dashboard/admin/keys", data=typed, headers=SAME)
    assert answer.status_code == 422
    page = check_page(answer.text)
    fields = {one.attributes["name"]: one.attributes for one in page.all("input") if "name" in one.attributes}
    assert fields["name"]["value"] == typed["name"]
    assert (fields["days"]["value"], fields["days"]["aria-invalid"]) == ("soon", "true")
    assert "'soon' is not a number" in page.visible_text()
    chosen = [one.attributes["value"] for one in page.all("option") if "selected" in one.attributes]
    assert chosen == ["operate"]
    assert "ci" not in [one["name"] for one in browser.get("/keys").json()]


@pytest.mark.parametrize(
    ("headers", "token", "code"),
    [
        (SAME, "", "auth.form"),
        (SAME, "0" * 40, "auth.form"),
        ({"Sec-Fetch-Site": "cross-site"}, "good", "auth.cross-site"),
        ({"Origin": "https://evil.example"}, "good", "auth.cross-site"),
        ({}, "good", "auth.cross-site"),
    ],
)
def test_a_form_of_another_site_or_browser_does_nothing(
    scratch: SeededFarm, headers: dict[str, str], token: str, code: str
) -> None:
    browser = open_as(scratch, "read", "admin")
    good = token_in(browser.get("/dashboard/admin/keys").text)
    before = len(browser.get("/keys").json())
    typed = {"form_token": good if token == "good" else token, "name": "stolen", "may": "admin"}
    answer = browser.post("/dashboard/admin/keys", data=typed, headers=headers)
    assert answer.status_code == 403
    assert code in check_page(answer.text).visible_text()
    assert len(browser.get("/keys").json()) == before


def test_the_token_of_one_session_is_not_anothers(scratch: SeededFarm) -> None:
    sender, another_session = open_as(scratch, "read", "admin"), open_as(scratch, "read", "admin")
    token = token_in(another_session.get("/dashboard/admin/keys").text)
    answer = sender.post("/dashboard/admin/keys", data={"form_token": token, "name": "x"}, headers=SAME)
    assert answer.status_code == 403


def test_who_may_not_is_told_so(scratch: SeededFarm) -> None:
    browser = open_as(scratch, "read", "submit", "operate")
    answer = browser.get("/dashboard/admin/keys")
    assert answer.status_code == 403
    assert "needs a key with the scope admin" in check_page(answer.text).visible_text()
    assert browser.post("/dashboard/admin/keys", data={"name": "x"}, headers=SAME).status_code == 403


def test_nobody_elses_words_are_said(scratch: SeededFarm) -> None:
    browser = open_as(scratch, "read", "admin")
    for cookie in (b"Z29vZApoYWNrZWQ=.0", b"Z29vZApoYWNrZWQ=", b"\xff.\xff", b".", b""):
        all_cookies = f"{_cookies(browser)}; {SAID_COOKIE}=".encode() + cookie
        answer = browser.get("/dashboard", headers=[(b"cookie", all_cookies)])
        assert answer.status_code == 200
        assert "hacked" not in answer.text


def _cookies(browser: Client) -> str:
    return "; ".join(f"{name}={value}" for name, value in browser.cookies.items())


def test_a_refused_button_leads_back(scratch: SeededFarm) -> None:
    browser = open_as(scratch, "read", "admin")
    token = token_in(browser.get("/dashboard/admin/keys").text)
    headers = SAME | {"Referer": "http://testserver/dashboard/admin/keys"}
    answer = browser.post("/dashboard/admin/keys/key_none/revoke", data={"form_token": token}, headers=headers)
    assert answer.status_code == 404
    links = [one.attributes["href"] for one in check_page(answer.text).all("a")]
    assert "/dashboard/admin/keys" in links


def test_a_button_that_is_refused_says_that_nothing_was_done(scratch: SeededFarm) -> None:
    browser = open_as(scratch, "read", "submit")
    here = f"/dashboard/runs/{scratch.ids.failed_run}"
    token = token_in(browser.get(here).text)
    answer = browser.post(f"{here}/retry", data={"form_token": token}, headers=SAME)
    assert answer.status_code == 422, "it was to train, and its data set is gone"
    assert "This was not done" in check_page(answer.text).visible_text()


def test_an_odd_body_is_no_failure_of_the_farm(scratch: SeededFarm, tmp_path: Path) -> None:
    browser = open_as(scratch, "read", "admin")
    form = {"content-type": "application/x-www-form-urlencoded"}
    for content, kind in (
        (b"name=%00&form_token=%ed%a0%80", form),
        (b"\xff\xfe", form),
        (b"=&" * 500, form),
        (b"--x\r\nbroken", {"content-type": "multipart/form-data; boundary=x"}),
        (b"{}", {"content-type": "application/json"}),
        (b"", {}),
    ):
        answer = browser.post("/dashboard/admin/keys", content=content, headers=SAME | kind)
        assert 400 <= answer.status_code < 500, (content, answer.text)
