"""Releases as operators see them: published, widened, halted, listed.

The facts that an agent's file states about itself, read without running any of it.
"""

from __future__ import annotations

import ast
import io
import math
import time
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from device_agents.wire import MOST_AGENT_BYTES, PROTOCOL, version_order
from service.base.identifiers import clean_text
from service.base.problems import Conflict, Invalid, NotFound
from service.base.schemas import columns
from service.boards.installation.agent_file import agent_file
from service.boards.releases.schemas import ReleaseCreate, ReleaseDetail, ReleaseView, Stage, UpdateView
from service.devices.wants import lacking, wants_of
from service.store.database.models import HOME, AgentRelease, AgentUpdate, Device
from service.store.database.paging import newest_first
from service.store.database.scope import EVERYONES, organisation_of
from service.store.storage import Storage, StoredFile

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
    """Returns the value of a plain assignment at the top of a module. Raises: KeyError, ValueError, SyntaxError."""
    if archive.getinfo(member).file_size > MOST_MEMBER_BYTES:
        raise ValueError(f"{member} is too long")
    for line in ast.parse(archive.read(member)).body:
        if isinstance(line, ast.Assign) and [getattr(target, "id", "") for target in line.targets] == [name]:
            return ast.literal_eval(line.value)
    raise KeyError(f"{member} has no {name}")


def _refused(why: str) -> Invalid:
    return Invalid("release.file", why[:1000], where=WHERE, hint="make one with `make agent`")


MOST_SHOWN = 1000
UPDATING = ("on", "trial")


def take_in(storage: Storage, data: bytes) -> tuple[AgentFile, StoredFile]:
    """Checks that the data is an agent's file, then stores it. Raises: Invalid."""
    agent = read_agent(data)
    return agent, storage.put(io.BytesIO(data), limit_bytes=MOST_AGENT_BYTES)


def publish_own(session: Session, storage: Storage, request: ReleaseCreate) -> AgentRelease:
    """Publishes the agent of the farm's sources. Raises: Invalid."""
    return publish(session, *take_in(storage, agent_file()), request)


def publish_again(session: Session, request: ReleaseCreate) -> AgentRelease:
    """Publishes the file of an earlier release. Raises: NotFound, Invalid."""
    query = select(AgentRelease).where(AgentRelease.digest == request.digest).limit(1)
    earlier = session.scalar(query)
    if earlier is None:
        hint = "bring it in on the farm's machine: python -m service.admin agent-release FILE"
        raise NotFound("release.file-unknown", f"no release had the file {request.digest}", where="digest", hint=hint)
    agent = AgentFile(earlier.version, earlier.oldest_python, earlier.protocol)
    return publish(session, agent, StoredFile(earlier.digest, earlier.size_bytes), request)


def publish(session: Session, agent: AgentFile, stored: StoredFile, request: ReleaseCreate) -> AgentRelease:
    """Publishes a release, with a number above all before. Raises: Invalid (a condition that is none).

    The number is at least the time, so a farm that was restored from an old backup does not give one twice.
    """
    wants_of(request.where, None)
    highest = session.scalar(select(func.max(AgentRelease.sequence))) or 0
    release = AgentRelease(
        sequence=max(highest + 1, int(time.time())),
        version=agent.version,
        digest=stored.digest,
        size_bytes=stored.size_bytes,
        oldest_python=agent.oldest_python,
        protocol=agent.protocol,
        is_rollback=request.rollback,
        conditions=sorted(set(request.where)),
        most_failures=request.most_failures,
    )
    release.share, release.most_devices = request.share, _most_devices(session, release, request)
    session.add(release)
    session.flush()
    return release


def meets(conditions: Sequence[str], device: Device) -> bool:
    """Whether the device has the tags that a release asks for."""
    return not lacking(wants_of(conditions, None), device)


def _most_devices(session: Session, release: AgentRelease, stage: Stage) -> int | None:
    if stage.share is None:
        return stage.count
    query = select(Device).where(Device.state != "removed", Device.agent_updates.in_(UPDATING))
    able = sum(meets(release.conditions, device) for device in session.scalars(query, execution_options=EVERYONES))
    return max(1, math.ceil(stage.share * able))


def find(session: Session, release_id: str) -> AgentRelease:
    """Returns the release, held. Raises: NotFound."""
    release = session.scalar(select(AgentRelease).where(AgentRelease.id == release_id).with_for_update())
    if release is None:
        raise NotFound("release.unknown", f"no release {release_id!r:.60}", hint="GET /agent-releases lists them")
    return release


def widen(session: Session, release_id: str, stage: Stage) -> AgentRelease:
    """Offers the release to more devices. Raises: NotFound, Conflict (halted), Invalid (fewer than now)."""
    release = find(session, release_id)
    if release.state == "halted":
        hint = "publish the file again (POST /agent-releases with its digest): boards that failed try anew"
        raise Conflict("release.halted", f"it is halted: {release.halt_reason}", hint=hint)
    most = _most_devices(session, release, stage)
    if most is not None and (release.most_devices is None or most < release.most_devices):
        now = "all" if release.most_devices is None else release.most_devices
        raise Invalid(
            "release.stage",
            f"{most} devices, and {now} may have it already",
            where="share",
            hint="a stage only grows; to stop it: POST /agent-releases/ID/halt",
        )
    release.share, release.most_devices = stage.share, most
    return release


def halt(session: Session, release: AgentRelease, reason: str) -> None:
    """Halts a release: it is offered to no more devices, and those that have it keep it."""
    if release.state == "halted":
        return
    release.state, release.halted_at = "halted", time.time()
    release.halt_reason = clean_text(reason, 1000) or "an operator halted it"


def halted(session: Session) -> Sequence[AgentRelease]:
    """Returns the newest release if it has halted, to operators of the farm's organisation: nobody else can do anything
    about it.
    """
    if organisation_of(session) != HOME:
        return ()
    newest = session.scalar(select(AgentRelease).order_by(AgentRelease.sequence.desc()).limit(1))
    return (newest,) if newest is not None and newest.state == "halted" else ()


def listed(session: Session, *, limit: int, cursor: str | None) -> tuple[Sequence[AgentRelease], str | None]:
    """Returns a page of releases, the newest first."""
    return newest_first(session, select(AgentRelease), AgentRelease.id, limit=limit, cursor=cursor)


def counts(session: Session, release: AgentRelease) -> dict[str, int]:
    """Returns the number of devices by the outcome of the release."""
    query = select(AgentUpdate.state, func.count()).where(AgentUpdate.release_id == release.id)
    rows = session.execute(query.group_by(AgentUpdate.state)).all()
    return {"given": 0, "done": 0, "failed": 0} | {state: count for state, count in rows}  # noqa: C416


def view(session: Session, release: AgentRelease) -> ReleaseView:
    """Returns the view of a release for the API."""
    plain = columns(ReleaseView, release)
    return ReleaseView.model_validate({**plain, **counts(session, release)})


def detail(session: Session, release: AgentRelease) -> ReleaseDetail:
    """Returns a release in detail, with the devices that the session's organisation may see."""
    query = (
        select(AgentUpdate, Device.name)
        .join(Device, Device.id == AgentUpdate.device_id)
        .where(AgentUpdate.release_id == release.id)
        .order_by(AgentUpdate.state != "failed", AgentUpdate.given_at)
        .limit(MOST_SHOWN)
    )
    updates = [
        UpdateView.model_validate(
            {
                "device_id": update.device_id,
                "name": name,
                "state": update.state,
                "reason": update.reason,
                "given_at": update.given_at,
                "ended_at": update.ended_at,
            }
        )
        for update, name in session.execute(query)
    ]
    return ReleaseDetail(**view(session, release).model_dump(), updates=updates)
