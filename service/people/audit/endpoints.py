"""`GET /audit` (administrators): who did what in the caller's organisation."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from service.base.pagination import Cursor, Limit, Page
from service.people.access import FarmDep
from service.people.audit import service
from service.people.audit.schemas import AuditView
from service.people.audit.service import AuditFilter

router = APIRouter(tags=["organisations"])
Text = Annotated[str, Query(max_length=200)]


def audit_filter(
    action: Text = "", outcome: Text = "", key: Text = "", user: Text = "", subject: Text = ""
) -> AuditFilter:
    """Returns the filter of a query."""
    return AuditFilter(action, outcome, key, user, subject)


AuditFilterDep = Annotated[AuditFilter, Depends(audit_filter)]


@router.get("/audit")
def list_audit(farm: FarmDep, chosen: AuditFilterDep, limit: Limit = 50, cursor: Cursor = None) -> Page[AuditView]:
    """Lists requests that changed something, or were meant to, the newest first; `action` is `POST /runs`, for
    example.
    """
    with farm.database.read() as session:
        rows, following = service.newest(session, chosen, limit=limit, cursor=cursor)
        return Page(items=rows, next=following)
