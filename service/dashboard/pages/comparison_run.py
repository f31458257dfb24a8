"""The findings of a run of mode compare: each bundle's time, and how it stands to the first one's."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.figures.comparison import ENDS
from device_agents.wire import EFFECT
from service.dashboard import addresses
from service.dashboard import format as fmt
from service.dashboard.facts import RunFacts
from service.dashboard.parts import Fact, KeyFigure
from service.dashboard.tables import Column, Row, Table, table
from service.store.database.models import Result
from service.work.runs import compared
from service.work.runs.schemas import ComparisonView

COLUMNS = (
    Column("bundle", "Bundle", primary=True),
    Column("median_ms", "Step median", "number", "ms", fits=True),
    Column("threads", "Threads", "number"),
    Column("message", "Beside the first", wrap=True),
    Column("ratio", "Ratio", "number", "", 4, files_only=True),
    Column("ratio_low", "Ratio, low", "number", "", 4, files_only=True),
    Column("ratio_high", "Ratio, high", "number", "", 4, files_only=True),
    Column("bundle_digest", "Digest", "code", files_only=True),
)


def comparison_view(session: Session, run: RunFacts) -> ComparisonView | None:
    """Returns what the farm works out from the report; None for a run that compared nothing."""
    if run.report is None or run.report.comparison is None:
        return None
    comparison = run.report.comparison
    digest = session.scalar(select(Result.digest).where(Result.run_id == run.id, Result.state == "recorded"))
    view = compared.comparison_in(digest or run.id, run.settings.effect or EFFECT, lambda: comparison)
    return compared.named(session, view) if view else None


def turns_table(view: ComparisonView) -> Table:
    """Returns a table with a row for each bundle, in the order in which they were named."""
    rows = [
        Row(
            {
                "bundle": f"{row.model_name}, {row.plan_name}",
                "median_ms": row.median_us / 1000,
                "threads": row.threads,
                "message": row.message or "the first",
                "ratio": row.ratio,
                "ratio_low": row.ratio_low,
                "ratio_high": row.ratio_high,
                "bundle_digest": row.bundle_digest,
            },
            links={"bundle": addresses.bundle(row.bundle_digest)},
            notes={"bundle": fmt.short_digest(row.bundle_digest)},
        )
        for row in view.bundles
    ]
    return table("turns", "Bundles that took turns", COLUMNS, rows)


def turns_figures(view: ComparisonView) -> tuple[KeyFigure, ...]:
    """Returns figures that show how far the comparison went."""
    least = "" if view.detectable is None else f"foreseen: {view.detectable:.2%} is found 19 times of 20"
    return (
        KeyFigure("Rounds", fmt.number(view.rounds), "", least),
        KeyFigure("Bundles", fmt.number(len(view.bundles))),
    )


def turns_facts(view: ComparisonView) -> tuple[Fact, ...]:
    """Returns the facts shown beside the other conditions."""
    return (Fact("Protocol", view.protocol), Fact("Ended", ENDS[view.ended]))
