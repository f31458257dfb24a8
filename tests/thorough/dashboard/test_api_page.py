"""The API's reference: complete, under our policy, searchable with and without scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.dashboard.conftest import PATIENCE_MS, SeededFarm
from tests.dashboard.markup import check_page
from tests.dashboard.screenshots import LOOKS, open_page
from tests.service.client import Client

DESCRIPTION = json.loads((Path(__file__).parents[3] / "openapi.json").read_text())


def test_every_endpoint_is_there_with_what_it_takes_and_a_line_to_copy(browser: Client) -> None:
    page = check_page(browser.get("/dashboard/api").text)
    said = page.visible_text()
    described = [
        (method.upper(), path, one) for path, ones in DESCRIPTION["paths"].items() for method, one in ones.items()
    ]
    entries = [element for element in page.all("details") if "data-words" in element.attributes]
    assert len(entries) == len(described) > 90
    for method, path, operation in described:
        assert f"{method} {path} {operation['summary']}" in said
        for parameter in operation.get("parameters", ()):
            assert parameter["name"] in said
    assert 'curl -X POST -H "Authorization: Bearer $POCKFARM_KEY" "http' in said
    assert '/jobs/$JOB_ID/cancel"' in said
    assert "-F model=@FILE -F plan=PLAN -F target=TARGET" in said
    assert "an operator's key" in said
    assert "application/problem+json" in said


@pytest.mark.xdist_group("browser")
@pytest.mark.usefixtures("loopback")
def test_typing_narrows_the_list_and_an_address_opens_its_endpoint(
    web: Browser, address: str, seeded: SeededFarm
) -> None:
    page = open_page(web, LOOKS[0], address, seeded.link())
    page.goto("/dashboard/api#post-jobs-job-id-cancel")
    expect(page.get_by_text("/jobs/$JOB_ID/cancel").first).to_be_visible()
    page.get_by_label("Find an endpoint").fill("cancel run")
    expect(page.locator("#post-runs-run-id-cancel")).to_be_visible()
    expect(page.locator("#get-devices")).to_be_hidden()
    expect(page.locator("#group-devices")).to_be_hidden()
    expect(page.locator("#filter-count")).to_contain_text("of")
    page.get_by_label("Find an endpoint").fill("")
    expect(page.locator("#get-devices")).to_be_visible()
    page.context.close()
    plain = web.new_context(java_script_enabled=False, base_url=address).new_page()
    plain.set_default_timeout(PATIENCE_MS)
    plain.goto(seeded.link())
    plain.goto("/dashboard/api")
    expect(plain.get_by_label("Find an endpoint")).to_be_hidden()
    plain.locator("#get-devices summary").click()
    expect(plain.locator("#get-devices pre")).to_be_visible()
    plain.context.close()
