"""The needs of every canary: its model's file, a bundle of it for a device, and the owner of its jobs and runs."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, SQLColumnExpression, select
from sqlalchemy.orm import Session

from compiler.spec.documents import SparsePlan, TrainingSpec
from device_agents.wire import RunSettings
from service.artefacts.jobs import service as jobs
from service.artefacts.jobs.request import CompileRequest, compiler_version
from service.base.identifiers import new_secret, secret_hash
from service.devices import blame
from service.devices.canary_verdict import LEARNING_RATE, SAMPLES
from service.devices.sightings import SILENT_AFTER_S
from service.store import events
from service.store.database.models import HOME, OPEN_JOB_STATES, OPEN_RUN_STATES, ApiKey, Bundle, Device, Job, Run
from service.store.database.scope import within
from service.store.farm import Farm
from service.work.lanes.entering import enter

OWNER = "pockfarm canary"
COMPILE_PAUSE_S = 15.0
"""Seconds between two looks for the bundle."""
FAILED_PAUSE_S = 3600.0
WAIT_S = 900.0
"""Seconds for which a canary run waits for its device."""
BATCH = 20
"""Devices that one pass of the sweeper gives canaries to."""


@dataclass(frozen=True, slots=True)
class Canary:
    """A model that the farm itself sends, with what is to be trained of it and how."""

    name: str
    file: str
    """Name of the model's file in this folder."""
    spec: Mapping[str, Any]
    plan: str = "full"

    @property
    def model(self) -> bytes:
        """The model's file."""
        return _content(self.file)


@cache
def _content(file: str) -> bytes:
    return (Path(__file__).parent / file).read_bytes()


HEALTH = Canary(
    "canary",
    "model.onnx",
    {"batch": SAMPLES, "loss": {"kind": "cross_entropy"}, "optimizer": {"kind": "sgd", "learning_rate": LEARNING_RATE}},
)
"""Its losses the farm computes itself (`service/devices/canary_reference.py`)."""
_TIMED = {"batch": 8, "loss": {"kind": "cross_entropy"}, "optimizer": {"kind": "sgd", "learning_rate": 0.01}}
TIMED = (Canary("convolutions", "convolutions.onnx", _TIMED), Canary("attention", "attention.onnx", _TIMED))
"""Whose steps are timed again and again; `tests/service/canary_models.py` makes the files. A changed one begins a
history of its own."""


MAY_BE_GIVEN = (Device.canary_off.is_(False), Device.drained_at.is_(None))
"""Conditions on `Device`: no operator has ruled canary runs out."""


def there(farm: Farm, longest: SQLColumnExpression[float], *conditions: ColumnElement[bool]) -> list[str]:
    """Returns the ids of devices that meet the conditions and ask for work; first the one that has waited for
    longest.
    """
    query = select(Device.id).where(*conditions, Device.last_seen_at > time.time() - SILENT_AFTER_S)
    with farm.database.read() as session:
        return list(session.scalars(query.order_by(longest).limit(BATCH)))


def locked_device(session: Session, device_id: str, *conditions: ColumnElement[bool]) -> Device | None:
    """Returns the device, held and read anew, if it still meets the conditions and nobody else holds it."""
    query = select(Device).where(Device.id == device_id, *conditions).with_for_update(skip_locked=True)
    return session.scalar(query, execution_options=blame.FRESH)


def has_one(session: Session, device: Device) -> bool:
    """Whether a canary run is under way on it, or waits for it."""
    query = select(Run.id).where(Run.is_canary, Run.wanted_device_id == device.id, Run.state.in_(OPEN_RUN_STATES))
    return session.scalar(query.limit(1)) is not None


def bundle_for(session: Session, farm: Farm, device: Device, canary: Canary) -> Bundle | None:
    """Its bundle for one of the device's targets; None while it is compiled, or if none can be.

    One whose compile has failed is asked for again an hour later.
    """
    stored = farm.storage.put(io.BytesIO(canary.model), limit_bytes=len(canary.model))
    plan, spec = SparsePlan.parse(canary.plan), TrainingSpec.parse(dict(canary.spec))
    version = compiler_version(farm.settings)
    for target in device.targets:
        request = CompileRequest(stored.digest, stored.size_bytes, canary.name, plan, spec, target, version)
        if _has_failed(session, request):
            continue
        with within(session, HOME):  # a canary is the farm's own, whoever owns the device
            job = jobs.submit(session, request, api_key_id=owner(session), settings=farm.settings)
        bundle = session.get(Bundle, job.bundle_digest) if job.bundle_digest else None
        if bundle is None or set(bundle.required_features) <= set(device.features):
            return bundle
    return None


def is_building(session: Session) -> bool:
    """Whether a bundle of a canary is being compiled, or waits for it."""
    query = select(Job.id).where(Job.api_key_id == owner(session), Job.state.in_(OPEN_JOB_STATES))
    return session.scalar(query.limit(1)) is not None


def queue(session: Session, device: Device, bundle: Bundle, settings: RunSettings, dataset: str | None = None) -> Run:
    """Queues a canary run for this device alone."""
    run = Run(
        api_key_id=owner(session),
        bundle_digest=bundle.digest,
        target=bundle.target,
        wanted_device_id=device.id,
        settings=settings,
        dataset_digest=dataset,
        is_canary=True,
        queue_deadline_at=time.time() + WAIT_S,
    )
    enter(session, run, bundle.required_features)
    session.add(run)
    session.flush()
    events.add(session, run.id, "state", state="queued")
    return run


def _has_failed(session: Session, request: CompileRequest) -> bool:
    """Returns whether this compile failed lately: the compiler would report the same again."""
    same = (
        Job.model_digest == request.model_digest,
        Job.plan_digest == request.plan.digest,
        Job.spec_digest == request.spec.digest,
        Job.target == request.target,
        Job.compiler_version == request.compiler_version,
    )
    since = (Job.state == "failed", Job.finished_at > time.time() - FAILED_PAUSE_S)
    return session.scalar(select(Job.id).where(*same, *since).limit(1)) is not None


def owner(session: Session) -> str:
    """Returns the key to which the farm's jobs and runs belong; nobody has its secret."""
    key_id = session.scalar(select(ApiKey.id).where(ApiKey.name == OWNER, ApiKey.revoked_at.is_not(None)))
    if key_id is not None:
        return key_id
    key = ApiKey(name=OWNER, role="user", secret_hash=secret_hash(new_secret()), revoked_at=time.time())
    session.add(key)
    session.flush()
    return key.id
