"""The scope of a session of one organisation, which limits what it sees and writes: conditions that are added to its
every statement.

`SCOPES` says, for tables, which rows are an organisation's; `UNSCOPED` says why the rest has no such condition. A
session without an organisation (the sweeper's, a device's, a worker's) sees all, and says whose its new rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from sqlalchemy import event, exists, literal_column, or_
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.sql.base import ExecutableOption

from service.store.database.models import HOME, Bundle, Dataset, Device, Holding, Organisation, Run
from service.store.database.models.base import OfDevice, OfOrganisation, OfRun

KEY = "organisation"
"""Key of the organisation in `Session.info`."""
EVERYONES: Mapping[str, bool] = {"pockfarm_everyones": True}
"""Execution options of a statement that may look beyond its session's organisation: whether a device is busy, say.
What it finds must not be shown."""
MOST_CACHED = 1000
_runs, _holdings, _devices = (kind.__table__.alias(f"own_{kind.__tablename__}") for kind in (Run, Holding, Device))
Scope = Callable[[str], ExecutableOption]


class ForeignRow(Exception):
    """A session of one organisation was about to write a row of another: a defect of ours."""


# Conditions are functions of the row, for the aliases of a table. SQLAlchemy keeps what such a function gave by its
# code, so no value in it but the organisation may change from call to call.


def _itself(organisation_id: str) -> ExecutableOption:
    return with_loader_criteria(Organisation, lambda row: row.id == organisation_id, include_aliases=True)


def _own(organisation_id: str) -> ExecutableOption:
    return with_loader_criteria(
        OfOrganisation, lambda row: row.organisation_id == organisation_id, include_aliases=True
    )


def _visible_device(organisation_id: str) -> ExecutableOption:
    return with_loader_criteria(
        Device, lambda row: or_(row.is_shared, row.organisation_id == organisation_id), include_aliases=True
    )


def _held_bundle(organisation_id: str) -> ExecutableOption:
    return with_loader_criteria(
        Bundle,
        lambda row: exists().where(
            _holdings.c.organisation_id == organisation_id,
            _holdings.c.kind == literal_column("'bundle'"),
            _holdings.c.digest == row.digest,
        ),
        include_aliases=True,
    )


def _held_dataset(organisation_id: str) -> ExecutableOption:
    return with_loader_criteria(
        Dataset,
        lambda row: exists().where(
            _holdings.c.organisation_id == organisation_id,
            _holdings.c.kind == literal_column("'dataset'"),
            _holdings.c.digest == row.digest,
        ),
        include_aliases=True,
    )


def _of_own_run(organisation_id: str) -> ExecutableOption:
    return with_loader_criteria(
        OfRun,
        lambda row: exists().where(_runs.c.id == row.run_id, _runs.c.organisation_id == organisation_id),
        include_aliases=True,
    )


def _of_own_device(organisation_id: str) -> ExecutableOption:
    return with_loader_criteria(
        OfDevice,
        lambda row: exists().where(_devices.c.id == row.device_id, _devices.c.organisation_id == organisation_id),
        include_aliases=True,
    )


SCOPES: Mapping[type[Any], Scope] = {
    Organisation: _itself,
    OfOrganisation: _own,
    Bundle: _held_bundle,
    Dataset: _held_dataset,
    OfRun: _of_own_run,
    Device: _visible_device,
    OfDevice: _of_own_device,
}
"""Scopes by table, or by a base class that tables have in common: each costs every statement a little."""
UNSCOPED: Mapping[str, str] = {
    "agent_releases": "the farm's; only home's operators see them",
    "agent_updates": "the farm's; shown by devices that the session sees",
    "allowances": "only the farm's own count looks at them",
    "dashboard_links": "found by a secret",
    "dashboard_sessions": "found by a secret",
    "device_credentials": "found by a secret",
    "file_uses": "the farm's own notes on stored files",
    "listed_files": "the farm's own notes on stored files",
    "events": "read by a job or run that was found before, in the same session",
    "idempotency_records": "read by the caller's key",
    "lanes": "only the farm's own search for work looks at them",
    "log_heads": "sizes and hashes",
    "log_nodes": "hashes",
    "logged_results": "shown to those whose run it is, found before",
    "outbox": "doorbells; nobody is shown them",
    "signing_keys": "the farm's",
    "signs_of_life": "the farm's",
    "used_challenges": "hashes of what was random; nobody is shown them",
}


def organisation_of(session: Session) -> str:
    """Returns the organisation of the session; for a session that sees all, the one that runs the farm."""
    return str(session.info.get(KEY) or HOME)


class FarmSession(Session):
    """A session that may belong to an organisation (`info`)."""


@contextmanager
def within(session: Session, organisation_id: str) -> Iterator[None]:
    """Restricts a session that sees all to this organisation during the block."""
    before = session.info.get(KEY)
    session.flush()
    session.info[KEY] = organisation_id
    try:
        yield
        session.flush()
    finally:
        session.info[KEY] = before


@lru_cache(maxsize=MOST_CACHED)
def _options(organisation_id: str) -> tuple[ExecutableOption, ...]:
    return tuple(scope(organisation_id) for scope in SCOPES.values())


@event.listens_for(FarmSession, "do_orm_execute")
def _narrow(state: ORMExecuteState) -> None:
    organisation_id = state.session.info.get(KEY)
    if organisation_id is None or state.execution_options.get("pockfarm_everyones"):
        return
    if state.is_insert:
        raise ForeignRow("rows of an organisation are added to its session, which says whose they are")
    if not state.is_column_load and not state.is_relationship_load:
        state.statement = state.statement.options(*_options(organisation_id))


@event.listens_for(FarmSession, "before_flush")
def _stamp(session: Session, _context: Any, _instances: Any) -> None:
    organisation_id = session.info.get(KEY)
    if organisation_id is None:
        return
    for row in session.new:
        if "organisation_id" not in row.__table__.columns:
            continue
        if row.organisation_id is None:
            row.organisation_id = organisation_id
        elif row.organisation_id != organisation_id:
            raise ForeignRow(f"a row of {row.__tablename__} of {row.organisation_id} in a session of {organisation_id}")
