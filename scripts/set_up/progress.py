"""What set-up prints: messages as they come, and now and then what every step that runs is doing."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIPE_INTERVAL_S, TERMINAL_INTERVAL_S = 9.0, 0.5


class Progress:
    """The steps that run at the moment, side by side, each with its newest state.

    They are shown by the clock and not by what the commands print: some are silent for minutes. On a terminal that is
    one line, written anew; elsewhere a line for each interval.
    """

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._started: dict[str, float] = {}
        self._lock = threading.Lock()

    def say(self, message: str) -> None:
        """Print a message that stays."""
        with self._lock:
            self._clear()
            print(f"set-up: {message}", flush=True)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        """Show a step for as long as it runs, with the state that was last given to the returned function."""
        with self._lock:
            self._states[name], self._started[name] = "at work", time.monotonic()
        try:
            yield lambda state: self._states.__setitem__(name, state)
        finally:
            with self._lock:
                del self._states[name], self._started[name]

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show what the steps are doing at each interval."""
        is_over = threading.Event()
        interval_s = TERMINAL_INTERVAL_S if sys.stdout.isatty() else PIPE_INTERVAL_S

        def show_until_over() -> None:
            while not is_over.wait(interval_s):
                self.show()

        thread = threading.Thread(target=show_until_over, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            with self._lock:
                self._clear()

    def show(self) -> None:
        """Print what each step is doing now."""
        with self._lock:
            now = time.monotonic()
            texts = [f"{name}: {self._states[name]} ({duration(now - self._started[name])})" for name in self._states]
            if not texts:
                return
            if not sys.stdout.isatty():
                print(f"set-up: {' | '.join(texts)}", flush=True)
                return
            width = shutil.get_terminal_size().columns - 1
            each = max(20, (width - len("set-up: ")) // len(texts) - 3)
            line = " | ".join(text[:each] for text in texts)
            print(f"\r\x1b[K{f'set-up: {line}'[:width]}", end="", flush=True)

    def _clear(self) -> None:
        if sys.stdout.isatty():
            print("\r\x1b[K", end="", flush=True)


def run(
    command: Sequence[str],
    state_of: Callable[[str], str | None],
    show: Callable[[str], None],
    *,
    environment: dict[str, str] | None = None,
    log: Callable[[str], object] = lambda line: None,
) -> subprocess.CompletedProcess[str]:
    """Run `command` to its end; show what `state_of` makes of each line of its outputs, and hand each to `log`."""
    output: list[str] = []
    errors: list[str] = []

    def read(stream: Iterable[str], lines: list[str]) -> None:
        for line in stream:
            lines.append(line)
            log(line)
            if line.strip() and (state := state_of(line.strip())):
                show(state)

    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        reader = threading.Thread(target=read, args=(process.stderr, errors))
        reader.start()
        read(process.stdout, output)
        reader.join()
    return subprocess.CompletedProcess(list(command), process.returncode, "".join(output), "".join(errors))


def duration(seconds: float) -> str:
    """For a person: `45 s`, `3 min 7 s`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"
