"""`python -m tests.thorough.docs.exceptions`: the snippets that no test runs, as docs/limits.md ends with them."""

from __future__ import annotations

from collections import Counter

from tests.thorough.docs.snippets import Snippet, pages, snippets

RUNNABLE = frozenset({"bash", "python"})


def not_run() -> list[Snippet]:
    return [one for page in pages() for one in snippets(page) if one.mark == "not run here"]


def run() -> list[Snippet]:
    """Shell and Python that a test runs."""
    found = [one for page in pages() for one in snippets(page) if one.language in RUNNABLE]
    return [one for one in found if one.mark in ("", "tree")]


def document() -> str:
    """A table, page by page, with the reasons."""
    left = not_run()
    rows = Counter((one.page, one.told) for one in left)
    lines = [f"| {page} | {count} | {told} |" for (page, told), count in sorted(rows.items())]
    said = f"{len(run())} snippets of shell and Python are run by the tests; {len(left)} are not, and are read instead:"
    return "\n".join([said, "", "| page | snippets | why not |", "|---|---|---|", *lines]) + "\n"


if __name__ == "__main__":
    print(document(), end="")
