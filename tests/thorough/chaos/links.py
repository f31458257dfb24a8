"""The campaign's own network: small TCP proxies between the parts, which can be cut, stalled, and lose messages.

All links live in one thread with an event loop of its own. A `Link` passes bytes; a `MessageLink` passes HTTP requests
one by one (agents open a connection for each), so that whole messages can be dropped, doubled, delayed and overtaken.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

CHUNK_BYTES = 1 << 16
MAX_HEAD_BYTES = 1 << 16
POLL_S = 0.05
Target = int | Path
"""A port of the loopback, or a unix socket."""
Trick = Literal["drop-request", "drop-answer", "duplicate", "overtake", "delay"]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Network:
    """The thread of the links."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self.loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, int]) -> int:
        """Run something in the thread and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def close(self) -> None:
        """End every connection, and the thread."""
        self.call(self._end_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    async def _end_all(self) -> int:
        for server in self.servers:
            server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.05)  # transports close in the next turns of the loop
        return len(others)


class Link:
    """A port that leads to a target. While it is `stalled` nothing passes and nothing is lost, as on a network that is
    parted for a while; while it is `cut`, connections end and none begins."""

    def __init__(self, network: Network, targets: Sequence[Target]) -> None:
        self.targets = tuple(targets)
        self.stalled = False
        self.refusing = False
        self.delay_s = 0.0
        self._network = network
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = network.call(self._listen())

    def cut(self) -> None:
        """End every connection and take no new one, until `mend`."""
        self.refusing = True
        self._network.loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])

    def mend(self) -> None:
        """Everything passes again."""
        self.stalled, self.refusing, self.delay_s = False, False, 0.0

    async def _listen(self) -> int:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._network.servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self.refusing:
                await self._serve(reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open_way()
        back, forth = await _connect(self.targets[0])
        try:
            await _both(self._pass(reader, forth), self._pass(back, writer))
        finally:
            forth.close()

    async def _pass(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(CHUNK_BYTES):
            await self._open_way()
            to.write(data)
            await to.drain()

    async def _open_way(self) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        while self.stalled:
            await asyncio.sleep(POLL_S)


@dataclass
class Rule:
    """What happens to the next messages whose request line fits."""

    fits: re.Pattern[str]
    trick: Trick
    times: int = 1
    delay_s: float = 3.0
    """Of `delay`; how long `overtake` waits for a later message at most."""
    counts: Callable[[int], bool] = lambda status: 200 <= status < 300
    """Which answers of the farm are worth a trick: to drop a refusal, or "no work now", disturbs nothing."""
    playing: int = 0
    """Messages that it is being played on; it may not come about, then it is for the next one."""
    done: list[str] = field(default_factory=list)
    """Request lines of those that it was played on to the end."""


class MessageLink(Link):
    """From one agent to the farm: each connection is one request, each to the next API process that takes it."""

    def __init__(self, network: Network, targets: Sequence[Target]) -> None:
        self.rules: list[Rule] = []
        self.open: Counter[Target] = Counter()
        """Requests that wait for their answer, by API process."""
        self.clock_off_s = 0.0
        """What the last request said of its sender's clock."""
        self.refusals: Counter[int] = Counter()
        """Answers of 500 and above, by status."""
        self.answered_at = 0.0
        """When the farm last answered one that it took, monotonic."""
        self._turn = 0
        self._asked = self._newest_answered = 0
        """Numbers of requests: of the last that came, and of the newest that the farm has answered."""
        super().__init__(network, targets)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open_way()
        line, request = await _read_request(reader)
        self._asked += 1
        self._note_clock(request)
        rule = self._rule_for(line)
        if rule is None:
            return await self._give(writer, await self._ask_for(reader, request, self._asked))
        rule.playing += 1
        try:
            answer = await self._play(rule, line, reader, request, self._asked)
        finally:
            rule.playing -= 1
        await self._give(writer, answer)

    async def _give(self, writer: asyncio.StreamWriter, answer: bytes | None) -> None:
        """Nothing, if there is none for the sender."""
        if answer is None:
            return
        await self._open_way()
        writer.write(answer)
        await writer.drain()

    async def _play(
        self, rule: Rule, line: str, reader: asyncio.StreamReader, request: bytes, number: int
    ) -> bytes | None:
        """The trick, and what its sender is answered; `rule.done` has the line if it came about."""
        if rule.trick == "drop-request":
            rule.done.append(line)
            return None
        if await self._is_held_back(rule, number):
            answer: bytes | None = await self._ask(request, number)
            rule.done.append(line)
            return answer
        answer = await self._ask_for(reader, request, number)
        if answer is None or rule.trick == "overtake" or not rule.counts(_status(answer)):
            return answer
        if rule.trick == "duplicate":
            await self._ask(request, number)
        rule.done.append(line)
        return None if rule.trick == "drop-answer" else answer

    async def _is_held_back(self, rule: Rule, number: int) -> bool:
        """Hold a message back before the farm has it. Whether that was the trick, and came about; it is to reach the
        farm then, though its sender may have given up."""
        if rule.trick == "delay":
            await asyncio.sleep(rule.delay_s)
            return True
        deadline = time.monotonic() + rule.delay_s
        while rule.trick == "overtake" and self._newest_answered <= number and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
        return rule.trick == "overtake" and self._newest_answered > number

    async def _ask_for(self, reader: asyncio.StreamReader, request: bytes, number: int) -> bytes | None:
        """The farm's answer; None if the sender, who says no more, has given up before."""
        asked, gone = asyncio.create_task(self._ask(request, number)), asyncio.create_task(reader.read(1))
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not asked.done():
            asked.cancel()
            return None
        return await asked

    def _rule_for(self, line: str) -> Rule | None:
        fitting = (rule for rule in self.rules if rule.fits.search(line))
        return next((rule for rule in fitting if rule.playing + len(rule.done) < rule.times), None)

    def _note_clock(self, request: bytes) -> None:
        found = re.search(rb"(?i)\r\nx-pockfarm-clock: *([0-9.]+)\r\n", request)
        if found:
            self.clock_off_s = float(found[1]) - time.time()

    def _note_status(self, status: int, number: int) -> None:
        if status >= 500:
            self.refusals[status] += 1
        elif status:
            self.answered_at = time.monotonic()
            self._newest_answered = max(self._newest_answered, number)

    async def _ask(self, request: bytes, number: int) -> bytes:
        target, (back, forth) = await self._next()
        self.open[target] += 1
        try:
            forth.write(request)
            await forth.drain()
            answer = await back.read(-1)
            self._note_status(_status(answer), number)
            return answer
        finally:
            self.open[target] -= 1
            forth.close()

    async def _next(self) -> tuple[Target, Streams]:
        for _ in self.targets:
            self._turn += 1
            target = self.targets[self._turn % len(self.targets)]
            with contextlib.suppress(OSError):
                return target, await _connect(target)
        raise ConnectionRefusedError


def _status(answer: bytes) -> int:
    """0: there is none, for its sender has died."""
    found = re.match(rb"HTTP/1\.[01] ([0-9]{3})", answer)
    return int(found[1]) if found else 0


async def _connect(target: Target) -> Streams:
    if isinstance(target, Path):
        return await asyncio.open_unix_connection(str(target))
    return await asyncio.open_connection("127.0.0.1", target)


async def _both(*ways: Awaitable[None]) -> None:
    """Until one of the two ends."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """The request's first line and the whole of it, told to close its connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    if len(head) > MAX_HEAD_BYTES:
        raise ConnectionError("a request with too long a head")
    length = re.search(rb"(?i)\r\ncontent-length: *([0-9]+)\r\n", head)
    body = await reader.readexactly(int(length[1])) if length else b""
    line, rest = head.split(b"\r\n", 1)
    return line.decode("latin-1"), line + b"\r\nConnection: close\r\n" + rest + body


def until(condition: Callable[[], bool], within_s: float, *, pause_s: float = 0.1) -> bool:
    """Wait for it; whether it came about."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(pause_s)
    return condition()
