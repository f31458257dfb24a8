"""Every snippet of README and docs does what its page says: run in order, page by page, against a real farm."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from pockfarm.own_farm import up
from pockfarm.own_farm.state import StateFolder
from tests.architecture.sources import ROOT
from tests.sample import sample, some
from tests.thorough.docs import exceptions
from tests.thorough.docs.reading import problem_of
from tests.thorough.docs.running import Page, SnippetError, environment
from tests.thorough.docs.snippets import Snippet, indented, pages, snippets

pytestmark = [
    pytest.mark.xdist_group("docs"),
    pytest.mark.usefixtures("loopback"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
WRITTEN = {"THIRD_PARTY.md"}
"""Pages that programs write, from words of others."""
RUN = sorted({one.page for one in exceptions.run() if one.mark == ""})
SHOWN = (
    "README.md",
    "docs/start.md",
    "docs/agent.md",
    "docs/guide/farm.md",
    "docs/guide/python.md",
    "docs/how-to/share.md",
    "docs/measurement.md",
    "docs/training-graph.md",
    "docs/tutorials/raspberry-pi.md",
)
"""Where a reader begins and the client's calls; the others train more nets, plans and targets by the same commands, an
operator's are tested by themselves too, and docs/on-device.md is run by tests/examples."""
NOTEBOOK = ROOT / "docs/tutorials/notebook.ipynb"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> Iterator[dict[str, str]]:
    """The environment of somebody who has done `make up`; kernels are those of all tests."""
    state = StateFolder(tmp_path_factory.mktemp("docs") / "state")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("POCKFARM_CACHE_DIR", str(kernel_cache))
            patch.delenv("POCKFARM_VERIFY", raising=False)
            url = up.up(state, say=print, port=0).url
        key = (state.path / "api-key").read_text().strip()
        yield environment(ROOT, state.path, url, key, kernel_cache)
    finally:
        up.down(state, say=print)


@pytest.mark.parametrize("name", sample(RUN, SHOWN))
def test_a_page_does_what_it_says(name: str, reader: dict[str, str], tmp_path: Path) -> None:
    page = Page(tmp_path, reader)
    (tmp_path / ".state").symlink_to(reader["POCKFARM_STATE"])
    try:
        for snippet in snippets(name):
            if snippet.mark not in ("not run here", "tree"):
                page.run(snippet)
    finally:
        page.close()


@pytest.mark.parametrize("name", [page.as_posix() for page in pages()])
def test_what_is_not_run_is_read(name: str) -> None:
    assert [f"{one.place}: {told}" for one in snippets(name) if (told := problem_of(one))] == []


def test_every_block_says_its_language() -> None:
    assert {page.as_posix(): lines for page in pages() if (lines := indented(page)) and page.name not in WRITTEN} == {}


def test_an_exception_has_a_reason_and_is_counted() -> None:
    assert [one.place for one in exceptions.not_run() if len(one.told) < 15] == []
    assert (ROOT / "docs/limits.md").read_text().rstrip().endswith(exceptions.document().rstrip()), (
        "renew its end: python -m tests.thorough.docs.exceptions"
    )


def test_what_a_page_shows_of_the_tree_is_there_to_the_letter() -> None:
    shown = [one for page in pages() for one in snippets(page) if one.mark == "tree"]
    assert {Path(one.told).name for one in shown} >= {"keras_recipe.py", "flax_recipe.py"}
    for one in shown:
        assert (ROOT / one.told).read_text() == one.text, one.place


def test_the_notebook_runs_from_its_first_cell_to_its_last(reader: dict[str, str], tmp_path: Path) -> None:
    """By Jupyter's own client; what its file shows is what cells like these print."""
    kept = nbformat.read(NOTEBOOK, as_version=4)
    fresh = nbformat.read(NOTEBOOK, as_version=4)
    before = dict(os.environ)
    os.environ.update(reader, IPYTHONDIR=str(tmp_path / "ipython"), JUPYTER_RUNTIME_DIR=str(tmp_path / "runtime"))
    try:
        NotebookClient(fresh, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    finally:
        os.environ.clear()
        os.environ.update(before)
    cells = [(was, now) for was, now in zip(kept.cells, fresh.cells, strict=True) if was.cell_type == "code"]
    for was, now in some(cells):
        assert {one.output_type for one in was.outputs} == {one.output_type for one in now.outputs}, was.source
        assert "error" not in {one.output_type for one in now.outputs}


def snippet(language: str, text: str, mark: str = "", told: str = "") -> Snippet:
    return Snippet("page.md", 1, language, text, mark, told)


def test_a_failing_snippet_fails(tmp_path: Path) -> None:
    page = Page(tmp_path, {"PATH": os.environ["PATH"]})
    with pytest.raises(SnippetError, match="ended with 3"):
        page.run(snippet("bash", "exit 3\n"))
    with pytest.raises(SnippetError, match="ZeroDivisionError"):
        page.run(snippet("python", "1 / 0\n"))
    page.run(snippet("bash", "NAME=world\n"))
    page.run(snippet("bash", "echo hello $NAME > said; cat said\n"))
    page.run(snippet("text", "hello …\n", "prints"))
    with pytest.raises(SnippetError, match="nothing was printed like 'goodbye'"):
        page.run(snippet("text", "goodbye\n", "prints"))
    page.run(snippet("python", "x = 1\n"))
    page.run(snippet("python", "print(x + 1)\n"))
    page.run(snippet("text", "2\n", "prints"))
    page.close()


@pytest.mark.parametrize(
    ("language", "text", "told"),
    [
        ("bash", "pockfarm run sha256:… profile --stepps 3\n", "--steps"),
        ("bash", "if true; then\n", "syntax error"),
        ("bash", "A=1 pockfarm nonsense | cat\n", "nonsense"),
        ("bash", "python -m examples.none\n", "no module"),
        ("python", "def f(:\n", "invalid syntax"),
        ("yaml", "update: [{parametres: x}]\n", "no plan"),
        ("yaml", "batch: 0\n", "no spec"),
        ("json", "{", "Expecting"),
        ("text", "pockfarm up\n", "calls itself text"),
        ("perl", "x", "nobody checks"),
    ],
)
def test_what_is_wrong_is_found_without_running_it(language: str, text: str, told: str) -> None:
    assert told in problem_of(snippet(language, text))


def test_bash_is_there() -> None:
    assert shutil.which("bash")
