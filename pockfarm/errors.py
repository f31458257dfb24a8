"""Every error of the client and the command line, sorted by who must act.

PockfarmError               (base; the message is for a person, `exit_code` for a script)
|-- UsageError              a wrong argument, file or setting                     -> user, exit 2
|-- Refused                 the farm said no, with an RFC 9457 problem            -> user, exit 3
|   |-- Unauthorized        no API key, or a wrong one
|   `-- NotFound            no such job, run, bundle...
|-- Failed                  a job or run ended without success; carries its cause -> the cause says, exit 4
|   `-- Diverged            training did, and left no weights; carries the report -> lower the learning rate, exit 4
|-- Unreachable             no farm answers at the address                        -> operator, exit 5
|-- FarmDown                a part of the local farm does not start               -> operator, exit 5
|-- NoRoom                  a disk is full (command line)                         -> user, exit 74
|-- Interrupted             Ctrl-C (command line)                                 -> user, exit 130
`-- Defect                  what nobody foresaw (command line)                    -> us, exit 70
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class PockfarmError(Exception):
    """Something a person can act on. `default_code` stands in `--json` where an error has no code of its own."""

    exit_code = 1
    default_code = "error"


class UsageError(PockfarmError):
    """A wrong argument, file or setting."""

    exit_code = 2
    default_code = "usage"


class Refused(PockfarmError):
    """The farm refused a request. `status` is HTTP's; `message`, `code`, `where` and `hint` are the problem's own, and
    `str()` says all of them."""

    exit_code = 3
    default_code = "refused"

    def __init__(self, message: str, *, status: int, code: str = "", where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """Returns what happened, where, and what to do next, in one or two lines."""
        where = f"{self.where}: " if self.where and self.where not in self.message else ""
        hint = f"\n  {self.hint}" if self.hint else ""
        code = f" [{self.code}]" if self.code else ""
        return f"{where}{self.message}{code}{hint}"


class Unauthorized(Refused):
    """No API key, or one that the farm does not know."""


class NotFound(Refused):
    """The farm has no such thing."""


class Failed(PockfarmError):
    """A job or a run that ended without success. `cause` is the public cause family (model, limits, device...)."""

    exit_code = 4
    default_code = "failed"

    def __init__(self, message: str, *, state: str, cause: str = "", code: str = "") -> None:
        super().__init__(message)
        self.state = state
        self.cause = cause
        self.code = code


class Diverged(Failed):
    """Training diverged. `report` holds the losses until then (`training` in it says at which step)."""

    def __init__(self, message: str, report: Mapping[str, Any]) -> None:
        super().__init__(message, state="succeeded", cause="user", code="train.diverged")
        self.report = report


class Unreachable(PockfarmError):
    """No farm answers at the address."""

    exit_code = 5
    default_code = "farm.unreachable"


class FarmDown(PockfarmError):
    """A part of the farm on this machine does not start, or has stopped."""

    exit_code = 5
    default_code = "farm.down"


class Interrupted(PockfarmError):
    """Ctrl-C."""

    exit_code = 130
    default_code = "interrupted"


class NoRoom(PockfarmError):
    """A file cannot be written: its disk is full. EX_IOERR of sysexits.h."""

    exit_code = 74
    default_code = "disk.full"


class Defect(PockfarmError):
    """An error that nobody foresaw. EX_SOFTWARE of sysexits.h."""

    exit_code = 70
    default_code = "defect"
