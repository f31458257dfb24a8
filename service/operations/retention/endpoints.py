"""`/runs/{id}/pin`, `/bundles/{digest}/pin`, `/datasets/{digest}/pin`: what the rules of retention leave alone."""

from __future__ import annotations

from fastapi import APIRouter

from service.base.schemas import DigestText, Timestamp, View
from service.operations.retention import pins
from service.people.access import FarmDep, PrincipalDep

router = APIRouter(tags=["retention"])


class PinView(View):
    """Whether something is pinned."""

    pinned_at: Timestamp | None


@router.post("/runs/{run_id}/pin")
def pin_run(run_id: str, farm: FarmDep, _: PrincipalDep) -> PinView:
    """Pins a run: its events, weights, bundle and data stay, whatever the rules say. 410 if some have been removed."""
    with farm.database.transaction() as session:
        return PinView(pinned_at=pins.set_run(session, run_id, is_pinned=True))


@router.delete("/runs/{run_id}/pin")
def unpin_run(run_id: str, farm: FarmDep, _: PrincipalDep) -> PinView:
    """Unpins a run, so that the rules of retention apply to it again."""
    with farm.database.transaction() as session:
        return PinView(pinned_at=pins.set_run(session, run_id, is_pinned=False))


@router.post("/bundles/{digest}/pin")
def pin_bundle(digest: DigestText, farm: FarmDep, _: PrincipalDep) -> PinView:
    """Pins a bundle: it stays, whatever the rules say. 410 if it has been removed."""
    with farm.database.transaction() as session:
        return PinView(pinned_at=pins.set_file(session, "bundle", digest, is_pinned=True))


@router.delete("/bundles/{digest}/pin")
def unpin_bundle(digest: DigestText, farm: FarmDep, _: PrincipalDep) -> PinView:
    """Unpins a bundle, so that the rules of retention apply to it again."""
    with farm.database.transaction() as session:
        return PinView(pinned_at=pins.set_file(session, "bundle", digest, is_pinned=False))


@router.post("/datasets/{digest}/pin")
def pin_dataset(digest: DigestText, farm: FarmDep, _: PrincipalDep) -> PinView:
    """Pins a data set: it stays, whatever the rules say. 410 if it has been removed."""
    with farm.database.transaction() as session:
        return PinView(pinned_at=pins.set_file(session, "dataset", digest, is_pinned=True))


@router.delete("/datasets/{digest}/pin")
def unpin_dataset(digest: DigestText, farm: FarmDep, _: PrincipalDep) -> PinView:
    """Unpins a data set, so that the rules of retention apply to it again."""
    with farm.database.transaction() as session:
        return PinView(pinned_at=pins.set_file(session, "dataset", digest, is_pinned=False))
