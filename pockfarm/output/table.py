"""Plain-text tables and figures for a terminal: numbers right-aligned, one unit per column, `-` where there is none."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from device_agents.figures.digits import LOSS_DIGITS, TIME_UNITS, rounded, step_time, time_span
from device_agents.figures.intervals import Interval
from pockfarm.screen import Meaning, output, painted, painted_words

NONE = "-"
ANY_WIDTH = 1 << 20
"""Characters of a line in a pipe."""
SIZES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
WORK = (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3))
ENERGIES = (("J", 1e3), ("mJ", 1.0), ("uJ", 1e-3))
"""Units of energy, with their size in millijoules."""
UNITS = frozenset(("B", "FLOP", *(unit for unit, _ in (*TIME_UNITS, *SIZES, *WORK, *ENERGIES))))


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, least: Sequence[str] = ()) -> str:
    """Columns two spaces apart; a column of figures is right-aligned.

    In a terminal it is as wide as the window, and without the columns that are `least` needed where they do not fit.
    """
    columns = range(len(header))
    right = [_are_figures([row[column] for row in rows]) for column in columns]
    screen = output()
    if screen.width is not None or screen.has_colours:
        from pockfarm.screen.tables import drawn

        return drawn(header, rows, right, screen, least)
    widths = [max(len(row[column]) for row in [header, *rows]) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in zip(cells, widths, right)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *(line(row) for row in rows)])


def table_or(header: Sequence[str], rows: Sequence[Sequence[str]], none: str, *, least: Sequence[str] = ()) -> str:
    """The table; `none` where there are no rows."""
    return text_table(header, rows, least=least) if rows else none


def facts_text(facts: Sequence[tuple[str, str]]) -> str:
    """A line for each name and what it is, states and verdicts in their colours; what is not there is left out.

    In a terminal what is longer than the window goes on below itself.
    """
    filled = [(name, fact) for name, fact in facts if fact not in ("", NONE)]
    width = max((len(name) for name, _ in filled), default=0)
    room = max(
        20, (output().width or len(max((fact for _, fact in filled), key=len, default="")) + width + 3) - width - 2
    )
    lines = []
    for name, fact in filled:
        first, *more = textwrap.wrap(fact, room, break_long_words=False, break_on_hyphens=False) or [fact]
        lines.append(f"{painted(f'{name:{width}}', Meaning.HEAD)}  {painted_words(first)}")
        lines += [f"{'':{width}}  {painted_words(line)}" for line in more]
    return "\n".join(lines)


def figure(value: float | None, digits: int = 1, scale: float = 1.0) -> str:
    """`value * scale` with thousands separators and fixed digits; `-` for none."""
    return NONE if value is None else f"{value * scale:,.{digits}f}"


def bytes_text(value: float | None) -> str:
    """Bytes in the unit that fits, three digits: `1.94 MiB`, `37.2 KiB`, `512 B`; `-` for none."""
    if value is None:
        return NONE
    unit, scale = next(((unit, scale) for unit, scale in SIZES if value >= scale), ("B", 1))
    return f"{value:.0f} B" if scale == 1 else f"{rounded(value / scale)} {unit}"


def work_text(flops: float | None) -> str:
    """Floating-point operations in the unit that fits: `2.39 MFLOP`; `-` for none."""
    if flops is None:
        return NONE
    unit, scale = next(((unit, scale) for unit, scale in WORK if flops >= scale), ("FLOP", 1))
    return f"{flops:.0f} FLOP" if scale == 1 else f"{rounded(flops / scale)} {unit}"


def energy_text(mj: float | None) -> str:
    """Millijoules of a step in the unit that fits: `12.3 mJ`; `-` for none."""
    if mj is None:
        return NONE
    unit, scale = next(((unit, scale) for unit, scale in ENERGIES if mj >= scale), ENERGIES[-1])
    return f"{rounded(mj / scale)} {unit}"


def loss_text(loss: float | None) -> str:
    """Four digits, because losses differ late: `2.306`, `0.0004213`; `-` for none."""
    return NONE if loss is None else rounded(loss, LOSS_DIGITS)


def moment(timestamp: str) -> str:
    """A time of the farm's (RFC 3339, UTC) to the second: `2026-11-27 02:53:11`; `-` for none."""
    return timestamp[:19].replace("T", " ") or NONE


def time_of(us: float | None) -> str:
    """Microseconds of a step, in the unit that fits, with three digits; `-` for none."""
    return NONE if us is None else step_time(us)


def median_cells(us: float | None, low_us: float | None, high_us: float | None) -> tuple[str, str]:
    """A median and its 95% interval: `42.3 ms` and `42.1 to 42.6 ms`; `-` where one is not known."""
    if us is None or low_us is None or high_us is None:
        return time_of(us), NONE
    return time_of(us), time_span(us, Interval(low_us, high_us))


def seconds(value_s: float) -> str:
    """A duration for a person: `8.4 s`, `2 min 05 s`."""
    if value_s < 60:
        return f"{value_s:.1f} s"
    return f"{int(value_s) // 60} min {int(value_s) % 60:02d} s"


def cell(value: object) -> str:
    """Returns the text for a field of an answer: lists in one line, `-` for nothing."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or NONE
    return NONE if value in (None, "") else str(value)


def cells(answers: Iterable[Mapping[str, object]], names: Sequence[str]) -> list[tuple[str, ...]]:
    """These fields of each answer, as rows of a table."""
    return [tuple(cell(answer.get(name)) for name in names) for answer in answers]


def _are_figures(cells: Sequence[str]) -> bool:
    filled = [text for text in cells if text not in ("", NONE)]
    return bool(filled) and all(_is_figure(text) or _is_time(text) for text in filled)


def _is_figure(cell: str) -> bool:
    return cell in ("", NONE) or cell.replace(",", "").replace(".", "", 1).lstrip("-+").rstrip("%").isdigit()


def _is_time(cell: str) -> bool:
    figure, _, unit = cell.partition(" ")
    return unit in UNITS and _is_figure(figure)
