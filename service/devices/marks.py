"""What the newest results of a device say together, where one alone says nothing: noisy, unlike its peers, lying.

A mark is no judgement: it costs no work and no strike. It is computed when somebody looks, from a few rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.database.models import Attempt, Device, Result, Run
from service.schemas import View

NEWEST, ENOUGH = 10, 5
"""Results that are looked at, and how many there must be."""
NEWEST_ATTEMPTS = 20
NEWEST_REPORTS = 3
UNLIKE, COMPARED, PEERS = 1.5, 3, 2
"""So many times the peers' median, on so many bundles, of so many peers."""
SENSORS = {"temperature_c": (-60.0, 150.0), "frequency_hz": (0.0, 1e10), "power_mw": (0.0, 1e6), "load": (0.0, 1e4)}
"""What no board's sensor truly says; the wire takes more, for a broken one is shown and not judged."""


class DeviceMark(View):
    """Something that an operator should look at."""

    code: str
    """always-noisy, unlike-peers, impossible-reports or sensors."""
    says: str


def marks_of(session: Session, device: Device) -> list[DeviceMark]:
    """The device's marks."""
    looks: tuple[tuple[str, Callable[[Session, Device], str]], ...] = (
        ("always-noisy", _noisy), ("unlike-peers", _unlike), ("impossible-reports", _impossible), ("sensors", _sensors),
    )  # fmt: skip
    said = [(code, look(session, device)) for code, look in looks]
    return [DeviceMark(code=code, says=says) for code, says in said if says]


def _noisy(session: Session, device: Device) -> str:
    mine = select(Run.verdict).where(Run.device_id == device.id, Run.verdict.is_not(None), Run.state == "succeeded")
    verdicts = list(session.scalars(mine.order_by(Run.id.desc()).limit(NEWEST)))
    if len(verdicts) < ENOUGH or "valid" in verdicts:
        return ""
    return f"none of its newest {len(verdicts)} measurements was valid: {', '.join(sorted(set(map(str, verdicts))))}"


def _unlike(session: Session, device: Device) -> str:
    """Peers have the same class, and ran the same bundle in the same mode."""
    measured = (Run.median_us.is_not(None), Run.verdict == "valid", Run.state == "succeeded")
    mine = select(Run.bundle_digest, Run.median_us).where(Run.device_id == device.id, *measured)
    rows = session.execute(mine.order_by(Run.id.desc()).limit(NEWEST)).all()
    newest = {digest: us or 0.0 for digest, us in reversed(rows)}
    query = (
        select(Run.bundle_digest, Run.device_id, Run.median_us)
        .join(Device, Device.id == Run.device_id)
        .where(Run.bundle_digest.in_(newest), Device.device_class == device.device_class, Device.id != device.id)
        .where(*measured)
        .order_by(Run.id.desc())
        .limit(20 * NEWEST)
    )
    theirs: dict[str, dict[str, float]] = {}
    for digest, peer, us in session.execute(query):
        theirs.setdefault(digest, {}).setdefault(peer or "", us or 0.0)
    ratios = [
        newest[one] / statistics.median(times.values())
        for one, times in theirs.items()
        if len(times) >= PEERS and all(times.values())
    ]
    if len(ratios) < COMPARED:
        return ""
    if min(ratios) > UNLIKE or max(ratios) < 1 / UNLIKE:
        word = "slower" if min(ratios) > 1 else "quicker"
        typical = statistics.median(ratios)
        times = typical if typical > 1 else 1 / typical
        return f"{times:.1f} times {word} than other devices of class {device.device_class}, on {len(ratios)} bundles"
    return ""


def _impossible(session: Session, device: Device) -> str:
    mine = select(Attempt.code).where(Attempt.device_id == device.id).order_by(Attempt.id.desc()).limit(NEWEST_ATTEMPTS)
    codes = list(session.scalars(mine))
    count = codes.count("report.impossible") + codes.count("canary.wrong")
    return f"told figures that cannot be {count} times in its newest {len(codes)} attempts" if count else ""


def _sensors(session: Session, device: Device) -> str:
    mine = select(Attempt.id).where(Attempt.device_id == device.id).order_by(Attempt.id.desc()).limit(NEWEST_REPORTS)
    reports = session.scalars(select(Result.report).where(Result.attempt_id.in_(mine)))
    found = sorted({name for report in reports for name in _out_of_range(report)})
    return f"its sensors say what no board's do: {', '.join(found)}" if found else ""


def _out_of_range(report: dict[str, Any]) -> Iterator[str]:
    for state in report.get("device_states") or ():
        for name, (least, most) in SENSORS.items():
            value = state.get(name)
            if isinstance(value, (int, float)) and not least <= value <= most:
                yield name
