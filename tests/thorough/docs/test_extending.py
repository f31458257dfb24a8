"""docs/extending is true: each page, followed to the letter in a copy of the tree, works and costs what it says."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, tracked_files
from tests.sample import sample
from tests.thorough.docs.recipe import Edit, read_recipe

UNFINISHED = shutil.ignore_patterns("*.pyc.*")
"""What another process is writing."""
TYPES = ".mypy_cache"
PAGES = sorted((ROOT / "docs/extending").glob("*.md"))
STEM = attrgetter("stem")
pytestmark = pytest.mark.xdist_group("types")
"""On the worker of the type checker over the whole tree, after it: its cache is not copied while it is written."""


@pytest.fixture
def copy(tmp_path: Path, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tracked files, in a folder of their own, with what Python compiled of them, what the type checker found of
    them, and the kernels that tests built.

    Each is valid only for the sources that it was made from.
    """
    monkeypatch.setenv("POCKFARM_TEST_CACHE", str(kernel_cache))
    for path in tracked_files():
        target = tmp_path / "tree" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target)
    for folder in {path.parent for path in tracked_files() if path.suffix == ".py"}:
        compiled = ROOT / folder / "__pycache__"
        if compiled.is_dir():
            shutil.copytree(compiled, tmp_path / "tree" / folder / "__pycache__", ignore=UNFINISHED)
    if (ROOT / TYPES).is_dir():
        shutil.copytree(ROOT / TYPES, tmp_path / "tree" / TYPES)
    subprocess.run(["git", "init", "-q", str(tmp_path / "tree")], check=True)
    return tmp_path / "tree"


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    assert words[0] in ("pytest", "ruff", "mypy", "pockfarm"), command
    start = {"pockfarm": ["-m", "pockfarm.cli"]}.get(words[0], ["-m", words[0]])
    more = ["-p", "no:cacheprovider", "--basetemp", str(folder.parent / "nested")] if words[0] == "pytest" else []
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [sys.executable, *start, *words[1:], *more],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("page", sample(PAGES, ("operator", "run-setting", "target", "optimizer", "loss"), STEM))
def test_a_page_works_as_written(page: Path, copy: Path) -> None:
    recipe = read_recipe(page.read_text())
    assert len(recipe.touched()) == recipe.files
    for edit in recipe.edits:
        edit.apply(copy)
    for command in recipe.commands:
        done = run(command, copy)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-1000:]}"


@pytest.mark.parametrize("page", sample(PAGES, ("operator", "target", "loss"), STEM))
def test_what_a_page_runs_fails_where_its_lines_in_lists_are_missing(page: Path, copy: Path) -> None:
    """Or the page's commands would show nothing."""
    recipe = read_recipe(page.read_text())
    for edit in recipe.edits:
        if edit.kind == "new" and (edit.path.startswith("tests/") or any(e.kind != "new" for e in recipe.edits)):
            edit.apply(copy)
    assert any(run(command, copy).returncode for command in recipe.commands)


def test_every_page_is_in_the_list_of_the_architecture() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    assert [page.name for page in PAGES if f"extending/{page.name}" not in text] == []


def test_an_edit_needs_its_line_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(AssertionError, match="2 lines"):
        Edit("after", "a.py", "y = 2\n", "x = 1").apply(tmp_path)
    (tmp_path / "a.py").write_text("x = [\n    1,\n]\n")
    Edit("after", "a.py", "    2,\n", "1,").apply(tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = [\n    1,\n    2,\n]\n"
