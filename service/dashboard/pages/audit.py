"""The audit page: who did what in the organisation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple

from sqlalchemy.orm import Session

from service.dashboard import addresses
from service.dashboard import format as fmt
from service.dashboard.parts import Filter, Listing, choices
from service.dashboard.tables import Column, Row, WholeTable, table
from service.people.audit import service
from service.people.audit.schemas import AuditView
from service.people.audit.service import AuditFilter
from service.store.database.engine import Database

PAGE_ROWS = 50
COLUMNS: tuple[Column, ...] = (
    Column("at", "When", "time", "UTC", primary=True),
    Column("key", "Key"),
    Column("key_id", "Key id", files_only=True),
    Column("user", "Person"),
    Column("address", "From"),
    Column("action", "Action", "code", wrap=True),
    Column("subject", "On", "code", wrap=True),
    Column("outcome", "Outcome"),
    Column("status", "Status", "number"),
    Column("code", "Code", "code"),
)
NAMES = ("action", "outcome", "key", "user", "subject")


def audit_page(session: Session, chosen: AuditFilter, before: str) -> Listing:
    """Makes a page of entries, those older than `before`."""
    entries, following = service.newest(session, chosen, limit=PAGE_ROWS, cursor=before or None)
    query = tuple((name, value) for name, value in zip(NAMES, astuple(chosen), strict=True) if value)
    path = addresses.page("audit")
    return Listing(
        table=table("audit", "Audit log, newest first", COLUMNS, [_row(entry) for entry in entries]),
        path=path,
        query=(*query, ("before", before)),
        filters=(Filter("outcome", "Outcome", chosen.outcome, choices(service.OUTCOMES)),),
        older=addresses.with_query(path, (*query, ("before", following))) if following else "",
        newest=addresses.with_query(path, query) if before else "",
    )


def audit_file(database: Database, chosen: AuditFilter) -> WholeTable:
    """Returns every entry that matches the filter."""
    rows: Iterable[Row] = map(_row, service.everything(database, chosen))
    return WholeTable("audit", COLUMNS, rows)


def _row(entry: AuditView) -> Row:
    values = {
        "at": fmt.iso(entry.at),
        "key": entry.key_name or entry.key_id or "the farm's administrators",
        "key_id": entry.key_id,
        "user": entry.user_name or entry.user_id,
        "address": entry.address or None,
        "action": entry.action,
        "subject": entry.subject or None,
        "outcome": entry.outcome,
        "status": entry.status,
        "code": entry.code or None,
    }
    return Row(values, {}, anchor=entry.id)
