"""The machine behind an identity: an agent that comes from another machine than the one that works waits, or is
refused.

A copied memory card or state folder makes two agents of one device. The agent that works goes on; one from another
machine takes over only when the first has been silent for a minute, as when a card moves to another board. When both
are there, the second is refused, and the operators are told of both.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.wire import MOST_MACHINE_CHARACTERS, Machine, ProtocolError, loads
from service.base.identifiers import clean_text
from service.base.problems import Conflict, Problem, Unavailable
from service.base.schemas import utc_text
from service.devices.blame import hold_alone
from service.devices.sightings import SILENT_AFTER_S
from service.store.announcements import announce_two_machines
from service.store.database.models import LIVE_ATTEMPT_STATES, Attempt, Device, DeviceEvent, DeviceMachine

UNDER_WAY_S = 5.0
"""Seconds after an agent has gone during which one of its requests may still arrive."""
ASK_AGAIN_S = 5
LATELY_S = 86_400.0
"""Seconds for which operators see that a machine was refused."""
MOST_MACHINES = 20
"""Remembered for each device."""
TWO_MACHINES = "two-machines"
ON_TWO_MACHINES = "its identity is used on two machines: see its page"
TO_DO = "stop one of the two; to make it a device of its own, delete its state folder and enrol it with a new token"
START_AGAIN = "if you stop that one, start this agent again"


def read(header: str | None) -> Machine:
    """Reads what an agent tells of its machine; an older agent tells nothing, and neither does an invalid header."""
    if header is None or len(header) > MOST_MACHINE_CHARACTERS:
        return Machine()
    try:
        return loads(Machine, header)
    except ProtocolError:
        return Machine()


def admit(session: Session, device: Device, session_id: str, machine: Machine, address: str) -> Problem | None:
    """Makes the machine the one that works as this device. Returns why it may not: another one does.

    What is noted about the refused machine is to be committed, so the problem is returned.
    """
    hold_alone(session, device.id)
    now = time.time()
    rows = list(session.scalars(select(DeviceMachine).where(DeviceMachine.device_id == device.id)))
    present = next((row for row in rows if row.is_present), None)
    newcomer = next((row for row in rows if _is_same_boot(row, machine, address)), None)
    is_new = newcomer is None
    newcomer = newcomer or _add(session, device, machine, address)
    _forget(session, [row for row in rows if row not in (present, newcomer)])
    if now - newcomer.seen_at > SILENT_AFTER_S:
        newcomer.waits_since = now
    newcomer.seen_at, newcomer.address, newcomer.host = now, address, clean_text(machine.host, 100)
    is_reboot = present is not None and is_new and _is_same_place(present, machine, address)
    may_work = (
        present is None
        or present is newcomer
        or device.session == session_id
        or now - device.last_seen_at > SILENT_AFTER_S
        or (is_reboot and not _is_busy(session, device))
    )
    if may_work:
        for row in rows:
            row.is_present = False
        newcomer.is_present, newcomer.waits_since, newcomer.refused_at = True, now, None
        return None
    assert present is not None
    if device.last_seen_at <= newcomer.waits_since + UNDER_WAY_S:
        return _wait(present, now - device.last_seen_at)
    is_news = not any(_was_refused_lately(row, newcomer, now) for row in rows)
    newcomer.refused_at = now
    if is_news:
        _tell(session, device, present, newcomer)
    return Conflict(
        "device.two-machines",
        f"{described(present)} works as this device, so this machine may not",
        cause="device",
        hint=f"{TO_DO}; {START_AGAIN}",
    )


def _add(session: Session, device: Device, machine: Machine, address: str) -> DeviceMachine:
    row = DeviceMachine(
        device_id=device.id,
        serial=clean_text(machine.serial, 100),
        boot_id=clean_text(machine.boot_id, 40),
        host="",
        folder=clean_text(machine.folder, 300),
        folder_id=clean_text(machine.folder_id, 40),
        address=address,
        is_present=False,
        waits_since=time.time(),
        seen_at=time.time(),
    )
    session.add(row)
    return row


def _is_same_place(row: DeviceMachine, machine: Machine, address: str) -> bool:
    """Returns whether the machine is in the same place, by what both describe; by the address if one of them is an
    older agent that describes nothing.
    """
    if not (row.folder_id and machine.folder_id):
        return row.address == address or not (row.address and address)
    place = (machine.serial, machine.folder, machine.folder_id)
    return (row.serial, row.folder, row.folder_id) == tuple(clean_text(value, 300) for value in place)


def _is_same_boot(row: DeviceMachine, machine: Machine, address: str) -> bool:
    is_same = row.boot_id == machine.boot_id or not (row.boot_id and machine.boot_id)
    return is_same and _is_same_place(row, machine, address)


def _is_busy(session: Session, device: Device) -> bool:
    live = select(Attempt.id).where(Attempt.device_id == device.id, Attempt.state.in_(LIVE_ATTEMPT_STATES))
    return session.scalar(live) is not None


def _wait(present: DeviceMachine, silent_s: float) -> Problem:
    return Unavailable(
        "device.elsewhere",
        f"{described(present)} works as this device, and was heard of {silent_s:.0f} s ago",
        hint=f"this machine takes over if that one stays silent for {SILENT_AFTER_S:.0f} s, and is refused otherwise",
        headers={"Retry-After": str(ASK_AGAIN_S)},
    )


def _was_refused_lately(row: DeviceMachine, newcomer: DeviceMachine, now: float) -> bool:
    """Returns whether the machine was refused lately, in this boot or an earlier one."""
    is_same = (row.serial, row.folder, row.folder_id) == (newcomer.serial, newcomer.folder, newcomer.folder_id)
    return is_same and row.refused_at is not None and now - row.refused_at <= LATELY_S


def _tell(session: Session, device: Device, present: DeviceMachine, refused: DeviceMachine) -> None:
    line = DeviceEvent(device_id=device.id, kind=TWO_MACHINES, message=clean_text(_message(present, [refused]), 1000))
    session.add(line)
    session.flush()
    announce_two_machines(session, line, device.organisation_id)


def _forget(session: Session, candidates: Collection[DeviceMachine]) -> None:
    """Deletes all but the newest."""
    for row in sorted(candidates, key=lambda row: row.seen_at, reverse=True)[MOST_MACHINES:]:
        session.delete(row)


def close_for(session: Session, organisation_id: str, machine: Machine) -> None:
    """Closes the case of a machine that was refused as another device and has now enrolled as a separate one."""
    devices = select(Device.id).where(Device.organisation_id == organisation_id)
    refused = select(DeviceMachine).where(
        DeviceMachine.refused_at.is_not(None),
        DeviceMachine.serial == clean_text(machine.serial, 100),
        DeviceMachine.folder == clean_text(machine.folder, 300),
        DeviceMachine.device_id.in_(devices),
    )
    for row in session.scalars(refused) if machine.folder else ():
        row.refused_at = None


def refused_lately(session: Session, device_ids: Collection[str] | None = None) -> dict[str, list[DeviceMachine]]:
    """Returns the machines that were refused within a day, the newest first, by device; None: of all devices that the
    session may see.
    """
    query = select(DeviceMachine).where(DeviceMachine.refused_at > time.time() - LATELY_S)
    if device_ids is not None:
        query = query.where(DeviceMachine.device_id.in_(device_ids))
    refused: dict[str, list[DeviceMachine]] = {}
    for row in session.scalars(query.order_by(DeviceMachine.refused_at.desc())):
        refused.setdefault(row.device_id, []).append(row)
    return refused


def two_machines_words(session: Session, device: Device) -> str:
    """Says that the device's identity is used on several machines, which ones, and what to do; empty: it is not."""
    refused = refused_lately(session, [device.id]).get(device.id)
    if not refused:
        return ""
    is_present = DeviceMachine.is_present, DeviceMachine.device_id == device.id
    present = session.scalar(select(DeviceMachine).where(*is_present))
    is_silent = time.time() - device.last_seen_at > SILENT_AFTER_S
    return _message(present, refused, "worked last" if is_silent else "works")


def _message(present: DeviceMachine | None, refused: Collection[DeviceMachine], works: str = "works") -> str:
    dated = [(described(row), row.refused_at) for row in refused if row.refused_at]
    refusals = ", ".join(f"{name} was refused at {_clock(at)}" for name, at in dated)
    machine = described(present) if present else "another"
    return f"its identity is used on more than one machine: {machine} {works}, {refusals}; {TO_DO}"


def _clock(at: float) -> str:
    return f"{utc_text(at)[:16].replace('T', ' ')} UTC"


def described(row: DeviceMachine) -> str:
    """Describes a machine so that an operator can tell which it is: `pi-a (hardware 1000, from 10.0.0.7, state folder
    /a)`.
    """
    facts = [("hardware", row.serial), ("from", row.address), ("state folder", row.folder)]
    details = ", ".join(f"{name} {value}" for name, value in facts if value)
    return f"{row.host or 'a machine'} ({details})" if details else row.host or "a machine"


__all__ = [
    "LATELY_S",
    "TWO_MACHINES",
    "admit",
    "close_for",
    "described",
    "read",
    "refused_lately",
    "two_machines_words",
]
