"""The tuning database: what runs of mode tune decided, and the table of it that a compile gets."""

from __future__ import annotations

import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.wire import REAL_CLASSES, KernelTuning, Report
from service.artefacts.bundles.manifest import trial_choices
from service.store.database.models import Bundle, Run, Tuning

"""Measurement classes whose times decide: an emulator's say nothing of the board."""


def keep(session: Session, run: Run, report: Report) -> int:
    """Records what a run of mode tune decided, in place of earlier decisions on the same kernels. Returns how many
    decisions there are.

    Only what the bundle offered counts, measured on a real machine with the threads that the kernels are built for.
    """
    bundle = session.get_one(Bundle, run.bundle_digest)
    manifest, tuning = bundle.manifest, report.tuning
    if tuning is None or report.measurement_class not in REAL_CLASSES or tuning.threads != manifest.get("threads"):
        return 0
    offered = trial_choices(manifest)
    decisions = [row for row in tuning.kernels if _is_sound(row, offered.get(row.kernel, ()))]
    for row in decisions:
        _put(session, run, bundle, row, tuning.threads)
    return len(decisions)


def _is_sound(row: KernelTuning, offered: tuple[str, ...]) -> bool:
    measured = {variant.choice: variant.median_us for variant in row.variants}
    return row.winner in offered and all(measured.get(choice, 0.0) > 0.0 for choice in ("", row.winner))


def _put(session: Session, run: Run, bundle: Bundle, row: KernelTuning, threads: int) -> None:
    key = {
        "organisation_id": run.organisation_id,
        "target": bundle.target,
        "version": str(bundle.manifest["version"]),
        "kernel": row.kernel,
        "threads": threads,
    }
    tuning = session.scalar(select(Tuning).filter_by(**key).with_for_update()) or Tuning(**key)
    times = {variant.choice: variant.median_us for variant in row.variants}
    tuning.choice, tuning.default_us, tuning.tuned_us = row.winner, times[""], times[row.winner]
    tuning.device_class, tuning.run_id = str(bundle.manifest["device_class"]), run.id
    tuning.measured_at = time.time()
    session.add(tuning)
    session.flush()


def newest(session: Session, target: str) -> list[Tuning]:
    """Returns the decisions for a target, of the compiler that was measured last, by kernel."""
    last = select(Tuning.version).where(Tuning.target == target).order_by(Tuning.measured_at.desc()).limit(1)
    version = session.scalar(last)
    query = select(Tuning).where(Tuning.target == target, Tuning.version == version)
    return list(session.scalars(query.order_by(Tuning.kernel, Tuning.threads)))
