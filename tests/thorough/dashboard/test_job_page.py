"""A compile's page: stages with their times, what fired and what did not, and what a person can do about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from service.store.database.models import Job
from tests.dashboard.conftest import PATIENCE_MS, SeededFarm, make_farm
from tests.dashboard.markup import check_page
from tests.dashboard.screenshots import LOOKS, open_page, serving
from tests.service.client import Client


def test_stages_have_their_times_and_passes_say_what_they_did(seeded: SeededFarm, browser: Client) -> None:
    page = check_page(browser.get(f"/dashboard/jobs/{seeded.ids.done_job}").text)
    tables = {grid.caption: grid.rows[1:] for grid in page.tables}
    assert [row[:2] for row in tables["Stages of the compile"]] == [
        ["import", "1.00"],
        ["plan", "2.00"],
        ["kernels", "40.00"],
        ["link", "4.30"],
    ]
    passes = {row[0]: row for row in tables["What fired, and what did not"]}
    assert passes["fold constants"][2:4] == ["3", "1"]
    assert passes["merge norms"][2:4] == ["1", "0"]
    assert "4" in passes["fuse updates"][4]
    assert "such as blocks.16.project" in passes["fuse updates"][5]
    links = {element.attributes.get("href", "") for element in page.all("a")}
    assert any(link.startswith("/dashboard/models/") and "/plans/" in link for link in links)


@pytest.mark.xdist_group("browser")
@pytest.mark.usefixtures("loopback")
def test_a_person_stops_a_compile_without_javascript(web: Browser, tmp_path: Path) -> None:
    scratch = make_farm(tmp_path)
    job_id = scratch.ids.compiling_job
    with serving(scratch) as address:
        context = web.new_context(java_script_enabled=False, base_url=address)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(scratch.link())
        page.goto(f"/dashboard/jobs/{job_id}")
        page.locator("#job-actions summary").click()
        page.get_by_role("button", name="Yes: Cancel").click()
        expect(page.locator("#said")).to_contain_text(job_id)
        with scratch.farm.database.read() as session:
            assert session.get_one(Job, job_id).cancel_requested
        page.goto(f"/dashboard/jobs/{scratch.ids.failed_job}")
        page.get_by_role("button", name="Compile again").click()
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert "/dashboard/jobs/" in page.url
        context.close()
        phone = open_page(web, LOOKS[2], address, scratch.link())
        phone.goto(f"/dashboard/jobs/{job_id}")
        expect(phone.locator("#job-actions")).to_be_visible()
        phone.context.close()
    scratch.farm.close()
