"""The actions of operators on a device's page. Each form calls the endpoint of the API that does it."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from service.base.problems import Forbidden, NotFound, Problem
from service.boards.fleet import endpoints
from service.boards.fleet.schemas import CanaryChange, DeviceChange, StateChange, TagsChange
from service.dashboard import addresses, forms, queries, render, visitors
from service.dashboard.forms import Typed, TypedDep
from service.dashboard.pages.device_actions import doings, tags_change
from service.dashboard.pages.devices import device_page
from service.devices import service
from service.people.access import FarmDep, PrincipalDep
from service.store.farm import Farm

router = APIRouter(
    prefix=addresses.ROOT + "/devices/{device_id}", dependencies=[Depends(visitors.meet)], include_in_schema=False
)


def _submit(farm: Farm, device_id: str, form_id: str, typed: Typed, act: Callable[[], str]) -> Response:
    """Does what a form asks for; on a refusal, shows the page again with the form as it was typed."""
    try:
        message = act()
    except (NotFound, Forbidden):
        raise
    except Problem as problem:
        return _refused(farm, device_id, form_id, typed, problem)
    return forms.redirect_with_notice(addresses.device(device_id), message)


def _refused(farm: Farm, device_id: str, form_id: str, typed: Typed, problem: Problem) -> Response:
    with farm.database.read() as session:
        row, facts = service.find(session, device_id), queries.device(session, device_id)
        offered = doings(row, facts).refused(form_id, typed, problem) if facts else None
        page = device_page(session, farm.settings, device_id, offered)
        return render.page("device.html", problem.status_code, page=page, section="devices")


@router.post("/rename")
def rename(device_id: str, typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Gives a device another name."""

    def change() -> str:
        body = forms.body_of(DeviceChange, {"name": typed.text("name")})
        return f"It is called {endpoints.rename_device(device_id, body, farm, principal).name}"

    return _submit(farm, device_id, "rename", typed, change)


@router.post("/tags")
def set_tags(device_id: str, typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Replaces a device's tags with these."""

    def change() -> str:
        with farm.database.read() as session:
            change = tags_change(service.find(session, device_id), typed)
        return f"{endpoints.change_tags(device_id, forms.body_of(TagsChange, change), farm, principal).name} is tagged"

    return _submit(farm, device_id, "tags", typed, change)


@router.post("/drain")
def drain(device_id: str, typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Drains a device: it gets nothing new."""

    def begin() -> str:
        body = forms.body_of(StateChange, typed.given("reason"))
        return f"{endpoints.drain_device(device_id, body, farm, principal).name} gets nothing new"

    return _submit(farm, device_id, "drain", typed, begin)


@router.post("/quarantine")
def quarantine(device_id: str, typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Quarantines a device: it gets no work until it is released."""

    def begin() -> str:
        body = forms.body_of(StateChange, typed.given("reason"))
        return f"{endpoints.quarantine_device(device_id, body, farm, principal).name} is quarantined"

    return _submit(farm, device_id, "quarantine", typed, begin)


@router.post("/release")
def release(device_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Gives a quarantined device work again, and clears its strikes."""
    released = endpoints.release_device(device_id, StateChange(reason="on the dashboard"), farm, principal)
    return forms.redirect_with_notice(addresses.device(device_id), f"{released.name} is released: it gets work again")


@router.post("/resume")
def resume(device_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Gives a drained device work again."""
    resumed = endpoints.resume_device(device_id, farm, principal)
    return forms.redirect_with_notice(addresses.device(device_id), f"{resumed.name} gets work again")


@router.post("/canary")
def set_canary(device_id: str, typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Sets whether canary runs may bring a device back."""
    changed = endpoints.set_canary(device_id, CanaryChange(enabled=typed.text("enabled") == "yes"), farm, principal)
    words = "gets no canary runs" if changed.canary_off else "gets canary runs"
    return forms.redirect_with_notice(addresses.device(device_id), f"{changed.name} {words}")


@router.post("/remove")
def remove(device_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Removes a device for ever."""
    removed = endpoints.remove_device(device_id, farm, principal)
    return forms.redirect_with_notice(addresses.page("devices"), f"{removed.name} is removed")
