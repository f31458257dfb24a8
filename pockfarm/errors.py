"""Every error of the client and the command line, sorted by who must act.

PockfarmError               (base; its fields make the text for a person, `exit_code` is for a script)
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
from typing import Any, Protocol, TypeVar

AFTER = "; {}"
"""The form of a hint that follows the message on its line."""
IN_PARENTHESES = " ({})"
"""The form of a hint as the compiler's errors have it."""
BELOW = "\n  {}"
"""The form of a hint whose lines stand below the message, indented."""
AS_LINES = "\n{}"
"""The form of lines below the message as they are: the end of a log."""
Own = TypeVar("Own", bound="PockfarmError")


class CompilerProblem(Protocol):
    """The fields of the compiler's errors, which this module must not import."""

    code: str
    message: str
    where: str
    hint: str


class ProtocolProblem(Protocol):
    """The fields of a wrong setting's error."""

    message: str
    where: str
    hint: str


class PockfarmError(Exception):
    """Something a person can act on. `default_code` stands in `--json` where an error has no code of its own.

    `message` is the cause, `where` the place, `hint` the next step and `code` a stable identifier; all but the message
    may be empty. `hint_form` says how the hint stands in the text.
    """

    exit_code = 1
    default_code = "error"

    def __init__(
        self, message: object, *, where: object = "", hint: str = "", code: str = "", hint_form: str = AFTER
    ) -> None:
        super().__init__(message)
        self.message = str(message)
        self.where = str(where)
        self.hint = hint
        self.code = code
        self.hint_form = hint_form

    def __str__(self) -> str:
        """Composes the text: `WHERE: message; hint [code]`, with the hint in its form."""
        hints = [self.hint_form.format(line) for line in self.hint.splitlines()]
        code = f" [{self.code_words}]" if self.code_words else ""
        lines = [code, *hints] if self.hint_form in (BELOW, AS_LINES) else [*hints, code]
        return f"{self.place}{self.message}{''.join(lines)}"

    @property
    def place(self) -> str:
        """Returns the beginning of the text, which names the place; empty without one."""
        return f"{self.where}: " if self.where else ""

    @property
    def code_words(self) -> str:
        """Returns the text in the brackets; empty for none."""
        return self.code

    def at(self: Own, where: str) -> Own:
        """Moves the error to a place that holds its own, which becomes part of the message."""
        self.message, self.where = f"{self.place}{self.message}", where
        return self


class UsageError(PockfarmError):
    """A wrong argument, file or setting."""

    exit_code = 2
    default_code = "usage"

    @classmethod
    def of_compiler(cls, problem: CompilerProblem, *, has_code: bool = True) -> UsageError:
        """Takes over the fields of an error of the compiler; its code only if the new one `has_code`."""
        code = problem.code if has_code else ""
        return cls(problem.message, where=problem.where, hint=problem.hint, code=code, hint_form=IN_PARENTHESES)

    @classmethod
    def of_protocol(cls, problem: ProtocolProblem) -> UsageError:
        """Takes over the fields of a wrong setting's error (`device_agents.wire.ProtocolError`)."""
        return cls(problem.message, where=problem.where, hint=problem.hint)


class Refused(PockfarmError):
    """The farm refused a request. `status` is HTTP's; `message`, `code`, `where` and `hint` are the problem's own."""

    exit_code = 3
    default_code = "refused"

    def __init__(self, message: str, *, status: int, code: str = "", where: str = "", hint: str = "") -> None:
        super().__init__(message, where=where, hint=hint, code=code, hint_form=BELOW)
        self.status = status

    @property
    def place(self) -> str:
        """Returns the place, unless the farm's own words name it."""
        return "" if self.where in self.message else super().place


class Unauthorized(Refused):
    """No API key, or one that the farm does not know."""


class NotFound(Refused):
    """The farm has no such thing."""


class Failed(PockfarmError):
    """A job or a run that ended without success. `cause` is the public cause family (model, limits, device...); the
    text has it before the code, unless `names_cause` is false."""

    exit_code = 4
    default_code = "failed"

    def __init__(
        self,
        message: object,
        *,
        state: str,
        cause: str = "",
        where: object = "",
        hint: str = "",
        code: str = "",
        hint_form: str = BELOW,
        names_cause: bool = True,
    ) -> None:
        super().__init__(message, where=where, hint=hint, code=code, hint_form=hint_form)
        self.state = state
        self.cause = cause
        self.names_cause = names_cause

    @property
    def code_words(self) -> str:
        """Returns `cause: code`, or the code alone; empty without a code."""
        return f"{self.cause}: {self.code}" if self.code and self.cause and self.names_cause else self.code


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
