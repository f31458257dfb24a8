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


def seen_roof(session: Session, run: RunFacts) -> SeenRoof | None:
    """Returns the best of the run and of others of its device with as many threads; None if no kernel both computes and
    moves bytes. A run that is not valid, or says nothing about a board, is shown by itself.
    """
    run_roof = roof_of(run.report.kernels) if run.report else None
    if run_roof is None:
        return None
    others = _others(session, run) if run.verdict == "valid" and run.measurement_class in REAL_CLASSES else []
    roofs = [run_roof, *others]
    best = Roof(max(roof.gflop_per_s for roof in roofs), max(roof.gb_per_s for roof in roofs))
    if not others:
        return SeenRoof(best, "this run alone")
    threads = "" if run.threads is None else f" with {fmt.plural(run.threads, 'thread')}"
    return SeenRoof(best, f"{len(roofs)} valid runs of this device{threads}, this one among them,")


def _others(session: Session, run: RunFacts) -> list[Roof]:
    # by verdict first, as its index is
    valid = (Run.verdict.between("valid", "valid"), Run.median_us.is_not(None), Run.is_canary.is_(False))
    newest = select(Run.id).where(Run.device_id == run.device_id, *valid)
    ids = session.scalars(newest.order_by(Run.verdict.desc(), Run.id.desc()).limit(NEWEST)).all()
    found_in = queries.reports_of(session, [run_id for run_id in ids if run_id != run.id]).values()
    alike = [report for report, _ in found_in if report.measurement and report.measurement.threads == run.threads]
    roofs = [roof_of(report.kernels) for report in alike]
    return [roof for roof in roofs if roof is not None]
