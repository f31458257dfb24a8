"""`/healthz` (alive), `/readyz` (every part is fit for work) and `/metrics` (Prometheus)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from service.base.problems import Invalid
from service.operations.health.checks import Readiness
from service.operations.health.metrics import Metrics
from service.people.access import PrincipalDep

router = APIRouter(tags=["health"])
EXCLUDE = "Checks to leave out, such as `workers` for a load balancer: requests can be taken, and jobs wait"


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """Answers that the process is alive."""
    return {"status": "ok"}


@router.get("/readyz", responses={503: {"description": "Some part is not fit for work"}})
def readyz(
    request: Request, exclude: Annotated[list[str] | None, Query(description=EXCLUDE, max_length=20)] = None
) -> Response:
    """Checks that every part is ready for work: database (accepts a write), migrations, storage, broker, disk,
    workers.
    """
    readiness: Readiness = request.app.state.readiness
    names = [check.name for check in readiness.checks]
    if unknown := sorted(set(exclude or ()) - set(names)):
        raise Invalid(
            "ready.unknown",
            f"there is no check {unknown[0]!r:.40}",
            where="exclude",
            hint=f"the checks are {', '.join(names)}",
        )
    findings = readiness.findings(exclude or ())
    is_ready = all(finding.state == "ok" for finding in findings.values())
    body = {
        "status": "ok" if is_ready else "not ready",
        "parts": {name: finding.state for name, finding in findings.items()},
        "why": {name: finding.why for name, finding in findings.items() if finding.why},
        "limits_s": {check.name: check.limit_s for check in readiness.checks},
    }
    return JSONResponse(body, 200 if is_ready else 503, headers={"Cache-Control": "no-store"})


@router.get("/metrics", response_class=Response)
def show_metrics(request: Request, _: PrincipalDep) -> Response:
    """Returns figures of this process and of the whole farm, in the Prometheus text format. Needs the scope `operate`
    in the farm's organisation.
    """
    metrics: Metrics = request.app.state.metrics
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)
