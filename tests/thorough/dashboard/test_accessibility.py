"""axe-core in a real browser: no page breaks a rule at any width, light or dark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.dashboard.axe import FEW_LOOKS, violations, violations_by_look
from tests.dashboard.conftest import SeededFarm
from tests.dashboard.screenshots import LOOKS, open_page, pages_of
from tests.dashboard.test_pages import page_names, pages_of_each_kind
from tests.sample import sample

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("loopback")]


@pytest.fixture(scope="module")
def window(web: Browser, address: str, seeded: SeededFarm) -> Iterator[Page]:
    """A signed-in window."""
    page = open_page(web, LOOKS[0], address, seeded.link())
    yield page
    page.context.close()


@pytest.mark.parametrize("name", pages_of_each_kind())
def test_a_page_breaks_no_rule_wide_and_light_or_narrow_and_dark(name: str, window: Page, seeded: SeededFarm) -> None:
    window.goto(pages_of(seeded)[name])
    assert {look: lines for look, lines in violations_by_look(window, FEW_LOOKS).items() if lines} == {}


@pytest.mark.parametrize("name", sample(page_names(), ("admin-tenant",)))
def test_a_page_breaks_no_rule_at_any_width_light_or_dark(name: str, window: Page, seeded: SeededFarm) -> None:
    """As `make pages` looks at every page."""
    window.goto(pages_of(seeded)[name])
    assert {look: lines for look, lines in violations_by_look(window).items() if lines} == {}


def test_axe_finds_what_is_planted(window: Page) -> None:
    """Of each kind that pages have had: a name without the drawn words, two landmarks of one name, faint words."""
    window.goto("/dashboard/compare")
    window.evaluate(
        """() => {
          document.styleSheets[0].insertRule("main .planted { color: #999; background: #fff }");
          const region = '<section aria-label="Twice">words</section>';
          document.querySelector("main .inner").insertAdjacentHTML("beforeend",
            region + region + '<p class="planted">faint words</p><a href="/" aria-label="other">these words</a>');
        }"""
    )
    broken = {line.partition(":")[0] for line in violations(window)}
    assert {"landmark-unique", "color-contrast", "label-content-name-mismatch"} <= broken
    assert {line.partition(":")[0] for line in violations(window, of_shape=False)} == {"color-contrast"}
