"""Opens a farm: puts together the parts that its settings and its optional features ask for."""

from __future__ import annotations

from service.base.private import make_private_folder
from service.base.settings import Settings
from service.dashboard.extensions import Extensions
from service.feature_list import FEATURE_SETTINGS, FEATURES, PERMISSIONS
from service.operations.retention.removal import RetentionTask
from service.people.permissions import Permissions
from service.store.calls import watch_subjects
from service.store.database.engine import Database
from service.store.database.scope import FarmSession
from service.store.farm import Farm
from service.store.garbage.collecting import GarbageTask
from service.store.garbage.holding import Holder
from service.store.outbox import Bell
from service.store.queue import CeleryQueue, Queue
from service.store.signing_keys import open_signer
from service.store.storage import open_storage
from service.store.watching import Watchers
from service.work.lanes.dispatch import Dispatcher
from service.work.lanes.relay import Relay

watch_subjects(FarmSession)


def open_database(settings: Settings) -> Database:
    """Connects to the farm's database; the domains hear what its transactions announce."""
    database = Database(settings.database, at_once=settings.database_at_once)
    database.listeners += [listener for feature in FEATURES for listener in feature.listeners]
    return database


def open_farm(settings: Settings, queue: Queue | None = None) -> Farm:
    """Connects to the farm that `settings` describe. The database must have been migrated. Raises: SigningKeyLost;
    ValidationError (a setting of an optional feature)."""
    for kind in FEATURE_SETTINGS:
        settings.section(kind)
    make_private_folder(settings.state)
    database = open_database(settings)
    try:
        relay = Relay(settings.broker) if queue is None else None
        return _opened(settings, database, queue or CeleryQueue(settings), relay)
    except BaseException:
        database.close()
        raise


def _opened(settings: Settings, database: Database, queue: Queue, relay: Relay | None) -> Farm:
    bell, watchers = Bell(database, queue), Watchers()
    dispatcher = Dispatcher(database, watchers, relay, look_s=settings.look_s)
    database.after_commit += [dispatcher.after_commit, bell.after_commit]
    storage = open_storage(settings.storage, s3_endpoint_url=settings.s3_endpoint_url)
    database.holder = Holder(storage)
    parts = (
        watchers,
        dispatcher,
        GarbageTask(database, storage, settings),
        RetentionTask(database, settings),
        Permissions(PERMISSIONS),
        Extensions(
            admin_pages=tuple(page for feature in FEATURES for page in feature.admin_pages),
            concerns=tuple(find for feature in FEATURES for find in feature.concerns),
        ),
    )
    return Farm(
        settings=settings,
        database=database,
        storage=storage,
        signer=open_signer(settings, database),
        queue=queue,
        bell=bell,
        parts={type(part): part for part in parts},
    )
