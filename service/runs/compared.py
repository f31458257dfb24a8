"""Runs of mode compare: which bundles may take turns with the first, what they need, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


def others(session: Session, run: Run) -> list[Built]:
    """The others, in order."""
    return [built(session, digest) for digest in run.others]


def features(first: Built, others: Sequence[Built]) -> frozenset[str]:
    """CPU features that a device needs for all of them."""
    return frozenset(first.required_features).union(*(other.required_features for other in others))


def told_in(report: Mapping[str, Any]) -> Comparison | None:
    """What a recorded report says of bundles that took turns; None if it is of another mode."""
    told = report.get("comparison")
    return from_json(Comparison, told, "comparison") if told else None


def view(session: Session, run: Run, found: Comparison) -> ComparisonView:
    """What its raw times come to, with what the run's organisation calls the bundles."""
    said = verdict_of(found, run.settings.effect or EFFECT)
    names = holdings.of_digests(session, "bundle", found.bundles)
    rows = [
        ComparedView(bundle_digest=digest, model_name=names[digest].name, plan_name=names[digest].plan_name,
                     threads=threads, **row.fields)
        for row, digest, threads in zip(said.rows, found.bundles, found.threads, strict=True)
    ]  # fmt: skip
    return ComparisonView(protocol=found.protocol, rounds=said.rounds, ended=found.ended, detectable=said.detectable,
                          bundles=rows)  # fmt: skip
