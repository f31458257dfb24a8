"""Sends what is to be told: any number of processes may, each delivery being claimed by one conditional UPDATE.

A delivery comes at least once: a process that dies while it sends has its deliveries sent again, under the same
`webhook-id`. Attempts: `len(PAUSES_S) + 1`, over about a day. An address that fails rests as a whole, so that one that
never answers does not hold up the others; a test is sent all the same, for somebody waits for it.

The courier is a part of each API process, or a process of its own (`service/features/webhooks/__main__.py`) where API
processes have no way out.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from service.artefacts.jobs.schemas import job_view
from service.base.schemas import utc_text
from service.base.settings import Settings
from service.boards.canary.service import ANSWERED, change_view
from service.features.webhooks.addresses import networks
from service.features.webhooks.announcing import TEST
from service.features.webhooks.sending import TIMEOUT_S, Outcome, send
from service.features.webhooks.settings import WebhookSettings
from service.operations.alive import POOL_STUCK_S
from service.store.announcements import TWO_MACHINES
from service.store.database.engine import Database
from service.store.database.models import CanaryChange, Device, DeviceEvent, Holding, Job, Run, Webhook, WebhookDelivery
from service.store.farm import Farm
from service.store.signs_of_life import Signs
from service.work.runs.schemas import run_view

LOG = logging.getLogger(__name__)
PAUSES_S = (5.0, 30.0, 120.0, 600.0, 3600.0, 4 * 3600.0, 16 * 3600.0)
CLAIM_S = 4 * TIMEOUT_S
"""Another process takes a delivery over after so long; sending takes `TIMEOUT_S`, and asking for a name some more."""
SENDERS = 64
"""Threads; each waits for one address."""
MOST_EACH = SENDERS // 2
"""Senders that one organisation may occupy: more than it has addresses by default, so that an address that hangs delays
no other, whoever it belongs to."""
AT_THE_DATABASE = 8
"""Senders that may use the database at a time; most of their time they wait for addresses."""
BATCH = 40
LOOK_S = 1.0
MOST_REST_S = 300.0
SLOW_S = TIMEOUT_S / 2
"""An address whose answer takes longer rests, too: it holds one of few senders."""
NO_TURN: AbstractContextManager[object] = nullcontext()
GONE = 410
"""Status of an address that wants no more deliveries."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A claimed delivery, read whole, so that no transaction is open while it is sent."""

    id: str
    webhook_id: str
    url: str
    secret: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Due:
    """A delivery that is to be sent now: the longest waiting of its webhook."""

    id: str
    webhook_id: str
    organisation_id: str


def due(session: Session, under_way: Collection[Due] = ()) -> list[Due]:
    """Returns the deliveries to send now, one to each webhook that nothing is `under_way` to.

    Organisations take turns: first the ones with the fewest under way, and among equals whoever waits longest.
    """
    now = time.time()
    place = func.row_number().over(
        partition_by=WebhookDelivery.webhook_id, order_by=(WebhookDelivery.next_at, WebhookDelivery.id)
    )
    waiting = (
        select(
            WebhookDelivery.id,
            WebhookDelivery.webhook_id,
            WebhookDelivery.next_at,
            Webhook.organisation_id,
            place.label("place"),
        )
        .join(Webhook, Webhook.id == WebhookDelivery.webhook_id)
        .where(
            WebhookDelivery.next_at <= now,
            or_(Webhook.resting_until <= now, WebhookDelivery.event == TEST),
            Webhook.id.not_in([delivery.webhook_id for delivery in under_way]),
        )
        .subquery()
    )
    turn = (
        func.row_number()
        .over(partition_by=waiting.c.organisation_id, order_by=(waiting.c.next_at, waiting.c.id))
        .label("turn")
    )
    first = (
        select(waiting.c.id, waiting.c.webhook_id, waiting.c.organisation_id, waiting.c.next_at, turn)
        .where(waiting.c.place == 1)
        .subquery()
    )
    query = select(first).where(first.c.turn <= SENDERS).order_by(first.c.turn, first.c.next_at).limit(BATCH)
    return in_turn([Due(row.id, row.webhook_id, row.organisation_id) for row in session.execute(query)], under_way)


def in_turn(waiting: Iterable[Due], under_way: Collection[Due]) -> list[Due]:
    """Returns the deliveries in the order in which senders take them: the organisation with the fewest under way comes
    first, and none exceeds its share.
    """
    counts = Counter(delivery.organisation_id for delivery in under_way)
    ranked: list[tuple[int, Due]] = []
    for delivery in waiting:
        ranked.append((counts[delivery.organisation_id], delivery))
        counts[delivery.organisation_id] += 1
    return [delivery for count, delivery in sorted(ranked, key=lambda pair: pair[0]) if count < MOST_EACH]


def claim(session: Session, delivery_id: str, *, now: float) -> Parcel | None:
    """Claims a delivery that is due at `now`. Returns None if another process has it, or if it is over."""
    query = (
        update(WebhookDelivery)
        .where(WebhookDelivery.id == delivery_id, WebhookDelivery.next_at <= now)
        .values(next_at=time.time() + CLAIM_S, attempts=WebhookDelivery.attempts + 1)
        .returning(WebhookDelivery.id)
    )
    if session.scalar(query) is None:
        return None
    delivery = session.get_one(WebhookDelivery, delivery_id)
    webhook = session.get_one(Webhook, delivery.webhook_id)
    body = _body(session, delivery)
    if webhook.removed_at is not None or body is None:
        _end(delivery, "failed", "the webhook was removed" if body is not None else "what it tells of was deleted")
        return None
    return Parcel(delivery.id, webhook.id, webhook.url, webhook.secret, body)


def _body(session: Session, delivery: WebhookDelivery) -> bytes | None:
    """Returns the delivery's body. It has the same bytes each time, since a run or job that has ended does not change
    any more.
    """
    if delivery.event == TEST:
        payload, at = {"id": delivery.subject}, delivery.created_at
        return _encoded(delivery.event, at, payload)
    if delivery.event == TWO_MACHINES:
        line = session.get(DeviceEvent, int(delivery.subject))
        return None if line is None else _encoded(delivery.event, line.at, device_event(session, line))
    run, job = session.get(Run, delivery.subject), session.get(Job, delivery.subject)
    if run is not None:
        holding = session.get(Holding, (run.organisation_id, "bundle", run.bundle_digest))
        if holding is None:
            return None
        payload = run_view(run, holding).model_dump(mode="json")
        return _encoded(delivery.event, run.finished_at or delivery.created_at, payload)
    if job is not None:
        return _encoded(delivery.event, job.finished_at or delivery.created_at, job_view(job).model_dump(mode="json"))
    change = session.get(CanaryChange, delivery.subject)
    if change is not None:
        payload = change_view(change).model_dump(mode="json", exclude=set(ANSWERED))
        return _encoded(delivery.event, change.found_at, payload)
    return None


def device_event(session: Session, line: DeviceEvent) -> Mapping[str, object]:
    """Returns a line of a device's history, as a message has it."""
    device = session.get_one(Device, line.device_id)
    return {
        "device_id": device.id,
        "device_name": device.name,
        "device_class": device.device_class,
        "kind": line.kind,
        "at": utc_text(line.at),
        "message": line.message,
    }


def _encoded(event: str, at: float, payload: Mapping[str, object]) -> bytes:
    body = {"type": event, "timestamp": utc_text(at), "data": payload}
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def record(session: Session, parcel: Parcel, outcome: Outcome) -> WebhookDelivery:
    """Records the outcome of an attempt: over, or again after a pause; and whether the address rests."""
    webhook = session.scalars(select(Webhook).where(Webhook.id == parcel.webhook_id).with_for_update()).one()
    delivery = session.get_one(WebhookDelivery, parcel.id)
    delivery.status = outcome.status
    if outcome.is_taken:
        webhook.failures = 0
        webhook.resting_until = time.time() + PAUSES_S[0] if outcome.took_s > SLOW_S else 0.0
        _end(delivery, "delivered", "")
        return delivery
    webhook.failures += 1
    webhook.resting_until = time.time() + min(MOST_REST_S, PAUSES_S[0] * 2 ** min(webhook.failures - 1, 10))
    if outcome.status == GONE and webhook.removed_at is None:
        webhook.removed_at, webhook.removed_because = time.time(), "its address answered 410 Gone"
    if outcome.status == GONE or delivery.event == TEST or delivery.attempts > len(PAUSES_S):
        _end(delivery, "failed", outcome.error)
    else:
        delivery.error, delivery.next_at = outcome.error, time.time() + PAUSES_S[delivery.attempts - 1]
    return delivery


def _end(delivery: WebhookDelivery, state: str, error: str) -> None:
    delivery.state, delivery.error, delivery.next_at, delivery.finished_at = state, error, None, time.time()


def deliver(
    database: Database, settings: Settings, delivery_id: str, turn: AbstractContextManager[object] = NO_TURN
) -> WebhookDelivery | None:
    """Sends one delivery now and records the outcome. Returns None if another process sends it.

    `turn` is held while the database is used, and not while the address is waited for.
    """
    with turn, database.transaction() as session:
        parcel = claim(session, delivery_id, now=time.time())
    if parcel is None:
        return None
    allowed = networks(settings.section(WebhookSettings).webhook_networks)
    outcome = send(parcel.url, parcel.secret, parcel.id, parcel.body, allowed)
    with turn, database.transaction() as session:
        return record(session, parcel, outcome)


class Courier:
    """A thread that looks for deliveries, and a few that send; one at a time to each webhook."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database, self._settings = database, settings
        self._looked_at = time.monotonic()
        self._signs = Signs(database, "courier")
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._turn = threading.BoundedSemaphore(AT_THE_DATABASE)
        self._under_way: dict[str, Due] = {}
        """Deliveries under way, by webhook."""
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)

    def start(self) -> None:
        """Starts the courier, unless the settings turn sweeping off: then deliveries are made by hand."""
        if self._settings.sweep_s > 0:
            self._thread.start()

    def stop(self) -> None:
        """Stops taking new deliveries. Those under way end within their time-out, or another process sends them
        again.
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=TIMEOUT_S + 5)

    def is_well(self) -> bool:
        """Whether it looks; a look may take long while the database is away or locked."""
        return self._thread.is_alive() and time.monotonic() - self._looked_at < POOL_STUCK_S

    def _run(self) -> None:
        with ThreadPoolExecutor(SENDERS, thread_name_prefix="courier") as senders:
            while not self._stopping.wait(LOOK_S):
                self._looked_at = time.monotonic()
                try:
                    self._signs.give()
                    self._look(senders)
                except Exception:
                    LOG.exception("could not look for webhook deliveries")

    def _look(self, senders: ThreadPoolExecutor) -> None:
        with self._lock:
            under_way = list(self._under_way.values())
        room = SENDERS - len(under_way)
        if room <= 0:
            return
        with self._database.read() as session:
            deliveries = due(session, under_way)
        for delivery in deliveries[:room]:
            with self._lock:
                self._under_way[delivery.webhook_id] = delivery
            senders.submit(self._send, delivery)

    def _send(self, delivery: Due) -> None:
        try:
            deliver(self._database, self._settings, delivery.id, self._turn)
        except Exception:
            LOG.exception("webhook delivery %s failed", delivery.id)
        finally:
            with self._lock:
                self._under_way.pop(delivery.webhook_id, None)


class NoCourier:
    """Stands where a process of its own sends webhooks."""

    def start(self) -> None:
        """Does nothing."""

    def stop(self) -> None:
        """Does nothing."""


def courier_of(farm: Farm) -> Courier | NoCourier:
    """Creates the courier of an API process, unless its settings leave sending to another process."""
    if not farm.settings.section(WebhookSettings).send_webhooks:
        return NoCourier()
    return Courier(farm.database, farm.settings)
