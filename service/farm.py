"""What every request, task and sweep works with, built once per process."""

from __future__ import annotations

from dataclasses import dataclass

from service.database.engine import Database
from service.outbox import Bell
from service.private import make_private_folder
from service.queue import CeleryQueue, Queue
from service.settings import Settings
from service.signing import Signer
from service.signing_keys import open_signer
from service.storage import Storage, open_storage


@dataclass(frozen=True)
class Farm:
    """Settings, database, storage, signing key, queue and bell of one farm."""

    settings: Settings
    database: Database
    storage: Storage
    signer: Signer
    queue: Queue
    bell: Bell

    def close(self) -> None:
        """Let go of connections."""
        self.database.close()


def open_farm(settings: Settings, queue: Queue | None = None) -> Farm:
    """Connect to the farm that `settings` describe. The database must have been migrated. Raises: SigningKeyLost."""
    make_private_folder(settings.state)
    database = Database(settings.database)
    try:
        return _opened(settings, database, queue or CeleryQueue(settings))
    except BaseException:
        database.close()
        raise


def _opened(settings: Settings, database: Database, queue: Queue) -> Farm:
    bell = Bell(database, queue)
    database.after_commit = bell.after_commit
    return Farm(
        settings=settings,
        database=database,
        storage=open_storage(settings.storage, s3_endpoint_url=settings.s3_endpoint_url),
        signer=open_signer(settings, database),
        queue=queue,
        bell=bell,
    )
