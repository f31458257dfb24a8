"""What a browser gets when a page cannot be shown: words, a next step, links that lead on, nothing that axe finds."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy.exc import OperationalError

from service.dashboard import routes
from tests.dashboard.axe import violations_by_look
from tests.dashboard.conftest import SeededFarm
from tests.dashboard.screenshots import LOOKS, open_page
from tests.sample import sample

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("loopback")]
PROBLEMS = {
    401: ("/dashboard/runs", "Open the dashboard with a link", "pockfarm link"),
    403: ("/dashboard/admin/keys", "This cannot be shown", "scope"),
    404: ("/dashboard/runs/run_unknown", "There is no such page", "The lists below lead to all there is."),
    422: ("/dashboard/runs?state=sucess", "This cannot be shown", "succeeded"),
    500: ("/dashboard", "The farm could not answer", "log"),
    503: ("/dashboard", "The farm could not answer", "again"),
}
"""Status: an address that leads to it, the head of its page, and a word of its next step."""
RAISED = {
    500: RuntimeError("words that are nobody's business"),
    503: OperationalError("SELECT 1", {}, Exception("words that are nobody's business")),
}


@pytest.mark.parametrize("status", sample(PROBLEMS, ("401", "404", "422", "500")))
def test_a_problem_is_a_page_that_says_what_to_do(
    status: int, web: Browser, address: str, seeded: SeededFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, head, word = PROBLEMS[status]
    page = open_page(web, LOOKS[0], address, "" if status == 401 else seeded.link("user"))
    if status in RAISED:
        monkeypatch.setattr(routes, "overview_page", _raiser(RAISED[status]))
    answer = page.goto(path)
    assert answer is not None
    assert answer.status == status
    expect(page.get_by_role("heading", name=head)).to_be_visible()
    said = page.locator("main").inner_text()
    assert word in said
    assert "nobody's business" not in said
    assert "Traceback" not in said
    assert {look: lines for look, lines in violations_by_look(page).items() if lines} == {}
    page.context.close()


def _raiser(problem: Exception) -> object:
    def raising(*_: object) -> None:
        raise problem

    return raising
