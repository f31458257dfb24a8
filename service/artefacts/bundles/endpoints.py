"""`/bundles`: the files that compiles gave, their manifests and compile reports.

Bodies of the bundle endpoints.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from device_agents.wire import dumps
from device_agents.wire.receipt import BUNDLE_STATEMENT_TYPE
from service.artefacts.bundles import service
from service.artefacts.bundles.service import HeldBundle
from service.base.pagination import Cursor, Limit, Page
from service.base.schemas import SIGNED, DigestText, Timestamp, View
from service.people.access import FarmDep, PrincipalDep
from service.people.holdings import service as holdings
from service.store.envelopes import signed
from service.store.files import BINARY, file_response


class BundleView(View):
    """A bundle, and in `summary` the parts of its manifest that fit in a list."""

    digest: str
    size_bytes: int
    target: str
    model_name: str
    model_digest: str
    plan_name: str
    plan_digest: str
    spec_digest: str
    created_at: Timestamp
    pinned_at: Timestamp | None
    """Retention leaves it alone."""
    removed_at: Timestamp | None
    """When retention took its file."""
    summary: dict[str, Any]
    """memory {arena_bytes, bound_bytes, weights_bytes, optimizer_bytes, peak_bytes}, inputs, outputs, kernels,
    required_features."""


router = APIRouter(prefix="/bundles", tags=["bundles"])


def _view(held_bundle: HeldBundle) -> BundleView:
    bundle, holding = held_bundle.bundle, held_bundle.holding
    named: dict[str, Any] = {
        "model_name": holding.name,
        "plan_name": holding.plan_name,
        "created_at": holding.created_at,
        "pinned_at": holding.pinned_at,
        "removed_at": holding.files_removed_at,
    }
    columns = {name: getattr(bundle, name) for name in BundleView.model_fields if name not in (*named, "summary")}
    return BundleView(**columns, **named, summary=service.summary(bundle.manifest))


@router.get("")
def list_bundles(
    farm: FarmDep,
    _: PrincipalDep,
    target: str | None = None,
    model_digest: str | None = None,
    plan: str | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[BundleView]:
    """Lists bundles, the newest first."""
    with farm.database.read() as session:
        rows, following = service.newest_bundles(
            session, target=target, model_digest=model_digest, plan=plan, limit=limit, cursor=cursor
        )
        return Page(items=[_view(row) for row in rows], next=following)


@router.get("/{digest}", response_class=Response, responses=BINARY)  # type: ignore[arg-type]
def download_bundle(digest: DigestText, request: Request, farm: FarmDep, _: PrincipalDep) -> Response:
    """Returns the bundle's bytes (`.pfb`, a tar archive)."""
    with farm.database.read() as session:
        bundle = service.find(session, digest).bundle
        holdings.refuse_taken(session, "bundle", digest, where="digest")
    filename = f"{bundle.target}-{digest.removeprefix('sha256:')[:12]}.pfb"
    return file_response(request, farm, digest, filename=filename)


@router.get("/{digest}/info")
def show_bundle(digest: DigestText, farm: FarmDep, _: PrincipalDep) -> BundleView:
    """Returns everything that the farm knows about a bundle."""
    with farm.database.read() as session:
        return _view(service.find(session, digest))


@router.get("/{digest}/manifest")
def show_manifest(digest: DigestText, farm: FarmDep, _: PrincipalDep) -> dict[str, Any]:
    """Returns the bundle's `manifest.json`."""
    with farm.database.read() as session:
        return service.find(session, digest).bundle.manifest


@router.get("/{digest}/statement", response_class=Response, responses=SIGNED)
def show_statement(digest: DigestText, farm: FarmDep, _: PrincipalDep) -> Response:
    """Returns the signed statement that this farm made the bundle, from what and by which compiler: `pockfarm verify`
    reads it.
    """
    with farm.database.read() as session:
        statement = service.statement(session, digest, now=time.time())
    return Response(dumps(signed(farm, BUNDLE_STATEMENT_TYPE, statement)), media_type="application/json")


@router.get("/{digest}/report")
def show_report(digest: DigestText, farm: FarmDep, _: PrincipalDep) -> dict[str, Any]:
    """Returns the bundle's `report.json`: what the compiler did."""
    with farm.database.read() as session:
        return service.find(session, digest).bundle.compile_report
