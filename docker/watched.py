"""`python docker/watched.py FILE COMMAND...`: the first process of a container, which ends when the command hangs.

Docker restarts what ends, and only marks what hangs. So this starts the command, passes signals on to it, collects what
ends in the container, and ends with the command's own code; and when the command has not touched its FILE for 15 s
though it could have run, it kills it and ends. The file's name may hold `{host}` (`healthy.py`). When the command has
ended its file is removed: what is gone is not healthy.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from healthy import alive_path

from device_agents.wire.watchdog import Beat, Watch

LOOK_S = 2.0
HUNG_AFTER_S = 15.0
UP_WITHIN_S = 300.0
"""Until the first sign of life."""
STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
PASSED_ON = STOPS | {signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
EXIT_NO_WORDS, EXIT_HUNG, EXIT_NO_COMMAND = 2, 70, 127


class Command:
    """The process that is watched. It begins with this object."""

    def __init__(self, words: list[str], path: Path) -> None:
        self.path = path
        self._beat, self._has_lived = Beat(path), False
        self._beat()  # of the container before this one, perhaps
        # Python ignores these two signals, and whoever starts a program has to undo that.
        self.pid = os.posix_spawnp(
            words[0], words, os.environ, setsigmask=(), setsigdef=(signal.SIGPIPE, signal.SIGXFSZ)
        )
        self._watch, self._looked_at = Watch(), 0.0

    def code(self) -> int | None:
        """Collect all that has ended, orphans too; the command's own exit code, or None while it runs."""
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if pid == 0:
                return None

    def is_hung(self) -> bool:
        """Look for a sign of life, unless that was just done."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        return self._watch.is_hung(self.pid, HUNG_AFTER_S if self._has_lived else UP_WITHIN_S, self._gives_sign)

    def _gives_sign(self) -> bool:
        has_sign = self._beat()
        self._has_lived |= has_sign
        return has_sign


def attend(command: Command) -> int:
    """Until the command has ended, or hangs. How long a stop takes is the container's matter."""
    is_stopping = False
    while True:
        came = signal.sigtimedwait(PASSED_ON | {signal.SIGCHLD}, LOOK_S)
        code = command.code()
        if code is not None:
            return code
        if came is not None and came.si_signo in PASSED_ON:
            os.kill(command.pid, came.si_signo)
            is_stopping |= came.si_signo in STOPS
        if not is_stopping and command.is_hung():
            print(
                f"{command.path} was not touched for {HUNG_AFTER_S:.0f} s: process {command.pid} hangs; killed, and "
                "this container ends, so that it is started again",
                file=sys.stderr,
                flush=True,
            )
            os.kill(command.pid, signal.SIGKILL)
            return EXIT_HUNG


def main(arguments: list[str]) -> int:
    """Start the command and stay with it; returns the exit code."""
    if len(arguments) < 2:
        print("watched.py FILE COMMAND...: what it touches while it lives, and the words to start", file=sys.stderr)
        return EXIT_NO_WORDS
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON | {signal.SIGCHLD})  # none is lost before it is waited for
    try:
        command = Command(arguments[1:], alive_path(arguments[0]))
    except OSError as error:
        print(f"{arguments[1]} cannot be started: {error.strerror}", file=sys.stderr)
        return EXIT_NO_COMMAND
    code = attend(command)
    with contextlib.suppress(OSError):
        command.path.unlink(missing_ok=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
