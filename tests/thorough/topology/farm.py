"""The farm of docker-compose.yml, started by hand: every container a process of this machine.

    4 agents -> proxy -> 2 API processes -> database, broker, storage <- 2 workers, courier

Commands, environment and health checks are what the file says (`compose.py`); only names of hosts, ports and folders
are put where they are here (`places.py`), and servers of other makers are the programs that are at hand (`servers.py`).
A process that ends is started again by who ended it, as a container is by its `restart`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from pockfarm.own_farm.parts import answers_http
from tests.service.postgres import find_binaries
from tests.thorough.chaos.processes import children, descendants, send
from tests.thorough.topology import swift
from tests.thorough.topology.compose import ROOT, Container, container, example_variables
from tests.thorough.topology.places import HOST, PORTS, Places
from tests.thorough.topology.servers import SERVERS, Start
from tests.waiting import HANG_S, until

AGENTS = 4
PAUSE_S = 0.3
"""Between two checks, each of which starts a process."""
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


@dataclass
class Deployed:
    """The farm's processes, by name: `api-2`, `database` ..."""

    folder: Path
    places: Places
    variables: dict[str, str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    key: str = ""
    """An operator's."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.places.ports['proxy']}"

    def container(self, process: str) -> Container:
        """The container that a process stands for."""
        service = process if process in SERVERS or process == "migrate" else process.rpartition("-")[0]
        return container(service, self.variables)

    def environment(self, process: str) -> dict[str, str]:
        """What its container is given, and nothing of ours but what programs need to be found."""
        asked = self.container(process)
        given = {name: self.places.here(value, asked, process) for name, value in asked.environment.items()}
        if swift.is_there() and "AWS_ACCESS_KEY_ID" in given:
            given["AWS_ACCESS_KEY_ID"] += f":{swift.USER}"
        if "TMPDIR" in given:
            Path(given["TMPDIR"]).mkdir(parents=True, exist_ok=True)
        return {"PATH": PATH, "PYTHONPATH": str(ROOT), "HOME": str(self.folder), "OMP_NUM_THREADS": "1", **given}

    def start(self, process: str) -> None:
        """Start it, without waiting for it."""
        asked = self.container(process)
        made = SERVERS[process](asked, self.places) if process in SERVERS else self._ours(asked, process)
        with (self.folder / f"{process}.log").open("ab") as log:
            self.running[process] = subprocess.Popen(
                made.words,
                env={**self.environment(process), **made.environment},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _ours(self, asked: Container, process: str) -> Start:
        own = {"0.0.0.0": HOST, str(PORTS.get(asked.name)): str(self.places.ports.get(process))}
        words = [self.places.here(own.get(word, word), asked, process) for word in asked.command]
        is_new = asked.name == "agent" and not (self.places.volume("agent", process) / "identity.json").exists()
        return Start(words, {"POCKFARM_ENROL_TOKEN": self._token()} if is_new else {})

    def _token(self) -> str:
        with self.operator() as http:
            return str(http.post("/devices/enrolment-tokens", json={}).raise_for_status().json()["token"])

    def operator(self) -> httpx.Client:
        """An operator's, through the proxy."""
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=HANG_S, trust_env=False)

    def run(self, process: str) -> None:
        """A container that does something once. Raises: CalledProcessError."""
        words = self._ours(self.container(process), process).words
        subprocess.run(words, env=self.environment(process), cwd=ROOT, check=True, capture_output=True, timeout=120)

    def admin(self, *words: str) -> str:
        """`docker compose exec api python -m service.admin ...`; the last line of what it says."""
        completed = subprocess.run(
            ["python", "-m", "service.admin", *words],
            env=self.environment("api-1"),
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return completed.stdout.splitlines()[-1]

    def is_healthy(self, process: str) -> bool:
        """By the check of its container."""
        asked = self.container(process)
        if process in CHECKS:
            return CHECKS[process](self.places)
        words = [self.places.here(word, asked, process) for word in asked.check[1:]]
        done = subprocess.run(words, env=self.environment(process), check=False, capture_output=True, timeout=HANG_S)
        return done.returncode == 0

    def wait_until_noticed(self, process: str) -> None:
        """Until the check of its container turns bad: at once, or by the age of the file that it touched."""
        asked = self.container(process)
        for word in asked.check[1:]:
            touched = Path(self.places.here(word, asked, process).replace("{host}", socket.gethostname()))
            if touched.is_relative_to(self.places.folder) and touched.exists():
                os.utime(touched, (0, 0))
        until(lambda: not self.is_healthy(process), f"the check of {process} does not notice", most_pause_s=PAUSE_S)

    def wait_for(self, *processes: str) -> None:
        """Until all are healthy. Raises: AssertionError with the log of the one that is not."""
        for name in processes:
            until(partial(self.is_healthy, name), partial(self._unhealthy, name), most_pause_s=PAUSE_S)

    def _unhealthy(self, process: str) -> str:
        return f"{process} does not become healthy:\n{(self.folder / f'{process}.log').read_text()[-4000:]}"

    def pid(self, process: str) -> int:
        return self.running[process].pid

    def watched_pid(self, process: str) -> int:
        """Of what the container's first process has started, and watches."""
        [pid] = children(self.pid(process))
        return pid

    def kill(self, process: str) -> None:
        """kill -9 of a container: all its processes are gone."""
        pid = self.pid(process)
        send([pid, *descendants(pid)], signal.SIGKILL)
        self.running.pop(process).wait(HANG_S)

    def stop(self, *processes: str) -> None:
        """Ask them to end, and wait for that."""
        for process in processes:
            self.running[process].send_signal(STOPPED_BY.get(process, signal.SIGTERM))
        for process in processes:
            try:
                self.running[process].wait(20)
            except subprocess.TimeoutExpired:
                self.kill(process)
            self.running.pop(process, None)

    def stop_all(self) -> None:
        """First whatever needs the servers."""
        self.stop(*[name for name in self.running if name not in SERVERS])
        self.stop(*self.running)

    def restore_storage(self) -> None:
        """moto keeps everything in memory: what it was asked before is asked again. Swift has it on disk."""
        if swift.is_there():
            return
        answer = httpx.post(
            f"http://{HOST}:{self.places.ports['storage']}/moto-api/recorder/replay-recording",
            timeout=60,
            trust_env=False,
        )
        answer.raise_for_status()


STOPPED_BY = {"database": signal.SIGINT}
"""What an image says in place of SIGTERM."""


def _database_answers(places: Places) -> bool:
    words = container("database", example_variables()).check[1].split()
    at = ["--host", HOST, "--port", str(places.ports["database"])]
    done = subprocess.run([str(find_binaries() / words[0]), *words[1:], *at], check=False, capture_output=True)
    return done.returncode == 0


def _broker_answers(places: Places) -> bool:
    from redis import Redis
    from redis.exceptions import RedisError

    try:
        with Redis(HOST, places.ports["broker"], socket_timeout=2) as client:
            return bool(client.ping())
    except RedisError:
        return False


STORAGE_CHECK = "healthcheck" if swift.is_there() else "moto-api/data.json"
CHECKS: Mapping[str, Callable[[Places], bool]] = {
    "database": _database_answers,
    "broker": _broker_answers,
    "storage": lambda places: answers_http(f"http://{HOST}:{places.ports['storage']}/{STORAGE_CHECK}"),
    "proxy": lambda places: answers_http(f"http://{HOST}:{places.ports['proxy']}/healthz"),
}
"""In place of the programs that are in the images of other makers."""


@contextlib.contextmanager
def deployed(kernels: Path) -> Iterator[Deployed]:
    """All of it, healthy; gone at the end. `kernels`: the volume of kernels, with the linker's library."""
    folder = Path(tempfile.mkdtemp(prefix="pf-top-", dir="/tmp"))
    folder.chmod(0o755)
    places = Places(folder, {"kernels": kernels})
    variables = {**example_variables(), "PUBLIC_URL": "http://proxy:8080", "WEBHOOK_NETWORKS": f"{HOST}/32"}
    replicas = {name: container(name, variables).replicas for name in ("api", "worker", "courier")} | {"agent": AGENTS}
    names = {name: [f"{name}-{number}" for number in range(1, count + 1)] for name, count in replicas.items()}
    places.reserve([*SERVERS, *names["api"]])
    farm = Deployed(folder, places, variables)
    try:
        for server in ("database", "broker", "storage"):
            farm.start(server)
        farm.wait_for("database", "broker", "storage")
        farm.run("migrate")
        for one in (*names["api"], "proxy", *names["worker"], *names["courier"]):
            farm.start(one)
        farm.key = farm.admin("create-key")
        farm.wait_for(*names["api"], "proxy")
        for one in names["agent"]:
            farm.start(one)
        farm.wait_for(*names["worker"], *names["courier"], *names["agent"])
        yield farm
    finally:
        farm.stop_all()
        shutil.rmtree(folder, ignore_errors=True)
