"""`/devices`: what is enrolled, and what operators decide about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from fastapi import APIRouter
from sqlalchemy.orm import Session

from device_agents.wire import MeasurementClass
from service.base.pagination import Cursor, Limit, Page
from service.base.schemas import columns
from service.boards.fleet import tokens
from service.boards.fleet.marks import marks_of
from service.boards.fleet.schemas import (
    CanaryChange,
    ConditionView,
    DeviceChange,
    DeviceDetail,
    DeviceEventView,
    DeviceView,
    EnrolmentTokenCreate,
    EnrolmentTokenCreated,
    EnrolmentTokenDetail,
    EnrolmentTokenView,
    EnrolmentUseView,
    HoldView,
    StateChange,
    TagsChange,
)
from service.devices import service
from service.devices.clocks import clock_s
from service.devices.conditions import condition_of
from service.devices.health import busy_devices, health_of
from service.devices.machines import ON_TWO_MACHINES, refused_lately
from service.devices.maintenance.standing import Calendar
from service.devices.renaming import rename
from service.people.access import FarmDep, PrincipalDep
from service.people.idempotency import EVERY_TIME, RepeatsDep
from service.people.query import check_value
from service.people.quotas import limits as quotas
from service.store.database.models import DEVICE_STATES, Device
from service.store.farm import Farm

router = APIRouter(prefix="/devices", tags=["devices"])


@router.post("/enrolment-tokens", status_code=201)
def create_enrolment_token(
    body: EnrolmentTokenCreate, farm: FarmDep, _: PrincipalDep, repeats: RepeatsDep = EVERY_TIME
) -> EnrolmentTokenCreated:
    """Creates a token with which devices enrol: one device within 15 minutes, or as many and for as long as the request
    asks.
    """

    def create() -> EnrolmentTokenCreated:
        quotas.check(session, farm.settings, "devices")
        token = tokens.create(session, farm.settings, body)
        view = EnrolmentTokenView.model_validate(token.row)
        return EnrolmentTokenCreated(**view.model_dump(), token=token.secret)

    with farm.database.transaction() as session:
        return repeats.once(session, body, EnrolmentTokenCreated, create, shows_secret=True)


@router.get("/enrolment-tokens")
def list_enrolment_tokens(
    farm: FarmDep, _: PrincipalDep, limit: Limit = 50, cursor: Cursor = None
) -> Page[EnrolmentTokenView]:
    """Lists enrolment tokens, the newest first; those that ran out or were revoked too, for a season."""
    with farm.database.read() as session:
        rows, following = tokens.listed(session, limit=limit, cursor=cursor)
        return Page(items=[EnrolmentTokenView.model_validate(row) for row in rows], next=following)


@router.get("/enrolment-tokens/{token_id}")
def show_enrolment_token(token_id: str, farm: FarmDep, _: PrincipalDep) -> EnrolmentTokenDetail:
    """Returns a token, and the devices that used it."""
    with farm.database.read() as session:
        token = tokens.find(session, token_id)
        used_by = [
            EnrolmentUseView(
                device_id=device.id, name=device.name, device_class=device.device_class, state=device.state, at=use.at
            )
            for use, device in tokens.users(session, token)
        ]
        return EnrolmentTokenDetail(**EnrolmentTokenView.model_validate(token).model_dump(), used_by=used_by)


@router.delete("/enrolment-tokens/{token_id}")
def revoke_enrolment_token(token_id: str, farm: FarmDep, _: PrincipalDep) -> EnrolmentTokenView:
    """Revokes a token: no more devices enrol with it, and those that have enrolled stay."""
    with farm.database.transaction() as session:
        return EnrolmentTokenView.model_validate(tokens.revoke(session, token_id))


@router.get("")
def list_devices(
    farm: FarmDep,
    _: PrincipalDep,
    state: str | None = None,
    device_class: str | None = None,
    measurement_class: str | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[DeviceView]:
    """Lists devices, the newest first."""
    check_value("state", state, DEVICE_STATES)
    check_value("measurement_class", measurement_class, get_args(MeasurementClass))
    filters = {"state": state, "device_class": device_class, "measurement_class": measurement_class}
    with farm.database.read() as session:
        rows, following = service.newest_devices(session, filters, limit=limit, cursor=cursor)
        return Page(items=_views(session, rows), next=following)


@router.get("/{device_id}")
def show_device(device_id: str, farm: FarmDep, _: PrincipalDep) -> DeviceDetail:
    """Returns a device; for its owner, with its health history and what is odd about its results."""
    with farm.database.read() as session:
        row = service.find(session, device_id)
        device = _view(session, row)
        condition = condition_of(session, device_id)
        marks = marks_of(session, row, condition) if service.is_own(session, row) else []
        lines = [DeviceEventView.model_validate(line) for line in service.history(session, device_id)]
        hold = Calendar.read(session).hold(row, clock_s(farm.settings, row))
        return DeviceDetail(
            **device.model_dump(),
            marks=marks,
            history=lines,
            working_on=service.working_on(session, device_id),
            hold=HoldView.model_validate(hold) if hold else None,
            condition=ConditionView.model_validate(condition) if condition else None,
        )


@router.patch("/{device_id}")
def rename_device(device_id: str, body: DeviceChange, farm: FarmDep, _: PrincipalDep) -> DeviceView:
    """Gives a device another name, which no other device of its organisation has. Names that its agent sends are
    ignored from then on.
    """
    with farm.database.transaction() as session:
        return _view(session, rename(session, device_id, body.name))


@router.post("/{device_id}/quarantine")
def quarantine_device(device_id: str, body: StateChange, farm: FarmDep, _: PrincipalDep) -> DeviceView:
    """Gives a device no more work until it is released. Work that it has now goes on."""
    return _set_state(farm, device_id, "quarantined", body.reason)


@router.post("/{device_id}/release")
def release_device(device_id: str, body: StateChange, farm: FarmDep, _: PrincipalDep) -> DeviceView:
    """Gives a quarantined device work again, and clears its strikes."""
    return _set_state(farm, device_id, "active", body.reason)


@router.post("/{device_id}/drain")
def drain_device(device_id: str, body: StateChange, farm: FarmDep, _: PrincipalDep) -> DeviceView:
    """Lets a device finish its current work and gives it nothing new. `working_on` shows when it is done."""
    with farm.database.transaction() as session:
        return _view(session, service.set_drained(session, device_id, reason=body.reason))


@router.post("/{device_id}/resume")
def resume_device(device_id: str, farm: FarmDep, _: PrincipalDep) -> DeviceView:
    """Gives a drained device work again."""
    with farm.database.transaction() as session:
        return _view(session, service.set_drained(session, device_id, reason=None))


@router.post("/{device_id}/tags")
def change_tags(device_id: str, body: TagsChange, farm: FarmDep, _: PrincipalDep) -> DeviceView:
    """Sets tags of a device, or removes them; runs ask for them with `where`."""
    with farm.database.transaction() as session:
        changed = service.change_tags(session, device_id, add=body.set, remove=body.remove)
        return _view(session, changed)


@router.post("/{device_id}/canary")
def set_canary(device_id: str, body: CanaryChange, farm: FarmDep, _: PrincipalDep) -> DeviceView:
    """Sets whether canary runs may bring the device back when strikes have quarantined it. If enabled, one comes
    soon.
    """
    with farm.database.transaction() as session:
        return _view(session, service.set_canary(session, device_id, enabled=body.enabled))


@router.delete("/{device_id}")
def remove_device(device_id: str, farm: FarmDep, _: PrincipalDep) -> DeviceView:
    """Revokes a device for ever: its credential stops working at once."""
    return _set_state(farm, device_id, "removed", "removed by an operator")


def _view(session: Session, device: Device) -> DeviceView:
    return _views(session, [device])[0]


def _views(session: Session, devices: Sequence[Device]) -> list[DeviceView]:
    ids = [device.id for device in devices]
    busy, refused = busy_devices(session, ids), refused_lately(session, ids)
    return [
        DeviceView(
            **columns(DeviceView, device),
            health=health_of(device, is_busy=device.id in busy),
            notice=ON_TWO_MACHINES if device.id in refused else "",
        )
        for device in devices
    ]


def _set_state(farm: Farm, device_id: str, state: str, reason: str) -> DeviceView:
    with farm.database.transaction() as session:
        return _view(session, service.set_state(session, device_id, state, reason))
