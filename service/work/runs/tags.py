"""Tags of runs: words that people give them, and find them by."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlalchemy import ColumnElement, and_

from service.store.database.models import Run
from service.store.database.models.runs import IS_TAGGED


def typed_tags(text: str) -> list[str]:
    """Returns the tags as people type them: with commas or blanks between, in any case."""
    return [word.lower() for word in re.split(r"[\s,;]+", text) if word]


def text_of(tags: Iterable[str]) -> str:
    """Returns the tags as the column has them: each once, sorted."""
    unique = sorted(set(tags))
    return "".join(("\n", *(f"{tag}\n" for tag in unique))) if unique else ""


def tags_in(text: str) -> list[str]:
    """Returns the tags of a column's text."""
    return [tag for tag in text.split("\n") if tag]


def has_tag(tag: str) -> ColumnElement[bool]:
    """Returns the condition on `Run` that it has this tag. The index skips untagged runs."""
    return and_(IS_TAGGED, Run.tags.contains(f"\n{tag}\n", autoescape=True))
