"""Immediate answers to a request for a device or a class that is not there: a refusal, or a warning that it waits."""

from __future__ import annotations

import difflib

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.base.durations import format_duration
from service.base.problems import Invalid
from service.base.settings import Settings
from service.devices import wants
from service.store.database.models import Device, Run
from service.work.runs.fitting import MOST_DEVICES, Wish, classes, has_one, standings
from service.work.runs.schemas import RunCreate, RunWarning
from service.work.runs.why import nothing_there

SHOWN = 5


def check_class(session: Session, body: RunCreate, target: str) -> None:
    """Raises: Invalid for a class that no device of the farm has, with near names and those that there are, and for one
    whose devices do not run the bundle's target."""
    if body.device_class is None or body.allow_waiting:
        return
    class_names = classes(session)
    if body.device_class in class_names:
        _check_target(session, body.device_class, target)
        return
    near = difflib.get_close_matches(body.device_class, class_names, n=2, cutoff=0.5)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    there = f"it has {', '.join(class_names)}" if class_names else "it has no devices yet"
    raise Invalid(
        "run.device-class-unknown",
        f"no device of this farm is of class {body.device_class!r:.100}; {there}",
        where="device_class",
        hint=f"{meant}or say `allow_waiting` to wait for such a device",
    )


def _check_target(session: Session, device_class: str, target: str) -> None:
    query = select(Device.targets).where(Device.device_class == device_class, Device.state != "removed")
    run = sorted({name for targets in session.scalars(query.limit(MOST_DEVICES)) for name in targets})
    if target not in run:
        raise Invalid(
            "run.device-class-target",
            f"devices of class {device_class} run {', '.join(run) or 'nothing'}, the bundle is for {target}",
            where="device_class",
            hint="compile for a target that they run, "
            "name another class, or say `allow_waiting` to wait for such a device",
        )


def wants_of(session: Session, body: RunCreate) -> tuple[str, ...]:
    """Returns the tags, local data set and mode that the request asks for. Raises: Invalid for what nobody offers,
    unless it may wait.
    """
    requirements = wants.wants_of(body.where, body.own_data, body.mode)
    if not body.allow_waiting:
        wants.check_known(session, requirements)
    return requirements


def warnings_of(session: Session, settings: Settings, run: Run) -> list[RunWarning]:
    """Returns a warning if a run that was just queued has to wait for a device, with the devices that there are; empty
    if one fits now.
    """
    wish = Wish.of(session, run)
    if has_one(session, settings, wish):
        return []
    devices = standings(session, settings, wish, run)
    listing = "; ".join(f"{standing.device.name} {standing.message}" for standing in devices[:SHOWN])
    more = f"; and {len(devices) - SHOWN} more" if len(devices) > SHOWN else ""
    message = listing + more if devices else nothing_there(run.wanted_device_class, run.target)
    where = "device" if run.wanted_device_id else "device_class" if run.wanted_device_class else "target"
    expires_in = format_duration(settings.queue_s)
    hint = f"it is queued, and expires in {expires_in} if none takes it; `pockfarm why {run.id}` says more"
    return [RunWarning(code="run.waits", where=where, message=f"no device can take it now: {message}", hint=hint)]
