"""What pages are asked for: whatever a page or one of its files does not know is refused, with what there is."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.routing import iter_route_contexts
from playwright.sync_api import Browser, expect

from service.dashboard import addresses
from service.dashboard.routes import router
from service.feature_list import PERMISSIONS
from service.people.permissions import Permissions
from service.people.query import fields_of
from tests.dashboard.conftest import SeededFarm
from tests.dashboard.markup import check_page
from tests.dashboard.screenshots import LOOKS, open_page
from tests.dashboard.seeder import digest
from tests.service.client import Client

ANY_TEXT = {"find"}
"""Part of names: it may be in none of them, and the page says so."""
SAID_ON_THE_PAGE = {("/dashboard/compare", "run"), ("/dashboard/compare.{ending}", "run")}
"""Others may be compared without a run that has gone."""
GARBAGE = "bogus"
MADE_UP = "no-such-field"


def _fields_by_page() -> dict[str, tuple[str, ...]]:
    """Every page and file of the dashboard that is shown to people with a key, with its query fields."""
    found = [one for one in iter_route_contexts(router.routes) if "GET" in (one.methods or ())]
    return {
        str(one.path): fields_of(one.dependant)
        for one in found
        if str(one.path).startswith(addresses.ROOT)
        and Permissions(PERMISSIONS).rule_of(f"GET {one.path}").scope is not None
    }


PAGES = _fields_by_page()
FIELDS = [(path, field) for path, fields in PAGES.items() for field in fields]


@pytest.fixture(scope="module")
def reader(seeded: SeededFarm) -> Client:
    """Who may open every page."""
    client = seeded.stranger()
    assert client.get(seeded.link("operator")).status_code == 200
    return client


def filled(path: str, seeded: SeededFarm) -> str:
    """The address of one that there is."""
    ids = seeded.ids
    tables = {"jobs": "runs", "runs": "kernels", "devices": "history"}
    names = {
        "job_id": ids.done_job,
        "run_id": ids.sparse_run,
        "device_id": ids.host,
        "ending": "json",
        "model_digest": digest("mobilenet_v2"),
        "plan_digest": digest("sparse"),
        "organisation_id": ids.tenant,
        "name": tables.get((*path.split("/"), "")[2], ""),
    }
    return re.sub(r"\{(\w+)\}", lambda match: quote(names[match[1]], safe=""), path)


def said(answer: Any) -> str:
    """What a person reads, of a page or of a problem document."""
    if "html" not in answer.headers["content-type"]:
        body = answer.json()
        return f"{body['detail']} {body['where']} {body['hint']}"
    return check_page(answer.text).visible_text()


def test_there_are_pages_with_fields() -> None:
    assert len(PAGES) > 30
    assert {"sort", "before", "state", "verdict", "days", "compiler", "lane", "of", "bundle", "x"} <= {
        field for _, field in FIELDS
    }


@pytest.mark.parametrize("path", PAGES)
def test_a_field_that_a_page_does_not_have_is_refused(path: str, seeded: SeededFarm, reader: Client) -> None:
    address = filled(path, seeded)
    assert reader.get(address).status_code == 200
    answer = reader.get(f"{address}?{MADE_UP}=1")
    assert answer.status_code == 422, answer.text
    words = said(answer)
    assert MADE_UP in words
    for word in PAGES[path] or ["none"]:
        assert word in words


@pytest.mark.parametrize(("path", "field"), [one for one in FIELDS if one[1] not in ANY_TEXT])
def test_a_value_that_a_page_does_not_know_is_refused(
    path: str, field: str, seeded: SeededFarm, reader: Client
) -> None:
    address = filled(path, seeded)
    answer = reader.get(f"{address}?{field}={GARBAGE}")
    if (path, field) in SAID_ON_THE_PAGE:
        assert path.endswith(".{ending}") or f"There is no run {GARBAGE}" in said(answer)
        return
    assert answer.status_code == 422, answer.text
    words = said(answer)
    assert GARBAGE in words
    assert field in words
    assert re.search(r"there are: \w|leave \w+ out|did you mean", words), words


@pytest.mark.parametrize(("path", "field"), FIELDS)
def test_an_empty_field_is_none(path: str, field: str, seeded: SeededFarm, reader: Client) -> None:
    address = filled(path, seeded)
    assert reader.get(f"{address}?{field}=").status_code == 200


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("runs?sort=median", "did you mean 'median_ms'?"),
        ("runs?model=mobilenet", "did you mean 'mobilenet_v2'?"),
        ("runs?class=hardwear", "did you mean 'hardware'?"),
        ("runs?before=job_000001", "ids here begin with run_"),
        ("devices?tag=shelf", "nothing here has the tag 'shelf'"),
        ("devices?class=raspberry-pi-5", "did you mean 'raspberry-pi-4'?"),
        ("benchmarks?x=memory&y=memory", "memory is across already"),
        ("benchmarks?days=2", "there are: 1, 7, 30, 365"),
        ("compare?run=a&run=b&run=c&run=d&run=e", "5 runs are too many"),
        ("audit?outcome=dnoe", "did you mean 'done'?"),
    ],
)
def test_a_refusal_says_what_was_meant(query: str, words: str, reader: Client) -> None:
    answer = reader.get(f"/dashboard/{query}")
    assert answer.status_code == 422
    assert words in said(answer)


def test_a_table_without_an_order_refuses_one(seeded: SeededFarm, reader: Client) -> None:
    answer = reader.get(f"/dashboard/runs/{seeded.ids.sparse_run}/steps.json?sort=time_us")
    assert answer.status_code == 422
    assert "leave sort out" in said(answer)


def test_a_search_that_finds_nothing_says_so(seeded: SeededFarm, reader: Client) -> None:
    answer = reader.get(f"/dashboard/runs/{seeded.ids.sparse_run}?find={GARBAGE}")
    assert answer.status_code == 200
    assert "0 kernels found" in said(answer)


@pytest.mark.xdist_group("browser")
@pytest.mark.usefixtures("loopback")
def test_a_refused_field_is_left_out_by_a_click(web: Browser, address: str, seeded: SeededFarm) -> None:
    page = open_page(web, LOOKS[0], address, seeded.link())
    page.goto("/dashboard/runs?mode=train&sort=bogus")
    page.get_by_role("link", name="This page without sort").click()
    expect(page.get_by_role("heading", name="Runs", level=1)).to_be_visible()
    assert page.url.endswith("/dashboard/runs?mode=train")
    page.context.close()
