"""The addresses of `/dashboard/admin`. Each form calls the endpoint of the API that does what it asks for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from service.boards.fleet import endpoints as device_endpoints
from service.boards.installation.endpoints import farm_address
from service.boards.releases import endpoints as release_endpoints
from service.boards.releases.schemas import HaltRequest, Stage
from service.dashboard import addresses, forms, render, visitors
from service.dashboard.admin_forms import Find, part_page, submit_form
from service.dashboard.forms import TypedDep
from service.dashboard.pages.admin import enrolment, keys, organisations, people, releases, windows
from service.dashboard.pages.admin.index import entries
from service.dashboard.pages.admin.listing import ListQuery
from service.dashboard.pages.admin.part import CreationNotice, path
from service.dashboard.query_values import OfRow
from service.devices.maintenance import endpoints as window_endpoints
from service.operations.organisations import endpoints as organisation_endpoints
from service.people.access import FarmDep, PrincipalDep, WholeFarmDep
from service.people.keys import endpoints as key_endpoints
from service.people.keys.schemas import KeyCreate
from service.people.permissions import SCOPES
from service.people.users import endpoints as user_endpoints

router = APIRouter(prefix=f"{addresses.ROOT}/admin", dependencies=[Depends(visitors.meet)], include_in_schema=False)
BeforeKey = Annotated[str, Query(max_length=200), OfRow("before", "key")]
BeforeTok = Annotated[str, Query(max_length=200), OfRow("before", "tok")]
BeforeUsr = Annotated[str, Query(max_length=200), OfRow("before", "usr")]
BeforeOrg = Annotated[str, Query(max_length=200), OfRow("before", "org")]
BeforeMnt = Annotated[str, Query(max_length=200), OfRow("before", "mnt")]
BeforeRel = Annotated[str, Query(max_length=200), OfRow("before", "rel")]


@router.get("")
def show_admin(farm: FarmDep) -> Response:
    """Shows the pages of the administration."""
    return render.page("admin.html", entries=entries(visitors.current(), farm), section="admin")


@router.get("/keys")
def show_keys(farm: FarmDep, find: Find = "", before: BeforeKey = "") -> Response:
    """Shows the API keys of the organisation."""
    return part_page(farm, keys.part, ListQuery(find, before))


@router.post("/keys")
def make_key(typed: TypedDep, farm: FarmDep) -> Response:
    """Creates an API key. The answer shows its secret, which is shown nowhere else."""
    return submit_form(
        farm, keys.part, typed, lambda: keys.creation_notice(key_endpoints.create_key(keys.body(typed), farm)), "keys"
    )


@router.post("/keys/{key_id}/revoke")
def revoke_key(key_id: str, _: TypedDep, farm: FarmDep) -> Response:
    """Revokes an API key."""
    revoked = key_endpoints.revoke_key(key_id, farm)
    return forms.redirect_with_notice(path("keys"), f"The key {revoked.name} is revoked: it stopped working")


@router.get("/enrolment")
def show_enrolment(farm: FarmDep, find: Find = "", before: BeforeTok = "") -> Response:
    """Shows the enrolment tokens."""
    return part_page(farm, enrolment.part, ListQuery(find, before))


@router.post("/enrolment")
def make_enrolment_token(request: Request, typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Creates an enrolment token. The answer shows the line to paste on the board."""

    def make() -> CreationNotice:
        address = farm_address(farm.settings.public_url, str(request.base_url))
        created = device_endpoints.create_enrolment_token(enrolment.body(typed), farm, principal)
        return enrolment.creation_notice(created, address)

    return submit_form(farm, enrolment.part, typed, make, "enrolment")


@router.post("/enrolment/{token_id}/revoke")
def revoke_enrolment_token(token_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Revokes an enrolment token."""
    revoked = device_endpoints.revoke_enrolment_token(token_id, farm, principal)
    return forms.redirect_with_notice(
        path("enrolment"), f"The token {revoked.name or revoked.id} lets no more boards in"
    )


@router.get("/people")
def show_people(farm: FarmDep, find: Find = "", before: BeforeUsr = "") -> Response:
    """Shows the people of the organisation."""
    return part_page(farm, people.part, ListQuery(find, before))


@router.post("/people")
def add_person(typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Adds a person."""

    def add() -> str:
        return f"{user_endpoints.create_user(people.body(typed), farm, principal).name} is added"

    return submit_form(farm, people.part, typed, add, "people")


@router.post("/people/{user_id}/remove")
def remove_person(user_id: str, _: TypedDep, farm: FarmDep) -> Response:
    """Removes a person: none of the person's keys is accepted any more."""
    return forms.redirect_with_notice(
        path("people"), f"{user_endpoints.remove_user(user_id, farm).name} is removed, with all keys"
    )


@router.get("/organisations")
def show_organisations(farm: WholeFarmDep, find: Find = "", before: BeforeOrg = "") -> Response:
    """Shows the tenants of the farm."""
    return part_page(farm, organisations.part, ListQuery(find, before))


@router.post("/organisations")
def found_organisation(typed: TypedDep, farm: WholeFarmDep, principal: PrincipalDep) -> Response:
    """Creates a tenant. The answer shows its administrator's key."""

    def create() -> CreationNotice:
        organisation = organisation_endpoints.create_organisation(organisations.body(typed), farm, principal)
        first = KeyCreate(name="administrator", scopes=list(SCOPES))
        return organisations.creation_notice(
            organisation.name,
            organisation_endpoints.create_key_of_organisation(organisation.id, first, farm, principal),
        )

    return submit_form(farm, organisations.part, typed, create, "organisations")


@router.post("/organisations/{organisation_id}/close")
def close_organisation(organisation_id: str, _: TypedDep, farm: WholeFarmDep, principal: PrincipalDep) -> Response:
    """Closes a tenant."""
    closed = organisation_endpoints.close_organisation(organisation_id, farm, principal)
    return forms.redirect_with_notice(path("organisations"), f"The organisation {closed.name} is closed")


@router.get("/windows")
def show_windows(farm: FarmDep, find: Find = "", before: BeforeMnt = "") -> Response:
    """Shows the maintenance windows."""
    return part_page(farm, windows.part, ListQuery(find, before))


@router.post("/windows")
def plan_window(typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Plans a maintenance window."""

    def plan() -> str:
        window_endpoints.create_window(windows.body(typed), farm, principal)
        return "The window is planned"

    return submit_form(farm, windows.part, typed, plan, "windows")


@router.post("/windows/{window_id}/remove")
def remove_window(window_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Removes a maintenance window."""
    window_endpoints.remove_window(window_id, farm, principal)
    return forms.redirect_with_notice(path("windows"), "The window is gone: what it held back may start")


@router.get("/releases")
def show_releases(farm: FarmDep, find: Find = "", before: BeforeRel = "") -> Response:
    """Shows the releases of the agent."""
    return part_page(farm, releases.part, ListQuery(find, before))


@router.post("/releases")
def offer_release(typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Offers the farm's agent."""

    def offer() -> str:
        return f"Agent {release_endpoints.create_release(releases.body(typed), farm, principal).version} is offered"

    return submit_form(farm, releases.part, typed, offer, "releases")


@router.post("/releases/{release_id}/widen")
def widen_release(release_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Offers a release to all devices that it is for."""
    wider = release_endpoints.widen_release(release_id, Stage(), farm, principal)
    return forms.redirect_with_notice(
        path("releases"), f"Agent {wider.version} is offered to all devices that it is for"
    )


@router.post("/releases/{release_id}/halt")
def halt_release(release_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Halts a release."""
    reason = HaltRequest(reason="halted on the dashboard")
    halted = release_endpoints.halt_release(release_id, reason, farm, principal)
    return forms.redirect_with_notice(path("releases"), f"Agent {halted.version} is offered to no more devices")
