"""Fenced blocks of Markdown pages, with what a comment before them says of them.

    <!-- not run here: REASON -->    it cannot run in a test; its syntax and its options are checked all the same
    <!-- file: NAME -->              what follows is a file that the page's later commands read
    <!-- tree: PATH -->              what follows is that file of the tree, to the letter
    <!-- prints -->                  what the command before it prints, line by line in this order (… is anything)

A block without one is executed (`bash`, `python`), or read as what it is (`yaml`, `json`, `ini`, `c`); `text` and
`mermaid` are pictures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from tests.architecture.sources import ROOT, tracked_files

_MARK = re.compile(r"<!--\s*(not run here|file|tree|prints)(?::\s*(.*?))?\s*-->", re.DOTALL)
TESTED_ELSEWHERE = "docs/extending/"
"""Whose blocks are followed to the letter by test_extending.py."""


@dataclass(frozen=True)
class Snippet:
    """A fenced block: `mark` and `told` are the two parts of the comment before it, empty without one."""

    page: str
    line: int
    language: str
    text: str
    mark: str = ""
    told: str = ""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page that has snippets for people: README, what lies beside it, and docs."""
    kinds = [path for path in tracked_files() if path.suffix == ".md" and path.parts[0] in ("docs", path.name)]
    return [path for path in kinds if not path.as_posix().startswith(TESTED_ELSEWHERE)]


def snippets(page: Path | str) -> list[Snippet]:
    """The fenced blocks of a page of the tree, in order."""
    found = []
    mark: tuple[str, str] = ("", "")
    for token in MarkdownIt().parse((ROOT / page).read_text()):
        if token.type == "html_block" and (match := _MARK.fullmatch(token.content.strip())):
            mark = (match[1], " ".join((match[2] or "").split()))
        elif token.type == "fence":
            assert token.map is not None
            found.append(Snippet(str(page), token.map[0] + 1, token.info.strip(), token.content, *mark))
            mark = ("", "")
    return found


def indented(page: Path) -> list[int]:
    """Lines of code blocks that nothing tells the language of."""
    tokens = MarkdownIt().parse((ROOT / page).read_text())
    return [token.map[0] + 1 for token in tokens if token.type == "code_block" and token.map]
