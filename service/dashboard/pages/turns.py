"""What a run of mode compare found: each bundle's time, and how it stands to the first one's."""

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
    Column("says", "Beside the first", wrap=True),
    Column("ratio", "Ratio", "number", "", 4, files_only=True),
    Column("ratio_low", "Ratio, low", "number", "", 4, files_only=True),
    Column("ratio_high", "Ratio, high", "number", "", 4, files_only=True),
    Column("bundle_digest", "Digest", "code", files_only=True),
)


def found_in(session: Session, found: RunFacts) -> ComparisonView | None:
    """What the farm works out from the report; None of a run that compared nothing."""
    if found.report is None or found.report.comparison is None:
        return None
    told = found.report.comparison
    digest = session.scalar(select(Result.digest).where(Result.run_id == found.id, Result.state == "recorded"))
    said = compared.found_in(digest or found.id, found.settings.effect or EFFECT, lambda: told)
    return compared.named(session, said) if said else None


def turns_table(said: ComparisonView) -> Table:
    """A row for each bundle, in the order in which they were named."""
    rows = [
        Row(
            {
                "bundle": f"{row.model_name}, {row.plan_name}",
                "median_ms": row.median_us / 1000,
                "threads": row.threads,
                "says": row.says or "the first",
                "ratio": row.ratio,
                "ratio_low": row.ratio_low,
                "ratio_high": row.ratio_high,
                "bundle_digest": row.bundle_digest,
            },
            links={"bundle": addresses.bundle(row.bundle_digest)},
            notes={"bundle": fmt.short_digest(row.bundle_digest)},
        )
        for row in said.bundles
    ]
    return table("turns", "Bundles that took turns", COLUMNS, rows)


def turns_figures(said: ComparisonView) -> tuple[KeyFigure, ...]:
    """How far it went."""
    least = "" if said.detectable is None else f"foreseen: {said.detectable:.2%} is found 19 times of 20"
    return (
        KeyFigure("Rounds", fmt.number(said.rounds), "", least),
        KeyFigure("Bundles", fmt.number(len(said.bundles))),
    )


def turns_facts(said: ComparisonView) -> tuple[Fact, ...]:
    """Beside the other conditions."""
    return (Fact("Protocol", said.protocol), Fact("Ended", ENDS[said.ended]))
