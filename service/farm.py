"""What every request, task and sweep works with, built once per process."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.database.engine import Database
from service.database.scope import FarmSession
from service.devices.conditions import Conditions
from service.devices.sightings import Sightings
from service.garbage.collecting import Collection
from service.garbage.holding import Holder
from service.keys.uses import KeyUses
from service.lanes.calls import watch_subjects
from service.lanes.dispatch import Dispatcher
from service.lanes.relay import Relay
from service.now_and_then import NowAndThen
from service.outbox import Bell
from service.private import make_private_folder
from service.queue import CeleryQueue, Queue
from service.quotas.held import HeldAnswers
from service.quotas.rates import Rates
from service.retention.taking import Retention
from service.settings import Settings
from service.signing import Signer
from service.signing_keys import open_signer
from service.storage import Storage, open_storage

watch_subjects(FarmSession)


@dataclass(frozen=True)
class Farm:
    """Settings, database, storage, signing key and queue of one farm, and what goes on beside its requests."""

    settings: Settings
    database: Database
    storage: Storage
    signer: Signer
    queue: Queue
    bell: Bell
    dispatcher: Dispatcher
    garbage: NowAndThen
    retention: NowAndThen
    key_uses: KeyUses = field(default_factory=KeyUses)
    rates: Rates = field(default_factory=Rates)
    held_answers: HeldAnswers = field(default_factory=HeldAnswers)
    sightings: Sightings = field(default_factory=Sightings)
    conditions: Conditions = field(default_factory=Conditions)

    def close(self) -> None:
        """Let go of connections."""
        self.database.close()


def open_farm(settings: Settings, queue: Queue | None = None) -> Farm:
    """Connect to the farm that `settings` describe. The database must have been migrated. Raises: SigningKeyLost."""
    make_private_folder(settings.state)
    database = Database(settings.database, at_once=settings.database_at_once)
    try:
        relay = Relay(settings.broker) if queue is None else None
        return _opened(settings, database, queue or CeleryQueue(settings), relay)
    except BaseException:
        database.close()
        raise


def _opened(settings: Settings, database: Database, queue: Queue, relay: Relay | None) -> Farm:
    bell = Bell(database, queue)
    dispatcher = Dispatcher(database, relay, look_s=settings.look_s)
    database.after_commit += [dispatcher.after_commit, bell.after_commit]
    storage = open_storage(settings.storage, s3_endpoint_url=settings.s3_endpoint_url)
    database.holder = Holder(storage)
    return Farm(
        settings=settings,
        database=database,
        storage=storage,
        garbage=NowAndThen(lambda: Collection(database, storage, settings.gc_grace_s), every_s=settings.gc_s),
        retention=NowAndThen(lambda: Retention(database, settings), every_s=settings.retention_s),
        signer=open_signer(settings, database),
        queue=queue,
        bell=bell,
        dispatcher=dispatcher,
    )
