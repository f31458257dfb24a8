"""A table in a window: as wide as that, with the columns that fit; nothing is cut off without a word."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from pockfarm.screen.paint import Meaning, by_word, painted
from pockfarm.screen.terms import Screen

GAP = 2
"""Characters between columns."""
ANY_WIDTH = 100_000
"""Characters, where lines may be as long as they are."""
LEAST_FOLDED = 18
"""Characters: a column of words is not made narrower."""

Rows = Sequence[Sequence[str]]


def drawn(header: Sequence[str], rows: Rows, figures: Sequence[bool], screen: Screen, least: Sequence[str] = ()) -> str:
    """The table within the screen's width: whole; else with words in several lines; else without empty columns and
    those that are `least` needed, from the last one on, which is said; else a block of lines for each row."""
    width = screen.width or ANY_WIDTH
    columns: list[int] = list(range(len(header)))
    hidden: list[int] = []
    empty = [column for column in columns[1:] if all(row[column] in ("", "-") for row in rows)]
    droppable = [*empty, *(header.index(name) for name in reversed(least) if name in header)]
    while _least_width(header, rows, figures, columns) > width:
        if not droppable:
            return _records(header, rows, screen)
        column = droppable.pop(0)
        if column in columns:
            columns.remove(column)
            hidden += [] if column in empty else [column]
    picked = [[row[column] for column in columns] for row in rows]
    text = _table([header[column] for column in columns], picked, [figures[column] for column in columns], screen)
    if not hidden:
        return text
    names = ", ".join(header[column] for column in sorted(hidden))
    return f"{text}\n{painted(f'({names}: in a wider window, or with --json)', Meaning.QUIET, screen)}"


def _least_width(header: Sequence[str], rows: Rows, figures: Sequence[bool], columns: Sequence[int]) -> int:
    return sum(_least(header, rows, figures, column) for column in columns) + GAP * (len(columns) - 1)


def _least(header: Sequence[str], rows: Rows, figures: Sequence[bool], column: int) -> int:
    cells = [header[column], *(row[column] for row in rows)]
    if figures[column] or all(" " not in cell_text for cell_text in cells):
        return max(map(cell_len, cells))
    widest_word = max(cell_len(word) for cell_text in cells for word in (cell_text.split() or [""]))
    return max(widest_word, min(LEAST_FOLDED, max(map(cell_len, cells))))


def _table(header: Sequence[str], rows: Rows, figures: Sequence[bool], screen: Screen) -> str:
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style=Meaning.HEAD.value)
    for column, name in enumerate(header):
        least = _least(header, rows, figures, column)
        table.add_column(name, justify="right" if figures[column] else "left", overflow="fold", min_width=least)
    table.add_row(*(_Rule() for _ in header))
    for row in rows:
        table.add_row(*(_cell(cell_text) for cell_text in row))
    return _text(table, screen)


class _Rule:
    """Dashes as wide as the column that they stand in."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        yield Segment("-" * options.max_width, console.get_style(Meaning.QUIET.value))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, 1)


def _cell(cell_text: str) -> Text:
    meaning = by_word(cell_text)
    return Text(cell_text, meaning.value if meaning else "")


def _records(header: Sequence[str], rows: Rows, screen: Screen) -> str:
    width = max(map(len, header[1:]), default=0)
    blocks = []
    for row in rows:
        lines = [painted(row[0], Meaning.HEAD, screen)]
        for column in range(1, len(header)):
            name, cell_text = header[column], row[column]
            if cell_text not in ("", "-"):
                first, *more = textwrap.wrap(cell_text, (screen.width or ANY_WIDTH) - width - 4, break_long_words=False)
                lines.append(f"  {name:{width}}  {painted(first, by_word(cell_text), screen)}")
                lines += [f"  {'':{width}}  {line}" for line in more]
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def _text(table: Table, screen: Screen) -> str:
    paper = StringIO()
    has = screen.has_colours
    console = Console(
        file=paper,
        width=screen.width or ANY_WIDTH,
        force_terminal=has,
        no_color=not has,
        color_system="standard" if has else None,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in paper.getvalue().splitlines())
