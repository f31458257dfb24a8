"""Numbers, times and digests as people read them: fixed units, UTC, nothing shown where nothing was measured.

Text for HTML and SVG that is made in Python: of the thousands of words on a page nearly none needs escaping, and
whoever looks first does without `markupsafe`'s objects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from markupsafe import Markup, escape

from device_agents.figures import digits as figures
from device_agents.figures.digits import DIGITS, LOSS_DIGITS, parts_of_time, places_of_digits, time_span
from device_agents.figures.intervals import Interval

_SPECIAL = re.compile("[&<>\"']").search


def escaped(text: str) -> str:
    """Escapes text like `markupsafe.escape`: Markup stays as it is. The result may be a plain `str`."""
    return text if isinstance(text, Markup) or not _SPECIAL(text) else str(escape(text))


ABSENT = "–"
MINUS = "\N{MINUS SIGN}"
MIB = 1024 * 1024


def true_minus(figure: str) -> str:
    """Returns a figure as pages write it: with a minus sign, which is as wide as a plus, where Python writes a
    hyphen.
    """
    return f"{MINUS}{figure[1:]}" if figure.startswith("-") else figure


def number(value: float | int | None, digits: int = 0) -> str:
    """Writes a number with fixed decimals and thousands separators, so that a column lines up: `12,345.68`."""
    if value is None:
        return ABSENT
    return true_minus(f"{value:,.{digits}f}" if abs(value) < figures.HUGE else f"{value:.3e}")


def rounded(value: float | None, digits: int = DIGITS) -> str:
    """Writes a number with so many digits in all, as the command line does: `1.94`, `77,400`, `0.0004213`."""
    return ABSENT if value is None else true_minus(figures.rounded(value, digits))


def loss(value: float | None) -> str:
    """Writes a loss with four digits: `2.306`, `0.0004213`."""
    return rounded(value, LOSS_DIGITS)


def difference(value: float, written: str) -> str:
    """Writes a difference with its sign: `+1.20 ms`, `−812 µs`, for a value whose size is `written` so; `0` where there
    is none.
    """
    return "0" if value == 0 else f"{'+' if value > 0 else MINUS}{written}"


def three(value: float) -> str:
    """Writes three significant digits, or all before the point: `1.23`, `45.6`, `789`, `1,234`."""
    return number(value, max(0, places_of_digits(abs(value), 3))) if value else "0"


def significant(value: float, digits: int = 3) -> str:
    """Writes significant digits for axis ticks and running text, never for a column: `0.00123`, `45.6`, `1,230`."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    if magnitude >= figures.HUGE:
        return true_minus(f"{value:.{digits - 1}e}")
    if magnitude >= 10 ** (digits - 1):
        return true_minus(f"{value:,.0f}")
    return true_minus(f"{value:.0e}" if magnitude < 1e-4 else f"{value:.{digits}g}")


def milliseconds(value_us: float | None) -> float | None:
    """Converts microseconds to milliseconds; None stays None."""
    return None if value_us is None else value_us / 1000.0


def mebibytes(value_bytes: int | float | None) -> float | None:
    """Converts bytes to MiB; None stays None."""
    return None if value_bytes is None else value_bytes / MIB


def size(value_bytes: int | float | None) -> str:
    """Writes one size in running text: `37.4 MiB`, `812 KiB`, `96 B`."""
    return " ".join(size_parts(value_bytes)).strip()


def size_parts(value_bytes: int | float | None) -> tuple[str, str]:
    """Returns the figure, and its unit."""
    if value_bytes is None:
        return ABSENT, ""
    for limit, unit in ((1 << 30, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if abs(value_bytes) >= limit:
            return three(value_bytes / limit), unit
    return number(value_bytes), "B"


def percent(value: float | None, digits: int = 1) -> str:
    """Writes a share as a percentage: 0.934 as `93.4%`."""
    return ABSENT if value is None else f"{number(100 * value, digits)}%"


def latency(value_ms: float | None) -> str:
    """Writes a time in the unit that fits, with three digits: `97.1 µs`, `42.3 ms`."""
    return " ".join(latency_parts(value_ms)).strip()


def latency_parts(value_ms: float | None) -> tuple[str, str]:
    """Returns the figure, and its unit."""
    if value_ms is None:
        return ABSENT, ""
    figure, unit = parts_of_time(1000 * value_ms)
    return figure, unit.replace("us", "µs")


def latency_span(value_ms: float, interval_ms: tuple[float, float]) -> str:
    """Writes the 95% interval of a time: `42.1 to 42.6 ms`."""
    interval = Interval(1000 * interval_ms[0], 1000 * interval_ms[1])
    return time_span(1000 * value_ms, interval).replace("us", "µs")


def signed_percent(value: float) -> str:
    """Writes a share as a percentage with its sign: 0.123 as `+12.3%`."""
    return difference(value, percent(abs(value))) if value else "+0.0%"


def moment(value: datetime | float | None) -> datetime | None:
    """Returns a database or wire time as an aware UTC one. SQLite returns naive times: they are UTC."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return datetime.fromtimestamp(value, tz=UTC)


def clock(value: datetime | float | None) -> str:
    """Writes a time to the minute: `2026-11-21 11:58` (UTC; the column or the page says so)."""
    at = moment(value)
    return ABSENT if at is None else at.strftime("%Y-%m-%d %H:%M")


def clock_seconds(value: datetime | float | None) -> str:
    """Writes a time to the second: `2026-11-21 11:58:03`."""
    at = moment(value)
    return ABSENT if at is None else at.strftime("%Y-%m-%d %H:%M:%S")


def iso(value: datetime | float | None) -> str | None:
    """Returns the time as RFC 3339 with `Z`, for `<time datetime>`, CSV and JSON."""
    at = moment(value)
    return None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")


def ago(value: datetime | float | None, now: datetime) -> str:
    """Writes how long ago a time was: `12 s ago`, `3 min ago`, `5 h ago`, `2 d ago`."""
    at = moment(value)
    if at is None:
        return "never"
    return f"{duration(max(0.0, (now - at).total_seconds()))} ago"


def duration(seconds: float | None) -> str:
    """Writes a duration: `0.8 s`, `42 s`, `3 min 05 s`, `2 h 04 min`, `3 d 2 h`."""
    if seconds is None:
        return ABSENT
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def short_digest(value: str | None) -> str:
    """Shortens a digest: `sha256:0123456789ab…` to `0123456789ab`."""
    if not value:
        return ABSENT
    return value.removeprefix("sha256:")[:12]


def some(names: Sequence[str], most: int) -> str:
    """Lists at most so many names: `a, b, c and 12 others`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {plural(more, 'other')}" if more > 0 else "")


def plural(count: int, noun: str, many: str | None = None) -> str:
    """Writes a count with its noun: `1 run`, `12 runs`."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def coded(text: str) -> Markup:
    """Returns a sentence whose `words in quotes of code` are shown as code; all of it is escaped."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )
