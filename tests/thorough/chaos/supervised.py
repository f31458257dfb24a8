"""The process that keeps a campaign's farm up: the product's supervisor, with the campaign's parts.

`python -m tests.thorough.chaos.supervised FOLDER`, where `topology.json` is.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from device_agents.wire.watchdog import Beat
from pockfarm.errors import FarmDown
from pockfarm.own_farm.parts import HOST, FarmPlan, Part, admin, answers_http, broker, python
from pockfarm.own_farm.state import StateFolder
from pockfarm.own_farm.supervisor import Supervisor
from service.base.settings import Settings
from tests.thorough.chaos.database import postgres
from tests.thorough.chaos.topology import APIS, COMPILER, WORKERS, Topology

ROOT = Path(__file__).parents[3]


def parts(topology: Topology, plan: FarmPlan) -> Sequence[Part]:
    """All of them, in starting order."""
    first = [postgres(topology)] if topology.database == "postgresql" else []
    return [
        *first,
        broker(plan),
        *(api(topology, name) for name in APIS),
        *(worker(topology, name) for name in WORKERS),
        *(agent(topology, plan, name) for name in topology.agents),
    ]


def _settings(topology: Topology, name: str, state: Path) -> dict[str, str]:
    return {
        "POCKFARM_STATE": str(state),
        "POCKFARM_DATABASE_URL": topology.database_url(name),
        "POCKFARM_BROKER_URL": f"redis://127.0.0.1:{topology.broker_ports[name]}/0",
    }


def api(topology: Topology, name: str) -> Part:
    """One of the API processes."""
    port = topology.api_ports[name]
    command = [
        *python("uvicorn", "service.app:create_app", "--factory", "--host", HOST, "--port", str(port)),
        *("--timeout-graceful-shutdown", "3", "--no-access-log"),
    ]
    alive = topology.path / f"{name}.alive"
    settings = _settings(topology, name, topology.state) | {"POCKFARM_ALIVE_FILE": str(alive)}
    return Part(
        name,
        name,
        lambda: command,
        lambda: answers_http(f"http://{HOST}:{port}/healthz"),
        up_within_s=60,
        stop_within_s=8,
        environment=lambda: settings,
        is_alive=Beat(alive),
    )


def worker(topology: Topology, name: str) -> Part:
    """One of the workers, with a state folder of its own, as on a machine of its own."""
    state = topology.path / name
    settings = _settings(topology, name, state)
    alive = Settings(state=state).worker_alive_path
    command = [
        *python("celery", "--app", "workers.app", "worker", "--without-mingle", "--without-gossip"),
        *("--concurrency", "1", "--loglevel", "INFO"),
    ]
    return Part(
        name,
        name,
        lambda: command,
        alive.exists,
        up_within_s=60,
        stop_within_s=10,
        environment=lambda: settings,
        is_alive=Beat(alive),
    )


def agent(topology: Topology, plan: FarmPlan, name: str) -> Part:
    """One board; it may be held, and its clock may be off."""
    state, clock = topology.agent_state(name), topology.clock_file(name)

    def command() -> Sequence[str]:
        if topology.held(name).exists():
            raise FarmDown(f"{name} is held by the campaign")
        server = f"http://{HOST}:{topology.farm_ports[name]}"
        words = python("device_agents.agent", "--server", server, "--state", str(state), "--name", name)
        return [*words, "--run-as", "root", "--isolation", "1"]

    def environment() -> Mapping[str, str]:
        site = Path(__file__).parent / "clock_site"
        faked = {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "CHAOS_CLOCK": str(clock)}
        if (state / "identity.json").exists():
            return faked
        return faked | {"POCKFARM_ENROL_TOKEN": admin(plan, "enrolment-token")}

    return Part(
        name,
        name,
        command,
        (state / "identity.json").exists,
        up_within_s=60,
        stop_within_s=15,
        environment=environment,
        is_alive=Beat(state / "alive"),
    )


def main(folder: Path) -> int:
    topology = Topology.load(folder)
    os.environ |= {
        "PYTHONPATH": str(ROOT),
        "POCKFARM_DATABASE_URL": topology.database_url(),
        "POCKFARM_STORAGE_URL": f"file://{topology.storage}",
        "POCKFARM_COMPILE_FUNCTION": COMPILER,
        "OMP_NUM_THREADS": "1",
    }
    state = StateFolder(topology.state)
    state.make()
    lock = state.lock()
    plan = FarmPlan(state, topology.api_ports[APIS[0]])
    supervisor = Supervisor(plan, parts=parts(topology, plan))
    signal.signal(signal.SIGTERM, supervisor.ask_to_stop)
    signal.signal(signal.SIGINT, supervisor.ask_to_stop)
    assert lock is not None
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
