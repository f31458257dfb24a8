"""`/docs`: the documentation, open to everybody; where it was not built, how to build it."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from service.base.problems import NotFound
from service.dashboard import manual
from service.dashboard.render import PAGE_HEADERS, YEAR_S

router = APIRouter(include_in_schema=False)
HOW_TO = "on the farm's machine, in its checkout: make docs; releases and images have it"
_NAMED_BY_CONTENT = re.compile(r"(?:moved|picture)-[0-9a-f]{12}\.\w+$")


@router.get("/docs", response_class=RedirectResponse, status_code=307)
def front_page() -> str:
    """Leads to the site's first page: the site's addresses are relative to this one."""
    return "/docs/"


@router.get("/docs/{path:path}")
async def page(path: str, request: Request) -> Response:
    """Returns a file of the site, with its entity tag: a browser that already has it gets 304.

    Raises: NotFound for what the site does not have, links and paths that lead out of it among it.
    """
    if not manual.is_built():
        raise NotFound("docs.not-built", "this farm's documentation has not been built", hint=HOW_TO)
    files = StaticFiles(directory=manual.SITE, html=True, check_dir=False)
    try:
        answer = await files.get_response(
            files.get_path({**request.scope, "path": f"/{path}", "root_path": ""}), request.scope
        )
    except HTTPException:
        raise NotFound("docs.page", "the documentation has no such page", hint="its front page is /docs/") from None
    if answer.status_code == 404:
        raise NotFound("docs.page", "the documentation has no such page", hint="its front page is /docs/")
    answer.headers.update({**PAGE_HEADERS, "Cache-Control": _caching(path, request.url.query)})
    return answer


def _caching(path: str, query: str) -> str:
    """Returns how a browser may cache the path: for ever if new content gets a new address; the rest is asked for again
    each time, by its tag.
    """
    is_named = _NAMED_BY_CONTENT.search(path) or query.startswith("v=")
    return f"public, max-age={YEAR_S}, immutable" if is_named else "no-cache"
