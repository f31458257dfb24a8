"""Keys, roles, one-time links, cookies: who may do what."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from device_agents import wire
from service.people.access import COOKIE
from service.store.database.models import ApiKey, DashboardLink, DashboardSession
from tests.service.client import Client
from tests.service.farms import TestFarm

OPEN_TO_ALL = {
    "/healthz",
    "/readyz",
    "/enrol.sh",
    "/agent.pyz",
    "/open/{token}",
    "/agent/enrol",
    "/agent/challenge",
    "/agent/renew",
    "/schemas/{name}",
}


def test_everything_else_needs_a_key_or_a_credential(small_farm: TestFarm) -> None:
    paths = small_farm.http.get("/openapi.json").json()["paths"]
    assert set(paths) > OPEN_TO_ALL
    headers = {wire.PROTOCOL_HEADER: wire.PROTOCOL}
    for path, methods in paths.items():
        for method in methods:
            url = re.sub(r"\{[^}]*digest\}", "sha256:" + "0" * 64, path)
            answer = small_farm.anonymous.request(method, re.sub(r"\{.*?\}", "x", url), headers=headers)
            assert (answer.status_code == 401) == (path not in OPEN_TO_ALL), (method, path, answer.status_code)


def test_roles(small_farm: TestFarm) -> None:
    user = small_farm.key("user")
    assert small_farm.anonymous.get("/jobs", headers=user).status_code == 200
    for method, path in (
        ("GET", "/keys"),
        ("POST", "/keys"),
        ("DELETE", "/keys/x"),
        ("DELETE", "/devices/x"),
        ("POST", "/devices/x/quarantine"),
        ("POST", "/devices/x/release"),
    ):
        answer = small_farm.anonymous.request(method, path, headers=user, json={"name": "n"})
        assert (answer.status_code, answer.json()["code"]) == (403, "auth.scope"), path


def test_secrets_are_shown_once_and_kept_as_hashes(farm: TestFarm) -> None:
    made = farm.http.post("/keys", json={"name": "ci"}).json()
    header = {"Authorization": f"Bearer {made['secret']}"}
    assert farm.anonymous.get("/jobs", headers=header).status_code == 200
    assert "secret" not in farm.http.get("/keys").text
    with farm.farm.database.read() as session:
        key = session.get_one(ApiKey, made["id"])
        assert made["secret"] not in {str(value) for value in vars(key).values()}
    assert farm.http.delete(f"/keys/{made['id']}").json()["revoked_at"] is not None
    refused = farm.anonymous.get("/jobs", headers=header)
    assert (refused.status_code, refused.json()["code"]) == (401, "auth.invalid")
    assert refused.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", "Bearer pf_unknown", "bearer \u00e9"])
def test_bad_authorization_is_401(small_farm: TestFarm, header: str) -> None:
    answer = small_farm.anonymous.get("/jobs", headers=[(b"Authorization", header.encode())])
    assert answer.status_code == 401


def open_browser(farm: TestFarm) -> Client:
    browser = Client(farm.anonymous.app, raise_exceptions=False)
    token = farm.http.post("/dashboard/links").json()["token"]
    answer = browser.get(f"/open/{token}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    return browser


def test_link_opens_once_and_its_cookie_reads(farm: TestFarm) -> None:
    token = farm.http.post("/dashboard/links").json()["token"]
    first = farm.anonymous.get(f"/open/{token}", follow_redirects=False)
    assert first.status_code == 303
    farm.anonymous.cookies.clear()
    again = farm.anonymous.get(f"/open/{token}", follow_redirects=False)
    assert (again.status_code, again.json()["code"]) == (403, "link.used")
    assert open_browser(farm).get("/jobs").status_code == 200


def test_a_link_leads_to_a_page_of_the_dashboard_and_nowhere_else(farm: TestFarm) -> None:
    token = farm.http.post("/dashboard/links").json()["token"]
    elsewhere_all = (
        "//evil.example",
        "https://evil.example/dashboard",
        "/dashboard/../keys",
        "/jobs",
        "/dashboard//x",
        "/dashboard/runs\n",
        "/dashboard/runs?x=1",
    )
    for elsewhere in elsewhere_all:
        refused = farm.anonymous.get(f"/open/{token}", params={"to": elsewhere}, follow_redirects=False)
        assert refused.status_code == 422, elsewhere
    opened = farm.anonymous.get(f"/open/{token}", params={"to": "/dashboard/runs/run_1"}, follow_redirects=False)
    assert (opened.status_code, opened.headers["location"]) == (303, "/dashboard/runs/run_1")


def test_cookie_writes_only_from_the_farms_own_pages(small_farm: TestFarm) -> None:
    browser = open_browser(small_farm)
    for headers, status in (
        ({}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://testserver"}, 201),
        ({"Sec-Fetch-Site": "same-origin"}, 201),
    ):
        assert browser.post("/dashboard/links", headers=headers).status_code == status, headers


def test_expired_links_and_sessions_and_revoked_keys_close_the_door(farm: TestFarm) -> None:
    browser = open_browser(farm)
    link = farm.http.post("/dashboard/links").json()["token"]
    with farm.farm.database.transaction() as session:
        session.query(DashboardLink).update({"expires_at": 1.0})
    assert farm.anonymous.get(f"/open/{link}").status_code == 403
    other = farm.key("operator")
    key_id = farm.http.get("/keys").json()[-1]["id"]
    farm.anonymous.delete(f"/keys/{key_id}", headers=other)
    assert browser.get("/jobs").status_code == 401
    browser.cookies.set(COOKIE, "made-up")
    assert browser.get("/jobs").status_code == 401
    farm.sweep()
    with farm.farm.database.read() as session:
        assert session.query(DashboardLink).count() == 0
        assert session.query(DashboardSession).count() == 1


def admin(state: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "service.admin", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={"POCKFARM_STATE": str(state), "PATH": "/usr/bin:/bin"},
    )
    return done.stdout.splitlines()[-1]


def test_admin_makes_a_farm_with_a_private_key_file(tmp_path: Path) -> None:
    from service.app import create_app
    from service.base.settings import Settings

    state = tmp_path / "state"
    admin(state, "migrate")
    admin(state, "migrate")  # again changes nothing
    secret = admin(state, "create-key", "--save")
    key_file = state / "api-key"
    assert key_file.read_text().strip() == secret
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    link, token = admin(state, "one-time-link"), admin(state, "enrolment-token", "--device-class", "x86-64")
    with Client(create_app(Settings(state=state, sweep_s=0))) as http:
        assert http.get("/keys", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
        assert http.get(link.removeprefix("http://127.0.0.1:8000"), follow_redirects=False).status_code == 303
        from tests.service.board import Board

        assert Board(http, device_class="raspberry-pi-4").try_enrol(token).status_code == 403
        assert Board(http).try_enrol(token).status_code == 201
    assert stat.S_IMODE((state / "signing-key.json").stat().st_mode) == 0o600
