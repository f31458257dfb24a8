"""Pins: what has one is left alone by retention, and, of a run, all that it used and made."""

from __future__ import annotations

import time
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.base.problems import NotFound
from service.people.holdings import service as holdings
from service.store.database.models import Holding, Run
from service.store.database.scope import organisation_of
from service.work.runs import service as runs


def set_run(session: Session, run_id: str, *, is_pinned: bool) -> float | None:
    """Pins or unpins a run. Returns when it was pinned. Raises: NotFound; Gone (what it used or made is not there any
    more).
    """
    run = runs.find(session, run_id)
    if is_pinned:
        refuse_taken_of(session, run)
    run.pinned_at = (run.pinned_at or time.time()) if is_pinned else None
    return run.pinned_at


def refuse_taken_of(session: Session, run: Run) -> None:
    """Checks that all files of the run are there. Raises: Gone."""
    used: tuple[tuple[holdings.Kind, str | None], ...] = (
        ("bundle", run.bundle_digest),
        ("dataset", run.dataset_digest),
        ("dataset", run.validation_dataset_digest),
        ("weights", run.weights_digest),
        ("weights", run.trained_weights_digest),
        *(("bundle", digest) for digest in run.others),
    )
    for kind, digest in used:
        if digest is not None:
            holdings.use(session, kind, digest)


def set_file(session: Session, kind: Literal["bundle", "dataset"], digest: str, *, is_pinned: bool) -> float | None:
    """Pins or unpins a file of the organisation. Returns when it was pinned. Raises: NotFound, Gone."""
    query = (
        select(Holding)
        .where(Holding.organisation_id == organisation_of(session), Holding.kind == kind, Holding.digest == digest)
        .with_for_update()
    )
    holding = session.scalar(query)
    if holding is None:
        raise NotFound(f"{kind}.unknown", f"no {holdings.WORDS[kind].removeprefix('the ')} {digest}", where="digest")
    if is_pinned and holding.files_removed_at is not None:
        raise holdings.gone_file(kind, digest, holding.files_removed_at, where="digest")
    holding.pinned_at = (holding.pinned_at or time.time()) if is_pinned else None
    return holding.pinned_at
