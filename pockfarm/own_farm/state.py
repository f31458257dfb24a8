"""The state folder of a farm on this machine, as `pockfarm up` lays it out. The folder is 0700, its files 0600.

farm.json       address, supervisor and part processes; written by the supervisor
farm.lock       held (flock) by the supervisor for as long as it lives: who holds it is up
api-key         the key that the first start made for this user
valkey.sock     the message broker
logs/           one file per part
agents/         one state folder per agent
(the rest)      database, stored files and signing keys: the service's own
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pockfarm.errors import UsageError
from pockfarm.profiles import remembered_here

DEFAULT = ".state"
OFF = "off"
"""State of an optional part that is missing here or did not come up."""
MAX_SOCKET_PATH_BYTES = 100
"""The kernel allows 108 for an AF_UNIX path, the terminating zero and a suffix included."""


@dataclass(frozen=True)
class PartStatus:
    """A process of the farm as the supervisor last saw it."""

    pid: int | None
    restarts: int
    state: str
    """`starting`, `up`, `restarting`, `off` or `down`."""
    why: str = ""
    """Why it was last started again (how the process before ended, or that it hung), or why it is off."""


@dataclass(frozen=True)
class FarmStatus:
    """The content of `farm.json`."""

    pid: int
    url: str
    ready: bool
    parts: Mapping[str, PartStatus]
    problem: str = ""
    notes: tuple[str, ...] = field(default=())


class StateFolder:
    """Paths and files of the folder; reads and writes `farm.json` atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()

    def make(self) -> None:
        """Create the folder for its owner only. Raises: UsageError when it cannot be."""
        try:
            for folder in (self.path, self.logs, self.agents):
                folder.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as problem:
            raise UsageError(
                f"state folder {self.path}: {problem.strerror}", hint="choose another with --state"
            ) from None

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def agents(self) -> Path:
        return self.path / "agents"

    @property
    def api_key_file(self) -> Path:
        return self.path / "api-key"

    @property
    def socket(self) -> Path:
        """The broker's socket: in the folder, or in a private one under /tmp where the path would be too long."""
        inside = self.path / "valkey.sock"
        if len(os.fsencode(inside)) <= MAX_SOCKET_PATH_BYTES:
            return inside
        link = self.path / "socket-folder"
        if not link.is_symlink() or not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(tempfile.mkdtemp(prefix="pockfarm-"))
        return Path(os.readlink(link)) / "valkey.sock"

    def api_key(self) -> str | None:
        try:
            return self.api_key_file.read_text().strip() or None
        except OSError:
            return None

    def status(self) -> FarmStatus | None:
        """Returns the status that the supervisor last wrote; None if there never was one."""
        try:
            body = json.loads((self.path / "farm.json").read_text())
        except (OSError, ValueError):
            return None
        parts = {name: PartStatus(**part) for name, part in body.pop("parts").items()}
        return FarmStatus(**{**body, "parts": parts, "notes": tuple(body["notes"])})

    def save(self, status: FarmStatus) -> None:
        body = {
            "pid": status.pid,
            "url": status.url,
            "ready": status.ready,
            "problem": status.problem,
            "notes": list(status.notes),
            "parts": {
                name: {"pid": part.pid, "restarts": part.restarts, "state": part.state, "why": part.why}
                for name, part in status.parts.items()
            },
        }
        draft = self.path / f"farm.json.{os.getpid()}"
        draft.write_text(json.dumps(body, indent=2))
        draft.chmod(0o600)
        draft.replace(self.path / "farm.json")

    def lock(self) -> int | None:
        """Take the supervisor's lock; returns the descriptor to keep open, or None when another holds it."""
        if sys.platform == "win32":  # no farm runs there
            return None
        import fcntl  # a client's machine need not have it

        descriptor = os.open(self.path / "farm.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def is_up(self) -> bool:
        """True while a supervisor lives."""
        if not (self.path / "farm.lock").exists():
            return False
        if sys.platform == "win32":
            return False
        descriptor = self.lock()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False


def default_state() -> StateFolder:
    """`$POCKFARM_STATE`, or `.state` in the current folder."""
    return StateFolder(Path(os.environ.get("POCKFARM_STATE") or DEFAULT))


def farm_here() -> StateFolder:
    """The farm of this machine: `$POCKFARM_STATE`, `.state` in the current folder if a farm was started there, else
    where one was last started."""
    state = default_state()
    if os.environ.get("POCKFARM_STATE") or state.status() is not None:
        return state
    remembered = remembered_here()
    return state if remembered is None else StateFolder(remembered)
