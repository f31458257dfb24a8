"""The processes that build kernels, seen from the one that asks. Each runs `compiler.codegen.worker`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.symbols import symbol_of
from compiler.codegen.worker import Reply, Request, receive, send
from compiler.errors import BuildError
from compiler.kernels.canonical import canonical

MOST_KERNELS = 500
"""The most kernels that one process builds: TVM keeps something of each."""
MOST_BEGUN = 2
"""The most workers that are started ahead of a build: the stages before it run on one processor, so that about two
starts fit beside them.
"""
_PACKAGE = Path(__file__).parent
_idle: list[Worker] = []
_most_idle = 0
_of_parents: list[Worker] = []


def _leave_to_parent() -> None:
    """A forked child has no part in its parent's conversations, and must not end them either."""
    _of_parents.extend(_idle)
    _idle.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


@contextlib.contextmanager
def one_worker() -> Iterator[Worker]:
    """A process of one's own: a kept one, or one that starts now; it ends with the context, unless it is kept."""
    worker = _idle_worker() or Worker()
    try:
        yield worker
    finally:
        if worker.is_fresh and len(_idle) < _most_idle:
            _idle.append(worker)
        else:
            worker.end()


def _idle_worker() -> Worker | None:
    """A kept process that still runs; those that died meanwhile are ended."""
    while _idle:
        worker = _idle.pop()
        if worker.is_alive:
            return worker
        worker.end()
    return None


@contextlib.contextmanager
def kept_workers(most: int) -> Iterator[None]:
    """Builds leave up to `most` processes to the next: for who builds often, since a start takes about a second."""
    global _most_idle
    before, _most_idle = _most_idle, most
    try:
        _end_idle()
        yield
    finally:
        _most_idle = before
        _end_idle()


def _end_idle() -> None:
    while len(_idle) > _most_idle:
        _idle.pop().end()


@contextlib.contextmanager
def begun_workers(jobs: int) -> Iterator[tuple[Worker, ...]]:
    """Worker processes that start now, beside the stages before kernels, and end with the context; none for one job.

    A start takes about a second, most of it TVM's import. Where no kernel is missing they were in vain.
    """
    with contextlib.ExitStack() as stack:
        count = min(jobs, MOST_BEGUN) if jobs > 1 else 0
        yield tuple(stack.enter_context(one_worker()) for _ in range(count))


class Worker:
    """A child process that builds kernels. Not `multiprocessing`, which Celery's own children may not use."""

    def __init__(self) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        paths = [str(_PACKAGE.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "compiler.codegen.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._requests = cast(BinaryIO, self._process.stdin)
        self._replies = cast(BinaryIO, self._process.stdout)
        self._asked = 0
        self._answered = 0

    def end(self) -> None:
        """Ends the process, whatever it does."""
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        self._process.kill()
        self._process.wait()
        self._replies.close()
        self._errors.close()

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def is_fresh(self) -> bool:
        """Whether another build may use it: it waits for a request, and has not grown by many."""
        return self.is_alive and self._asked == self._answered < MOST_KERNELS

    def build(self, request: Request) -> CompiledKernel:
        """Builds one kernel. Raises: BuildError if it fails or the worker dies."""
        symbol = symbol_of(request.spec, request.choice)
        where = f"kernel {symbol} ({type(request.spec).__name__}) for {request.target.name}"
        self._asked += 1
        try:
            send(self._requests, request)
            reply = receive(self._replies)
        except BrokenPipeError:
            reply = None
        if not isinstance(reply, Reply):
            raise BuildError(f"the build process ended early: {self._last_words()}", where=where)
        self._answered += 1
        if reply.kernel is None:
            raise BuildError(
                reply.error.strip().splitlines()[-1], where=where, hint=f"{canonical(request.spec)}\n{reply.error}"
            )
        return reply.kernel

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read()[-2000:].decode(errors="replace").strip().splitlines()
        return f"exit code {code}" + (f", {lines[-1]}" if lines else "")
