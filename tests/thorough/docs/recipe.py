"""Reads a page of docs/extending: what it tells a newcomer to write, where, and what to run then.

A page is prose with three kinds of sentence that count, each before a fenced block:

    New file `PATH`:
    In `PATH`, after the line `TEXT`:           (or: before the line, or: in place of the line)
    Run:

and `It costs N files` states what the page claims; files under tests/ and docs/ do not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["new", "after", "before", "in place of"]
_NEW = re.compile(r"New file `([^`]+)`:$")
_EDIT = re.compile(r"In `([^`]+)`, (after|before|in place of) the line `([^`]+)`:$")
_COSTS = re.compile(r"\bcosts (\w+) files?\b")
_NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4}


@dataclass(frozen=True)
class Edit:
    """One block of a page: text for a place in a file."""

    kind: Kind
    path: str
    text: str
    anchor: str = ""

    def apply(self, root: Path) -> None:
        """Raises: AssertionError if the file or the line is not there (exactly once)."""
        path = root / self.path
        if self.kind == "new":
            assert not path.exists(), f"{self.path} is there already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text)
            return
        lines = path.read_text().splitlines(keepends=True)
        found = [i for i, line in enumerate(lines) if line.strip() == self.anchor.strip()]
        assert len(found) == 1, f"{self.path} has {len(found)} lines {self.anchor!r}"
        first, last = found[0], found[0] + 1
        start, stop = {"after": (last, last), "before": (first, first)}.get(self.kind, (first, last))
        path.write_text("".join([*lines[:start], self.text, *lines[stop:]]))


@dataclass(frozen=True)
class Recipe:
    """A page: its edits in order, the commands it ends with, and how many files of the product it says it costs."""

    edits: tuple[Edit, ...]
    commands: tuple[str, ...]
    files: int

    def touched(self) -> set[str]:
        """Files of the product that the page writes or changes."""
        return {edit.path for edit in self.edits if not edit.path.startswith(("tests/", "docs/"))}


def read_recipe(page: str) -> Recipe:
    """Raises: AssertionError for a page without edits, commands or a stated cost."""
    edits: list[Edit] = []
    commands: list[str] = []
    for lead, block in _blocks(page):
        if match := _NEW.search(lead):
            edits.append(Edit("new", match[1], block))
        elif match := _EDIT.search(lead):
            kind: Kind = "after" if match[2] == "after" else "before" if match[2] == "before" else "in place of"
            edits.append(Edit(kind, match[1], block, match[3]))
        elif lead.endswith("Run:"):
            commands += block.splitlines()
    costs = _COSTS.search(page)
    assert edits, "a page says what to write"
    assert commands, "a page says what to run"
    assert costs, "a page says what it costs"
    return Recipe(tuple(edits), tuple(commands), _NUMBERS[costs[1]])


def _blocks(page: str) -> list[tuple[str, str]]:
    """(The paragraph before a fenced block as one line, the block's text), in order."""
    found = []
    for match in re.finditer(r"((?:^[^\n`][^\n]*\n)+)\n?^```\w*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        found.append((" ".join(match[1].split()), match[2]))
    return found
