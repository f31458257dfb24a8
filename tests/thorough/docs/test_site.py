"""The site as a reader has it: built without a warning, served by a farm under its policy, read in Chromium."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Request, expect

from pockfarm.cli import parser
from service.dashboard import manual
from tests.architecture.sources import ROOT
from tests.dashboard.conftest import PATIENCE_MS, make_farm
from tests.dashboard.screenshots import chromium, serving

pytestmark = [pytest.mark.xdist_group("site"), pytest.mark.usefixtures("loopback")]


def test_every_page_of_the_tree_is_in_it(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert len(pages) > 100
    assert {page.as_posix() for page in pages if not (site / page).is_file()} == {"README.html"}, "which is index.html"
    beside = ("changelog", "contributing", "security", "third-party")
    assert all((site / "project" / f"{name}.html").is_file() for name in beside)


def test_reference_pages_are_made_of_what_there_is(site: Path) -> None:
    cli = (site / "reference/cli.html").read_text()
    actions = parser()._subparsers._actions  # type: ignore[union-attr]
    names = [name for action in actions if isinstance(action.choices, dict) for name in action.choices]
    assert len(names) > 20
    assert [name for name in names if f"pockfarm {name}" not in cli] == []
    api = (site / "reference/api.html").read_text()
    assert "POST <code" in api
    assert "/run-groups" in api
    assert "memory_limit_bytes" in (site / "reference/spec.html").read_text()


def test_the_notices_of_what_the_site_holds_are_beside_it(site: Path) -> None:
    for name in ("furo", "sphinx", "sphinx-basic-ng"):
        assert "permi" in (site / "_static/licences" / f"{name}.txt").read_text()


def test_dead_links_are_errors(tmp_path: Path) -> None:
    """In a tree of two pages: to a page, to a place, and of a list of pages."""
    text = "[x](no-such-page.md)\n\n[y](guide/plans.md#nowhere)\n\n```{toctree}\nnone\n```\n"
    tree = tmp_path / "tree"
    (tree / "docs/guide").mkdir(parents=True)
    (tree / "docs/README.md").write_text(f"# Front\n\n## Guide\n\n- [plans](guide/plans.md)\n\n{text}")
    (tree / "docs/guide/plans.md").write_text("# Plans\n\nWords.\n")
    for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY", "THIRD_PARTY"):
        (tree / f"{name}.md").write_text("---\norphan: true\n---\n\n# One\n")
    program = (
        "import sys; from pathlib import Path\n"
        "from scripts.manual import __main__ as manual, reference\n"
        "manual.ROOT = Path(sys.argv[1]); reference.write = lambda root, folder: None\n"
        "sys.exit(manual.main([sys.argv[2]]))"
    )
    command = [sys.executable, "-c", program, str(tree), str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert [told for told in ("no-such-page.md", "nowhere", "none") if told not in done.stderr] == []
    assert not (tmp_path / "site").exists(), "a site with errors takes no other's place"


def left(request: Request) -> bool:
    """Whether the reader went on before it came."""
    return request.failure == "net::ERR_ABORTED"


@pytest.fixture(scope="module")
def reader(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, str, list[str]]]:
    """A window of a stranger on a farm's /docs/, its address, and what its console warns of or it asks elsewhere."""
    noise: list[str] = []
    seeded = make_farm(tmp_path_factory.mktemp("farm"))
    with pytest.MonkeyPatch.context() as patch, chromium() as browser, serving(seeded) as address:
        patch.setattr(manual, "SITE", site)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda one: noise.append(one.text) if one.type in ("warning", "error") else None)
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("requestfailed", lambda one: None if left(one) else noise.append(f"{one.url}: {one.failure}"))
        page.on("request", lambda one: None if one.url.startswith(address) else noise.append(one.url))
        yield page, address, noise
        page.close()
    seeded.farm.close()


PAGES = ("", "concepts.html", "reference/api.html", "reference/cli.html", "states.html", "tutorials/notebook.html")


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_are_read_without_a_word_of_the_console(width: int, reader: tuple[Page, str, list[str]]) -> None:
    page, address, noise = reader
    page.set_viewport_size({"width": width, "height": 900})
    for name in PAGES:
        answer = page.goto(f"{address}/docs/{name}", wait_until="networkidle")
        assert answer is not None
        assert answer.status == 200, name
        expect(page.locator("article h1").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    page.set_viewport_size({"width": 1280, "height": 900})
    assert noise == []


def test_a_reader_walks_by_links(reader: tuple[Page, str, list[str]]) -> None:
    page, address, noise = reader
    page.goto(f"{address}/docs/")
    page.locator(".sidebar-tree").get_by_role("link", name="Concepts", exact=True).click()
    expect(page.locator("article h1")).to_contain_text("Concepts")
    assert noise == []


def test_the_search_finds_without_a_network(reader: tuple[Page, str, list[str]]) -> None:
    page, address, noise = reader
    page.goto(f"{address}/docs/")
    page.locator("input[name=q]").first.fill("adapters")
    page.keyboard.press("Enter")
    expect(page.locator("#search-results li a").first).to_be_visible()
    links = page.locator("#search-results li a")
    assert any("adapters" in (links.nth(i).get_attribute("href") or "") for i in range(links.count()))
    expect(page.locator("#search-results")).to_contain_text(re.compile("LoRA", re.IGNORECASE))
    assert noise == []


def test_dark_and_light_are_chosen_and_kept(reader: tuple[Page, str, list[str]]) -> None:
    page, address, noise = reader
    page.goto(f"{address}/docs/")
    before = page.evaluate("document.body.dataset.theme")
    page.locator("button.theme-toggle:visible").first.click()
    after = page.evaluate("document.body.dataset.theme")
    assert before != after
    page.goto(f"{address}/docs/concepts.html")
    assert page.evaluate("document.body.dataset.theme") == after
    assert noise == []
