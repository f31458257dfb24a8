"""`/devices`: what is enrolled, and what operators decide about it."""

from __future__ import annotations

from fastapi import APIRouter

from service.access import FarmDep, OperatorDep, PrincipalDep
from service.devices import service
from service.devices.marks import marks_of
from service.devices.schemas import (
    CanaryChange,
    DeviceDetail,
    DeviceEventView,
    DeviceView,
    EnrolmentTokenCreate,
    EnrolmentTokenCreated,
    StateChange,
)
from service.farm import Farm
from service.pagination import Cursor, Limit, Page

router = APIRouter(prefix="/devices", tags=["devices"])


@router.post("/enrolment-tokens", status_code=201)
def create_enrolment_token(body: EnrolmentTokenCreate, farm: FarmDep, _: OperatorDep) -> EnrolmentTokenCreated:
    """Make a one-time token that lets one device enrol within 15 minutes."""
    with farm.database.transaction() as session:
        token, expires_at = service.create_enrolment_token(
            session, device_class=body.device_class, lifetime_s=farm.settings.enrolment_token_s
        )
    return EnrolmentTokenCreated(token=token, device_class=body.device_class, expires_at=expires_at)


@router.get("")
def list_devices(
    farm: FarmDep, _: PrincipalDep, state: str | None = None, device_class: str | None = None,
    measurement_class: str | None = None, limit: Limit = 50, cursor: Cursor = None,
) -> Page[DeviceView]:  # fmt: skip
    """Devices, the newest first."""
    filters = {"state": state, "device_class": device_class, "measurement_class": measurement_class}
    with farm.database.read() as session:
        rows, following = service.newest_devices(session, filters, limit=limit, cursor=cursor)
        return Page(items=[DeviceView.model_validate(row) for row in rows], next=following)


@router.get("/{device_id}")
def show_device(device_id: str, farm: FarmDep, _: PrincipalDep) -> DeviceDetail:
    """One device and its health history."""
    with farm.database.read() as session:
        found = service.find(session, device_id)
        device, marks = DeviceView.model_validate(found), marks_of(session, found)
        lines = [DeviceEventView.model_validate(line) for line in service.history(session, device_id)]
    return DeviceDetail(**device.model_dump(), marks=marks, history=lines)


@router.post("/{device_id}/quarantine")
def quarantine_device(device_id: str, body: StateChange, farm: FarmDep, _: OperatorDep) -> DeviceView:
    """Give a device no more work until it is released. What it works on now goes on."""
    return _set_state(farm, device_id, "quarantined", body.reason)


@router.post("/{device_id}/release")
def release_device(device_id: str, body: StateChange, farm: FarmDep, _: OperatorDep) -> DeviceView:
    """Give a quarantined device work again; its strikes are forgotten."""
    return _set_state(farm, device_id, "active", body.reason)


@router.post("/{device_id}/canary")
def set_canary(device_id: str, body: CanaryChange, farm: FarmDep, _: OperatorDep) -> DeviceView:
    """Say whether canary runs may bring the device back when strikes have quarantined it; enabled: one comes soon."""
    with farm.database.transaction() as session:
        return DeviceView.model_validate(service.set_canary(session, device_id, enabled=body.enabled))


@router.delete("/{device_id}")
def remove_device(device_id: str, farm: FarmDep, _: OperatorDep) -> DeviceView:
    """Revoke a device for ever: its credential stops working at once."""
    return _set_state(farm, device_id, "removed", "removed by an operator")


def _set_state(farm: Farm, device_id: str, state: str, reason: str) -> DeviceView:
    with farm.database.transaction() as session:
        return DeviceView.model_validate(service.set_state(session, device_id, state, reason))
