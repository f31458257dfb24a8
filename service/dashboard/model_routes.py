"""The addresses of models and of their plans."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from service.base.problems import NotFound
from service.dashboard import addresses, render, visitors
from service.dashboard.pages.models import model_page, models_table
from service.dashboard.query_values import check_names, name_in
from service.people.access import FarmDep
from service.store.database.models import Bundle

router = APIRouter(prefix=addresses.ROOT, dependencies=[Depends(visitors.meet)], include_in_schema=False)
Chosen = Annotated[str, Query(max_length=100)]
HINT = "the list of models leads to all that were compiled"


@router.get("/models")
def show_models(farm: FarmDep) -> Response:
    """Shows every model from which bundles were made."""
    with farm.database.read() as session:
        return render.page("models.html", table=models_table(session), section="models")


@router.get("/models/{model_digest}")
def show_model(model_digest: str, farm: FarmDep, bundle: Chosen = "") -> Response:
    """Shows a model; `bundle`: whose graph and bytes are shown, the newest by default."""
    with farm.database.read() as session:
        check_names(session, [name_in("bundle", bundle, Bundle.digest, Bundle.model_digest == model_digest)])
        page = model_page(session, model_digest, bundle=bundle)
    if page is None:
        raise NotFound("model.unknown", f"There is no bundle of a model {model_digest!r}.", hint=HINT)
    return render.page("model.html", page=page, section="models")


@router.get("/models/{model_digest}/plans/{plan_digest}")
def show_plan(model_digest: str, plan_digest: str, farm: FarmDep, bundle: Chosen = "") -> Response:
    """Shows a plan of a model over devices."""
    with farm.database.read() as session:
        of_plan = (Bundle.model_digest == model_digest, Bundle.plan_digest == plan_digest)
        check_names(session, [name_in("bundle", bundle, Bundle.digest, *of_plan)])
        page = model_page(session, model_digest, plan_digest, bundle)
    if page is None:
        message = f"There is no bundle of a plan {plan_digest!r} and a model {model_digest!r}."
        raise NotFound("plan.unknown", message, hint=HINT)
    return render.page("model.html", page=page, section="models")
