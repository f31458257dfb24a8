"""Who is calling: an API key (`Authorization: Bearer`), or a browser that opened a one-time link (cookie).

A cookie may read. It may also post forms from the farm's own pages: the cookie is SameSite=Strict, and a writing
request must come from this origin by `Sec-Fetch-Site` or `Origin`.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from device_agents.wire.log_lines import note
from service.farm import Farm
from service.keys.service import Principal, principal_of_cookie, principal_of_key
from service.problems import Forbidden, Unauthenticated

COOKIE = "pockfarm_session"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_scheme = HTTPBearer(auto_error=False, scheme_name="ApiKey", description="An API key of this farm")


def farm_of(request: Request) -> Farm:
    """The farm of the application that serves `request`."""
    farm: Farm = request.app.state.farm
    return farm


FarmDep = Annotated[Farm, Depends(farm_of)]


def bearer_token(request: Request) -> str | None:
    """The token of `Authorization: Bearer`, or None."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def find_principal(request: Request, farm: Farm) -> Principal | None:
    """Who is calling, or None for a stranger. Raises: Forbidden for a form that another site posted."""
    token = bearer_token(request)
    if token is not None:
        with farm.database.read() as session:
            return principal_of_key(session, token)
    cookie = request.cookies.get(COOKIE)
    if not cookie:
        return None
    with farm.database.read() as session:
        principal = principal_of_cookie(session, cookie)
    if principal is not None and request.method not in _SAFE_METHODS and not _is_same_origin(request):
        raise Forbidden("auth.cross-site", "this form was not posted by a page of the farm",
                        hint="use an API key in `Authorization: Bearer` for programs")  # fmt: skip
    return principal


def _is_same_origin(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == request.headers.get("host")


def require_principal(request: Request, farm: FarmDep, _: Annotated[object, Depends(_scheme)]) -> Principal:
    """The caller. Raises: Unauthenticated."""
    principal = find_principal(request, farm)
    if principal is not None:
        note(key=principal.key_id)
        return principal
    hint = "send `Authorization: Bearer <API key>`; the embedded farm keeps one in its state folder's file `api-key`"
    if bearer_token(request) is None:
        raise Unauthenticated("no API key", hint=hint)
    raise Unauthenticated("this API key is not known, or was revoked", hint=hint, code="auth.invalid")


PrincipalDep = Annotated[Principal, Depends(require_principal)]


def require_operator(principal: PrincipalDep) -> Principal:
    """The caller, if an operator. Raises: Forbidden."""
    if principal.role != "operator":
        raise Forbidden("auth.role", "this needs an operator's key", hint="ask whoever runs the farm for one")
    return principal


OperatorDep = Annotated[Principal, Depends(require_operator)]
