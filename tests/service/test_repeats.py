"""`Idempotency-Key`: whatever an address creates, the same request again creates nothing more."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select

from service.store.database.models import DashboardLink, IdempotencyRecord
from tests.service.farms import TestFarm

HEADER = "Idempotency-Key"
WINDOW = {"starts_at": "2098-12-01T02:00:00Z", "ends_at": "2098-12-01T03:00:00Z", "reason": "power"}
SHOWN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/users", {"name": "Ada"}),
    ("/organisations", {"name": "tenant"}),
    ("/maintenance", WINDOW),
    ("/agent-releases", {}),
)
SECRET = (
    ("/keys", {"name": "ci"}, "secret"),
    ("/webhooks", {"url": "https://example.org/told"}, "secret"),
    ("/devices/enrolment-tokens", {"name": "bench"}, "token"),
)


def entries(farm: TestFarm, path: str) -> list[dict[str, Any]]:
    """What the address lists."""
    listed = farm.http.get(path).json()
    return list(listed["items"] if isinstance(listed, dict) else listed)


def stored_bodies(farm: TestFarm) -> list[Any]:
    with farm.farm.database.read() as session:
        return list(session.scalars(select(IdempotencyRecord.body)))


def test_every_address_that_creates_takes_the_header(small_farm: TestFarm) -> None:
    """Of those that ask for an API key: an agent enrols again with its own key, and stays the device that it is."""
    silent, creating = [], 0
    for path, operations in small_farm.http.get("/openapi.json").json()["paths"].items():
        operation = operations.get("post", {})
        creates = "201" in operation.get("responses", {}) or "202" in operation.get("responses", {})
        if not creates or not operation.get("security") or path.endswith("/cancel"):
            continue
        creating += 1
        if HEADER not in [parameter["name"] for parameter in operation.get("parameters", [])]:
            silent.append(path)
    assert (silent, creating) == ([], 17)


@pytest.mark.parametrize(("path", "body"), SHOWN, ids=[path for path, _ in SHOWN])
def test_a_repeat_gets_the_first_answer(farm: TestFarm, path: str, body: dict[str, Any]) -> None:
    before = len(entries(farm, path))
    first, again = (farm.http.post(path, json=body, headers={HEADER: "k"}) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201), first.text
    assert again.content == first.content
    assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
    assert len(entries(farm, path)) == before + 1
    other = farm.http.post("/users", json={"name": "other"}, headers={HEADER: "k"})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency.reused")


@pytest.mark.parametrize(("path", "body", "field"), SECRET, ids=[path for path, _, _ in SECRET])
def test_a_repeat_is_not_shown_a_secret(farm: TestFarm, path: str, body: dict[str, Any], field: str) -> None:
    before = len(entries(farm, path))
    first, again = (farm.http.post(path, json=body, headers={HEADER: "k"}) for _ in range(2))
    assert first.status_code == 201, first.text
    assert (again.status_code, again.json()["code"]) == (409, "idempotency.secret")
    assert first.json()[field] not in again.text
    assert len(entries(farm, path)) == before + 1
    assert stored_bodies(farm) == [None]


def test_a_tenants_key_is_made_once(farm: TestFarm) -> None:
    tenant = farm.tenant("tenant")
    path, before = f"/organisations/{tenant.organisation_id}/keys", len(entries(tenant, "/keys"))
    first, again = (farm.http.post(path, json={"name": "first"}, headers={HEADER: "k"}) for _ in range(2))
    assert (first.status_code, again.json()["code"]) == (201, "idempotency.secret")
    assert len(entries(tenant, "/keys")) == before + 1
    elsewhere = farm.http.post("/keys", json={"name": "first"}, headers={HEADER: "k"})
    assert elsewhere.json()["code"] == "idempotency.reused", "the same body at another address is another request"


def test_a_link_is_made_once(farm: TestFarm) -> None:
    first, again = (farm.http.post("/dashboard/links", headers={HEADER: "k"}) for _ in range(2))
    assert (first.status_code, again.json()["code"]) == (201, "idempotency.secret")
    with farm.farm.database.read() as session:
        assert session.scalar(select(func.count()).select_from(DashboardLink)) == 1


def test_what_was_refused_may_come_again_under_its_key(farm: TestFarm) -> None:
    refused = farm.http.post("/keys", json={"name": "ci", "user": "usr_none"}, headers={HEADER: "k"})
    assert refused.status_code == 404
    assert farm.http.post("/keys", json={"name": "ci"}, headers={HEADER: "k"}).status_code == 201
