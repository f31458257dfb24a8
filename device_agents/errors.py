"""The errors that the agent raises on purpose, sorted by who must act.

AgentError
|-- FarmError                     talking to the farm
|   |-- Unreachable               no answer (network, time-out)                 -> try again later
|   |-- Busy                      429 or 5xx; carries `retry_after_s`           -> try again later
|   |-- Unauthorized              401                                           -> renew the credential
|   |-- Stale                     409: lease or session belongs to another      -> stop, keep the result
|   `-- Refused                   any other 4xx, or an answer that is no answer -> the operator
|-- EnrolmentError                the device has no identity and cannot get one -> the operator
|   `-- EnrolmentRefused          the farm does not want it
|       `-- NameTaken             another device has its name
`-- AttemptError                  ends one attempt; carries cause, code, message, hint of the report
    |-- Untrusted                 signature, key, time, digest, device or release does not fit (cause policy)
    |-- BadUpdate                 an offered agent that this board does not take
    |-- BadBundle                 not a bundle, unsafe entries, wrong target
    |-- BadData                   the data set or weights cannot be used (cause user)
    |-- StepFailed                the binary ended badly
    |-- BadOutput                 what the binary left behind is not what it should have written
    `-- Stopped                   told to stop: cancelled, lease lost, agent going down, time is up
"""

from __future__ import annotations

from device_agents.wire import Cause, Outcome, OutcomeState
from device_agents.wire.disk import is_full


class AgentError(Exception):
    """Base of all of the agent's own errors."""


class FarmError(AgentError):
    """A request to the farm did not succeed. `status` is 0 without an answer, `code` the farm's word for a refusal."""

    def __init__(
        self, message: str, *, status: int = 0, retry_after_s: float | None = None, code: str = "", reason: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.code = code
        self.reason = reason or message
        """The message without what was asked for, as a sentence for people."""


class Unreachable(FarmError):
    """No answer."""


class Busy(FarmError):
    """The farm asks for patience, or is broken for now."""


class Unauthorized(FarmError):
    """The credential is not good any more."""


class Stale(FarmError):
    """The lease, or this session of the device, is void."""


class Refused(FarmError):
    """The farm understood and says no; asking again changes nothing."""


class EnrolmentError(AgentError):
    """No identity. The message says how to get one."""


class EnrolmentRefused(EnrolmentError):
    """The farm has said no, so it knows nothing of this device's key."""


class NameTaken(EnrolmentRefused):
    """Another device of the farm has the name."""


def of_the_system(error: OSError) -> Outcome:
    """Returns the outcome of an attempt that the board's system failed; a full disk is named, as elsewhere."""
    if is_full(error):
        return Outcome(
            "failed",
            "device",
            "device.disk",
            f"the device's disk is full: {error}"[:4000],
            "make room on the device's disk",
        )
    return Outcome("failed", "device", "device.system", f"the device's system failed: {error}"[:4000])


class AttemptError(AgentError):
    """An attempt that ends early, with what its report will say."""

    cause: Cause = "infra"
    state: OutcomeState = "failed"
    is_said = False
    """Code and message are words of the binary."""

    def __init__(self, code: str, message: str, *, cause: Cause | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.cause = cause or self.cause
        self.code = code
        self.message = message
        self.hint = hint

    def outcome(self) -> Outcome:
        """The report's outcome."""
        return Outcome(self.state, self.cause, self.code, self.message[:4000], self.hint)


class Untrusted(AttemptError):
    """The assignment is not what a trusted farm signed for this device and now."""

    cause: Cause = "policy"


class BadUpdate(AttemptError):
    """The offered agent is not for this board, or does not start here."""

    cause: Cause = "service"


class BadBundle(AttemptError):
    """The bundle cannot be unpacked safely, or is not for this device."""

    cause: Cause = "compiler"


class BadData(AttemptError):
    """The data set or the starting weights cannot be used."""

    cause: Cause = "user"


class StepFailed(AttemptError):
    """The binary ended with an error, by a signal, or without saying that it is done."""

    cause: Cause = "compiler"


class BadOutput(AttemptError):
    """A file of the job is missing, unsafe to read or too large."""

    cause: Cause = "compiler"


class Stopped(AttemptError):
    """The run was stopped from outside."""

    def __init__(
        self, code: str, message: str, *, cause: Cause, state: OutcomeState = "failed", hint: str = ""
    ) -> None:
        super().__init__(code, message, cause=cause, hint=hint)
        self.state = state
