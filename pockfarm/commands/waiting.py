"""The display while a compile or a run is waited for: stages, steps, latency, loss, and the time that may be left."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from device_agents.figures.digits import step_time
from pockfarm.errors import PockfarmError
from pockfarm.output.table import loss_text
from pockfarm.screen import errors
from pockfarm.screen.progress import Waiting
from pockfarm.values import Job, Json, Run, number, optional_number, part, text

if TYPE_CHECKING:
    from pockfarm.client import Client

LATEST = 32
"""Steps of which the latency is the median."""


class RunProgress:
    """Takes what happens in a run, as its device tells it: on this machine at once, of a farm event by event."""

    def __init__(self, waiting: Waiting, steps: int) -> None:
        self._waiting = waiting
        self._steps = steps
        self._step = 0
        self._stage = ""
        self._fraction: float | None = None
        self._loss: float | None = None
        self._times_us: deque[float] = deque(maxlen=LATEST)

    def event(self, kind: str, body: Mapping[str, object]) -> None:
        """`kind` and fields of `device_agents.wire.Event`."""
        if kind == "phase":
            self._stage, self._fraction = text(body, "message"), None
        elif kind == "progress":
            self._fraction = optional_number(body, "fraction")
        elif kind == "step":
            self._step = int(number(body, "step"))
            self._loss = optional_number(body, "loss")
            self._times_us += [us] if (us := optional_number(body, "step_us")) else []
            return  # its progress comes right after it
        elif kind == "eval":
            self._waiting.say(f"  {evaluated(body)}")
        elif kind == "warning":
            self._waiting.say(f"warning: {text(body, 'message')}")
            return
        elif kind == "log":
            self._waiting.say(f"  {text(body, 'message')}")
        self._waiting.show(self._stage or "starting", self._fraction, self.detail())

    def detail(self) -> str:
        """`step 40 of 100, 97.1 us, loss 2.31`."""
        fragments = [f"step {self._step:,} of {self._steps:,}" if self._step else ""]
        fragments += [step_time(statistics.median(self._times_us))] if self._times_us else []
        fragments += [f"loss {loss_text(self._loss)}"] if self._loss is not None else []
        return ", ".join(fragment for fragment in fragments if fragment)


def evaluated(body: Mapping[str, object]) -> str:
    """`validation after step 100: loss 0.25, accuracy 87.5%`."""
    step, accuracy = body.get("step"), optional_number(body, "accuracy")
    where = f" after step {step:,}" if isinstance(step, int) else ""
    loss = optional_number(body, "loss")
    scores = [f"loss {loss_text(loss)}" if loss is not None else "no finite loss"]
    scores += [] if accuracy is None else [f"accuracy {accuracy:.1%}"]
    return f"{text(body, 'message')}{where}: {', '.join(scores)}"


def run_looks(farm: Client, run_id: str, waiting: Waiting, steps: int) -> Callable[[Run], None]:
    """Returns the callback for each look at a run of a farm. In a terminal it shows the run's events too."""
    progress, last, is_live = RunProgress(waiting, steps), 0, errors().is_live

    def look(run: Run) -> None:
        nonlocal last
        if run.state == "queued":
            waiting.show(run.state, None, _place(farm, run.id) if is_live else "")
            return
        if not is_live or run.state != "running":
            step = f"step {run.steps_done:,} of {run.steps:,}" if run.steps_done else ""
            share = run.steps_done / run.steps if run.steps_done and run.steps else None
            waiting.show(f"{run.state} {run.phase}".rstrip(), share, step)
            return
        for event in _events(farm, run_id, last):
            progress.event(text(event, "kind"), part(event, "body"))
            last = int(number(event, "id"))

    return look


def job_looks(waiting: Waiting) -> Callable[[Job], None]:
    """Returns the callback for each look at a compile of a farm."""
    return lambda job: waiting.show(f"{job.state} {job.stage}".strip(), job.fraction)


def _events(farm: Client, run_id: str, after: int) -> list[Json]:
    """Those that are new. A look that goes wrong shows nothing new: the wait itself says what is wrong."""
    try:
        return list(farm.events(run_id, after=after))
    except PockfarmError:
        return []


def _place(farm: Client, run_id: str) -> str:
    try:
        return text(part(farm.why(run_id), "waiting"), "message")
    except PockfarmError:
        return ""
