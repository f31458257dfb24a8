"""What a child says, as the worker reads it: whole lines, in order, and no more than it may."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from tests.waiting import HANG_S
from workers.child_lines import LINE_BYTES, LINE_COST_BYTES, MOST_BYTES, ChildLines, SaysTooMuch


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Its two ends: what is read, and what is written unbuffered."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as ours, os.fdopen(writer, "wb", buffering=0) as its:
        yield ours, its


def test_lines_come_whole_and_one_at_a_time(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    lines, child = ChildLines(pipe[0]), pipe[1]
    assert lines.take(0) == b""
    child.write(b"one\ntwo\nthr")
    assert [lines.take(HANG_S), lines.take(HANG_S), lines.take(0)] == [b"one\n", b"two\n", b""]
    child.write(b"ee\n")
    assert lines.take(HANG_S) == b"three\n"
    child.write(b"not ended")
    child.close()
    assert [lines.take(HANG_S), lines.take(HANG_S), lines.take(HANG_S)] == [b"", None, None]


def test_a_line_that_is_too_long_comes_in_parts(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    lines, child = ChildLines(pipe[0]), pipe[1]
    child.write(b"x" * LINE_BYTES)
    assert lines.take(HANG_S) == b"x" * LINE_BYTES
    child.write(b"y\n")
    assert lines.take(HANG_S) == b"y\n"


def test_no_more_is_read_than_a_child_may_say(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    lines, child = ChildLines(pipe[0]), pipe[1]
    for _ in range(MOST_BYTES // LINE_BYTES):
        child.write(b"x" * LINE_BYTES)
        assert lines.take(HANG_S)
    child.write(b"\n")
    with pytest.raises(SaysTooMuch):
        lines.take(HANG_S)


def test_short_lines_count_for_more_than_their_bytes(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    lines, child = ChildLines(pipe[0]), pipe[1]
    for _ in range(MOST_BYTES // (LINE_COST_BYTES + 1)):
        child.write(b"\n")
        assert lines.take(HANG_S)
    child.write(b"\n")
    with pytest.raises(SaysTooMuch):
        lines.take(HANG_S)
