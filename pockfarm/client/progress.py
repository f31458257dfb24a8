"""The progress of a job that somebody waits for."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Union

from pockfarm.screen.progress import Waiting
from pockfarm.values import Job, Run

Progress = Union[bool, Callable[[str], None], None]
"""None or True: a bar on a terminal, lines on standard error elsewhere (a pipe, a notebook). False: nothing. A function
hears the lines."""


def progress_of(progress: Progress) -> Shown:
    """Returns the display for the states of a job: `with progress_of(None) as shown: ... on_look=shown.job`."""
    if progress is None or progress is True:
        return OnScreen()
    return Said(progress or (lambda line: None))


class Shown:
    """Looks at jobs and runs."""

    def __enter__(self) -> Shown:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def job(self, job: Job) -> None:
        """A compile, as it is now."""
        self.show(f"{job.target}: {job.stage or job.state}", job.fraction if job.is_open else 1.0)

    def run(self, run: Run) -> None:
        """A run, as it is now."""
        fraction = run.steps_done / run.steps if run.steps else None
        self.show(f"{run.id}: {run.phase or run.state}", fraction, f"step {run.steps_done:,} of {run.steps:,}")

    def show(self, stage: str, fraction: float | None = None, detail: str = "") -> None:
        """Shows the current stage, how much of it is done (0 to 1), and details."""


class Said(Shown):
    """Each line once, to a function."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.last = ""

    def show(self, stage: str, fraction: float | None = None, detail: str = "") -> None:
        line = f"{stage} {detail or ('' if fraction is None else f'{fraction:.0%}')}".rstrip()
        if line != self.last:
            self.last = line
            self.say(line)


class OnScreen(Shown):
    """A bar in a terminal, else a line now and then."""

    def __init__(self) -> None:
        self.waiting = Waiting()

    def __enter__(self) -> Shown:
        self.waiting.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.waiting.__exit__(kind, error, traceback)

    def show(self, stage: str, fraction: float | None = None, detail: str = "") -> None:
        self.waiting.show(stage, fraction, detail)
