"""The sources of the site: docs/ as it is, the files beside it that are pages too, and links between all of them.

A link to a file of the tree that is no page (a script, a folder) becomes its words: the site has no source code.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

BESIDE = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "THIRD_PARTY.md": "project/third-party.md",
    "docs/README.md": "index.md",
}
"""Pages that lie elsewhere in the site than in the tree."""
DRAWN = {
    "openapi.json": "reference/api.md",
    "pockfarm/cli.py": "reference/cli.md",
    "docs/schema/plan.json": "reference/plan.md",
    "docs/schema/spec.json": "reference/spec.md",
}
"""Files of the tree in whose place the site has a page that is made of them (`reference.py`)."""
FRONT = "index.md"
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^(```|~~~)")


def collect(root: Path, source: Path) -> None:
    """Write every page of the tree below `source`, with links that hold there."""
    docs = (path.relative_to(root).as_posix() for path in sorted((root / "docs").rglob("*")) if path.is_file())
    for name in [*docs, *(name for name in BESIDE if not name.startswith("docs/"))]:
        target = source / (name.removeprefix("docs/") if name in DRAWN else place(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".md":
            target.write_text(with_links(name, (root / name).read_text(), root))
        else:
            shutil.copyfile(root / name, target)
    front = source / FRONT
    front.write_text(front.read_text() + "".join(_tables_of_contents(front.read_text())))


def place(name: str) -> str:
    """Where a file of the tree lies in the site's sources."""
    return {**BESIDE, **DRAWN}.get(name, name.removeprefix("docs/"))


def with_links(name: str, text: str, root: Path) -> str:
    """The text of the page `name` with its links as they have to be in the site; code is left alone."""
    fenced = False
    lines = []
    for line in text.splitlines(keepends=True):
        if _FENCE.match(line):
            fenced = not fenced
        is_code = fenced or line.startswith("    ")
        lines.append(line if is_code else _LINK.sub(lambda found: _link(found, name, root), line))
    return "".join(lines)


def _link(found: re.Match[str], name: str, root: Path) -> str:
    words, address = found[1], found[2]
    if re.match(r"[a-z]+:|#", address):
        return found[0]
    path, _, anchor = address.partition("#")
    in_tree = os.path.normpath(PurePosixPath(name).parent / path)
    if not (root / in_tree).exists():
        return found[0]  # the generator says that it is dead
    if (root / in_tree).is_dir() and (root / in_tree / "README.md").exists():
        in_tree += "/README.md"
    is_page = in_tree in BESIDE or in_tree in DRAWN or (in_tree.startswith("docs/") and (root / in_tree).is_file())
    if in_tree == "README.md":
        in_tree, is_page = "docs/README.md", True
    if not is_page:
        return words
    here = PurePosixPath(place(name)).parent
    return f"[{words}]({os.path.relpath(place(in_tree), here)}{'#' + anchor if anchor else ''})"


def _tables_of_contents(front: str) -> Iterator[str]:
    """The order of the pages, by the lists of links of the front page: one table for each of its headings."""
    for section in re.split(r"^## ", front, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        entries = dict.fromkeys(re.findall(r"\]\(([^()#\s:]+)\.(?:md|ipynb)\)", body))
        if entries:
            yield _table(entries, f":caption: {heading}\n")


def order_folders(source: Path) -> None:
    """Give pages of folders with a list of their own (decisions) a place below that list."""
    for index in source.rglob("README.md"):
        below = sorted(path.stem for path in index.parent.glob("*.md") if path != index)
        index.write_text(index.read_text() + _table(below))


def _table(entries: Iterable[str], options: str = "") -> str:
    return f"\n```{{toctree}}\n:hidden:\n{options}\n" + "".join(f"{entry}\n" for entry in entries) + "```\n"
