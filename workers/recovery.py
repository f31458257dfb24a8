"""A worker's recovery of compiles whose process has died: their jobs go back at once, their files away."""

from __future__ import annotations

import logging
import sys

from sqlalchemy import select

from service.artefacts.jobs import claims
from service.base.settings import Settings
from service.farm import open_database
from service.store.database.models import Job
from workers.ownership import dead_ones, root_of

LOG = logging.getLogger(__name__)


def take_back(settings: Settings) -> int:
    """Gives back the jobs of dead processes of this state folder, and removes their copies of models. Returns how many
    jobs.

    The connection is closed again: at its start a worker does this in the process that forks the others; later it
    starts `python -m workers.recovery`, for a database may keep one waiting. Doorbells stay in the outbox, from
    which the API's sweeper rings them.
    """
    count = 0
    with dead_ones(root_of(settings.state)) as names:
        if not names:
            return 0
        database = open_database(settings)
        try:
            for name in names:
                with database.transaction() as session:
                    query = select(Job).where(Job.worker == name, Job.state == "compiling")
                    for job in session.scalars(query.with_for_update()):
                        claims.lose(session, job, attempts=settings.compile_attempts, reason="its worker process died")
                        count += 1
        finally:
            database.close()
    LOG.warning("%d dead compile(s) cleared away, %d job(s) given back", len(names), count)
    return count


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    take_back(Settings())
    sys.exit(0)
