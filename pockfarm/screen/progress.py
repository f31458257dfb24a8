"""The progress of something that is waited for: a bar in a terminal, else a line now and then. On standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pockfarm.screen import terms

LINE_EVERY = 10
"""Per cent: within one stage, a pipe gets a line for each so much."""


class Waiting:
    """`with Waiting() as waiting: waiting.show("lower", 0.3)`.

    A terminal has one line that is written over: a bar, the share, the time that has passed and that may be left, and
    what is going on. It is gone afterwards: results stand alone. A pipe has a line where there is something new.
    """

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._last_mark: tuple[str, int] = ("", -1)
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Waiting:
        screen = terms.errors()
        if screen.is_live:
            self._bar = _bar(screen)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, stage: str, fraction: float | None = None, detail: str = "") -> None:
        """Shows the current stage, how much of it is done (0 to 1; None: nobody knows), and details that may be worth a
        look.

        In a pipe the `detail` is told only with a new stage or another tenth.
        """
        if self._bar is not None:
            self._show_bar(stage, fraction, detail)
            return
        mark = (stage, -1 if fraction is None else int(100 * fraction) // LINE_EVERY)
        if mark != self._last_mark:
            self._last_mark = mark
            share = "    " if fraction is None else f"{fraction:4.0%}"
            line = f"  {time.monotonic() - self._started_s:6.1f} s  {share}  {stage}"
            self.say(f"{line}  {detail}" if detail else line)

    def say(self, line: str) -> None:
        """A line that stays, above the bar."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def _show_bar(self, stage: str, fraction: float | None, detail: str) -> None:
        total = None if fraction is None else 1.0
        if self._task is None:
            self._task = self._bar.add_task(stage, total=total, detail=detail)
        self._bar.update(self._task, description=stage, total=total, completed=fraction or 0.0, detail=detail)


def waiting_on(waiting: Waiting) -> Callable[[str, float], None]:
    """Returns the callback that shows a compile's stages and shares."""
    return lambda stage, fraction: waiting.show(stage, fraction)


def format_duration(left_s: float) -> str:
    """`30 s`, `5 min`, `2.1 h`."""
    if left_s < 90:
        return f"{left_s:.0f} s"
    return f"{left_s / 60:.0f} min" if left_s < 5400 else f"{left_s / 3600:.1f} h"


def _bar(screen: terms.Screen) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn

    class Times(ProgressColumn):
        """`12 s, about 30 s left`."""

        def render(self, task: Task) -> Any:
            from rich.text import Text

            remaining_s = task.time_remaining if task.total is not None and 0 < task.completed < task.total else None
            passed = f"{task.elapsed or 0:.0f} s"
            return Text(passed if remaining_s is None else f"{passed}, about {format_duration(remaining_s)} left")

    class Share(ProgressColumn):
        """`39%`, of what has a share."""

        def render(self, task: Task) -> Any:
            from rich.text import Text

            return Text("" if task.total is None else f"{task.percentage:3.0f}%")

    console = Console(
        file=sys.stderr,
        force_terminal=True,
        no_color=not screen.has_colours,
        width=screen.width,
        highlight=False,
        emoji=False,
    )
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        Share(),
        Times(),
        TextColumn("{task.fields[detail]}", markup=False),
    )
    return Progress(*columns, console=console, transient=True, refresh_per_second=5)
