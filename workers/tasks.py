"""The tasks. Each is told by a doorbell that some row waits, claims one, and does nothing if none does."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from device_agents.wire.log_lines import bind, note
from service.artefacts.jobs import claims
from service.base.settings import Settings
from service.farm import open_database
from service.store.database.engine import Database
from service.store.garbage.holding import Holder
from service.store.outbox import Bell
from service.store.queue import CeleryQueue
from service.store.storage import Storage, open_storage
from workers.compiling import Compile
from workers.ownership import own_folder, root_of
from workers.retries import retry_transient_errors

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tools:
    """Tools that tasks work with; opened once per process (connections must not cross a fork)."""

    settings: Settings
    database: Database
    storage: Storage


@cache
def tools() -> Tools:
    """This process's tools."""
    settings = Settings()
    database = open_database(settings)
    database.after_commit.append(Bell(database, CeleryQueue(settings)).after_commit)
    storage = open_storage(settings.storage, s3_endpoint_url=settings.s3_endpoint_url)
    database.holder = Holder(storage)
    return Tools(settings, database, storage)


def _claim(kit: Tools, worker: str) -> claims.Claim | None:
    with kit.database.transaction() as session:
        return claims.claim_next(session, lease_s=kit.settings.compile_lease_s, worker=worker)


def compile_job(job_id: str) -> None:
    """Compiles the model of the job whose turn it is: the doorbell of one says that some job waits.

    Every queued job has rung, so as many doorbells are heard as there are jobs; one that is over only rings in vain.
    """
    kit = tools()
    with own_folder(root_of(kit.settings.state)) as folder:
        claim = retry_transient_errors(lambda: _claim(kit, folder.name), f"the doorbell of job {job_id}")
        if claim is None:
            LOG.info("job %s has rung, and no job waits: nothing to do", job_id)
            return
        with bind(job=claim.job_id):
            _compile(kit, claim, folder.path)


def _compile(kit: Tools, claim: claims.Claim, folder: Path) -> None:
    note(attempt=claim.attempt)
    LOG.info("job %s: attempt %d", claim.job_id, claim.attempt)
    try:
        Compile(kit.settings, kit.database, kit.storage, claim, folder).run()
    except claims.LostClaim:
        LOG.warning("job %s was taken away; its result is dropped", claim.job_id)
