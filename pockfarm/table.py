"""Plain-text tables and figures for a terminal: numbers right-aligned, one unit per column, `-` where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

NONE = "-"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart; a column of figures is right-aligned."""
    columns = range(len(header))
    widths = [max(len(row[column]) for row in [header, *rows]) for column in columns]
    right = [bool(rows) and all(_is_figure(row[column]) for row in rows) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(cells, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *(line(row) for row in rows)])


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, none: str) -> None:
    """The table on standard output; `none` where there are no rows."""
    print(text_table(header, rows) if rows else none)


def figure(value: float | None, digits: int = 1, scale: float = 1.0) -> str:
    """`value * scale` with thousands separators and fixed digits; `-` for none."""
    return NONE if value is None else f"{value * scale:,.{digits}f}"


def mib(value: float | None) -> str:
    """Bytes as MiB."""
    return figure(value, 2, 1 / (1 << 20))


def milliseconds(value_us: float | None) -> str:
    """Microseconds as milliseconds."""
    return figure(value_us, 2, 1e-3)


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


TIME_UNITS = (("s", 1e6), ("ms", 1e3), ("us", 1.0), ("ns", 1e-3))
"""With their microseconds."""


def step_time(us: float | None, digits: int = 3) -> str:
    """Microseconds as `471 ns`, `97.1 us`, `42.3 ms`, `1.20 s`: so many digits, in the unit that fits."""
    if us is None:
        return NONE
    rounds_up_to_one = 1 - 0.5 * 10.0**-digits
    unit, size = next(((unit, size) for unit, size in TIME_UNITS if us >= rounds_up_to_one * size), TIME_UNITS[-1])
    return f"{f'{us / size:#.{digits}g}'.rstrip('.')} {unit}"
