"""A farm with nothing in it, in real Chromium: each page says the next step, breaks no rule, and fits each width."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.axe import violations_by_look
from tests.dashboard.conftest import SeededFarm, make_app
from tests.dashboard.screenshots import LOOKS, quiet_page, serving
from tests.dashboard.test_browser import MEASURE
from tests.sample import sample

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("loopback")]
PAGES = {
    "": "No device is enrolled",
    "queue": "Nothing waits",
    "jobs": "No job yet",
    "runs": "No run yet",
    "runs?state=failed": "No run matches these filters",
    "devices": "No device is enrolled",
    "models": "Nothing has been compiled yet",
    "benchmarks": "Nothing was measured yet",
    "regressions": "No change of any device yet",
    "compare": "Nothing was measured yet",
    "admin/enrolment": "No board has been let in by a token yet",
    "admin/webhooks": "Nobody is told yet",
    "admin/windows": "No window is planned",
}
SHOWN = ("", "runs?state=failed", "devices", "compare", "admin/windows")
"""A front page, a list that filters leave empty, one that is empty, a page of choices, and one with a form."""


@pytest.fixture(scope="module")
def page(web: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    app = make_app(tmp_path_factory.mktemp("farm"))
    empty = SeededFarm(app, app.state.farm, None)  # type: ignore[arg-type]
    with serving(empty) as address, quiet_page(web, LOOKS[0], address, empty.link()) as found:
        yield found
    empty.farm.close()


@pytest.mark.parametrize("path", sample(PAGES, SHOWN))
def test_an_empty_page_says_what_to_do(path: str, page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"/dashboard/{path}")
    expect(page.locator(".empty").filter(has_text=PAGES[path]).first).to_be_visible()
    step = page.locator(".empty :is(a, pre, code)").or_(page.locator("main form.form"))
    expect(step.first).to_be_visible()
    assert {look: lines for look, lines in violations_by_look(page).items() if lines} == {}
    for width in (768, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(MEASURE)["overflow"] <= 0, f"scrolls sideways at {width} px"
