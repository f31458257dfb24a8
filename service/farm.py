"""What every request, task and sweep works with, built once per process."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.base.incremental import NowAndThen
from service.base.private import make_private_folder
from service.base.settings import Settings
from service.devices.conditions import Conditions
from service.devices.sightings import Sightings
from service.operations.retention.taking import Retention
from service.people.keys.uses import KeyUses
from service.people.quotas.held import HeldAnswers
from service.people.quotas.rates import Rates
from service.store.calls import watch_subjects
from service.store.database.engine import Database
from service.store.database.scope import FarmSession
from service.store.garbage.collecting import Collection
from service.store.garbage.holding import Holder
from service.store.outbox import Bell
from service.store.queue import CeleryQueue, Queue
from service.store.signing import Signer
from service.store.signing_keys import open_signer
from service.store.storage import Storage, open_storage
from service.work.lanes.dispatch import Dispatcher
from service.work.lanes.relay import Relay

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
