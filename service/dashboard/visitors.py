"""The visitor of a page: what the visitor may do, the token of the forms shown there, and the outcome of the last form.

Every page's frame needs it, whatever its address hands to the template; so it goes with the request, and `render.page`
asks for it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Request
from fastapi.responses import Response

from service.dashboard import addresses
from service.people.access import COOKIE, bearer_token, require_principal
from service.people.keys.service import Principal
from service.people.permissions import Scope

SAID_COOKIE = "pockfarm_said"
SAID_S = 60
"""A message that no page has shown by then is forgotten."""
MOST_SAID = 600
"""Characters of a message; a cookie holds about 4000 bytes."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The outcome of the last form, shown once by the page that follows."""

    text: str
    tone: Literal["good", "bad"] = "good"


@dataclass(frozen=True, slots=True)
class Visitor:
    """A browser with a session, a program with a key, or (of problem pages) a stranger."""

    scopes: frozenset[str] = frozenset()
    is_home: bool = False
    session: str = ""
    """The secret of its cookie; a program with a key has none."""
    notice: Notice | None = None

    def may(self, scope: Scope) -> bool:
        """Whether its key has that scope."""
        return scope in self.scopes

    @property
    def form_token(self) -> str:
        """Token that each form of a page carries: another site knows neither it nor the cookie that it is made from."""
        return _seal(self.session, "form") if self.session else ""


STRANGER = Visitor()
_CURRENT: ContextVar[Visitor] = ContextVar("visitor", default=STRANGER)


async def meet(request: Request, principal: Annotated[Principal, Depends(require_principal)]) -> None:
    """Records who the visitor is, before each page and form."""
    session = "" if bearer_token(request) else request.cookies.get(COOKIE, "")
    notice = _read(session, request.cookies.get(SAID_COOKIE, "")) if request.method == "GET" else None
    _CURRENT.set(Visitor(principal.scopes, principal.is_home, session, notice))


def current() -> Visitor:
    """Returns the visitor who sent this request."""
    return _CURRENT.get()


def tell(answer: Response, notice: Notice) -> None:
    """Has the next page show the notice. It travels in a cookie that is sealed with the session, so that nobody else's
    words are shown.
    """
    session = current().session
    if not session:
        return
    words = base64.urlsafe_b64encode(f"{notice.tone}\n{notice.text[:MOST_SAID]}".encode()).decode()
    answer.set_cookie(
        SAID_COOKIE,
        f"{words}.{_seal(session, words)}",
        max_age=SAID_S,
        httponly=True,
        samesite="strict",
        path=addresses.ROOT,
    )


def forget_said(answer: Response) -> None:
    """Deletes the notice, which the page has shown."""
    answer.delete_cookie(SAID_COOKIE, path=addresses.ROOT, httponly=True, samesite="strict")


def _read(session: str, cookie: str) -> Notice | None:
    words, _, seal = cookie.partition(".")
    if not session or not words.isascii() or not hmac.compare_digest(seal.encode(), _seal(session, words).encode()):
        return None
    tone, _, text = base64.urlsafe_b64decode(words).decode().partition("\n")
    return Notice(text, "bad" if tone == "bad" else "good")


def _seal(session: str, words: str) -> str:
    return hmac.new(session.encode(), f"pockfarm {words}".encode(), hashlib.sha256).hexdigest()[:40]
