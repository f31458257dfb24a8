"""The addresses of `/dashboard/admin`. Each form calls the endpoint of the API that does what it asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from sqlalchemy.orm import Session

from service.base.problems import Problem
from service.boards.fleet import endpoints as device_endpoints
from service.boards.installation.endpoints import farm_address
from service.boards.releases import endpoints as release_endpoints
from service.boards.releases.schemas import HaltRequest, Stage
from service.dashboard import addresses, forms, render, visitors
from service.dashboard.asked import OfRow
from service.dashboard.forms import Form, Typed, TypedDep
from service.dashboard.pages.admin import enrolment, keys, organisations, people, releases, webhooks, windows
from service.dashboard.pages.admin.index import entries
from service.dashboard.pages.admin.listing import FIRST, Asked
from service.dashboard.pages.admin.part import AdminPart, Made, path
from service.devices.maintenance import endpoints as window_endpoints
from service.operations.organisations import endpoints as organisation_endpoints
from service.operations.webhooks import endpoints as webhook_endpoints
from service.people.access import FarmDep, PrincipalDep, WholeFarmDep
from service.people.keys import endpoints as key_endpoints
from service.people.keys.schemas import KeyCreate
from service.people.permissions import SCOPES
from service.people.users import endpoints as user_endpoints
from service.store.farm import Farm

router = APIRouter(prefix=f"{addresses.ROOT}/admin", dependencies=[Depends(visitors.meet)], include_in_schema=False)
Part = Callable[[Session, Asked, Form | None, Made | None], AdminPart]
Find = Annotated[str, Query(max_length=200)]
BeforeKey = Annotated[str, Query(max_length=200), OfRow("before", "key")]
BeforeTok = Annotated[str, Query(max_length=200), OfRow("before", "tok")]
BeforeUsr = Annotated[str, Query(max_length=200), OfRow("before", "usr")]
BeforeOrg = Annotated[str, Query(max_length=200), OfRow("before", "org")]
BeforeMnt = Annotated[str, Query(max_length=200), OfRow("before", "mnt")]
BeforeRel = Annotated[str, Query(max_length=200), OfRow("before", "rel")]
BeforeHook = Annotated[str, Query(max_length=200), OfRow("before", "hook")]


def _page(
    farm: Farm, part: Part, asked: Asked = FIRST, form: Form | None = None, made: Made | None = None, status: int = 200
) -> Response:
    with farm.database.read() as session:
        return render.page("admin_part.html", status, page=part(session, asked, form, made), section="admin")


def _taken(farm: Farm, part: Part, typed: Typed, act: Callable[[], Made | str], name: str) -> Response:
    """What a form asks for, done: a page that shows a secret, or one that says so; else the form as it was typed."""
    try:
        came_of_it = act()
    except Problem as problem:
        with farm.database.read() as session:
            form = part(session, FIRST, None, None).forms[0].refused(typed, problem)
        return _page(farm, part, form=form, status=problem.status_code)
    if isinstance(came_of_it, str):
        return forms.done(path(name), came_of_it)
    return _page(farm, part, made=came_of_it, status=201)


@router.get("")
def show_admin() -> Response:
    """What there is."""
    return render.page("admin.html", entries=entries(visitors.current()), section="admin")


@router.get("/keys")
def show_keys(farm: FarmDep, find: Find = "", before: BeforeKey = "") -> Response:
    """API keys of the organisation."""
    return _page(farm, keys.part, Asked(find, before))


@router.post("/keys")
def make_key(typed: TypedDep, farm: FarmDep) -> Response:
    """Make one: the answer shows its secret, and nothing else ever does."""
    return _taken(farm, keys.part, typed, lambda: keys.made(key_endpoints.create_key(keys.body(typed), farm)), "keys")


@router.post("/keys/{key_id}/revoke")
def revoke_key(key_id: str, _: TypedDep, farm: FarmDep) -> Response:
    """Revoke one."""
    revoked = key_endpoints.revoke_key(key_id, farm)
    return forms.done(path("keys"), f"The key {revoked.name} is revoked: it stopped working")


@router.get("/enrolment")
def show_enrolment(farm: FarmDep, find: Find = "", before: BeforeTok = "") -> Response:
    """Enrolment tokens."""
    return _page(farm, enrolment.part, Asked(find, before))


@router.post("/enrolment")
def make_enrolment_token(request: Request, typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Make one: the answer shows the line to paste on the board."""

    def make() -> Made:
        address = farm_address(farm.settings.public_url, str(request.base_url))
        made = device_endpoints.create_enrolment_token(enrolment.body(typed), farm, principal)
        return enrolment.made(made, address)

    return _taken(farm, enrolment.part, typed, make, "enrolment")


@router.post("/enrolment/{token_id}/revoke")
def revoke_enrolment_token(token_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Revoke one."""
    revoked = device_endpoints.revoke_enrolment_token(token_id, farm, principal)
    return forms.done(path("enrolment"), f"The token {revoked.name or revoked.id} lets no more boards in")


@router.get("/people")
def show_people(farm: FarmDep, find: Find = "", before: BeforeUsr = "") -> Response:
    """People of the organisation."""
    return _page(farm, people.part, Asked(find, before))


@router.post("/people")
def add_person(typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Add one."""

    def add() -> str:
        return f"{user_endpoints.create_user(people.body(typed), farm, principal).name} is added"

    return _taken(farm, people.part, typed, add, "people")


@router.post("/people/{user_id}/remove")
def remove_person(user_id: str, _: TypedDep, farm: FarmDep) -> Response:
    """Remove one: no key of theirs is taken any more."""
    return forms.done(path("people"), f"{user_endpoints.remove_user(user_id, farm).name} is removed, with all keys")


@router.get("/organisations")
def show_organisations(farm: WholeFarmDep, find: Find = "", before: BeforeOrg = "") -> Response:
    """Tenants of the farm."""
    return _page(farm, organisations.part, Asked(find, before))


@router.post("/organisations")
def found_organisation(typed: TypedDep, farm: WholeFarmDep, principal: PrincipalDep) -> Response:
    """Found one: the answer shows its administrator's key."""

    def found() -> Made:
        one = organisation_endpoints.create_organisation(organisations.body(typed), farm, principal)
        first = KeyCreate(name="administrator", scopes=list(SCOPES))
        return organisations.made(
            one.name, organisation_endpoints.create_key_of_organisation(one.id, first, farm, principal)
        )

    return _taken(farm, organisations.part, typed, found, "organisations")


@router.post("/organisations/{organisation_id}/close")
def close_organisation(organisation_id: str, _: TypedDep, farm: WholeFarmDep, principal: PrincipalDep) -> Response:
    """Close one."""
    closed = organisation_endpoints.close_organisation(organisation_id, farm, principal)
    return forms.done(path("organisations"), f"The organisation {closed.name} is closed")


@router.get("/windows")
def show_windows(farm: FarmDep, find: Find = "", before: BeforeMnt = "") -> Response:
    """Maintenance windows."""
    return _page(farm, windows.part, Asked(find, before))


@router.post("/windows")
def plan_window(typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Plan one."""

    def plan() -> str:
        window_endpoints.create_window(windows.body(typed), farm, principal)
        return "The window is planned"

    return _taken(farm, windows.part, typed, plan, "windows")


@router.post("/windows/{window_id}/remove")
def remove_window(window_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Take one away."""
    window_endpoints.remove_window(window_id, farm, principal)
    return forms.done(path("windows"), "The window is gone: what it held back may start")


@router.get("/releases")
def show_releases(farm: FarmDep, find: Find = "", before: BeforeRel = "") -> Response:
    """Releases of the agent."""
    return _page(farm, releases.part, Asked(find, before))


@router.post("/releases")
def offer_release(typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Offer the farm's own agent."""

    def offer() -> str:
        return f"Agent {release_endpoints.create_release(releases.body(typed), farm, principal).version} is offered"

    return _taken(farm, releases.part, typed, offer, "releases")


@router.post("/releases/{release_id}/widen")
def widen_release(release_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Offer one to all devices that it is for."""
    wider = release_endpoints.widen_release(release_id, Stage(), farm, principal)
    return forms.done(path("releases"), f"Agent {wider.version} is offered to all devices that it is for")


@router.post("/releases/{release_id}/halt")
def halt_release(release_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Halt one."""
    reason = HaltRequest(reason="halted on the dashboard")
    halted = release_endpoints.halt_release(release_id, reason, farm, principal)
    return forms.done(path("releases"), f"Agent {halted.version} is offered to no more devices")


@router.get("/webhooks")
def show_webhooks(farm: FarmDep, find: Find = "", before: BeforeHook = "") -> Response:
    """Who is told."""
    return _page(farm, webhooks.part, Asked(find, before))


@router.post("/webhooks")
def add_webhook(typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Tell one more: the answer shows the secret of its signatures."""

    def add() -> Made:
        return webhooks.made(webhook_endpoints.create_webhook(webhooks.body(typed), farm, principal))

    return _taken(farm, webhooks.part, typed, add, "webhooks")


@router.post("/webhooks/{webhook_id}/remove")
def remove_webhook(webhook_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Tell one no more."""
    removed = webhook_endpoints.remove_webhook(webhook_id, farm, principal)
    return forms.done(path("webhooks"), f"{removed.url} is told nothing more")


@router.post("/webhooks/{webhook_id}/test")
async def send_test(webhook_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Send one a test, and say what came of it."""
    delivery = await webhook_endpoints.send_test(webhook_id, farm, principal)
    is_bad = delivery.state != "delivered"
    return forms.done(path("webhooks"), webhooks.outcome(delivery), "bad" if is_bad else "good")
