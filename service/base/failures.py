"""Failures that are nobody's mistake but ours or a part's: `problems` answers each with its own status.

Exception
├── Defect      our code broke a rule of its own: 500 with the defect's code
└── PartDown    a part of the farm does not answer: 503, try again
"""

from __future__ import annotations


class Defect(Exception):
    """A defect of the farm's code, which changed nothing. `code`: the stable code of its problem document."""

    code = "service.internal"


class PartDown(Exception):
    """A part of the farm on another machine did not answer, or denied access; it may answer later.

    The message is for logs. `part`: the name of the part, as answers have it.
    """

    part = "part"
