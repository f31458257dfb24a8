"""Pages of the administration with their forms, for the farm's own routes and those of optional features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Query
from fastapi.responses import Response
from sqlalchemy.orm import Session

from service.base.problems import Problem
from service.dashboard import forms, render
from service.dashboard.forms import Form, Typed
from service.dashboard.pages.admin.listing import FIRST, ListQuery
from service.dashboard.pages.admin.part import AdminPart, CreationNotice, path
from service.store.farm import Farm

Part = Callable[[Session, ListQuery, Form | None, CreationNotice | None], AdminPart]
Find = Annotated[str, Query(max_length=200)]


def part_page(
    farm: Farm,
    part: Part,
    query: ListQuery = FIRST,
    form: Form | None = None,
    created: CreationNotice | None = None,
    status: int = 200,
) -> Response:
    """Returns a page of the administration, with its form and what was just made."""
    with farm.database.read() as session:
        return render.page("admin_part.html", status, page=part(session, query, form, created), section="admin")


def submit_form(farm: Farm, part: Part, typed: Typed, act: Callable[[], CreationNotice | str], name: str) -> Response:
    """Does what a form asks for. Answers with a page that shows a secret or a message, else with the form as typed."""
    try:
        outcome = act()
    except Problem as problem:
        with farm.database.read() as session:
            form = part(session, FIRST, None, None).forms[0].refused(typed, problem)
        return part_page(farm, part, form=form, status=problem.status_code)
    if isinstance(outcome, str):
        return forms.redirect_with_notice(path(name), outcome)
    return part_page(farm, part, created=outcome, status=201)
