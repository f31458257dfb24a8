"""Runs of mode compare: which bundles may take turns with the first, what they need, and what came of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from device_agents.figures.comparison import Verdict, verdict_of
from device_agents.wire import EFFECT, Comparison, from_json
from device_agents.wire.comparison_report import Why
from service.artefacts.bundles import service as bundles
from service.artefacts.bundles.manifest import is_tuning
from service.artefacts.bundles.service import Built, built
from service.base.problems import Invalid
from service.people.holdings import service as holdings
from service.store.database.models import ComparedBundle, Result, Run
from service.work.runs.schemas import ComparedView, ComparisonView


@dataclass(frozen=True, slots=True)
class JudgedComparison:
    """The part of a comparison that does not depend on who looks, without its raw times."""

    bundles: tuple[str, ...]
    threads: tuple[int, ...]
    ended: Why
    protocol: str
    verdict: Verdict


MOST_KEPT = 1000
"""Comparisons that a process remembers, a few hundred bytes each."""
_KEPT: dict[tuple[str, float], JudgedComparison] = {}
_LOCK = threading.Lock()


def compared_bundles(session: Session, digests: Sequence[str], first: Built) -> list[Built]:
    """Returns the bundles that a request wants to compare with the first. Raises: NotFound, Gone, Invalid."""
    others = [
        bundles.held_bundle(session, digest, where=f"others.{place}", hint="POST /compile makes one").bundle
        for place, digest in enumerate(digests)
    ]
    for place, bundle in enumerate(others):
        if is_tuning(bundle.manifest):
            raise Invalid(
                "run.mode",
                "the bundle measures schedules, and has no steps to compare",
                where=f"others.{place}",
                hint="name bundles of POST /compile",
            )
        if bundle.target != first.target:
            raise Invalid(
                "run.target",
                f"the bundle is for {bundle.target}, the first for {first.target}",
                where=f"others.{place}",
                hint="compile it for the target of the first",
            )
    return others


def add(session: Session, run: Run, others: Sequence[Built]) -> None:
    """Adds rows for the other bundles, in the order that they are to have."""
    session.add_all(
        ComparedBundle(run_id=run.id, place=place, bundle_digest=other.digest) for place, other in enumerate(others, 1)
    )


def others(session: Session, run: Run) -> list[Built]:
    """Returns the others, in order."""
    return [built(session, digest) for digest in run.others]


def features(first: Built, others: Sequence[Built]) -> frozenset[str]:
    """Returns the CPU features that a device needs for all of them."""
    return frozenset(first.required_features).union(*(other.required_features for other in others))


def recorded_comparison(report: Mapping[str, Any]) -> Comparison | None:
    """Reads what a recorded report says of bundles that took turns; None if it is of another mode."""
    section = report.get("comparison")
    return from_json(Comparison, section, "comparison") if section else None


def view(session: Session, run: Run, result: Result) -> ComparisonView | None:
    """Returns what the raw times of a recorded report come to, with the run's organisation's names of the bundles; None
    for a report of another mode.
    """
    comparison = comparison_in(result.digest, run.settings.effect or EFFECT, lambda: recorded_comparison(result.report))
    return named(session, comparison) if comparison else None


def named(session: Session, comparison: JudgedComparison) -> ComparisonView:
    """Returns the comparison with the names by which the session's organisation calls the bundles."""
    names = holdings.of_digests(session, "bundle", comparison.bundles)
    rows = [
        ComparedView(
            bundle_digest=digest,
            model_name=names[digest].name,
            plan_name=names[digest].plan_name,
            threads=threads,
            **row.fields,
        )
        for row, digest, threads in zip(comparison.verdict.rows, comparison.bundles, comparison.threads, strict=True)
    ]
    return ComparisonView(
        protocol=comparison.protocol,
        rounds=comparison.verdict.rounds,
        ended=comparison.ended,
        detectable=comparison.verdict.detectable,
        bundles=rows,
    )


def comparison_in(digest: str, effect: float, read: Callable[[], Comparison | None]) -> JudgedComparison | None:
    """Returns what the report of that digest comes to: worked out once, for the longest take a fifth of a second to
    read and to judge. `read`: reads it.
    """
    key = (digest, effect)
    with _LOCK:
        cached = _KEPT.pop(key, None)
        if cached is not None:
            _KEPT[key] = cached  # the newest
            return cached
    recorded = read()
    if recorded is None:
        return None
    comparison = JudgedComparison(
        recorded.bundles, recorded.threads, recorded.ended, recorded.protocol, verdict_of(recorded, effect)
    )
    with _LOCK:
        _KEPT[key] = comparison
        while len(_KEPT) > MOST_KEPT:
            del _KEPT[next(iter(_KEPT))]
    return comparison
