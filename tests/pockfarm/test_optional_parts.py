"""Optional parts of a farm: what is missing or broken costs that part alone, and is said with its reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pockfarm.own_farm import parts
from pockfarm.own_farm.parts import EMULATED_DEVICE, OPENCL_DEVICE, FarmPlan, Part, farm_parts, why_no_device
from pockfarm.own_farm.state import OFF, FarmStatus, StateFolder
from pockfarm.own_farm.supervisor import Supervisor
from pockfarm.own_farm.up import status_text

SLEEPER = "import time; time.sleep(600)"

pytestmark = pytest.mark.usefixtures("loopback")


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    folder = StateFolder(tmp_path / "state")
    folder.make()
    return folder


def process(name: str, program: str, *, is_up: bool = True, why_missing: str | None = None) -> Part:
    return Part(
        name,
        f"the {name}",
        lambda: [sys.executable, "-c", program],
        lambda: is_up,
        up_within_s=60,
        stop_within_s=1,
        why_missing=None if why_missing is None else lambda: why_missing,
    )


class Recording(Supervisor):
    """A supervisor that stops as soon as everything has started."""

    status_when_ready: FarmStatus

    def _tend(self) -> None:
        super()._tend()
        status = self.plan.state.status()
        assert status is not None
        self.status_when_ready = status
        self.ask_to_stop()


@pytest.mark.parametrize(
    ("optional", "why"),
    [
        (process("extra", "unused", why_missing="there is no driver"), "there is no driver"),
        (
            process("extra", "import sys; sys.exit('the driver crashed')", is_up=False, why_missing=""),
            "the driver crashed",
        ),
    ],
    ids=["missing", "ends while starting"],
)
def test_a_farm_starts_without_an_optional_part(state: StateFolder, optional: Part, why: str) -> None:
    supervisor = Recording(FarmPlan(state, 1), [process("needed", SLEEPER), optional, process("last", SLEEPER)])
    assert supervisor.run() == 0
    status = supervisor.status_when_ready
    assert status.ready
    assert [part.state for part in status.parts.values()] == ["up", OFF, "up"]
    assert why in status.parts["extra"].why
    assert status.parts["extra"].pid is None
    assert why in status_text(status)


def test_the_emulated_board_and_opencl_are_the_optional_parts(state: StateFolder) -> None:
    optional = [part.name for part in farm_parts(FarmPlan(state, 1)) if part.why_missing is not None]
    assert optional == ["agent-emulated", "agent-opencl"]


def test_no_client_says_where_it_comes_from_unless_a_proxy_is_named(
    state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    assert "--no-proxy-headers" in parts.api(FarmPlan(state, 1)).command()
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.0.0.7")
    assert "--no-proxy-headers" not in parts.api(FarmPlan(state, 1)).command()


def test_a_working_emulator_and_driver_are_used_not_looked_for() -> None:
    assert why_no_device(EMULATED_DEVICE) == ""
    assert why_no_device(OPENCL_DEVICE) == ""


def test_an_emulator_that_is_no_emulator_is_missing_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "(Debian package qemu-user-static)" in why_no_device(EMULATED_DEVICE)
    emulator = tmp_path / parts.EMULATOR
    emulator.write_text("#!/bin/sh\necho out of order >&2\nexit 0\n")
    emulator.chmod(0o755)
    assert "(out of order)" in why_no_device(EMULATED_DEVICE)


def test_a_driver_that_knows_no_device_is_missing_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the folder of drivers, with a driver that does not load, is what a fresh machine once had."""
    monkeypatch.setenv("OCL_ICD_VENDORS", "/nowhere")
    why = why_no_device(OPENCL_DEVICE)
    assert "OpenCL knows no device here" in why
    assert "pocl-opencl-icd" in why


def test_an_agent_that_cannot_answer_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "python", lambda module, *words: [sys.executable, "-c", "raise SystemExit(3)"])
    assert why_no_device(OPENCL_DEVICE) == "the agent ended with code 3"
