"""Runs of mode compare: which bundles may take turns with the first, what they need, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.figures.told import verdict_of
from device_agents.wire import EFFECT, Comparison, from_json
from service.bundles import service as bundles
from service.bundles.manifest import is_tuning
from service.bundles.service import Built, built
from service.database.models import ComparedBundle, Run
from service.holdings import service as holdings
from service.problems import Invalid
from service.runs.schemas import ComparedView, ComparisonView


def held(session: Session, digests: Sequence[str], first: Built) -> list[Built]:
    """The bundles that a request wants to compare with the first. Raises: NotFound, Gone, Invalid."""
    found = [bundles.held(session, digest, where=f"others.{place}", hint="POST /compile makes one").bundle
             for place, digest in enumerate(digests)]  # fmt: skip
    for place, bundle in enumerate(found):
        if is_tuning(bundle.manifest):
            raise Invalid("run.mode", "the bundle measures schedules, and has no steps to compare",
                          where=f"others.{place}", hint="name bundles of POST /compile")  # fmt: skip
        if bundle.target != first.target:
            raise Invalid("run.target", f"the bundle is for {bundle.target}, the first for {first.target}",
                          where=f"others.{place}", hint="compile it for the target of the first")  # fmt: skip
    return found


def add(session: Session, run: Run, others: Sequence[Built]) -> None:
    """Write them down, in the order that they are to have."""
    session.add_all(
        ComparedBundle(run_id=run.id, place=place, bundle_digest=other.digest) for place, other in enumerate(others, 1)
    )


def digests(session: Session, run: Run) -> list[str]:
    """Of the others, in order; none of another mode."""
    if run.mode != "compare":
        return []
    query = select(ComparedBundle.bundle_digest).where(ComparedBundle.run_id == run.id).order_by(ComparedBundle.place)
    return list(session.scalars(query))


def others(session: Session, run: Run) -> list[Built]:
    """The others, in order."""
    return [built(session, digest) for digest in digests(session, run)]


def features(first: Built, others: Sequence[Built]) -> frozenset[str]:
    """CPU features that a device needs for all of them."""
    return frozenset(first.required_features).union(*(other.required_features for other in others))


def told_in(report: Mapping[str, Any]) -> Comparison | None:
    """What a recorded report says of bundles that took turns; None if it is of another mode."""
    told = report.get("comparison")
    return from_json(Comparison, told, "comparison") if told else None


def view(session: Session, run: Run, found: Comparison) -> ComparisonView:
    """What its raw times come to, with what the run's organisation calls the bundles."""
    effect = run.settings.effect or EFFECT
    said = verdict_of(found.processes, bundles=len(found.bundles), steps=found.steps, effect=effect,
                      foreseen_rounds=found.foreseen_rounds)  # fmt: skip
    names = holdings.of_digests(session, "bundle", found.bundles)
    rows = []
    for row, digest in zip(said.rows, found.bundles, strict=True):
        low, high = (row.ratio and row.ratio.interval) or (None, None)
        rows.append(ComparedView(
            bundle_digest=digest, model_name=names[digest].name, plan_name=names[digest].plan_name,
            threads=found.threads[row.place], median_us=row.median_us, ratio=row.ratio.ratio if row.ratio else None,
            ratio_low=low, ratio_high=high, says=row.says,
        ))  # fmt: skip
    return ComparisonView(rounds=said.rounds, ended=found.ended, detectable=said.detectable, bundles=rows)
