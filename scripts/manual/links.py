"""Links between the built pages: each leads to a file of the site and, with a `#`, to a place in it."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

FARMS = ("/openapi.json", "/dashboard", "/schemas/")
"""Addresses of the farm that serves the site."""


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.places.add(value)
            elif name in ("href", "src") and value is not None and tag not in ("use",):
                self.links.append(value)


def dead(site: Path) -> Iterator[str]:
    """What leads nowhere, one sentence each."""
    found = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in found.items():
        for link in page.links:
            if re.match(r"[a-z]+:|//", link) or link.startswith(FARMS):
                continue
            address, _, place = link.partition("#")
            address = urllib.parse.unquote(address.partition("?")[0])
            target = Path(os.path.normpath(path.parent / address)) if address else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{path.relative_to(site)}: a dead link: {link}"
            elif place and target in found and urllib.parse.unquote(place) not in found[target].places:
                yield f"{path.relative_to(site)}: a link to a place that is not there: {link}"


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page
