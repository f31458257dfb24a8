"""Carries calls between the API's processes, by the broker's publish and subscribe.

Whatever is lost while the broker is away is found by the next look of each process (`dispatch.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError

from service.store.calls import Calls

LOG = logging.getLogger(__name__)
CHANNEL = "pockfarm.calls"
CONNECT_WITHIN_S = 3.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
QUIET_S = 10.0
"""A subscription that has been quiet for so long is asked whether it lives."""
GATHER_S = 0.05
"""Seconds after a message in which further calls are gathered, to go out in one message."""
MOST_BYTES = 1 << 20
Hear = Callable[[Calls], None]


class Relay:
    """This process's end. `send` and `run` belong to one event loop."""

    def __init__(self, broker_url: str) -> None:
        self._url = redis_url(broker_url)
        self._name = secrets.token_hex(8)
        self._outgoing = Calls()
        self._has_some = asyncio.Event()

    def send(self, calls: Calls) -> None:
        """Sends these calls to the other processes, soon."""
        self._outgoing.add(calls)
        self._has_some.set()

    async def run(self, hear: Hear, look: Callable[[], Awaitable[None]]) -> None:
        """Carries calls until cancelled. `look` is awaited after each connection, since messages sent before it were
        not heard.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._again_and_again(lambda: self._listen(hear, look), "hear"))
            tasks.create_task(self._again_and_again(self._speak, "tell"))

    async def _again_and_again(self, act: Callable[[], Awaitable[None]], verb: str) -> None:
        pause_s = SHORTEST_PAUSE_S
        while True:
            try:
                await act()
            except (RedisError, OSError, TimeoutError) as error:
                LOG.info("could not %s other processes of waiting work; they look by themselves: %s", verb, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _listen(self, hear: Hear, look: Callable[[], Awaitable[None]]) -> None:
        async with self._client() as client, client.pubsub(ignore_subscribe_messages=True) as subscription:
            await subscription.subscribe(CHANNEL)
            await look()
            while True:
                message = await subscription.get_message(timeout=QUIET_S)
                if message is None:
                    await subscription.ping()
                    continue
                calls = self._read(message["data"]) if message["type"] == "message" else None
                if calls is not None:
                    hear(calls)

    async def _speak(self) -> None:
        async with self._client() as client:
            while True:
                await self._has_some.wait()
                self._has_some.clear()
                calls, self._outgoing = self._outgoing, Calls()
                await client.publish(CHANNEL, self._written(calls))
                await asyncio.sleep(GATHER_S)

    def _client(self) -> Redis:
        return Redis.from_url(self._url, socket_connect_timeout=CONNECT_WITHIN_S, socket_timeout=2 * QUIET_S)

    def _written(self, calls: Calls) -> str:
        fields = {"lanes": calls.lanes, "devices": sorted(calls.devices), "subjects": sorted(calls.subjects)}
        return json.dumps({"from": self._name, **fields})

    def _read(self, data: object) -> Calls | None:
        """Reads a message. Returns None for our own, and for one that no process of ours has sent."""
        try:
            message = json.loads(data) if isinstance(data, bytes) and len(data) < MOST_BYTES else {}
            if message.get("from", self._name) == self._name:
                return None
            lanes = {str(lane): int(count) for lane, count in message["lanes"].items()}
            return Calls(lanes, set(map(str, message["devices"])), set(map(str, message["subjects"])))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            LOG.warning("a call of another process could not be read: %s", error)
            return None


def redis_url(broker_url: str) -> str:
    """Returns the broker's URL as its own client reads it: Celery says `redis+socket` for a socket's path."""
    return broker_url.replace("redis+socket://", "unix://", 1)
