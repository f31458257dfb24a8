"""Error messages on standard error: in words, or with `--json` as one JSON object, which is the last line there.

The object has `exit_code`, a stable `code`, `message` (the cause), `where` (the place) and `hint` (the next step); the
last two may be empty.
"""

from __future__ import annotations

import json
import sys
from contextvars import ContextVar

from pockfarm.errors import PockfarmError
from pockfarm.screen import Meaning, errors, painted

FLAG = "--json"
_as_json: ContextVar[bool] = ContextVar("asked for JSON", default=False)


def choose(words: list[str]) -> None:
    """Chooses the form of all error messages from now on: JSON if these words of a command line ask for it."""
    _as_json.set(FLAG in words)


def tell(problem: PockfarmError) -> None:
    """Prints an error in the chosen form."""
    if _as_json.get():
        print(json.dumps(error_object(problem)), file=sys.stderr, flush=True)
        return
    print(f"{painted('pockfarm:', Meaning.BAD, errors())} {problem}", file=sys.stderr)


def error_object(problem: PockfarmError) -> dict[str, object]:
    """Returns the object of an error; the lines of a hint become one."""
    return {
        "exit_code": problem.exit_code,
        "code": problem.code or type(problem).default_code,
        "message": problem.message,
        "where": problem.where,
        "hint": " ".join(problem.hint.split()),
    }
