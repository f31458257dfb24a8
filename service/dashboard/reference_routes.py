"""The address of the API's reference."""

from __future__ import annotations

from functools import lru_cache

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from markupsafe import Markup

from service.dashboard import addresses, render, visitors
from service.dashboard.pages.api import api_page
from service.people.access import FarmDep
from service.people.permissions import Permissions

router = APIRouter(prefix=addresses.ROOT, dependencies=[Depends(visitors.meet)], include_in_schema=False)


@router.get("/api")
def show_api(request: Request, farm: FarmDep) -> Response:
    """Shows every endpoint of the API."""
    body = _reference(_Described(request), farm.settings.public_url, farm.part(Permissions))
    return render.page("api.html", body=body, section="api")


class _Described:
    """An application's description as a key: there is one for each application."""

    def __init__(self, request: Request) -> None:
        self.app = request.app

    def __hash__(self) -> int:
        return id(self.app)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Described) and other.app is self.app


@lru_cache(maxsize=4)
def _reference(described: _Described, farm: str, permissions: Permissions) -> Markup:
    """Returns the reference, which is the same for everybody and takes a second to make: it is made once in a
    process.
    """
    page = api_page(described.app.openapi(), farm, permissions)
    return render.part("api_reference.html", page=page)
