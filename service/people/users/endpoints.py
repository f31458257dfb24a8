"""`/users` (administrators): the people of the caller's organisation."""

from __future__ import annotations

from fastapi import APIRouter

from service.people.access import FarmDep, PrincipalDep
from service.people.idempotency import EVERY_TIME, RepeatsDep
from service.people.users import service
from service.people.users.schemas import UserCreate, UserView

router = APIRouter(prefix="/users", tags=["organisations"])


@router.post("", status_code=201)
def create_user(body: UserCreate, farm: FarmDep, principal: PrincipalDep, repeats: RepeatsDep = EVERY_TIME) -> UserView:
    """Adds a person, to whom keys may then belong."""

    def create() -> UserView:
        return UserView.model_validate(service.create(session, principal.organisation_id, body.name))

    with farm.database.transaction() as session:
        return repeats.once(session, body, UserView, create)


@router.get("")
def list_users(farm: FarmDep) -> list[UserView]:
    """Lists every person of the organisation, removed ones too."""
    with farm.database.read() as session:
        return [UserView.model_validate(user) for user in service.newest(session)]


@router.delete("/{user_id}")
def remove_user(user_id: str, farm: FarmDep) -> UserView:
    """Removes a person: none of the person's keys is accepted from now on."""
    with farm.database.transaction() as session:
        return UserView.model_validate(service.remove(session, user_id))
