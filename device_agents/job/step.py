"""A process of the training binary: start it confined, read its events, stop it when told, say how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from device_agents.errors import AttemptError, BadData, StepFailed, Stopped
from device_agents.job.cgroup import JobCgroup
from device_agents.job.forbidden import Listener, received
from device_agents.job.sandbox import Sandbox
from device_agents.job.step_events import MAX_LINE_BYTES, Done, Failed, Halted, Start, StepEvent, read_event
from device_agents.wire import Cause, ProtocolError
from device_agents.wire.log_lines import visible

GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL."""
POLL_S = 0.1
MAX_OUTPUT_BYTES = 1 << 28
MAX_TAIL_BYTES = 1 << 13

Error = TypeVar("Error", bound=AttemptError)
_CODE = re.compile(r"(?!launch\.|device\.|agent\.|lease\.|run\.|envelope\.|infra\.)[a-z][a-z0-9_.-]{0,99}")
_CAUSES: Mapping[str, Cause] = {"data": "user", "weights": "user", "user": "user", "limits": "limits"}


@dataclass(frozen=True)
class Process:
    """A process to start, and its limits."""

    argv: Sequence[str]
    folder: Path
    """Working directory; the paths in `argv` are relative to it."""
    sandbox: Sandbox
    rlimits: Mapping[str, int]
    deadline_s: float
    """Monotonic time at which it is stopped with `limits.time`."""
    grace_s: float = GRACE_S
    group: JobCgroup | None = None
    most_bytes: int = MAX_OUTPUT_BYTES
    """The most bytes of output."""


@dataclass
class Ending:
    """The end of a process."""

    returncode: int
    """Negative: the signal that killed it."""
    launched_s: float | None = None
    """Monotonic time at which it became the binary."""
    started_s: float | None = None
    """Monotonic time of its `start` event."""
    done: bool = False
    was_enough: bool = False
    """The agent ended it, as was planned: then it may die of the signal."""
    error: Failed | None = None
    launch_error: tuple[str, str] | None = None
    """Code and message of the launcher, which is ours: the binary cannot speak in its name."""
    stopped: Stopped | None = None
    forbidden: str = ""
    """The system call for which it was killed; "" if there was none, or this kernel does not tell."""
    stderr_tail: str = ""
    bad_output: str = ""


@dataclass
class _Reader:
    """Splits the output of a process into lines, under a byte limit."""

    on_line: Callable[[bytes], None]
    most_bytes: int = MAX_OUTPUT_BYTES
    pending: bytearray = field(default_factory=bytearray)
    seen_bytes: int = 0

    def feed(self, data: bytes) -> None:
        self.seen_bytes += len(data)
        self.pending += data
        *lines, rest = bytes(self.pending).split(b"\n")
        self.pending[:] = rest
        for line in lines:
            self.on_line(line)


def never() -> bool:
    """The binary itself knows when it is done."""
    return False


def run_process(
    process: Process,
    *,
    on_event: Callable[[StepEvent], None],
    on_stderr: Callable[[str], None],
    should_stop: Callable[[], Stopped | None],
    on_pid: Callable[[int], None] = lambda _: None,
    is_enough: Callable[[], bool] = never,
) -> Ending:
    """Runs one process to its end, or until it is enough. Always returns; nothing of it is left running afterwards.

    An event that `on_event` refuses with a `ProtocolError` ends the process, as one that is no event at all does.
    """
    ending = Ending(0)
    hear, say = socket.socketpair()
    with hear, say, _started(process, say.fileno()) as child, contextlib.ExitStack() as until_dead:
        say.close()
        on_pid(child.pid)
        try:
            _pump(child, hear, until_dead, process, ending, on_event, on_stderr, should_stop, is_enough)
            ending.returncode = _wait(child, process)
        finally:
            _kill_group(child.pid)
    return ending


def _started(process: Process, say: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        process.sandbox.command(process.argv, rlimits=process.rlimits, group=process.group, say=say),
        cwd=process.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        pass_fds=(say,),
    )


def _pump(
    child: subprocess.Popen[bytes],
    hear: socket.socket,
    until_dead: contextlib.ExitStack,
    process: Process,
    ending: Ending,
    on_event: Callable[[StepEvent], None],
    on_stderr: Callable[[str], None],
    should_stop: Callable[[], Stopped | None],
    is_enough: Callable[[], bool],
) -> None:
    """Reads all pipes until the process has closed them, or it had to be killed."""
    kill_at_s: float | None = None
    with selectors.DefaultSelector() as selector:
        for pipe, reader in (
            (child.stdout, _Reader(lambda line: _take_event(line, ending, on_event), process.most_bytes)),
            (child.stderr, _Reader(lambda line: _take_stderr(line, ending, on_stderr))),
        ):
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ, partial(_read, selector, pipe, reader, ending))
        launch = _Reader(lambda line: _take_launch(line, ending))
        listen = partial(_listen, selector, child, ending, until_dead)
        selector.register(hear, selectors.EVENT_READ, partial(_hear, selector, hear, launch, ending, listen))
        while selector.get_map():
            for key, _ in selector.select(POLL_S):
                key.data()
            now_s = time.monotonic()
            if kill_at_s is None:
                ending.stopped = _reason(process, ending, now_s, should_stop)
                if ending.stopped:
                    # Whoever talks nonsense is not waited for.
                    kill_at_s = now_s + (0.0 if ending.bad_output else process.grace_s)
                    _signal_group(child.pid, signal.SIGTERM)
                elif is_enough():
                    ending.was_enough, kill_at_s = True, now_s + process.grace_s
                    _signal_group(child.pid, signal.SIGTERM)
            elif now_s >= kill_at_s:
                _kill_group(child.pid)
                return
            if child.poll() is not None and not selector.select(0):
                return


def _read(selector: selectors.BaseSelector, pipe: IO[bytes], reader: _Reader, ending: Ending) -> None:
    data = os.read(pipe.fileno(), 1 << 16)
    if not data:
        selector.unregister(pipe)
        return
    if ending.bad_output:
        return  # on its way to being killed: nothing that it still says matters
    reader.feed(data)
    if reader.seen_bytes > reader.most_bytes or len(reader.pending) > MAX_LINE_BYTES:
        ending.bad_output = f"more than {reader.most_bytes:,} bytes of output, or {MAX_LINE_BYTES:,} in one line"


def _hear(
    selector: selectors.BaseSelector,
    way: socket.socket,
    reader: _Reader,
    ending: Ending,
    listen: Callable[[Listener], None],
) -> None:
    """The launcher's words, and the listener that it may hand over."""
    data, listener = received(way)
    if listener:
        listen(listener)
    if not data:
        selector.unregister(way)
    reader.feed(data)


def _listen(
    selector: selectors.BaseSelector,
    child: subprocess.Popen[bytes],
    ending: Ending,
    until_dead: contextlib.ExitStack,
    listener: Listener,
) -> None:
    until_dead.callback(listener.close)
    act = partial(_take_forbidden, selector, child, ending, listener)
    selector.register(listener, selectors.EVENT_READ, act)


def _take_forbidden(
    selector: selectors.BaseSelector, child: subprocess.Popen[bytes], ending: Ending, listener: Listener
) -> None:
    """The job made a call that it does not get: it dies of it, and what it said before is still read."""
    call = listener.wait()
    if call:
        ending.forbidden = ending.forbidden or call
        _kill_group(child.pid)
    elif listener.is_over():
        selector.unregister(listener)


def _reason(
    process: Process, ending: Ending, now_s: float, should_stop: Callable[[], Stopped | None]
) -> Stopped | None:
    if now_s >= process.deadline_s:
        hint = "ask for fewer steps or more time"
        return Stopped("limits.time", "the run's time is up", cause="limits", hint=hint)
    if ending.bad_output:
        return _bad_output(Stopped("step.output", ending.bad_output, cause="compiler"))
    return should_stop()


def _take_event(line: bytes, ending: Ending, on_event: Callable[[StepEvent], None]) -> None:
    if ending.bad_output or not line.strip():
        return
    try:
        event = read_event(line)
        on_event(event)
    except ProtocolError as error:
        ending.bad_output = f"not an event that the contract knows: {error!s:.300}; the line: {line[:200]!r}"
        return
    if isinstance(event, Start):
        ending.started_s = ending.started_s or time.monotonic()
    elif isinstance(event, Failed):
        ending.error = event
    elif isinstance(event, Done) and not isinstance(event, Halted):
        ending.done = True


def _take_launch(line: bytes, ending: Ending) -> None:
    if not line:
        return  # the listener came with it
    event = json.loads(line)
    if event["event"] == "launch":
        ending.launched_s = event["monotonic_s"]
    else:
        ending.launch_error = (event["code"], event["message"])


def _take_stderr(line: bytes, ending: Ending, on_stderr: Callable[[str], None]) -> None:
    text = visible(line.decode("utf-8", "replace"))
    ending.stderr_tail = (ending.stderr_tail + text + "\n")[-MAX_TAIL_BYTES:]
    on_stderr(text)


def _wait(child: subprocess.Popen[bytes], process: Process) -> int:
    try:
        return child.wait(timeout=process.grace_s)
    except subprocess.TimeoutExpired:
        _kill_group(child.pid)
        return child.wait()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _kill_group(pid: int) -> None:
    _signal_group(pid, signal.SIGKILL)


def check(ending: Ending, process: Process) -> None:
    """Raises what the end of a process means; returns when it was a good one.

    Raises: `Stopped`, `BadData` (the binary refused data or weights), `StepFailed` (anything else).
    """
    if ending.stopped:
        raise ending.stopped
    if ending.launch_error:
        raise StepFailed(*ending.launch_error, cause="device")
    if ending.forbidden:
        raise _forbidden(f"the binary called {ending.forbidden}, which jobs do not get", _tail(ending))
    if ending.bad_output:
        raise _bad_output(StepFailed("step.output", ending.bad_output))
    if ending.error:
        raise _from_error(ending.error)
    if process.group and process.group.was_out_of_memory():
        raise StepFailed("limits.memory", "the job used more memory than its limit", cause="limits")
    if ending.was_enough and ending.returncode in (0, -signal.SIGTERM, -signal.SIGKILL):
        return  # a bundle that does not know the signal dies of it, a step that is too long is not waited for
    tail = _tail(ending)
    if ending.returncode < 0:
        raise _from_signal(-ending.returncode, tail)
    if ending.returncode != 0:
        raise _from_exit_code(ending.returncode, tail)
    if not ending.done:
        raise StepFailed("step.incomplete", f"the binary ended without saying that it is done{tail}")


def _tail(ending: Ending) -> str:
    words = ending.stderr_tail.strip()
    return f"; its last words: {words[-500:]}" if words else ""


def _bad_output(error: Error) -> Error:
    """Marks an error as one that quotes the binary, and returns it."""
    error.is_said = True
    return error


def _from_error(event: Failed) -> Exception:
    """Codes of the agent's own making (`launch.…`, `device.…`) are not the binary's to give."""
    code = event.code if _CODE.fullmatch(event.code) else "step.error"
    error: AttemptError = StepFailed(code, event.message, cause=_CAUSES.get(event.cause, "compiler"))
    if event.cause in ("data", "weights", "user"):
        error = BadData(code, event.message)
    error.is_said = True
    return error


def _from_signal(number: int, tail: str) -> StepFailed:
    name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
    if number == signal.SIGXCPU:
        return StepFailed("limits.cpu_time", "the job used more CPU time than its limit", cause="limits")
    if number == signal.SIGSYS:
        return _forbidden("the binary made a system call that jobs do not get; this kernel does not tell which", tail)
    if number == signal.SIGXFSZ:
        return StepFailed("limits.disk", "the job wrote a larger file than its limit", cause="limits")
    if number in (signal.SIGKILL, signal.SIGTERM):
        message = f"the binary was killed from outside ({name}); perhaps the board ran out of memory{tail}"
        return StepFailed("step.killed", message, cause="device", hint="look at the board's kernel log")
    return StepFailed("step.crashed", f"the binary crashed with {name}{tail}")


def _forbidden(message: str, tail: str) -> StepFailed:
    hint = "no compiler of this farm makes such a binary; device_agents/job/seccomp.py has the list of calls"
    return StepFailed("step.forbidden", message + tail, hint=hint)


def _from_exit_code(code: int, tail: str) -> StepFailed:
    if code == 4:
        return StepFailed("limits.step", f"the binary reached a limit{tail}", cause="limits")
    if code == 3:
        return StepFailed("step.input", f"the binary refused its input without an error event{tail}", cause="user")
    return StepFailed("step.exit", f"the binary ended with exit code {code}{tail}")
