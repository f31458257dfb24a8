"""What a child of the service may do, tried by a real one: it may do what it needs, and nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.base import landlock
from service.base.child_probe import (
    CALLS,
    LANDLOCK,
    LIMIT,
    POWERS,
    SIGNALS,
    TRIES,
    Places,
    Row,
    _works,
    main,
    probe,
    table,
)
from service.base.confinement import Confined

PAGE = Path(__file__).parents[2] / "docs" / "isolation.md"
NEEDS_MORE_THAN_A_USER = (
    "change attributes of a file outside",
    "make a namespace",
    "mount",
    "use the kernel's keyrings",
    "use io_uring",
    "use bpf",
    "use perf",
    "use userfaultfd",
)
"""What a machine may refuse to anybody."""


def absent(version: int) -> set[str]:
    """What keeps a child from nothing on a kernel with this version of Landlock."""
    return {LANDLOCK, SIGNALS} if version == 0 else {SIGNALS} if version < 6 else set()


def test_a_child_may_do_what_it_needs_and_nothing_else(loopback: None) -> None:
    confined, rows = probe()
    assert (confined.no_privileges, confined.system_calls, confined.landlock) == (True, True, landlock.version())
    wrong = {row.what for row in rows if not row.is_right}
    assert wrong == {row.what for row in rows if row.refused_by in absent(landlock.version())}
    assert {row.refused_by for row in rows} == {"", LANDLOCK, SIGNALS, CALLS, POWERS, LIMIT}


@pytest.fixture
def places(loopback: None, tmp_path: Path) -> Iterator[Places]:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "s"))
        unix.listen()
        yield Places(os.getpid(), str(tmp_path), str(tmp_path / "file"), str(tmp_path / "s"), tcp.getsockname()[1])


def test_each_try_succeeds_where_nothing_is_refused(places: Places) -> None:
    """Else it would prove nothing."""
    kinds = ("", LANDLOCK, SIGNALS, CALLS)
    tries = [attempt for attempt in TRIES if attempt.refused_by in kinds and attempt.what not in NEEDS_MORE_THAN_A_USER]
    assert [attempt.what for attempt in tries if not _works(attempt.act, places)] == []


def test_the_command_prints_the_table_and_says_whether_it_is_right(
    loopback: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = main([]), capsys.readouterr().out
    assert code == (1 if absent(landlock.version()) else 0)
    assert "may not  connect to a Unix socket" in printed
    assert "may      start a program" in printed


def test_what_should_be_refused_stands_out() -> None:
    rows = [Row("signal its parent", SIGNALS, True), Row("start a program", "", False)]
    text = table(Confined(True, 2, True, True), rows)
    assert "MAY      signal its parent  should be refused by Landlock from version 6 on" in text
    assert "MAY NOT  start a program    it needs this" in text


def test_the_page_names_each_thing() -> None:
    page = " ".join(PAGE.read_text().split())
    assert [attempt.what for attempt in TRIES if attempt.what not in page] == []
