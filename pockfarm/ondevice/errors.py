"""Errors of a step on the device."""

from __future__ import annotations


class StepError(RuntimeError):
    """An error of a step: what went wrong, where, and what to do.

    `code` is stable and dotted, `cause` says who must act: user, data, weights, limits or internal.
    """

    def __init__(self, message: str, *, code: str, cause: str = "user") -> None:
        super().__init__(f"{message} [{code}]")
        self.code, self.cause = code, cause
