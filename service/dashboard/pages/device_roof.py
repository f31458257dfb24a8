"""The roof of a device, as far as this farm has seen it: the best that kernels of its newest valid runs reached.

A target's own figures would be another roof, and are not taken: they steer the compiler, hold for no clock or number
of threads in particular, and most are derived from data sheets, not measured (`compiler/targets/`).
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.wire import REAL_CLASSES
from service.dashboard import format as fmt
from service.dashboard import queries
from service.dashboard.facts import RunFacts
from service.dashboard.pages.roofline import Roof, SeenRoof, roof_of
from service.store.database.models import Run

NEWEST = 20
"""Valid runs of the device that are looked at: older ones are of another time."""


def seen_roof(session: Session, found: RunFacts) -> SeenRoof | None:
    """The best of the run and of others of its device with as many threads. None where no kernel both computes and
    moves bytes. A run that is not valid, or says nothing of a board, is told by itself."""
    own = roof_of(found.report.kernels) if found.report else None
    if own is None:
        return None
    others = _others(session, found) if found.verdict == "valid" and found.measurement_class in REAL_CLASSES else []
    roofs = [own, *others]
    best = Roof(max(one.gflop_per_s for one in roofs), max(one.gb_per_s for one in roofs))
    if not others:
        return SeenRoof(best, "this run alone")
    threads = "" if found.threads is None else f" with {fmt.plural(found.threads, 'thread')}"
    return SeenRoof(best, f"{len(roofs)} valid runs of this device{threads}, this one among them,")


def _others(session: Session, found: RunFacts) -> list[Roof]:
    # by verdict first, as its index is
    valid = (Run.verdict.between("valid", "valid"), Run.median_us.is_not(None), Run.is_canary.is_(False))
    newest = select(Run.id).where(Run.device_id == found.device_id, *valid)
    ids = session.scalars(newest.order_by(Run.verdict.desc(), Run.id.desc()).limit(NEWEST)).all()
    found_in = queries.reports_of(session, [one for one in ids if one != found.id]).values()
    alike = [report for report, _ in found_in if report.measurement and report.measurement.threads == found.threads]
    roofs = [roof_of(report.kernels) for report in alike]
    return [one for one in roofs if one is not None]
