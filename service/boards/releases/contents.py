"""The facts that an agent's file states about itself, read without running any of it."""

from __future__ import annotations

import ast
import io
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from device_agents.wire import MOST_AGENT_BYTES, PROTOCOL, version_order
from service.base.problems import Invalid

VERSION = ("device_agents/__init__.py", "AGENT_VERSION")
OLDEST_PYTHON = ("__main__.py", "OLDEST")
SPOKEN = ("device_agents/wire/paths.py", "PROTOCOL")
LAUNCHER = "device_agents/slots/launcher.py"
MOST_MEMBER_BYTES = 1 << 20
WHERE = "file"


@dataclass(frozen=True, slots=True)
class AgentFile:
    """A version of the agent."""

    version: str
    oldest_python: str
    protocol: str


def read_agent(data: bytes) -> AgentFile:
    """Raises: Invalid (no agent; one that could not make way for the next; one that does not speak to this farm)."""
    if len(data) > MOST_AGENT_BYTES:
        raise _refused(f"{len(data):,} bytes, and an agent has {MOST_AGENT_BYTES:,} at most")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            version, python, protocol = (_constant(archive, *place) for place in (VERSION, OLDEST_PYTHON, SPOKEN))
    except (zipfile.BadZipFile, KeyError, ValueError, SyntaxError, NotImplementedError, RuntimeError, OSError) as error:
        raise _refused(f"it is not the agent as one file: {error}") from None
    return _checked(names, version, python, protocol)


def _checked(names: Collection[str], version: Any, python: Any, protocol: Any) -> AgentFile:
    if LAUNCHER not in names:
        raise _refused("it is from before agents updated themselves: boards that took it could not go back")
    try:
        version_order(version)
        oldest = ".".join(str(int(number)) for number in python)
        version_order(oldest)
    except (TypeError, ValueError) as error:
        raise _refused(f"its version or oldest Python cannot be read: {error}") from None
    if protocol != PROTOCOL:
        raise _refused(f"it speaks {protocol!r:.60}, this farm {PROTOCOL}")
    return AgentFile(version, oldest, protocol)


def _constant(archive: zipfile.ZipFile, member: str, name: str) -> Any:
    """The value of a plain assignment at the top of a module. Raises: KeyError, ValueError, SyntaxError."""
    if archive.getinfo(member).file_size > MOST_MEMBER_BYTES:
        raise ValueError(f"{member} is too long")
    for line in ast.parse(archive.read(member)).body:
        if isinstance(line, ast.Assign) and [getattr(target, "id", "") for target in line.targets] == [name]:
            return ast.literal_eval(line.value)
    raise KeyError(f"{member} has no {name}")


def _refused(why: str) -> Invalid:
    return Invalid("release.file", why[:1000], where=WHERE, hint="make one with `make agent`")
