"""The same work on the same device by bundles of different compilers: what users' runs show about a new compiler.

Two runs are of the same work when model, plan, spec, target, data, weights, settings and device are the same. The
farm's canaries (`service/boards/canary`) watch devices with the farm's own models; this is what its users made anyway.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Select, Text, cast, select
from sqlalchemy.orm import Session

from service.store.database.models import Job, Run
from service.store.database.models.runs import settings_of_row

NEWEST = 1000
"""Measured runs that are looked at."""
MOST_OF_ONE = 200
"""Runs of one kind of work that its history shows."""


class Build(NamedTuple):
    """The sources of a bundle, and the compiler that made it first."""

    model_name: str
    plan_name: str
    model_digest: str
    plan_digest: str
    spec_digest: str
    target: str
    is_tuned: bool
    compiler: str


class Work(NamedTuple):
    """The values that must be the same for two times to be of one thing, but for the compiler."""

    model_digest: str
    plan_digest: str
    spec_digest: str
    target: str
    is_tuned: bool
    device_id: str
    settings: str
    dataset_digest: str | None
    weights_digest: str | None


@dataclass(frozen=True, slots=True)
class Timed:
    """A run of such work."""

    run_id: str
    at: float
    median_us: float
    verdict: str
    compiler: str
    bundle_digest: str


@dataclass(frozen=True, slots=True)
class OverCompilers:
    """The runs of one kind of work, in order."""

    model_name: str
    plan_name: str
    target: str
    device_id: str
    runs: tuple[Timed, ...]

    @property
    def compilers(self) -> tuple[str, ...]:
        """Compilers of its bundles, in the order of their first runs."""
        return tuple(dict.fromkeys(run.compiler for run in self.runs))

    @property
    def newest_change(self) -> tuple[Timed, Timed] | None:
        """The newest run, and the newest one of the compiler before its own; None: there was only one compiler."""
        newest = self.runs[-1]
        before = next((run for run in reversed(self.runs) if run.compiler != newest.compiler), None)
        return (before, newest) if before is not None else None


def over_compilers(session: Session, most: int) -> list[OverCompilers]:
    """Returns the kinds of work that more than one compiler's bundles did lately, those that ran last first."""
    newest = session.execute(_timed().order_by(Run.id.desc()).limit(NEWEST))
    groups = _grouped(session, [row for row in newest if row[3] == "valid" and _is_profile(row[6])])
    several = [work for work in groups.values() if work.newest_change is not None]
    return sorted(several, key=lambda work: work.runs[-1].run_id, reverse=True)[:most]


def history_of(session: Session, run_id: str) -> OverCompilers | None:
    """Returns every run of the same work as this one, of whatever verdict; None if there is no such run with a
    median.
    """
    row = session.execute(_timed().where(Run.id == run_id)).first()
    if row is None:
        return None
    alike = _grouped(session, [row])
    if not alike:
        return None
    work = next(iter(alike))
    bundles = session.scalars(
        select(Job.bundle_digest)
        .where(
            Job.model_digest == work.model_digest,
            Job.plan_digest == work.plan_digest,
            Job.spec_digest == work.spec_digest,
            Job.target == work.target,
            Job.bundle_digest.is_not(None),
        )
        .distinct()
    )
    of_it = (Run.device_id == work.device_id, Run.bundle_digest.in_(list(bundles)))
    rows = session.execute(_timed().where(*of_it).order_by(Run.id.desc()).limit(MOST_OF_ONE))
    return _grouped(session, [*rows]).get(work)


def _is_profile(settings: str) -> bool:
    return settings_of_row(json.loads(settings)).mode == "profile"


TimedRow = tuple[str, float, float | None, str | None, str, str | None, str, str | None, str | None]


def _timed() -> Select[str, float, float | None, str | None, str, str | None, str, str | None, str | None]:
    columns = (
        Run.id,
        Run.created_at,
        Run.median_us,
        Run.verdict,
        Run.bundle_digest,
        Run.device_id,
        cast(Run.settings, Text),
        Run.dataset_digest,
        Run.weights_digest,
    )
    return select(*columns).where(Run.state == "succeeded", Run.median_us.is_not(None), Run.is_canary.is_(False))


def _grouped(session: Session, rows: Collection[TimedRow]) -> dict[Work, OverCompilers]:
    builds = _builds(session, {row[4] for row in rows})
    runs: dict[Work, list[Timed]] = {}
    names: dict[Work, Build] = {}
    for run_id, at, median_us, verdict, bundle, device_id, settings, dataset, weights in rows:
        build = builds.get(bundle)
        if build is None or device_id is None or median_us is None:
            continue
        work = Work(*build[2:7], device_id, settings, dataset, weights)
        names.setdefault(work, build)
        runs.setdefault(work, []).append(Timed(run_id, at, median_us, verdict or "", build.compiler, bundle))
    return {
        work: OverCompilers(
            names[work].model_name,
            names[work].plan_name,
            work.target,
            work.device_id,
            tuple(sorted(timed, key=lambda run: run.run_id)),
        )
        for work, timed in runs.items()
    }


def _builds(session: Session, bundles: Collection[str]) -> dict[str, Build]:
    """Returns the builds by bundle. If several compilers made the same bundle, byte for byte, the first one counts."""
    columns = (
        Job.bundle_digest,
        Job.model_name,
        Job.plan_name,
        Job.model_digest,
        Job.plan_digest,
        Job.spec_digest,
        Job.target,
        Job.tuning_json != "",
        Job.compiler_version,
    )
    rows = session.execute(select(*columns).where(Job.bundle_digest.in_(bundles)).order_by(Job.id.desc()))
    return {
        str(bundle): Build(name, plan_name, model, plan, spec, target, bool(is_tuned), compiler)
        for bundle, name, plan_name, model, plan, spec, target, is_tuned, compiler in rows
    }
