"""The API process's signs of life, and whom it tells."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import anyio
import anyio.to_thread
import pytest
from starlette.concurrency import run_in_threadpool

from device_agents.slots import launcher
from device_agents.wire.service_manager import tell_manager, tell_ready
from service.operations import alive
from service.operations.alive import Pulse, give_sign
from tests.waiting import until_async


@pytest.mark.usefixtures("loopback")
def test_a_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        tell_manager(b"READY=1")
        give_sign(tmp_path / "alive")
        assert [manager.recv(100) for _ in range(2)] == [b"READY=1", b"WATCHDOG=1"]
    assert (tmp_path / "alive").exists()
    give_sign(None)  # a manager that is gone is no reason to fail


@pytest.mark.usefixtures("loopback")
def test_a_program_that_makes_way_for_another_asks_for_time_until_that_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that becomes its update: trying that one takes longer than a watchdog waits."""
    became: list[str] = []
    monkeypatch.setattr(os, "execv", lambda program, words: became.append(program))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "15000000")
        launcher.become(tmp_path / "agent.pyz", [])
        assert became == [sys.executable]
        told = manager.recv(100)
        assert told == b"WATCHDOG_USEC=300000000"
        assert launcher.UP_WITHIN_S > launcher.TRIAL_S
        tell_ready()
        assert [manager.recv(100) for _ in range(2)] == [b"READY=1", b"WATCHDOG_USEC=15000000"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alive, "BEAT_S", 0.02)
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)


class Signs:
    """Of a pulse whose clock stands still unless the test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given, self.turns, self.now_s, self.is_well = 0, 0, time.monotonic(), True
        monkeypatch.setattr(alive, "give_sign", lambda path: self.give())
        monkeypatch.setattr(alive, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.pulse = Pulse(None, self.ask, answered_at=self.now_s)

    def give(self) -> None:
        self.given += 1

    def ask(self) -> bool:
        self.turns += 1
        return self.is_well

    async def come(self) -> None:
        given = self.given
        await until_async(lambda: self.given > given + 3)

    async def do_not_come(self) -> None:
        """In many turns."""
        given, turns = self.given, self.turns
        await until_async(lambda: self.turns > turns + 20)
        assert self.given == given


@pytest.mark.usefixtures("quick")
def test_a_stuck_thread_pool_gives_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    signs, release, is_stuck = Signs(monkeypatch), threading.Event(), threading.Event()

    def stick() -> None:
        is_stuck.set()
        release.wait()

    async def live() -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(signs.pulse.run)
            await signs.come()
            tasks.start_soon(run_in_threadpool, stick)
            await until_async(is_stuck.is_set)
            signs.now_s += alive.POOL_STUCK_S
            await signs.do_not_come()
            release.set()
            await signs.come()  # again, once a thread is free
            tasks.cancel_scope.cancel()

    anyio.run(live)


@pytest.mark.usefixtures("quick")
def test_a_sweeper_that_is_gone_gives_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    signs = Signs(monkeypatch)

    async def live() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(signs.pulse.run)
            await signs.come()
            signs.is_well = False
            await signs.do_not_come()
            tasks.cancel_scope.cancel()

    anyio.run(live)
