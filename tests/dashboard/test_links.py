"""Every link of every page leads somewhere: those of header and footer, and each that a page itself has."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

import pytest

from tests.dashboard.conftest import SeededFarm
from tests.dashboard.markup import check_page
from tests.dashboard.screenshots import pages_of
from tests.dashboard.test_pages import pages_of_each_kind
from tests.sample import thinned
from tests.service.client import Client

FILES = ("/bundles/", "/weights")
"""Of downloads whose bytes seeded rows lack: their addresses must be the API's, and are asked by tests of the API."""


@pytest.fixture(scope="module")
def followed() -> dict[str, int]:
    """Address -> status of what has been followed already."""
    return {}


@pytest.mark.parametrize("name", thinned(pages_of_each_kind(), 5))
def test_every_link_of_a_page_leads_somewhere(
    name: str, seeded: SeededFarm, browser: Client, followed: dict[str, int]
) -> None:
    address = pages_of(seeded)[name]
    page = check_page(browser.get(address).text)
    links = {urljoin(address, found.attributes["href"]) for found in page.all("a") if "href" in found.attributes}
    assert len(links) > 5
    foreign = {link for link in links if urlsplit(link).netloc}
    assert not foreign, "a page of the farm leads nobody away from it"
    others = {link.partition("#")[0] for link in links} - {address}  # anchors of its own are `check_page`'s
    for link in others - followed.keys():
        followed[link] = browser.get(link).status_code
    assert {link for link in others if followed[link] >= 400 and not _is_file(link)} == set()


def _is_file(link: str) -> bool:
    return link.startswith(FILES[0]) or link.endswith(FILES[1])
