"""Buttons that do one thing each: on a page, or in a row of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Action:
    """A button that posts a form without fields. `hidden`: what it sends beside the session's token."""

    action: str
    """The address that it posts to."""
    label: str
    hidden: tuple[tuple[str, str], ...] = ()
    sure: str = ""
    """Question that is asked before it is done; the button is then behind one that opens this."""
    of: str = ""
    """Subject of the action, for those who only hear the button: `Revoke: laptop`."""
    is_grave: bool = False
