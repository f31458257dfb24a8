"""Finds out who is calling: an API key (`Authorization: Bearer`), or a browser that opened a one-time link (cookie).

`authorise` stands before every address, and goes by its line in `service/people/permissions.py`; the farm that an
endpoint then gets (`FarmDep`) shows and takes what the caller's organisation has, and nothing else.

A cookie may read. It may also post forms from the farm's own pages: the cookie is SameSite=Strict, and a writing
request must come from this origin by `Sec-Fetch-Site` or `Origin`.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from device_agents.wire.log_lines import note
from service.base.problems import Forbidden, Unauthenticated
from service.people.audit.recording import CALLER
from service.people.keys.service import KeyUses, Principal, known_principal, principal_of_cookie, principal_of_key
from service.people.permissions import Permissions, Rule
from service.people.quotas.held import HeldAnswers
from service.people.quotas.limits import limit_of
from service.people.quotas.rates import Rates, cost_of
from service.store.farm import Farm
from service.store.watching import Bell

COOKIE = "pockfarm_session"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
RECHECK_S = 1.0
"""An answer that is held open ends so soon after its caller's key was revoked."""


class _Described(HTTPBearer):
    """A security scheme for the API's description only: `authorise` reads the header."""

    async def __call__(self, request: HTTPConnection) -> None:
        """Does nothing."""


_scheme = _Described(auto_error=False, scheme_name="ApiKey", description="An API key of this farm")


def farm_of(request: Request) -> Farm:
    """Returns the farm of the application that serves `request`."""
    farm: Farm = request.app.state.farm
    return farm


async def _whole_farm(request: Request) -> Farm:
    return farm_of(request)  # what is not `async` takes a thread of the pool, which costs more than all of this


WholeFarmDep = Annotated[Farm, Depends(_whole_farm)]
"""The whole farm, whoever calls: for addresses without a key, and for those about the farm as a whole."""


def bearer_token(request: Request) -> str | None:
    """Returns the token of `Authorization: Bearer`, or None."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def find_principal(request: Request, farm: Farm) -> Principal | None:
    """Returns who is calling, or None for a stranger. Raises: Forbidden for a form that another site posted."""
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
        raise Forbidden(
            "auth.cross-site",
            "this form was not posted by a page of the farm",
            hint="use an API key in `Authorization: Bearer` for programs",
        )
    return principal


def _is_same_origin(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == request.headers.get("host")


async def authorise(request: Request, farm: WholeFarmDep) -> Principal | None:
    """Returns the caller, if the address asks for a key. Raises: Unauthenticated, Forbidden, TooMany (requests)."""
    address = f"{request.method} {request.scope['route'].path}"
    rule = farm.part(Permissions).rule_of(address)
    if rule.scope is None:
        return None
    if hasattr(request.state, CALLER):  # before the body was waited for
        return caller_of(request)
    token = bearer_token(request)
    principal = known_principal(farm.database.memory, token) if token is not None else None
    if principal is None or _per_minute(farm, principal) is not None:
        return await run_in_threadpool(_caller, request, farm, address, rule)
    _admit(request, farm, principal, rule)  # nothing to read, and nothing to count
    return principal


def _caller(request: Request, farm: Farm, address: str, rule: Rule) -> Principal:
    principal = find_principal(request, farm)
    if principal is None:
        raise _stranger(request)
    _admit(request, farm, principal, rule)
    charge(farm, principal, cost_of(address, rule))
    return principal


def charge(farm: Farm, principal: Principal, cost: float, *, session: Session | None = None) -> None:
    """Charges the caller for what a request costs beyond its address, once that is known. Raises: TooMany."""
    per_minute = _per_minute(farm, principal)
    farm.part(Rates).spend(farm.database, principal.organisation_id, cost, per_minute=per_minute, session=session)


def _per_minute(farm: Farm, principal: Principal) -> float | None:
    return limit_of(farm.settings, principal.quotas, "cost_per_minute")


def _admit(request: Request, farm: Farm, principal: Principal, rule: Rule) -> None:
    setattr(request.state, CALLER, principal)
    note(key=principal.key_id, organisation=principal.organisation_id)
    farm.part(KeyUses).note(principal.key_id)
    _check(principal, rule)


def _stranger(request: Request) -> Unauthenticated:
    hint = "send `Authorization: Bearer <API key>`; the embedded farm keeps one in its state folder's file `api-key`"
    if bearer_token(request) is None:
        return Unauthenticated("no API key", hint=hint)
    return Unauthenticated(
        "this API key is not known, has expired, was revoked, or waits since a restore for whoever "
        "runs the farm to confirm it",
        hint=hint,
        code="auth.invalid",
    )


def _check(principal: Principal, rule: Rule) -> None:
    if rule.scope not in principal.scopes:
        has = ", ".join(sorted(principal.scopes)) or "none"
        raise Forbidden(
            "auth.scope",
            f"this needs a key with the scope {rule.scope}; this key's scopes are: {has}",
            where="Authorization",
            hint="ask an administrator of your organisation for one",
        )
    if rule.is_farms and not principal.is_home:
        raise Forbidden(
            "auth.farm",
            "this is for the farm's own organisation",
            where="Authorization",
            hint="ask whoever runs the farm",
        )


async def check_admitted(request: Request, farm: Farm) -> None:
    """Raises: Unauthenticated once the caller's key, dashboard session, person or organisation is good no more."""
    token = bearer_token(request)
    principal = known_principal(farm.database.memory, token) if token is not None else None
    if principal is None and await run_in_threadpool(find_principal, request, farm) is None:
        raise _stranger(request)


async def stay_while_admitted(request: Request, farm: Farm, bell: Bell, seconds: float) -> None:
    """Waits until the bell rings, or for so many seconds. Checks each second whether the caller may still be here.

    Raises: as `check_admitted`.
    """
    until = time.monotonic() + seconds
    while True:
        remaining_s = until - time.monotonic()
        has_rung = await bell.wait(min(remaining_s, RECHECK_S))
        await check_admitted(request, farm)
        if has_rung or remaining_s <= RECHECK_S:
            return


def held_open(request: Request, farm: Farm) -> AbstractContextManager[None]:
    """Counts an answer as open during the block, while it waits for something to happen. Use it on the event loop.
    Raises: TooMany on entering it.
    """
    principal = caller_of(request)
    limit = limit_of(farm.settings, principal.quotas, "open_streams")
    return farm.part(HeldAnswers).another(principal.organisation_id, limit=limit)


def caller_of(request: Request) -> Principal:
    """Returns the caller of an address that asks for a key; `authorise` has been before."""
    principal = getattr(request.state, CALLER, None)
    assert isinstance(principal, Principal), "an endpoint without a scope asked who calls"
    return principal


async def require_principal(request: Request, _: Annotated[object, Depends(_scheme)]) -> Principal:
    """Returns the caller of an address that asks for a key."""
    return caller_of(request)


PrincipalDep = Annotated[Principal, Depends(require_principal)]


async def callers_farm(request: Request, scheme: Annotated[object, Depends(_scheme)]) -> Farm:
    """Returns the farm as the caller's organisation has it."""
    principal, farm = await require_principal(request, scheme), farm_of(request)
    return replace(farm, database=farm.database.of(principal.organisation_id))


FarmDep = Annotated[Farm, Depends(callers_farm)]
