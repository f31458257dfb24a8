"""Addresses of the pages and of what they link to in the API."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, urlencode

ROOT = "/dashboard"
STATIC = f"{ROOT}/static"


def page(name: str, *query: tuple[str, str]) -> str:
    """Returns the address of a page with a query; empty values are left out."""
    return with_query(f"{ROOT}/{name}" if name else ROOT, query)


def job(job_id: str) -> str:
    """Returns the address of a compile job."""
    return f"{ROOT}/jobs/{quote(job_id, safe='')}"


def run(run_id: str) -> str:
    """Returns the address of a run."""
    return f"{ROOT}/runs/{quote(run_id, safe='')}"


def device(device_id: str) -> str:
    """Returns the address of a device."""
    return f"{ROOT}/devices/{quote(device_id, safe='')}"


def model(digest: str) -> str:
    """Returns the address of a model."""
    return f"{ROOT}/models/{quote(digest, safe=':')}"


def plan(model_digest: str, plan_digest: str) -> str:
    """Returns the address of a plan of a model, over devices."""
    return f"{model(model_digest)}/plans/{quote(plan_digest, safe=':')}"


def compare(run_ids: Iterable[str]) -> str:
    """Returns the address of the page that compares these runs."""
    return page("compare", *(("run", run_id) for run_id in run_ids))


def bundle(digest: str) -> str:
    """Returns the address of a bundle's download, in the API."""
    return f"/bundles/{quote(digest, safe=':')}"


def weights(run_id: str) -> str:
    """Returns the address of a run's trained weights, in the API."""
    return f"/runs/{quote(run_id, safe='')}/weights"


def report(run_id: str) -> str:
    """Returns the address of a run's report as JSON, in the API."""
    return f"/runs/{quote(run_id, safe='')}/report"


def events(kind: str, subject: str) -> str:
    """Returns the address of the event stream of a job or run, in the API."""
    return f"/{kind}/{quote(subject, safe='')}/events"


def with_query(path: str, query: Iterable[tuple[str, str]]) -> str:
    """Returns the path with a query: `path?a=1&b=2`; empty values are left out."""
    pairs = [(name, value) for name, value in query if value]
    return f"{path}?{urlencode(pairs)}" if pairs else path
