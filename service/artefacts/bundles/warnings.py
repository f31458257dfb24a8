"""Compile warnings of a bundle: a compile child writes them about a model of unknown origin, so they are checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.database.models import Bundle

MAX_WARNINGS = 64
MAX_CHARACTERS: Mapping[str, int] = {"code": 80, "where": 200, "message": 1000, "hint": 500}
_CODE = re.compile(r"[a-z]+(\.[a-z0-9_-]+)+")


def find_problem(report: Mapping[str, object]) -> str:
    """Returns what is wrong with the warnings of a compile report; empty if nothing is, or there are none."""
    warnings = report.get("warnings", [])
    if not isinstance(warnings, list) or len(warnings) > MAX_WARNINGS:
        return f"warnings: expected a list of at most {MAX_WARNINGS}"
    return next(
        (f"warnings[{position}]: {problem}" for position, entry in enumerate(warnings) if (problem := _odd(entry))), ""
    )


def warnings_of(session: Session, digests: Iterable[str | None]) -> dict[str, list[dict[str, str]]]:
    """Returns the warnings of some bundles, by digest; bundles of compilers that gave none have an empty list."""
    distinct = {digest for digest in digests if digest is not None}
    if not distinct:
        return {}
    query = select(Bundle.digest, Bundle.compile_report["warnings"]).where(Bundle.digest.in_(distinct))
    return {digest: warnings or [] for digest, warnings in session.execute(query)}


def _odd(entry: object) -> str:
    if not isinstance(entry, dict) or set(entry) != set(MAX_CHARACTERS):
        return f"expected {', '.join(MAX_CHARACTERS)}"
    for name, limit in MAX_CHARACTERS.items():
        text = entry[name]
        if not isinstance(text, str) or len(text) > limit or not text.isprintable():
            return f"{name}: expected printable text of at most {limit} characters"
    return "" if _CODE.fullmatch(entry["code"]) else "code: expected dotted words"
