"""`/keys` (administrators) and one-time dashboard links."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from service.base.problems import Forbidden, NotFound
from service.base.settings import Settings
from service.people.access import COOKIE, FarmDep, PrincipalDep, WholeFarmDep
from service.people.audit.command_entries import address_of
from service.people.idempotency import EVERY_TIME, RepeatsDep
from service.people.keys import service
from service.people.keys.schemas import KeyCreate, KeyCreated, KeyView, LinkCreated, key_view
from service.people.quotas import limits as quotas
from service.people.users import service as users

router = APIRouter(tags=["keys"])
PAGE = r"^/(dashboard(/[A-Za-z0-9_][A-Za-z0-9_.:-]*)*)?$"
"""Pattern of pages of this farm only: a link leads to no other place, whoever made its address longer."""
To = Annotated[str, Query(max_length=300, pattern=PAGE, description="The page of the dashboard that it leads to")]


@router.post("/keys", status_code=201)
def create_key(body: KeyCreate, farm: FarmDep, repeats: RepeatsDep = EVERY_TIME) -> KeyCreated:
    """Creates an API key of the caller's organisation. The secret is in this answer and nowhere else."""

    def create() -> KeyCreated:
        return make_key(session, farm.settings, body)

    with farm.database.transaction() as session:
        return repeats.once(session, body, KeyCreated, create, shows_secret=True)


def make_key(session: Session, settings: Settings, body: KeyCreate) -> KeyCreated:
    """Creates the key that the request asks for, in the session's organisation. Raises: NotFound (the person),
    Forbidden.
    """
    quotas.check(session, settings, "keys")
    if body.user is not None:
        users.find(session, body.user, where="user")
    key, secret = service.create_key(
        session,
        name=body.name,
        role=body.role or "user",
        scopes=body.scopes,
        user_id=body.user,
        lifetime_s=body.lifetime_s,
    )
    return KeyCreated(**key_view(key).model_dump(mode="python"), secret=secret)


@router.get("/keys")
def list_keys(farm: FarmDep) -> list[KeyView]:
    """Lists every key of the organisation, revoked ones too."""
    with farm.database.read() as session:
        return [key_view(key) for key in service.list_keys(session)]


@router.delete("/keys/{key_id}")
def revoke_key(key_id: str, farm: FarmDep) -> KeyView:
    """Revokes a key, and every dashboard session that was opened with it."""
    with farm.database.transaction() as session:
        key = service.revoke_key(session, key_id)
        if key is None:
            raise NotFound("key.unknown", f"no key {key_id!r:.60}", hint="GET /keys lists them")
        return key_view(key)


@router.post("/dashboard/links", status_code=201)
def create_link(farm: FarmDep, principal: PrincipalDep, repeats: RepeatsDep = EVERY_TIME) -> LinkCreated:
    """Creates a link that opens the dashboard once, on behalf of the calling key."""

    def create() -> LinkCreated:
        token, expires_at = service.create_link(session, key_id=principal.key_id, lifetime_s=farm.settings.link_s)
        url = f"{farm.settings.public_url.rstrip('/')}/open/{token}"
        return LinkCreated(url=url, token=token, expires_at=expires_at)

    with farm.database.transaction() as session:
        return repeats.once(session, None, LinkCreated, create, shows_secret=True)


@router.get("/open/{token}", status_code=303, response_class=RedirectResponse)
def open_link(
    request: Request, token: Annotated[str, Path(max_length=200)], farm: WholeFarmDep, to: To = "/"
) -> Response:
    """Uses up a one-time link: sets the dashboard's cookie and leads to the first page, or to another one."""
    with farm.database.transaction() as session:
        secret = service.open_link(session, token, lifetime_s=farm.settings.session_s, address=address_of(request))
    if secret is None:
        raise Forbidden(
            "link.used",
            "this link was used before, has expired, or never was",
            hint="`pockfarm link`, or POST /dashboard/links with an API key, makes another",
        )
    response = RedirectResponse(
        to, status_code=303, headers={"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    )
    response.set_cookie(
        COOKIE,
        secret,
        max_age=int(farm.settings.session_s),
        httponly=True,
        samesite="strict",
        secure=farm.settings.secure_cookies,
        path="/",
    )
    return response
