"""The one alignment of storage: of every value in memory, and so of what a kernel's loads may count on.

`PF_ALIGNMENT` in the runtime's `image.h` is its other half: a binary's tables do not compile where the two differ.
"""

from __future__ import annotations

ALIGNMENT_BYTES = 64
"""A cache line, and the widest vector register."""


def aligned(size_bytes: int) -> int:
    """The bytes that a value of this size takes: the next multiple of the alignment."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
