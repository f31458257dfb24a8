"""The assignment of an attempt, whole: built from the rows and signed."""

from __future__ import annotations

import time

from sqlalchemy.orm import Session

from device_agents.wire import (
    ASSIGNMENT_TYPE,
    BUNDLE_PATH,
    CHECKPOINT_PATH,
    DATASET_PATH,
    OTHER_BUNDLE_PATH,
    VALIDATION_DATASET_PATH,
    WEIGHTS_PATH,
    Assignment,
    Blob,
    Envelope,
    Limits,
    OwnData,
    attempt_path,
    dumps,
)
from service.artefacts.bundles.service import built
from service.base.settings import Settings
from service.devices import blame, clocks
from service.store.database.models import Attempt, Dataset, Device, Run
from service.store.farm import Farm
from service.work.runs import checkpoints, compared


def assign(session: Session, farm: Farm, run: Run, attempt: Attempt, device: Device, token: str) -> Envelope:
    """The signed assignment of an attempt that was just made for the device; `token` is its lease's."""
    return farm.signer.sign(ASSIGNMENT_TYPE, dumps(_assignment(session, farm, run, attempt, device, token)))


def _assignment(session: Session, farm: Farm, run: Run, attempt: Attempt, device: Device, token: str) -> Assignment:
    bundle = built(session, run.bundle_digest)
    validation_path = attempt_path(VALIDATION_DATASET_PATH, token)
    return Assignment(
        run_id=run.id,
        attempt=attempt.n,
        device_id=device.id,
        device_class=device.device_class,
        target=bundle.target,
        lease_token=token,
        lease_expires_at=attempt.lease_expires_at,
        lease_s=farm.settings.lease_s,
        not_before=time.time() - blame.CLOCK_SKEW_S,
        expires_at=attempt.deadline_at + blame.CLOCK_SKEW_S,
        release_number=farm.signer.release_number,
        model_digest=bundle.model_digest,
        plan_digest=bundle.plan_digest,
        bundle=Blob(bundle.digest, bundle.size_bytes, attempt_path(BUNDLE_PATH, token)),
        settings=run.settings,
        dataset=_dataset(session, run.dataset_digest, attempt_path(DATASET_PATH, token)),
        weights=_weights(farm, run, token),
        limits=_limits(farm.settings, run),
        validation_dataset=_dataset(session, run.validation_dataset_digest, validation_path),
        own_data=_own_data(run, attempt),
        checkpoint=_checkpoint(session, farm, run, attempt, token),
        others=_others(session, run, token),
    )


def _others(session: Session, run: Run, token: str) -> tuple[Blob, ...]:
    return tuple(
        Blob(other.digest, other.size_bytes, attempt_path(OTHER_BUNDLE_PATH, token, place))
        for place, other in enumerate(compared.others(session, run), 1)
    )


def _own_data(run: Run, attempt: Attempt) -> OwnData | None:
    """As the device had it when the attempt began: an agent whose data set has changed refuses."""
    if run.own_data is None or attempt.own_data_digest is None:
        return None
    return OwnData(run.own_data, attempt.own_data_digest)


def _limits(settings: Settings, run: Run) -> Limits:
    most_s = clocks.run_s(settings, run.settings)
    return Limits(settings.transfer_s, most_s, settings.run_memory_bytes, settings.run_disk_bytes)


def _dataset(session: Session, digest: str | None, path: str) -> Blob | None:
    dataset = session.get(Dataset, digest) if digest is not None else None
    return Blob(dataset.digest, dataset.size_bytes, path) if dataset else None


def _checkpoint(session: Session, farm: Farm, run: Run, attempt: Attempt, token: str) -> Blob | None:
    checkpoint = checkpoints.hand_out(session, run, farm.storage, attempt) if attempt.n > 1 else None
    return Blob(checkpoint.digest, checkpoint.size_bytes, attempt_path(CHECKPOINT_PATH, token)) if checkpoint else None


def _weights(farm: Farm, run: Run, token: str) -> Blob | None:
    if run.weights_digest is None:
        return None
    size_bytes = farm.storage.size(run.weights_digest) or 0
    return Blob(run.weights_digest, size_bytes, attempt_path(WEIGHTS_PATH, token))
