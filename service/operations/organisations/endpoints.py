"""`/organisations` (the farm's administrators) and `/organisation` (one's own)."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy.orm import Session

from service.operations.organisations import service
from service.operations.organisations.schemas import (
    OrganisationChange,
    OrganisationCreate,
    OrganisationDetail,
    OrganisationView,
)
from service.people.access import FarmDep, PrincipalDep, WholeFarmDep
from service.people.idempotency import EVERY_TIME, RepeatsDep
from service.people.keys.endpoints import make_key
from service.people.keys.schemas import KeyCreate, KeyCreated
from service.store.database.models import Organisation
from service.store.farm import Farm

router = APIRouter(tags=["organisations"])


@router.post("/organisations", status_code=201)
def create_organisation(
    body: OrganisationCreate, farm: WholeFarmDep, _: PrincipalDep, repeats: RepeatsDep = EVERY_TIME
) -> OrganisationView:
    """Adds a tenant; its first key comes from `POST /organisations/{id}/keys`."""

    def create() -> OrganisationView:
        return OrganisationView.model_validate(service.create(session, body.name))

    with farm.database.transaction() as session:
        return repeats.once(session, body, OrganisationView, create)


@router.get("/organisations")
def list_organisations(farm: WholeFarmDep, _: PrincipalDep) -> list[OrganisationView]:
    """Lists every tenant, closed ones too."""
    with farm.database.read() as session:
        return [OrganisationView.model_validate(organisation) for organisation in service.newest(session)]


@router.patch("/organisations/{organisation_id}")
def change_organisation(
    organisation_id: str, body: OrganisationChange, farm: WholeFarmDep, _: PrincipalDep
) -> OrganisationDetail:
    """Changes a tenant's name, its limits, and how long its data is retained."""
    with farm.database.transaction() as session:
        organisation = service.find(session, organisation_id)
        if body.name is not None:
            service.rename(session, organisation, body.name)
        if body.quotas is not None:
            service.set_quotas(organisation, body.quotas)
        if body.retention is not None:
            service.set_retention(organisation, body.retention)
        return _detail(session, farm, organisation)


@router.post("/organisations/{organisation_id}/close")
def close_organisation(organisation_id: str, farm: WholeFarmDep, _: PrincipalDep) -> OrganisationView:
    """Closes a tenant: none of its keys is accepted from now on, and its devices are removed. Work that it began on
    other devices goes on.
    """
    with farm.database.transaction() as session:
        return OrganisationView.model_validate(service.close(session, organisation_id))


@router.post("/organisations/{organisation_id}/keys", status_code=201)
def create_key_of_organisation(
    organisation_id: str, body: KeyCreate, farm: WholeFarmDep, _: PrincipalDep, repeats: RepeatsDep = EVERY_TIME
) -> KeyCreated:
    """Creates an API key of a tenant, such as its administrator's first. The secret is in this answer and nowhere
    else.
    """

    def create() -> KeyCreated:
        return make_key(session, farm.settings, body)

    with farm.database.read() as session:
        service.find(session, organisation_id)
    with farm.database.of(organisation_id).transaction() as session:
        return repeats.once(session, body, KeyCreated, create, shows_secret=True)


@router.get("/organisation")
def show_organisation(farm: FarmDep, principal: PrincipalDep) -> OrganisationDetail:
    """Returns the caller's organisation, its limits and what it uses."""
    with farm.database.read() as session:
        return _detail(session, farm, service.find(session, principal.organisation_id))


def _detail(session: Session, farm: Farm, organisation: Organisation) -> OrganisationDetail:
    plain = OrganisationView.model_validate(organisation)
    return OrganisationDetail(
        **plain.model_dump(mode="python"),
        quotas=service.quotas_shown(session, farm.settings, organisation),
        retention=service.retention_shown(farm.settings, organisation),
    )
