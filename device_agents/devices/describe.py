"""The way from the machine at hand (or a named emulated one) to the description that the farm gets."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace

from device_agents import AGENT_VERSION
from device_agents.devices import DEVICE_KINDS, Board, DeviceKind, Reading
from device_agents.devices.accelerator import Accelerator, engine_targets
from device_agents.devices.emulated import EMULATED_BOARDS, working_runner
from device_agents.devices.host import (
    arm_targets,
    core_count,
    cpu_features,
    cpu_model,
    max_frequency,
    memory_bytes,
    with_any_arm,
    x86_targets,
)
from device_agents.errors import EnrolmentError
from device_agents.wire import DeviceDescription, MeasurementClass, PowerRange, power_range

NO_FACTS: Mapping[str, str] = {}
TIMED_MODES = ("compare", "sustained")
"""The modes beside what every agent does; an emulated device, whose times say nothing of a real one, does not offer
them.
"""


@dataclass(frozen=True)
class Device:
    """This device: how to read it and what it says about itself."""

    kind: DeviceKind
    board: Board
    description: DeviceDescription
    runner: tuple[str, ...] = ()
    """Command in front of the binary; empty when it runs by itself."""

    @property
    def is_emulated(self) -> bool:
        return self.description.measurement_class == "emulated"

    @property
    def power_range(self) -> PowerRange:
        """The power that it can draw; an emulated one draws nothing of its own."""
        return power_range(self.description.device_class, self.description.measurement_class) or PowerRange(0.0, 0.0)

    def read(self) -> Reading:
        return self.kind.read(self.board)


def describe_device(
    *,
    name: str | None = None,
    device_class: str | None = None,
    runner: str | None = None,
    board: Board | None = None,
    isolation_level: int = 0,
    facts: Mapping[str, str] = NO_FACTS,
    accelerator: Accelerator | None = None,
) -> Device:
    """Recognises this machine; with `runner`, an emulated board of class `device_class` on this machine; with an
    `accelerator`, that engine of this machine and nothing else of it.

    `facts`: more that stands beside its numbers.

    Raises: `EnrolmentError` when the class or the runner is unknown, or no build for the engine runs here.
    """
    board = board or Board()
    if runner:
        return _emulated(name, device_class or "raspberry-pi-4", runner, board, isolation_level, facts)
    kind, found_class = _recognise(board)
    device_class = device_class or found_class
    features = cpu_features(board)
    is_board = kind.name != "host"
    targets = with_any_arm(kind.targets.get(device_class) or _generic_targets(features), features)
    description = DeviceDescription(
        name=name or _default_name(device_class),
        device_class=device_class,
        measurement_class="hardware" if is_board else "host",
        targets=targets,
        architecture=platform.machine(),
        cpu_model=cpu_model(board),
        features=features,
        cores=core_count(board),
        memory_bytes=memory_bytes(board),
        sensors=_sensors(kind.read(board)),
        isolation_level=isolation_level,
        agent_version=AGENT_VERSION,
        environment={**_system_facts(), **max_frequency(board), **kind.facts(board), **facts},
        modes=TIMED_MODES,
    )
    return Device(kind, board, description if accelerator is None else _engine_of(description, accelerator))


def _engine_of(machine: DeviceDescription, accelerator: Accelerator) -> DeviceDescription:
    """Describes an agent for one engine: an accelerator that a CPU plays proves function, as an emulator does."""
    targets = engine_targets(accelerator.engine, machine.targets)
    if not targets:
        raise EnrolmentError(
            f"--engine {accelerator.engine.name}: there is no target of it for {', '.join(machine.targets)}"
        )
    name = (
        f"emulated-{accelerator.engine.name}" if accelerator.is_played else f"{machine.name} {accelerator.engine.name}"
    )
    return replace(
        machine,
        name=machine.name if machine.name != _default_name(machine.device_class) else name,
        measurement_class="emulated" if accelerator.is_played else machine.measurement_class,
        targets=targets,
        features=tuple(sorted({*machine.features, *accelerator.features})),
        memory_bytes=machine.memory_bytes if accelerator.unified else accelerator.memory_bytes,
        sensors=() if accelerator.is_played else machine.sensors,
        environment={**machine.environment, **accelerator.facts()},
        modes=() if accelerator.is_played else machine.modes,
    )


def _emulated(
    name: str | None,
    device_class: str,
    runner: str,
    board: Board,
    isolation_level: int,
    facts: Mapping[str, str],
) -> Device:
    emulated = EMULATED_BOARDS.get(device_class)
    if emulated is None:
        raise EnrolmentError(f"--class {device_class}: cannot be emulated; known: {', '.join(EMULATED_BOARDS)}")
    command = working_runner(runner)
    measurement_class: MeasurementClass = "emulated"
    description = DeviceDescription(
        name=name or _default_name(f"emulated-{device_class}"),
        device_class=device_class,
        measurement_class=measurement_class,
        targets=with_any_arm(emulated.targets, emulated.features),
        architecture="aarch64",
        cpu_model=emulated.cpu_model,
        features=emulated.features,
        cores=emulated.cores,
        memory_bytes=min(emulated.memory_bytes, memory_bytes(board)),
        isolation_level=isolation_level,
        agent_version=AGENT_VERSION,
        runner=runner,
        environment={**_system_facts(), **facts},
    )
    kind = next(kind for kind in DEVICE_KINDS if kind.name == "emulated")
    return Device(kind, board, description, command)


def _recognise(board: Board) -> tuple[DeviceKind, str]:
    for kind in DEVICE_KINDS:
        device_class = kind.detect(board)
        if device_class:
            return kind, device_class
    raise EnrolmentError("this machine was not recognised; name its class with --class")


def _generic_targets(features: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the targets that a machine without a board module can run, by its CPU features."""
    return x86_targets(features) if platform.machine() == "x86_64" else arm_targets(features)


def _sensors(reading: Reading) -> tuple[str, ...]:
    present = {
        "temperature": reading.temperature_c,
        "frequency": reading.frequency_hz,
        "throttling": reading.throttled,
        "power": reading.power_mw,
        "energy": reading.counters or None,
    }
    return tuple(name for name, value in present.items() if value is not None)


def _system_facts() -> dict[str, str]:
    return {"kernel": f"{platform.system()} {platform.release()}", "python": platform.python_version()}


def _default_name(suffix: str) -> str:
    host = "".join(letter for letter in socket.gethostname() if letter.isalnum() or letter in "-.")[:60]
    return f"{host or 'device'}-{suffix}"
