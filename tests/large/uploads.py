"""`make uploads`: 2 GiB through ten cuts into a real API process; prints the time, what travelled, and its memory."""

from __future__ import annotations

import argparse
import logging
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from pockfarm.client.synchronous import uploads
from pockfarm.own_farm.parts import answers_http, free_port
from tests.service.cutting import cutting_link

MIB = 1 << 20
LIMIT_MIB = 100.0


class Memory:
    """Watches a process's resident memory (MiB) every 20 ms."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.peak, self.peak_own = 0.0, 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def now(self) -> tuple[float, float]:
        """All that is resident, and what of it is not pages of files."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        sizes = {
            line.split()[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith(("VmRSS", "RssAnon"))
        }
        return sizes["VmRSS:"], sizes["RssAnon:"]

    def _watch(self) -> None:
        while not self._stopping.wait(0.02):
            whole, own = self.now()
            self.peak, self.peak_own = max(self.peak, whole), max(self.peak_own, own)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


@contextmanager
def running_api(state: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A farm's API process, as `pockfarm up` starts it, without a broker."""
    environment = {**os.environ, "POCKFARM_STATE": str(state), "POCKFARM_LOG_LEVEL": "warning"}
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "service.app:served",
        "--factory",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--no-access-log",
        "--timeout-graceful-shutdown",
        "3",
    ]
    process = subprocess.Popen(command, env=environment)
    try:
        while not answers_http(f"http://127.0.0.1:{port}/healthz"):
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait(20)


def admin(state: Path, *words: str) -> str:
    environment = {**os.environ, "POCKFARM_STATE": str(state)}
    command = [sys.executable, "-m", "service.admin", *words]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1]


def random_file(path: Path, size_mib: int) -> None:
    generator = random.Random(1)
    with path.open("wb") as file:
        for _ in range(size_mib):
            file.write(generator.randbytes(MIB))


def main() -> int:
    """Returns the exit code: 1 if the file is not whole, a cut was not made, or the memory is above its limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.large.uploads")
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--cuts", type=int, default=10)
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    with tempfile.TemporaryDirectory(prefix="pf-uploads-") as folder:
        return send(Path(folder), options.mib, options.cuts)


def send(folder: Path, size_mib: int, cuts: int) -> int:
    path, state = folder / "file", folder / "state"
    random_file(path, size_mib)
    admin(state, "migrate")
    key = admin(state, "create-key")
    generator = random.Random(2)
    points = sorted(generator.sample(range(size_mib * MIB), cuts))
    after = [point - before for before, point in zip([0, *points], points, strict=False)]
    port = free_port(0)
    with running_api(state, port) as process:
        headers = {"Authorization": f"Bearer {key}"}
        httpx.get(f"http://127.0.0.1:{port}/jobs", headers=headers, trust_env=False).raise_for_status()
        time.sleep(1)
        memory = Memory(process.pid)
        idle = memory.now()
        with cutting_link(port, after) as link, path.open("rb") as stream:
            base = f"http://127.0.0.1:{link.port}"
            with httpx.Client(base_url=base, headers=headers, trust_env=False, timeout=60) as http:
                started = time.monotonic()
                digest = uploads.Sending(http, stream, "data", "file").send()
                seconds = time.monotonic() - started
        memory.stop()
        stored = next((state / "files" / "sha256").glob("*/*"))
        is_whole = stored.stat().st_size == size_mib * MIB and "sha256:" + stored.parent.name + stored.name == digest
        travelled = link.total / MIB
    print(
        f"{size_mib} MiB through {link.made} cuts in {seconds:.1f} s; {travelled:.0f} MiB travelled; "
        f"{'whole' if is_whole else 'NOT WHOLE'}"
    )
    print(
        f"API process: {idle[0]:.1f} MiB resident idle ({idle[1]:.1f} not pages of files), "
        f"{memory.peak:.1f} at its peak ({memory.peak_own:.1f}); the limit is {LIMIT_MIB:.0f}"
    )
    return 0 if is_whole and link.made == cuts and memory.peak <= LIMIT_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
