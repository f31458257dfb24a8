"""Plain-text tables and figures for a terminal: numbers right-aligned, one unit per column, `-` where there is none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from device_agents.figures.digits import TIME_UNITS, step_time
from pockfarm.screen import output

NONE = "-"
UNITS = frozenset((*(unit for unit, _ in TIME_UNITS), "B", "KiB", "MiB", "GiB"))


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, least: Sequence[str] = ()) -> str:
    """Columns two spaces apart; a column of figures is right-aligned.

    In a terminal it is as wide as the window, and without the columns that are `least` needed where they do not fit.
    """
    columns = range(len(header))
    right = [bool(rows) and all(_is_figure(row[column]) or _is_time(row[column]) for row in rows) for column in columns]
    screen = output()
    if screen.width is not None or screen.has_colours:
        from pockfarm.screen.tables import drawn

        return drawn(header, rows, right, screen, least)
    widths = [max(len(row[column]) for row in [header, *rows]) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(cells, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *(line(row) for row in rows)])


def table_or(
    header: Sequence[str], rows: Sequence[Sequence[str]], none: str, *, least: Sequence[str] = ()
) -> str:  # fmt: skip
    """The table; `none` where there are no rows."""
    return text_table(header, rows, least=least) if rows else none


def figure(value: float | None, digits: int = 1, scale: float = 1.0) -> str:
    """`value * scale` with thousands separators and fixed digits; `-` for none."""
    return NONE if value is None else f"{value * scale:,.{digits}f}"


def mib(value: float | None) -> str:
    """Bytes as MiB."""
    return figure(value, 2, 1 / (1 << 20))


SIZES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def bytes_text(value: float | None) -> str:
    """Bytes in the unit that fits, three digits: `1.94 MiB`, `37.2 KiB`, `512 B`; `-` for none."""
    if value is None:
        return NONE
    unit, scale = next(((unit, scale) for unit, scale in SIZES if value >= scale), ("B", 1))
    return f"{value:.0f} B" if scale == 1 else f"{digits(value / scale)} {unit}"


def digits(value: float, most: int = 3) -> str:
    """A figure with so many significant digits, and no fewer before its point: `1.94`, `37.2`, `1,024`."""
    if value == 0:
        return "0"
    places = most - 1 - math.floor(math.log10(abs(value)))
    if math.floor(math.log10(abs(round(value, places)))) > math.floor(math.log10(abs(value))):
        places -= 1  # 9.996 is 10.0
    return f"{value:,.{max(0, places)}f}"


def moment(said: str) -> str:
    """A time of the farm's (RFC 3339, UTC) to the second: `2026-11-27 02:53:11`; `-` for none."""
    return said[:19].replace("T", " ") or NONE


def time_of(us: float | None) -> str:
    """Microseconds of a step, in the unit that fits; `-` for none."""
    return NONE if us is None else step_time(us)


def seconds(value_s: float) -> str:
    """A duration for a person: `8.4 s`, `2 min 05 s`."""
    if value_s < 60:
        return f"{value_s:.1f} s"
    return f"{int(value_s) // 60} min {int(value_s) % 60:02d} s"


def cell(value: object) -> str:
    """What a field of an answer shows as: lists in one line, `-` for nothing."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or NONE
    return NONE if value in (None, "") else str(value)


def cells(answers: Iterable[Mapping[str, object]], names: Sequence[str]) -> list[tuple[str, ...]]:
    """These fields of each answer, as rows of a table."""
    return [tuple(cell(one.get(name)) for name in names) for one in answers]


def _is_figure(cell: str) -> bool:
    return cell in ("", NONE) or cell.replace(",", "").replace(".", "", 1).lstrip("-+").rstrip("%").isdigit()


def _is_time(cell: str) -> bool:
    figure, _, unit = cell.partition(" ")
    return unit in UNITS and _is_figure(figure)
