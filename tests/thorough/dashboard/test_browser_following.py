"""Pages that people leave open, in real Chromium: a compile from the queue to its bundle, a run to its report."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from service.store.database.models import Event, Job, Run
from tests.dashboard.conftest import SeededFarm
from tests.dashboard.screenshots import LOOKS, quiet_page

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("loopback")]


@pytest.fixture
def page(web: Browser, served: tuple[SeededFarm, str]) -> Iterator[Page]:
    with quiet_page(web, LOOKS[0], served[1], served[0].link()) as found:
        yield found


def test_a_compile_is_followed_from_the_queue_to_its_stages(page: Page, served: tuple[SeededFarm, str]) -> None:
    seeded, job_id = served[0], served[0].ids.compiling_job
    _job(seeded, state="queued", stage="", fraction=0.0, started_at=None)
    page.goto(f"/dashboard/jobs/{job_id}")
    page.evaluate("window.isTheSame = true")
    progress = page.locator("#job-progress")
    expect(progress).to_contain_text("waiting for a worker")
    expect(progress).to_contain_text("Position")
    expect(page.locator("#job-stages")).to_be_hidden()
    expect(page.locator("#job-history")).to_be_hidden()
    _job(seeded, state="compiling", stage="import", fraction=0.1, started_at=time.time())
    expect(page.get_by_role("table", name="Stages of the compile")).to_contain_text("import")
    expect(progress).to_contain_text("Elapsed")
    expect(page.locator("#job-history")).to_contain_text("A worker has been at it for")
    assert page.evaluate("window.isTheSame") is True, "it has been loaded again"


def test_what_is_typed_and_copied_outlives_the_end_of_a_run(page: Page, served: tuple[SeededFarm, str]) -> None:
    """The page of an ended run takes the place of that of the running one while somebody writes a note."""
    seeded, run_id = served[0], served[0].ids.running_run
    page.goto(f"/dashboard/runs/{run_id}")
    page.evaluate("window.isTheSame = true")
    expect(page.locator("#run-acts summary")).to_be_visible()
    page.get_by_label("Note optional").fill("with a fan")
    page.get_by_label("Tags optional").focus()
    with seeded.farm.database.transaction() as session:
        run = session.get_one(Run, run_id)
        run.state, run.finished_at, run.message, run.cause, run.code = (
            "failed",
            time.time(),
            "input `x` holds NaN",
            "user",
            "data.nan",
        )
        session.add(Event(subject=run_id, at=time.time(), kind="state", body={"state": "failed"}))
    expect(page.locator(".notice.bad")).to_contain_text("input x holds NaN")
    expect(page.locator(".notice.bad code").first).to_have_text("x")
    expect(page.get_by_label("Note optional")).to_have_value("with a fan")
    expect(page.get_by_role("button", name="Copy: Command line")).to_have_count(1)
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#said")).to_contain_text("saved")


def _job(seeded: SeededFarm, **changes: object) -> None:
    with seeded.farm.database.transaction() as session:
        job = session.get_one(Job, seeded.ids.compiling_job)
        for name, value in changes.items():
            setattr(job, name, value)
        told = {"state": job.state, "attempt": 1}
        session.add(Event(subject=job.id, at=time.time(), kind="state", body=told))
        if job.stage:
            session.add(Event(subject=job.id, at=time.time(), kind="progress", body={"stage": job.stage}))
