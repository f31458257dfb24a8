"""`/keys` (operators) and one-time dashboard links."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import RedirectResponse, Response

from service.access import COOKIE, FarmDep, OperatorDep, PrincipalDep
from service.keys import service
from service.keys.schemas import KeyCreate, KeyCreated, KeyView, LinkCreated
from service.problems import Forbidden, NotFound

router = APIRouter(tags=["keys"])


@router.post("/keys", status_code=201)
def create_key(body: KeyCreate, farm: FarmDep, _: OperatorDep) -> KeyCreated:
    """Make an API key. The secret is in this answer and nowhere else."""
    with farm.database.transaction() as session:
        key, secret = service.create_key(session, name=body.name, role=body.role)
        return KeyCreated(**KeyView.model_validate(key).model_dump(mode="python"), secret=secret)


@router.get("/keys")
def list_keys(farm: FarmDep, _: OperatorDep) -> list[KeyView]:
    """Every key, revoked ones too."""
    with farm.database.read() as session:
        return [KeyView.model_validate(key) for key in service.list_keys(session)]


@router.delete("/keys/{key_id}")
def revoke_key(key_id: str, farm: FarmDep, _: OperatorDep) -> KeyView:
    """Revoke a key, and every dashboard session that was opened with it."""
    with farm.database.transaction() as session:
        key = service.revoke_key(session, key_id)
        if key is None:
            raise NotFound("key.unknown", f"no key {key_id!r}", hint="GET /keys lists them")
        return KeyView.model_validate(key)


@router.post("/dashboard/links", status_code=201)
def create_link(farm: FarmDep, principal: PrincipalDep) -> LinkCreated:
    """Make a link that opens the dashboard once, on behalf of the calling key."""
    with farm.database.transaction() as session:
        token, expires_at = service.create_link(session, key_id=principal.key_id, lifetime_s=farm.settings.link_s)
    url = f"{farm.settings.public_url.rstrip('/')}/open/{token}"
    return LinkCreated(url=url, token=token, expires_at=expires_at)


@router.get("/open/{token}", status_code=303, response_class=RedirectResponse)
def open_link(token: Annotated[str, Path(max_length=200)], farm: FarmDep) -> Response:
    """Use up a one-time link: sets the dashboard's cookie and leads to the first page."""
    with farm.database.transaction() as session:
        secret = service.open_link(session, token, lifetime_s=farm.settings.session_s)
    if secret is None:
        raise Forbidden("link.used", "this link was used before, has expired, or never was",
                        hint="`pockfarm link`, or POST /dashboard/links with an API key, makes another")  # fmt: skip
    response = RedirectResponse(
        "/", status_code=303, headers={"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    )
    response.set_cookie(COOKIE, secret, max_age=int(farm.settings.session_s), httponly=True, samesite="strict",
                        secure=farm.settings.secure_cookies, path="/")  # fmt: skip
    return response
