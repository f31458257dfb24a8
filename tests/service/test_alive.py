"""The API process's signs of life, and whom it tells."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from starlette.concurrency import run_in_threadpool

from device_agents.slots import launcher
from device_agents.wire.service_manager import tell_manager, tell_ready
from service import alive
from service.alive import Pulse, give_sign


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
    monkeypatch.setattr(alive, "POOL_STUCK_S", 0.2)
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)


def signs(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    given: list[float] = []
    monkeypatch.setattr(alive, "give_sign", lambda path: given.append(anyio.current_time()))
    return given


@pytest.mark.usefixtures("quick")
def test_a_stuck_thread_pool_gives_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    given, release = signs(monkeypatch), threading.Event()

    async def live() -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Pulse(None, lambda: True).run)
            while len(given) < 3:
                await anyio.sleep(0.01)
            tasks.start_soon(run_in_threadpool, release.wait)
            await until_silent(given)
            release.set()
            count = len(given)
            while len(given) < count + 3:  # and it gives signs again once a thread is free
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()

    anyio.run(live)


@pytest.mark.usefixtures("quick")
def test_a_sweeper_that_is_gone_gives_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    given, is_well = signs(monkeypatch), [True]

    async def live() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Pulse(None, lambda: is_well[0]).run)
            while len(given) < 3:
                await anyio.sleep(0.01)
            is_well[0] = False
            await until_silent(given)
            tasks.cancel_scope.cancel()

    anyio.run(live)


async def until_silent(given: list[float]) -> None:
    """Until no sign has come for thirty times the usual pause."""
    count = -1
    while count != len(given):
        count = len(given)
        await anyio.sleep(0.6)
