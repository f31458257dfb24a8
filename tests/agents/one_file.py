"""The agent as one file, also as other versions of it would be, and a board that runs it."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from device_agents import AGENT_VERSION
from service.boards.installation.agent_file import agent_file
from tests.waiting import HANG_S

LINE = f'AGENT_VERSION = "{AGENT_VERSION}"'
CRASHES = 'import sys\nif "--check" not in sys.argv:\n    sys.exit("boom: no such library")\n'


def another(version: str, *, before_all: str = "") -> bytes:
    """The agent's file as of another version. `before_all`: what it does first."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(agent_file())) as source, zipfile.ZipFile(out, "w") as target:
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename == "device_agents/__init__.py":
                assert LINE.encode() in data
                data = data.replace(LINE.encode(), f'AGENT_VERSION = "{version}"'.encode())
            if entry.filename == "device_agents/agent.py" and before_all:
                future = b"from __future__ import annotations\n"
                data = data.replace(future, future + before_all.encode(), 1)
            target.writestr(entry, data)
    return out.getvalue()


class Installed:
    """A board with an agent's file on it, and that agent as a process."""

    def __init__(self, folder: Path, url: str, token: str, *, program: bytes | None = None) -> None:
        folder.mkdir()
        self.program, self.state, self.log = folder / "agent.pyz", folder / "state", folder / "log"
        self.program.write_bytes(agent_file() if program is None else program)
        self._url, self._token = url, token
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """As the service manager does."""
        command = [sys.executable, str(self.program), "--server", self._url, "--state", str(self.state), *words]
        command += ["--run-as", str(os.geteuid()), "--isolation", "0", "--long-poll", "1"]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "POCKFARM"))},
            "POCKFARM_ENROL_TOKEN": self._token,
            "POCKFARM_LOG_FORMAT": "text",
            **(variables or {}),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stderr=log, stdin=subprocess.DEVNULL)
        return self.process

    def end(self) -> None:
        """As it was told, or not."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=HANG_S)
        finally:
            self.process.kill()
