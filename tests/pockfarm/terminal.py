"""A command in a real terminal: a pseudo-terminal of so many columns, and all that was written to it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence

CONTROL = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07)")


def in_terminal(
    words: Sequence[str], *, columns: int = 80, environment: Mapping[str, str] | None = None, is_piped: bool = False
) -> tuple[int, str]:
    """Exit code and what the terminal was sent, of a Python program; `is_piped`: standard output goes elsewhere."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    there = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=theirs,
        stdout=subprocess.DEVNULL if is_piped else theirs,
        stderr=theirs,
        env={**there, "TERM": "xterm-256color", **(environment or {})},
    )
    os.close(theirs)
    seen = b""
    while chunk := _read(ours):
        seen += chunk
    os.close(ours)
    return process.wait(), seen.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end is closed
        return b""


def plain(seen: str) -> str:
    """What was sent, without colours and movements."""
    return CONTROL.sub("", seen)
