"""Checks of a farm: its parts, this key, the clock, its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import pockfarm
from pockfarm.client.answers import json_of
from pockfarm.doctor.finding import OK, WARNING, WRONG, Finding
from pockfarm.errors import PockfarmError, Unreachable, UsageError
from pockfarm.own_farm.state import StateFolder
from pockfarm.values import Device, Json, part, text

if TYPE_CHECKING:
    from pockfarm.client import Client

SCOPES = {
    "read": "/jobs?limit=1",
    "submit": f"/files/sha256:{'0' * 64}",
    "operate": "/devices/enrolment-tokens?limit=1",
    "admin": "/keys",
}
"""An address that only a key with the scope may ask."""
MOST_SKEW_S = 30.0
SILENT_S = 120.0
"""A device that has said nothing for so long is offline."""
NAMED = 5
MENDS: Mapping[str, str] = {
    "database": "look at the database, and at POCKFARM_DATABASE_URL on the farm's machine",
    "migrations": "on the farm's machine: python -m service.admin migrate",
    "storage": "look at the disk or the object store, and at POCKFARM_STORAGE_URL",
    "broker": "start Valkey, or look at POCKFARM_BROKER_URL; nothing is lost meanwhile",
    "disk": "make room on the farm's disk (docs/operations.md: Room in the storage)",
    "workers": "start a worker, or look into its log: compiles wait until then",
}


def reach(state: StateFolder | None) -> tuple[Client | None, Finding]:
    """The farm that environment or folder names, and whether it answers; None where there is none."""
    try:
        farm = pockfarm.Client(state=state)
    except UsageError as problem:
        mend = "pockfarm up, or set POCKFARM_URL and POCKFARM_API_KEY"
        return None, Finding("farm", WARNING, str(problem).partition(":")[0] + " is named here", mend)
    mend = f"is {farm.url} its address, and is it up? `pockfarm status` tells of one on this machine"
    try:
        answer = farm.look("/healthz")
    except Unreachable as problem:
        farm.close()
        return None, Finding("farm", WRONG, str(problem), mend)
    if answer.status_code == 200:
        return farm, Finding("farm", OK, f"{farm.url} answers")
    farm.close()
    return None, Finding("farm", WRONG, f"{farm.url}/healthz answers {answer.status_code}", mend)


def farm_findings(farm: Client) -> list[Finding]:
    """All of them; what the key may not see is left out."""
    findings = [*ready_findings(json_of(farm.look("/readyz"))), clock_finding(farm)]
    status = {scope: farm.look(path).status_code for scope, path in SCOPES.items()}
    findings.append(key_finding(status))
    if findings[-1].state == WRONG:
        return findings
    try:
        return [*findings, *device_findings(farm.devices(), now(farm)), regression_finding(farm.regressions())]
    except PockfarmError as problem:
        return [*findings, Finding("devices", WRONG, str(problem), "look at the farm's log")]


def ready_findings(ready: Json) -> list[Finding]:
    """Each part of the farm, as `/readyz` says it."""
    why = part(ready, "why")
    return [
        Finding(f"farm's {name}", OK, "fit for work")
        if state == "ok"
        else Finding(f"farm's {name}", WRONG, text(why, name) or f"it is {state}", MENDS.get(name, ""))
        for name, state in part(ready, "parts").items()
    ]


def now(farm: Client) -> datetime:
    """By the farm's clock; by this machine's, if something before the farm keeps that to itself."""
    date_header = farm.look("/healthz").headers.get("Date")
    return parsedate_to_datetime(date_header) if date_header else datetime.now(timezone.utc)


def clock_finding(farm: Client) -> Finding:
    """This machine's clock beside the farm's, which says whole seconds."""
    return skew_finding((datetime.now(timezone.utc) - now(farm)).total_seconds())


def skew_finding(skew_s: float) -> Finding:
    """Reports the time by which this machine's clock is ahead."""
    if abs(skew_s) <= MOST_SKEW_S:
        return Finding("clock", OK, f"within {MOST_SKEW_S:.0f} s of the farm's")
    side = "ahead of" if skew_s > 0 else "behind"
    return Finding(
        "clock",
        WARNING,
        f"this machine's clock is {abs(skew_s):,.0f} s {side} the farm's",
        "set whichever is wrong (timedatectl); an agent with a wrong clock is not enrolled",
    )


def key_finding(status: Mapping[str, int]) -> Finding:
    """Whether the farm knows the key, and its scopes, from the statuses of addresses that need them."""
    if status["read"] == 401:
        return Finding(
            "API key",
            WRONG,
            "the farm does not know it, or it was revoked or has expired",
            "set POCKFARM_API_KEY to another; an administrator makes it: pockfarm key add NAME",
        )
    scopes = [scope for scope, code in status.items() if code != 403]
    if "submit" in scopes:
        return Finding("API key", OK, f"its scopes are {', '.join(scopes)}")
    mend = "a key with the scope submit, if you want to: pockfarm key add NAME --scope read --scope submit"
    return Finding("API key", WARNING, f"its scopes are {', '.join(scopes) or 'none'}: it submits nothing", mend)


def device_findings(devices: Sequence[Device], at: datetime) -> list[Finding]:
    """Whether there are any, which are quarantined, which are silent."""
    present = [device for device in devices if device.state != "removed"]
    if not present:
        return [Finding("devices", WARNING, "the farm has none: runs wait", "pockfarm devices enrol NAME")]
    ill = [
        f"{device.name} ({text(device.raw, 'state_reason') or 'no reason given'})"
        for device in present
        if device.state == "quarantined"
    ]
    silent = [f"{device.name} (since {device.last_seen_at})" for device in present if _silence_s(device, at) > SILENT_S]
    findings = []
    if ill:
        findings.append(
            Finding(
                "quarantined",
                WARNING,
                first_names(ill),
                "mend them, then POST /devices/ID/release; `pockfarm devices show DEVICE` has the history",
            )
        )
    if silent:
        findings.append(
            Finding(
                "offline",
                WARNING,
                first_names(silent),
                "look at their power, network and agent: on the board, systemctl status pockfarm-agent",
            )
        )
    if len(silent) == len(present):
        findings.append(Finding("devices", WRONG, f"none of {len(present)} answers: runs wait", "see above"))
    else:
        findings.append(Finding("devices", OK, f"{len(present) - len(silent)} of {len(present)} answer"))
    return findings


def _silence_s(device: Device, at: datetime) -> float:
    try:
        last_seen = datetime.fromisoformat(device.last_seen_at.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return (at - last_seen).total_seconds()


def regression_finding(regressions: Sequence[Json]) -> Finding:
    """Devices that have become slower, and nobody has said that it is known."""
    if not regressions:
        return Finding("regressions", OK, "no device has become slower that nobody knows of")
    descriptions = [
        f"{text(regression, 'device_id')} by {text(regression, 'canary')} ({text(regression, 'message')})"
        for regression in regressions
    ]
    return Finding(
        "regressions",
        WARNING,
        first_names(descriptions),
        "pockfarm regressions says what else changed; "
        "`pockfarm regressions acknowledge DEVICE CHANGE` once it is known",
    )


def first_names(names: Sequence[str]) -> str:
    """The first of them, and how many more."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
