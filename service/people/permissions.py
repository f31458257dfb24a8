"""Who may do what: one line for every address of the farm, and nothing else decides.

A line says which scope a key needs, and what of the path belongs to whom: what is another organisation's is answered as
what is not there. An address without a line keeps the application from starting (`refuse_gaps`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Scope = Literal["read", "submit", "operate", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "submit", "operate", "admin")
"""`read` what the organisation has; `submit` jobs, runs, data; `operate` its devices; `admin` its people and keys."""
ROLES: Mapping[str, tuple[Scope, ...]] = {"user": ("read", "submit"), "operator": SCOPES}
"""The scopes of a key that names none, by its role."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule about who may use an address. Without a scope: anybody, or a device by its credential."""

    scope: Scope | None
    owned: str | None = None
    """The noun of what in the path belongs to an organisation: `job`, `run`, `device`."""
    is_farms: bool = False
    """The home organisation's keys only: it is about the farm as a whole."""
    is_devices: bool = False
    """A device's credential opens it, no key does."""


OPEN = Rule(None)
DEVICE = Rule(None, is_devices=True)
READ, SUBMIT, OPERATE, ADMIN = Rule("read"), Rule("submit"), Rule("operate"), Rule("admin")
FARM_OPERATE, FARM_ADMIN = Rule("operate", is_farms=True), Rule("admin", is_farms=True)

RULES: Mapping[str, Rule] = {
    "POST /compile": SUBMIT,
    "POST /tune": SUBMIT,
    "GET /jobs": READ,
    "GET /jobs/{job_id}": Rule("read", "job"),
    "GET /jobs/{job_id}/why": Rule("read", "job"),
    "GET /jobs/{job_id}/events": Rule("read", "job"),
    "POST /jobs/{job_id}/cancel": Rule("submit", "job"),
    "POST /jobs/{job_id}/retry": Rule("submit", "job"),
    "GET /bundles": READ,
    "GET /bundles/{digest}": Rule("read", "bundle"),
    "GET /bundles/{digest}/info": Rule("read", "bundle"),
    "GET /bundles/{digest}/manifest": Rule("read", "bundle"),
    "GET /bundles/{digest}/report": Rule("read", "bundle"),
    "GET /bundles/{digest}/statement": Rule("read", "bundle"),
    "POST /bundles/{digest}/pin": Rule("submit", "bundle"),
    "DELETE /bundles/{digest}/pin": Rule("submit", "bundle"),
    "POST /datasets": SUBMIT,
    "GET /datasets": READ,
    "GET /datasets/{digest}": Rule("read", "dataset"),
    "GET /datasets/{digest}/download": Rule("read", "dataset"),
    "POST /datasets/{digest}/pin": Rule("submit", "dataset"),
    "DELETE /datasets/{digest}/pin": Rule("submit", "dataset"),
    "POST /uploads": SUBMIT,
    "PATCH /uploads/{upload_id}": Rule("submit", "upload"),
    "GET /uploads/{upload_id}": Rule("submit", "upload"),
    "PUT /uploads/{upload_id}": Rule("submit", "upload"),
    "DELETE /uploads/{upload_id}": Rule("submit", "upload"),
    "GET /files/{digest}": Rule("submit", "file"),
    "POST /runs": SUBMIT,
    "GET /runs": READ,
    "GET /runs/{run_id}": Rule("read", "run"),
    "PATCH /runs/{run_id}": Rule("submit", "run"),
    "GET /runs/{run_id}/why": Rule("read", "run"),
    "GET /runs/{run_id}/events": Rule("read", "run"),
    "GET /runs/{run_id}/report": Rule("read", "run"),
    "GET /runs/{run_id}/compare/{other_id}": Rule("read", "run"),
    "GET /runs/{run_id}/weights": Rule("read", "run"),
    "GET /runs/{run_id}/receipt": Rule("read", "run"),
    "GET /log/checkpoint": READ,
    "GET /log/head": READ,
    "GET /log/heads": READ,
    "GET /log/entries": READ,
    "GET /log/consistency": READ,
    "POST /runs/{run_id}/retry": Rule("submit", "run"),
    "POST /runs/{run_id}/cancel": Rule("submit", "run"),
    "POST /runs/{run_id}/pin": Rule("submit", "run"),
    "DELETE /runs/{run_id}/pin": Rule("submit", "run"),
    "POST /run-groups": SUBMIT,
    "GET /run-groups": READ,
    "GET /run-groups/{group_id}": Rule("read", "group"),
    "POST /run-groups/{group_id}/cancel": Rule("submit", "group"),
    "GET /tunings": READ,
    "GET /schemas/{name}": OPEN,
    "POST /devices/enrolment-tokens": OPERATE,
    "GET /devices/enrolment-tokens": OPERATE,
    "GET /devices/enrolment-tokens/{token_id}": Rule("operate", "enrolment_token"),
    "DELETE /devices/enrolment-tokens/{token_id}": Rule("operate", "enrolment_token"),
    "GET /devices": READ,
    "GET /devices/{device_id}": Rule("read", "device"),
    "PATCH /devices/{device_id}": Rule("operate", "device"),
    "POST /devices/{device_id}/quarantine": Rule("operate", "device"),
    "POST /devices/{device_id}/release": Rule("operate", "device"),
    "POST /devices/{device_id}/drain": Rule("operate", "device"),
    "POST /devices/{device_id}/resume": Rule("operate", "device"),
    "POST /devices/{device_id}/tags": Rule("operate", "device"),
    "POST /devices/{device_id}/canary": Rule("operate", "device"),
    "GET /devices/{device_id}/canaries": Rule("read", "device"),
    "POST /devices/{device_id}/canaries/{change_id}/acknowledge": Rule("operate", "device"),
    "GET /regressions": READ,
    "DELETE /devices/{device_id}": Rule("operate", "device"),
    "POST /maintenance": OPERATE,
    "GET /maintenance": READ,
    "DELETE /maintenance/{window_id}": Rule("operate", "window"),
    "POST /agent-releases": FARM_OPERATE,
    "GET /agent-releases": FARM_OPERATE,
    "GET /agent-releases/{release_id}": FARM_OPERATE,
    "PATCH /agent-releases/{release_id}": FARM_OPERATE,
    "POST /agent-releases/{release_id}/halt": FARM_OPERATE,
    "POST /keys": ADMIN,
    "GET /keys": ADMIN,
    "DELETE /keys/{key_id}": Rule("admin", "key"),
    "POST /users": ADMIN,
    "GET /users": ADMIN,
    "DELETE /users/{user_id}": Rule("admin", "user"),
    "POST /organisations": FARM_ADMIN,
    "GET /organisations": FARM_ADMIN,
    "PATCH /organisations/{organisation_id}": FARM_ADMIN,
    "POST /organisations/{organisation_id}/close": FARM_ADMIN,
    "POST /organisations/{organisation_id}/keys": FARM_ADMIN,
    "GET /organisation": READ,
    "GET /audit": ADMIN,
    "POST /dashboard/links": READ,
    "GET /open/{token}": OPEN,
    "POST /agent/enrol": OPEN,
    "POST /agent/challenge": OPEN,
    "POST /agent/renew": OPEN,
    "POST /agent/lease": DEVICE,
    "POST /agent/refusals": DEVICE,
    "POST /agent/kept-runs": DEVICE,
    "POST /agent/attempts/{lease_token}/heartbeat": DEVICE,
    "POST /agent/attempts/{lease_token}/events": DEVICE,
    "POST /agent/attempts/{lease_token}/report": DEVICE,
    "PUT /agent/attempts/{lease_token}/weights": DEVICE,
    "GET /agent/attempts/{lease_token}/weights": DEVICE,
    "PUT /agent/attempts/{lease_token}/checkpoint": DEVICE,
    "GET /agent/attempts/{lease_token}/checkpoint": DEVICE,
    "GET /agent/attempts/{lease_token}/bundle": DEVICE,
    "GET /agent/attempts/{lease_token}/bundles/{place}": DEVICE,
    "GET /agent/attempts/{lease_token}/dataset": DEVICE,
    "GET /agent/attempts/{lease_token}/validation-dataset": DEVICE,
    "GET /agent/releases/{sequence}": DEVICE,
    "GET /agent.pyz": OPEN,
    "GET /enrol.sh": OPEN,
    "GET /healthz": OPEN,
    "GET /readyz": OPEN,
    "GET /metrics": FARM_OPERATE,
    "GET /openapi.json": OPEN,
    "GET /": OPEN,
    "GET /dashboard/static/{name}": OPEN,
    "GET /docs": OPEN,
    "GET /docs/{path:path}": OPEN,
    "GET /dashboard": READ,
    "GET /dashboard/jobs": READ,
    "GET /dashboard/jobs.{ending}": READ,
    "GET /dashboard/jobs/{job_id}": Rule("read", "job"),
    "GET /dashboard/jobs/{job_id}/{name}.{ending}": Rule("read", "job"),
    "GET /dashboard/runs": READ,
    "GET /dashboard/runs.{ending}": READ,
    "GET /dashboard/runs/{run_id}": Rule("read", "run"),
    "GET /dashboard/runs/{run_id}/{name}.{ending}": Rule("read", "run"),
    "POST /dashboard/runs/{run_id}/retry": Rule("submit", "run"),
    "POST /dashboard/runs/{run_id}/about": Rule("submit", "run"),
    "GET /dashboard/devices": READ,
    "GET /dashboard/devices.{ending}": READ,
    "GET /dashboard/devices/{device_id}": Rule("read", "device"),
    "GET /dashboard/devices/{device_id}/{name}.{ending}": Rule("read", "device"),
    "GET /dashboard/audit": ADMIN,
    "GET /dashboard/audit.{ending}": ADMIN,
    "GET /dashboard/api": READ,
    "GET /dashboard/models": READ,
    "GET /dashboard/models/{model_digest}": Rule("read", "file"),
    "GET /dashboard/models/{model_digest}/plans/{plan_digest}": Rule("read", "file"),
    "GET /dashboard/queue": READ,
    "POST /dashboard/runs/{run_id}/cancel": Rule("submit", "run"),
    "POST /dashboard/jobs/{job_id}/cancel": Rule("submit", "job"),
    "POST /dashboard/jobs/{job_id}/retry": Rule("submit", "job"),
    "GET /dashboard/regressions": READ,
    "POST /dashboard/devices/{device_id}/canaries/{change_id}/acknowledge": Rule("operate", "device"),
    "POST /dashboard/devices/{device_id}/rename": Rule("operate", "device"),
    "POST /dashboard/devices/{device_id}/tags": Rule("operate", "device"),
    "POST /dashboard/devices/{device_id}/drain": Rule("operate", "device"),
    "POST /dashboard/devices/{device_id}/quarantine": Rule("operate", "device"),
    "POST /dashboard/devices/{device_id}/release": Rule("operate", "device"),
    "POST /dashboard/devices/{device_id}/resume": Rule("operate", "device"),
    "POST /dashboard/devices/{device_id}/canary": Rule("operate", "device"),
    "POST /dashboard/devices/{device_id}/remove": Rule("operate", "device"),
    "GET /dashboard/admin": READ,
    "GET /dashboard/admin/enrolment": OPERATE,
    "POST /dashboard/admin/enrolment": OPERATE,
    "POST /dashboard/admin/enrolment/{token_id}/revoke": Rule("operate", "enrolment_token"),
    "GET /dashboard/admin/people": ADMIN,
    "POST /dashboard/admin/people": ADMIN,
    "POST /dashboard/admin/people/{user_id}/remove": Rule("admin", "user"),
    "GET /dashboard/admin/organisations": FARM_ADMIN,
    "POST /dashboard/admin/organisations": FARM_ADMIN,
    "POST /dashboard/admin/organisations/{organisation_id}/close": FARM_ADMIN,
    "GET /dashboard/admin/organisations/{organisation_id}": FARM_ADMIN,
    "POST /dashboard/admin/organisations/{organisation_id}/name": FARM_ADMIN,
    "POST /dashboard/admin/organisations/{organisation_id}/limits": FARM_ADMIN,
    "POST /dashboard/admin/organisations/{organisation_id}/stays": FARM_ADMIN,
    "GET /dashboard/admin/organisation": READ,
    "GET /dashboard/admin/windows": READ,
    "POST /dashboard/admin/windows": OPERATE,
    "POST /dashboard/admin/windows/{window_id}/remove": Rule("operate", "window"),
    "GET /dashboard/admin/releases": FARM_OPERATE,
    "POST /dashboard/admin/releases": FARM_OPERATE,
    "POST /dashboard/admin/releases/{release_id}/widen": FARM_OPERATE,
    "POST /dashboard/admin/releases/{release_id}/halt": FARM_OPERATE,
    "GET /dashboard/admin/keys": ADMIN,
    "POST /dashboard/admin/keys": ADMIN,
    "POST /dashboard/admin/keys/{key_id}/revoke": Rule("admin", "key"),
    "GET /dashboard/benchmarks": READ,
    "GET /dashboard/benchmarks.{ending}": READ,
    "GET /dashboard/compare": READ,
    "GET /dashboard/compare.{ending}": READ,
}


class Gaps(Exception):
    """Addresses without a line, or lines without an address."""


class Permissions:
    """The rules of every address that a farm serves: those here, and those of its optional features."""

    def __init__(self, rules: Mapping[str, Rule] = RULES) -> None:
        self._rules = rules

    def rule_of(self, address: str) -> Rule:
        """Returns the rule of an address: method and its route's path. Raises: KeyError."""
        return self._rules[address.replace("HEAD ", "GET ", 1)]

    def refuse_gaps(self, served: Iterable[str]) -> None:
        """Checks that rules and addresses match. `served`: `METHOD /path` of every route. Raises: Gaps."""
        addresses = set(served)
        gaps = sorted(addresses - self._rules.keys())
        stale = sorted(self._rules.keys() - addresses)
        if gaps:
            raise Gaps(f"no line in service/people/permissions.py says who may use {', '.join(gaps)}")
        if stale:
            raise Gaps(f"lines of service/people/permissions.py are about no address: {', '.join(stale)}")


def scopes_of(role: str, scopes: str) -> frozenset[str]:
    """Returns the scopes of a key's row: those it names, or else its role's."""
    return frozenset(scopes.split()) if scopes else frozenset(ROLES.get(role, ()))
