"""Error messages on standard error: in words, or with `--json` as one JSON object, which is the last line there.

The object has `exit_code`, a stable `code`, `message` (the cause), `where` (the place) and `hint` (the next step); the
last two may be empty. A farm's own words are those of its problem; of what is said here in words alone, the words tell
them apart: `PLACE: cause; next step [code]`, or the next step on lines of its own.
"""

from __future__ import annotations

import json
import re
import sys
from contextvars import ContextVar

from pockfarm.errors import PockfarmError, Refused
from pockfarm.screen import Meaning, errors, painted

FLAG = "--json"
_as_json: ContextVar[bool] = ContextVar("asked for JSON", default=False)
_CODE = re.compile(r"\s*\[(?:[a-z]+: )?([a-z][\w-]*\.[\w.-]+)\]$")
_BEHIND = re.compile(r"(.+) \(([^()]+)\)")
"""As errors of the compiler have their hint."""
_PLACE = re.compile(r"(?:argument )?(--[\w-]+(?: [^\s:]+)?|(?!https?$)[^\s:]+): (?=.)")
"""Matches one word (a file, a field, a node), or an option with its value."""


def choose(words: list[str]) -> None:
    """Whether these words of a command line ask for JSON, for all that is told from now on."""
    _as_json.set(FLAG in words)


def tell(problem: PockfarmError) -> None:
    """Say it, in the form that was asked for."""
    if _as_json.get():
        print(json.dumps(error_object(problem)), file=sys.stderr, flush=True)
        return
    print(f"{painted('pockfarm:', Meaning.BAD, errors())} {problem}", file=sys.stderr)


def error_object(problem: PockfarmError) -> dict[str, object]:
    """The object."""
    if isinstance(problem, Refused):
        message, code, where, hint = problem.message, problem.code, problem.where, problem.hint
    else:
        message, code, where, hint = _parted(str(problem))
    error_code = code or getattr(problem, "code", "") or type(problem).default_code
    return {"exit_code": problem.exit_code, "code": error_code, "message": message, "where": where, "hint": hint}


def _parted(text: str) -> tuple[str, str, str, str]:
    """Cause, code, place and next step of an error that is words alone."""
    first, _, hint = (part.strip() for part in text.partition("\n"))
    code_match = _CODE.search(first)
    first = first[: code_match.start()] if code_match else first
    place = _PLACE.match(first)
    first = first[place.end() :] if place else first
    if not hint:
        first, _, hint = (part.strip() for part in first.partition("; "))
    if not hint and (behind := _BEHIND.fullmatch(first)):
        first, hint = behind.groups()
    return first, code_match[1] if code_match else "", place[1] if place else "", " ".join(hint.split())
