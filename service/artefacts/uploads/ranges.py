"""`Content-Range` of a piece (RFC 9110, 14.4)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from service.base.problems import Invalid

_RANGE = re.compile(r"(?:bytes[ =])?\s*([0-9]{1,18})-([0-9]{1,18})(?:/([0-9]{1,18}|\*))?")
HEADER = "Content-Range"


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes of a file from `start` up to, but without, `end`."""

    start: int
    end: int


def read_span(text: str | None, *, size_bytes: int) -> Span:
    """Returns the piece that the header names. Raises: Invalid for none, an empty one, or one beyond the file's end."""
    match = _RANGE.fullmatch((text or "").strip())
    if match is None:
        raise Invalid(
            "upload.range",
            "missing, or not `bytes FIRST-LAST/SIZE`",
            where=HEADER,
            hint="such as `Content-Range: bytes 0-4194303/2147483648`",
        )
    span = Span(int(match[1]), int(match[2]) + 1)
    if match[3] not in (None, "*") and int(match[3]) != size_bytes:
        raise Invalid("upload.range", f"says a file of {match[3]} bytes, the upload is of {size_bytes}", where=HEADER)
    if not span.start < span.end <= size_bytes:
        raise Invalid(
            "upload.range",
            f"bytes {span.start} to {span.end - 1} of a file of {size_bytes}",
            where=HEADER,
            hint="first and last byte of the piece, counted from 0",
        )
    return span
