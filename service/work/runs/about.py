"""The remarks of people on a run: a name, a note, tags. They change nothing of what the run is or was."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.base.schemas import RequestBody
from service.store.database.models import Run
from service.work.runs import service
from service.work.runs.tags import text_of

MOST_TAGS = 16
MOST_NAME, MOST_NOTE, MOST_TAG = 100, 4000, 40
Tag = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=MOST_TAG)]


class RunAbout(RequestBody):
    """New remarks on a run; what is left out stays."""

    name: str | None = Field(default=None, max_length=MOST_NAME, pattern=r"^[^\r\n]*$", description="Empty: none")
    note: str | None = Field(default=None, max_length=MOST_NOTE, description="Empty: none")
    tags: list[Tag] | None = Field(default=None, max_length=MOST_TAGS, description="All of them; empty: none")

    @model_validator(mode="after")
    def check_says_something(self) -> Self:
        """Raises: ValueError."""
        if self.name is None and self.note is None and self.tags is None:
            raise ValueError("name, note, tags: say at least one of them")
        return self


def change(session: Session, run_id: str, body: RunAbout) -> Run:
    """Changes a run's name, note and tags. Raises: NotFound."""
    run = session.scalar(select(Run).where(Run.id == run_id).with_for_update())
    if run is None:
        return service.find(session, run_id)
    if body.name is not None:
        run.name = body.name.strip()
    if body.note is not None:
        run.note = body.note.strip()
    if body.tags is not None:
        run.tags = text_of(body.tags)
    return run
