"""Sessions of an organisation: every table is narrowed or says why not, in every kind of statement, cached or not."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, event, func, insert, select, true, update
from sqlalchemy.orm import aliased

from service.store.database.models import (
    HOME,
    Attempt,
    Base,
    Bundle,
    Dataset,
    Device,
    DeviceEvent,
    Holding,
    Job,
    Result,
    Run,
    Strike,
    Tuning,
    User,
)
from service.store.database.scope import EVERYONES, SCOPES, UNSCOPED, ForeignRow, organisation_of, within
from tests.service.farms import TestFarm
from tests.service.tenants import make_tenant

OLDER, OTHER_DEVICE, OTHER_HOLDING = aliased(Attempt), aliased(Device), aliased(Holding)
STATEMENTS = (
    select(Run),
    select(Run.id).join(Bundle, Bundle.digest == Run.bundle_digest),
    select(func.count()).select_from(Job),
    select(func.count()).where(Run.state == "queued"),
    select(func.count(Run.id)),
    select(Attempt.id, Result.run_id).join(Result, Result.attempt_id == Attempt.id).join(OLDER, true()),
    select(DeviceEvent.id, Strike.id).join(Strike, true()),
    select(Bundle.digest).join(Dataset, true()),
    select(Run.id)
    .outerjoin(OTHER_DEVICE, OTHER_DEVICE.id == Run.device_id)
    .outerjoin(OTHER_HOLDING, OTHER_HOLDING.digest == Run.dataset_digest),
    select(Job.id).where(select(Run.id).where(Run.api_key_id == Job.api_key_id).exists()),
    select(func.count()).select_from(select(Tuning.id).subquery()),
    update(Run).values(phase=""),
    delete(Strike),
)
NARROWED: list[Any] = [one.class_ for one in Base.registry.mappers if issubclass(one.class_, tuple(SCOPES))]


def test_every_table_is_narrowed_or_says_why_not() -> None:
    narrowed = {kind.__tablename__ for kind in NARROWED}
    assert narrowed | set(UNSCOPED) == set(Base.metadata.tables)
    assert not narrowed & set(UNSCOPED)
    owned = {table.name for table in Base.metadata.tables.values() if "organisation_id" in table.columns}
    assert owned - narrowed == {"allowances", "lanes"}


def test_every_statement_asks_for_one_organisation_whoever_asked_before(small_farm: TestFarm) -> None:
    """Statements are compiled once and kept: what changes from caller to caller must not be kept with them."""
    asked: list[tuple[str, tuple[object, ...]]] = []
    database = small_farm.farm.database
    event.listen(database.engine, "before_cursor_execute", lambda *words: asked.append((words[2], words[3])))
    for _ in range(3):
        for organisation_id in ("org_a", "org_b", "org_c"):
            for statement in STATEMENTS:
                asked.clear()
                with database.of(organisation_id).transaction() as session:
                    session.execute(statement)
                said = [values for words, values in asked if "organisation_id = " in words]
                assert said, statement
                named = {value for values in said for value in values if str(value).startswith("org_")}
                assert named == {organisation_id}


def test_no_table_that_is_narrowed_shows_all_it_has(small_farm: TestFarm) -> None:
    asked: list[str] = []
    database = small_farm.farm.database
    event.listen(database.engine, "before_cursor_execute", lambda *words: asked.append(words[2]))
    with database.of("org_a").read() as session:
        for kind in NARROWED:
            session.scalar(select(func.count()).select_from(kind))
            own = "organisations.id =" if kind.__tablename__ == "organisations" else "organisation_id ="
            assert own in asked[-1].partition("WHERE")[2], kind


def test_a_session_sees_its_own_in_every_kind_of_statement(farm: TestFarm) -> None:
    acme, other = make_tenant(farm, "acmemarker"), make_tenant(farm, "othermarker")
    mine = farm.farm.database.of(acme.farm.organisation_id)
    with mine.read() as session:
        assert session.get(Run, other.run) is None
        assert session.get(Run, acme.run) is not None
        assert session.get(Bundle, other.bundle) is None
        assert session.get(Dataset, other.dataset) is None
        assert session.get(Device, other.device) is None
        assert list(session.scalars(select(Attempt.run_id))) == [acme.run]
        assert list(session.scalars(select(Result.run_id))) == [acme.run]
        assert set(session.scalars(select(Run.organisation_id))) == {acme.farm.organisation_id}
        count = session.scalar(select(func.count()).select_from(Run)) or 0
        everyones = session.scalar(select(func.count()).select_from(Run), execution_options=dict(EVERYONES))
        assert everyones == 2 * count > 0
        assert set(session.scalars(select(DeviceEvent.device_id))) == {acme.device}
    with mine.transaction() as session:
        assert session.execute(update(Run).values(phase="x")).rowcount == count  # type: ignore[attr-defined]
        assert session.execute(delete(User).where(User.id == other.user)).rowcount == 0  # type: ignore[attr-defined]
    assert other.farm.show(other.run)["phase"] == ""


def test_what_a_session_adds_is_its_organisations(farm: TestFarm) -> None:
    with farm.farm.database.of(HOME).transaction() as session:
        user = User(name="somebody")
        session.add(user)
        session.flush()
        assert user.organisation_id == organisation_of(session) == HOME
    home = farm.farm.database.of(HOME)
    with pytest.raises(ForeignRow, match="a row of users of org_x"), home.transaction() as session:
        session.add(User(name="somebody else", organisation_id="org_x"))
    with pytest.raises(ForeignRow), home.transaction() as session:
        session.execute(insert(User).values(name="n", organisation_id="org_x"))
    with farm.farm.database.read() as session:
        with within(session, "org_x"):
            assert session.scalars(select(User)).all() == []
        assert len(session.scalars(select(User)).all()) == 1
