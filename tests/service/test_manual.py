"""`/docs`: open to everybody, cached by its tags, and nothing beside the site."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.dashboard import manual
from service.dashboard.render import CONTENT_SECURITY_POLICY
from tests.service.farms import TestFarm

BROWSER = {"accept": "text/html"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small site, with a secret beside it."""
    folder = tmp_path / "site"
    (folder / "guide").mkdir(parents=True)
    (folder / "_static").mkdir()
    (folder / "index.html").write_text("<h1>front</h1>")
    (folder / "guide/index.html").write_text("<h1>guide</h1>")
    (folder / "guide/plans.html").write_text("<h1>plans</h1>")
    (folder / "searchindex.js").write_text("Search.setIndex({})")
    (folder / "_static/moved-0123456789ab.css").write_text("p {}")
    (tmp_path / "secret.txt").write_text("the key")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    monkeypatch.setattr(manual, "SITE", folder)
    return folder


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/docs/", "text/html"),
        ("/docs/guide/plans.html", "text/html"),
        ("/docs/guide/", "text/html"),
        ("/docs/searchindex.js", "text/javascript"),
        ("/docs/_static/moved-0123456789ab.css", "text/css"),
    ],
)
def test_a_file_comes_as_what_it_is_under_the_policy(small_farm: TestFarm, site: Path, path: str, kind: str) -> None:
    answer = small_farm.anonymous.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == kind
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/docs", "/docs/guide"])
def test_a_folder_is_its_front_page(small_farm: TestFarm, site: Path, path: str) -> None:
    answer = small_farm.anonymous.get(path, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"].partition("://")[2].partition("/")[2] or "docs/") in (
        (307, "docs/"),
        (307, "docs/guide/"),
    )
    assert "<h1>" in small_farm.anonymous.get(path).text


def test_a_browser_that_has_a_page_is_told_so(small_farm: TestFarm, site: Path) -> None:
    first = small_farm.anonymous.get("/docs/guide/plans.html")
    assert first.headers["cache-control"] == "no-cache"
    again = small_farm.anonymous.get("/docs/guide/plans.html", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    (site / "guide/plans.html").write_text("<h1>other plans</h1>")
    changed = small_farm.anonymous.get("/docs/guide/plans.html", headers={"If-None-Match": first.headers["etag"]})
    assert (changed.status_code, changed.text) == (200, "<h1>other plans</h1>")


def test_what_is_named_by_its_content_is_kept(small_farm: TestFarm, site: Path) -> None:
    for path in ("/docs/_static/moved-0123456789ab.css", "/docs/searchindex.js?v=1a2b"):
        assert "immutable" in small_farm.anonymous.get(path).headers["cache-control"]


@pytest.mark.parametrize(
    "path",
    [
        "/docs/../secret.txt",
        "/docs/%2e%2e/secret.txt",
        "/docs/..%2fsecret.txt",
        "/docs/guide/..%2f..%2fsecret.txt",
        "/docs/%2fetc/passwd",
        "/docs//etc/passwd",
        "/docs/link.txt",
        "/docs/none.html",
        "/docs/" + "x" * 3000,
        "/docs/guide/plans.html/more",
        "/docs/%5c..%5csecret.txt",
    ],
)
def test_nothing_else_is_given(small_farm: TestFarm, site: Path, path: str) -> None:
    answer = small_farm.anonymous.get(path)
    assert answer.status_code == 404
    assert "the key" not in answer.text
    assert "root:" not in answer.text


def test_where_it_was_not_built_the_address_says_how(
    small_farm: TestFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manual, "SITE", tmp_path / "none")
    answer = small_farm.anonymous.get("/docs/")
    assert (answer.status_code, answer.json()["code"]) == (404, "docs.not-built")
    assert "make docs" in answer.json()["hint"]
    page = small_farm.anonymous.get("/docs/", headers=BROWSER)
    assert (page.status_code, page.headers["content-type"].partition(";")[0]) == (404, "text/html")
    assert "make docs" in page.text


def test_pages_lead_to_it_where_it_is(small_farm: TestFarm, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = small_farm.anonymous.get("/dashboard", headers=BROWSER)
    assert 'href="/docs/"' in page.text
    monkeypatch.setattr(manual, "SITE", site / "none")
    assert 'href="/docs/"' not in small_farm.anonymous.get("/dashboard", headers=BROWSER).text
