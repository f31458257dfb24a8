"""Forms of the pages: they need no scripts, and do what an endpoint of the API does, with that endpoint's function.

A form that is taken leads to a page that says what was done (POST, redirect, GET). One that is refused comes back with
what was typed and with the reason beside its field; a lone button's refusal is a page of its own (`problem_pages.py`).

Who may post a form is a line of `service/people/permissions.py`. That it was shown to this very browser is checked
twice: the request comes from this origin (`service/people/access.py`), and it carries the token that is made from the
session's cookie.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, ValidationError

from service.base.problems import Forbidden, Invalid, Problem
from service.base.text import strange_character
from service.dashboard import addresses, visitors
from service.dashboard.visitors import Notice

TOKEN_FIELD = "form_token"
MOST_FIELDS = 100
Body = TypeVar("Body", bound=BaseModel)
Kind = Literal["text", "url", "number", "area", "select", "check", "checks", "moment"]


@dataclass(frozen=True, slots=True)
class Typed:
    """The values of a form that was sent: every value of each field, without spaces around it."""

    values: Mapping[str, tuple[str, ...]]

    def text(self, name: str) -> str:
        """Returns the field's first value; empty if there is none."""
        return next(iter(self.values.get(name, ())), "")

    def all(self, name: str) -> tuple[str, ...]:
        """Returns the ticked values of the boxes with this name."""
        return tuple(value for value in self.values.get(name, ()) if value)

    def given(self, *names: str) -> dict[str, str]:
        """Returns those of these fields into which something was typed."""
        return {name: self.text(name) for name in names if self.text(name)}


async def posted(request: Request, _: Annotated[None, Depends(visitors.meet)]) -> Typed:
    """Returns the form of a request. Raises: Forbidden (no page of the farm showed it to this browser), Invalid (a
    text).
    """
    read = await request.form(max_files=0, max_fields=MOST_FIELDS)
    values: dict[str, tuple[str, ...]] = {}
    for name, value in read.multi_items():
        if not isinstance(value, str):
            continue
        strange = strange_character(name) or strange_character(value)
        if strange is not None:
            raise Invalid("request.text", f"a text with the character {strange}, which is not text", where=name)
        values[name] = (*values.get(name, ()), value.replace("\r\n", "\n").strip())
    typed = Typed(values)
    _check_token(typed)
    return typed


def _check_token(typed: Typed) -> None:
    expected = visitors.current().form_token
    if expected and not hmac.compare_digest(typed.text(TOKEN_FIELD).encode(), expected.encode()):
        raise Forbidden(
            "auth.form",
            "this form was not shown to this browser, or its session has ended since",
            where=TOKEN_FIELD,
            hint="load the page again, and send its form once more",
        )


TypedDep = Annotated[Typed, Depends(posted)]


@dataclass(frozen=True, slots=True)
class Field:
    """A field; `kind` is how it is shown. `options`: (value, label)."""

    name: str
    label: str
    kind: Kind = "text"
    value: str = ""
    options: tuple[tuple[str, str], ...] = ()
    ticked: tuple[str, ...] = ()
    """Ticked values of `checks`; the name of a ticked `check`."""
    hint: str = ""
    required: bool = False
    max_length: int = 200
    error: str = ""
    """Error in the value that was typed."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form with fields. `id` is its anchor on the page."""

    id: str
    title: str
    action: str
    submit: str
    fields: tuple[Field, ...]
    note: str = ""
    error: str = ""
    """Refusal of the whole form: one that is about none of its fields."""
    next_step: str = ""

    def refused(self, typed: Typed, problem: Problem) -> Form:
        """Returns the same form with what was typed into it, and with the reason beside the field that caused the
        refusal.
        """
        detail = str(problem.detail)
        where = problem.where.replace("body.", "").split(".")[0]
        fields = tuple(_with_input(field, typed, detail if field.name == where else "") for field in self.fields)
        is_placed = any(field.error for field in fields)
        return replace(self, fields=fields, error="" if is_placed else detail, next_step=problem.hint)


def _with_input(field: Field, typed: Typed, error: str) -> Field:
    if field.kind in ("check", "checks"):
        return replace(field, ticked=typed.all(field.name), error=error)
    return replace(field, value=typed.text(field.name), error=error)


def body_of(kind: type[Body], values: Mapping[str, Any]) -> Body:
    """Returns the API's body of these values. Raises: Invalid, which names the field."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        raise Invalid("request.invalid", message, where=where) from error


def number(typed: Typed, name: str, *, times: float = 1.0) -> float | None:
    """Returns a number that was typed, multiplied by `times`; None if nothing was. Raises: Invalid."""
    text = typed.text(name)
    if not text:
        return None
    try:
        return float(text) * times
    except ValueError as error:
        raise Invalid("request.invalid", f"{text[:40]!r} is not a number", where=name) from error


def redirect_with_notice(to: str, message: str, tone: Literal["good", "bad"] = "good") -> Response:
    """Redirects to the page that reports the outcome."""
    answer = RedirectResponse(to, status_code=303, headers={"Cache-Control": "no-store"})
    visitors.tell(answer, Notice(message, tone))
    return answer


def back(typed: Typed, otherwise: str) -> str:
    """Returns the page of the dashboard that the form was on, if it says so; never another site's."""
    to = typed.text("back")
    is_ours = to == addresses.ROOT or to.startswith((f"{addresses.ROOT}/", f"{addresses.ROOT}?"))
    return to if is_ours and "\\" not in to and "\n" not in to else otherwise


def choices(values: Sequence[str], *, none: str = "") -> tuple[tuple[str, str], ...]:
    """Options whose label is their value; `none`: the label of no choice."""
    return (*((("", none),) if none else ()), *((value, value) for value in values))
