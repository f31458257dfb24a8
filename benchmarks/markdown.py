"""Tables and figures as Markdown text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """All columns but the first are right-aligned."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def ratio(figures: tuple[float, float, float] | None) -> str:
    """(median, low, high) as `1.23x [1.20, 1.26]`; a single pair has no interval."""
    if figures is None:
        return "-"
    middle, low, high = figures
    return f"{middle:.2f}x" if low == high else f"{middle:.2f}x [{low:.2f}, {high:.2f}]"
