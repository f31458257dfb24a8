"""The part of a parameter that learns: everything, or channels along one of its axes."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpdateSlice:
    """The part of one parameter that learns: `size` channels from `start` along inside axis `axis`; -1 means all.

    Where these do not follow one another yet, `channels` names them in the file's order, and `compiler.step.arranged`
    makes a range of them.
    """

    axis: int = -1
    start: int = 0
    size: int = 0
    channels: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every element learns."""
        return self.axis < 0

    def elements(self, shape: tuple[int, ...]) -> int:
        """Returns how many elements of a parameter of this inside shape learn."""
        whole = math.prod(shape)
        return whole if self.is_whole else whole // shape[self.axis] * self.size


WHOLE = UpdateSlice()
