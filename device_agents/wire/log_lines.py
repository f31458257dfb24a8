"""Log lines, the same in every process of a farm and on every board: one JSON object per event, or text for a terminal.

What an event is about (request, key, run, attempt, device, job) is bound once, where it becomes known, and stands in
every line below that. Secrets are left out of all that is written, by their shape: those that a farm makes are 64
hexadecimal digits, which a digest (`sha256:...`) is told from; passwords of URLs, bearer tokens and what signs a
pre-signed URL go by where they stand; and what a process was given as a secret goes by its value.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TextIO

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
LEVEL_VARIABLE, FORMAT_VARIABLE = "POCKFARM_LOG_LEVEL", "POCKFARM_LOG_FORMAT"
FORMATS = ("auto", "json", "text")
IDS = ("request", "key", "organisation", "job", "run", "attempt", "device")
HIDDEN = "[hidden]"
INDENTED = "\n    "
"""The start of each further line of a message, so that only what we log begins one: what a stranger says may hold
newlines.
"""
FEWEST_SECRET_CHARACTERS = 8
_SHAPES = (
    (re.compile(r"(?<![0-9A-Za-z:])[0-9a-fA-F]{64}(?![0-9A-Za-z])|(?<!sha256):[0-9a-fA-F]{64}(?![0-9A-Za-z])"), HIDDEN),
    (re.compile(r"(?i)\b(bearer\s+)[^\s\"',;]+"), r"\1" + HIDDEN),
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^/\s:@]*:)[^@\s/]+@"), r"\1" + HIDDEN + "@"),
    (
        re.compile(
            r"(?i)\b((?:x-amz-(?:signature|credential|security-token)|awsaccesskeyid|signature|sig|token)=)"
            r"[^&\s\"'<>]+"
        ),
        r"\1" + HIDDEN,
    ),
    (re.compile(r"(?i)\b(password|secret|passphrase)((?:\"|')?\s*[=:]\s*(?:\"|')?)[^\s\"',;&}]+"), r"\1\2" + HIDDEN),
)
_secrets: set[str] = set()
_bound: ContextVar[dict[str, str] | None] = ContextVar("bound", default=None)
_process: dict[str, str] = {}


@contextlib.contextmanager
def bind(**ids: Any) -> Iterator[None]:
    """Name what everything inside the block is about."""
    token = _bound.set({**(_bound.get() or {}), **{name: str(value) for name, value in ids.items() if value}})
    try:
        yield
    finally:
        _bound.reset(token)


@contextlib.contextmanager
def bind_process(**ids: Any) -> Iterator[None]:
    """Binds ids as `bind` does, for every thread: in a process that does one thing at a time."""
    before = dict(_process)
    _process.update({name: str(value) for name, value in ids.items() if value})
    try:
        yield
    finally:
        _process.clear()
        _process.update(before)


def note(**ids: Any) -> None:
    """Adds to what the block around is about, in threads that it handed work to as well; nothing outside a block."""
    bound_ids = _bound.get()
    if bound_ids is not None:
        bound_ids.update({name: str(value) for name, value in ids.items() if value})


def context() -> Mapping[str, str]:
    """Returns the subjects that log lines of the calling code are about."""
    return {**_process, **(_bound.get() or {})}


def hide(secret: str | None) -> None:
    """Never write this value, whatever its shape."""
    if secret and len(secret) >= FEWEST_SECRET_CHARACTERS:
        _secrets.add(secret)


def without_secrets(text: str) -> str:
    """The text with every secret blanked."""
    for secret in _secrets:
        text = text.replace(secret, HIDDEN)
    for shape, instead in _SHAPES:
        text = shape.sub(instead, text)
    return text


def visible(text: str) -> str:
    """The text without what a terminal would act on: all but newlines and what can be seen, as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else _escaped(character) for character in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


class _Lines(logging.Formatter):
    """The common part of both forms."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part


class JsonLines(_Lines):
    """`{"at": ..., "level": ..., "part": ..., "event": ..., "logger": ..., ids...}` on one line."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "part": self.part,
            "event": _message(record),
            "logger": record.name,
            **_about(record),
        }
        if record.exc_info:
            fields["traceback"] = _traceback(record)
        hidden = {name: without_secrets(item) if isinstance(item, str) else item for name, item in fields.items()}
        return _json_visible(json.dumps(hidden, ensure_ascii=False, default=str))


class TextLines(_Lines):
    """Log lines for people: time, level, message, and what it is about at the end. What goes on over a line is
    indented.
    """

    def format(self, record: logging.LogRecord) -> str:
        about = " ".join(f"{name}={item}" for name, item in _about(record).items())
        line = f"{_at(record)} {record.levelname} {_message(record)}" + (f"  [{about}]" if about else "")
        text = without_secrets(line + ("\n" + _traceback(record) if record.exc_info else ""))
        return visible(text).replace("\n", INDENTED)


def _json_visible(text: str) -> str:
    """JSON escapes what is below a space, and leaves the other characters that steer terminals."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _json_escaped(character) for character in text)


def _json_escaped(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def _at(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        return f"{record.msg} {record.args}"


def _traceback(record: logging.LogRecord) -> str:
    return "".join(traceback.format_exception(*record.exc_info)).rstrip() if record.exc_info else ""


def _about(record: logging.LogRecord) -> dict[str, Any]:
    """Ids that are bound, and the fields that the call gave as `extra={"fields": {...}}`."""
    return {**context(), **getattr(record, "fields", {})}


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.9 has no such argument
    """Lines that a full disk refuses are gone. Kept in the stream's buffer they would be refused once more as the
    process ends, and be its exit code (120); and `logging` would tell of it on the same stream."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = (self.format(record) + self.terminator).encode("utf-8", "backslashreplace")
        except Exception:
            self.handleError(record)
            return
        with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed
            _write(self.stream, line)


def _write(stream: TextIO, line: bytes) -> None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if raw is None:
        stream.write(line.decode())  # a test's, for one
        stream.flush()
        return
    stream.flush()
    raw.write(line)


def configure(
    part: str, *, level: str = "", form: str = "", default_form: str = "auto", stream: TextIO | None = None
) -> None:
    """Sends every log line of this process to `stream` (the standard error), in place of what was set up before.

    `level` and `form` are else what the environment says, else `info` and `default_form`. Raises: ValueError for
    others.
    """
    level = (level or os.environ.get(LEVEL_VARIABLE, "") or "info").lower()
    form = (form or os.environ.get(FORMAT_VARIABLE, "") or default_form).lower()
    if level not in LEVELS:
        raise ValueError(f"{LEVEL_VARIABLE}={level}: expected one of {', '.join(LEVELS)}")
    if form not in FORMATS:
        raise ValueError(f"{FORMAT_VARIABLE}={form}: expected one of {', '.join(FORMATS)}")
    out = stream or sys.stderr
    is_text = form == "text" or (form == "auto" and out.isatty())
    handler = _Handler(out)
    handler.setFormatter(TextLines(part) if is_text else JsonLines(part))
    root = logging.getLogger()
    for logger in [
        root,
        *(candidate for candidate in root.manager.loggerDict.values() if isinstance(candidate, logging.Logger)),
    ]:
        for old in [
            log_handler for log_handler in logger.handlers if type(log_handler) in (logging.StreamHandler, _Handler)
        ]:
            logger.removeHandler(old)  # uvicorn's own, for one
            logger.propagate = True
    root.addHandler(handler)
    root.setLevel(LEVELS[level])
