"""Checkpoints of unfinished runs: what an attempt sends while it trains, and what the next one goes on from.

Of a run on data of the device's own, a checkpoint goes with the data set that it was trained on: where another device's
has another digest, it is not offered. Where what is learned stays on the board, so do checkpoints, and the farm hears
only after which step one was kept: that board may have the run again.

One per run, the newest. It comes from a board, which is not trusted: here its size, its key, its step and its form are
looked at, in the binary that loads it every tensor. A board could as well report a wrong result; whoever reads a result
finds in it after which step the last attempt took over, and in the run's history from whom.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from sqlalchemy import ColumnElement, and_, delete, func, select
from sqlalchemy.orm import Session, aliased

from device_agents.wire import (
    CHECKPOINT_VERSION,
    Past,
    ProtocolError,
    RunSettings,
    check_state,
    checkpoint_key,
    most_checkpoint_bytes,
    read_past,
)
from service.base.problems import Invalid, NotFound
from service.base.settings import Settings
from service.store import events
from service.store.database.models import OPEN_RUN_STATES, Attempt, Bundle, Checkpoint, Device, Run
from service.store.garbage.holding import FileGone
from service.store.storage import MissingFile, Storage, StoredFile

MOST_TRIES = 2
"""Attempts that may begin from the same checkpoint and come no further: then it is as likely to blame as they are."""
_WEIGHTS = "weights.safetensors"

# Made once, for every look of every device: an alias has a copy of each column.
_LAST, _KEPT, _OTHER = aliased(Attempt), aliased(Attempt), aliased(Device)
_NEWEST_KEPT = (
    select(_KEPT.id)
    .where(_KEPT.run_id == Run.id, _KEPT.device_id == _LAST.device_id, _KEPT.checkpoint_step.is_not(None))
    .order_by(_KEPT.n.desc())
    .limit(1)
    .correlate(Run, _LAST)
    .scalar_subquery()
)
_IS_HERE = (
    select(Checkpoint.run_id)
    .where(Checkpoint.run_id == Run.id, Checkpoint.attempt_id == _NEWEST_KEPT)
    .correlate(Run, _LAST)
    .exists()
)
_OF_LAST_ATTEMPT = (
    select(_LAST.id)
    .join(_OTHER, _OTHER.id == _LAST.device_id)
    .where(
        _LAST.run_id == Run.id,
        _LAST.n == Run.attempts,
        _LAST.spent.is_(None),
        _OTHER.state == "active",
        _NEWEST_KEPT.is_not(None),
        ~_IS_HERE,
    )
)
"""Last attempts that ended without being spent, and whose active board has a checkpoint that the farm does not have."""


def can_go_on(manifest: Mapping[str, Any]) -> bool:
    """Whether the bundle's binary leaves checkpoints, and goes on from one."""
    return manifest.get("checkpoints") == CHECKPOINT_VERSION


def check_asked(settings: RunSettings, manifest: Mapping[str, Any]) -> None:
    """Checks that a run that asks for checkpoints can have them. Raises: Invalid."""
    if settings.checkpoint_s is not None and not can_go_on(manifest):
        raise Invalid(
            "run.checkpoints",
            "the bundle was built before there were checkpoints of unfinished runs",
            where="checkpoint_s",
            hint="compile the model again; or leave this out: each attempt of the run then starts from the first step",
        )


def key_of(run: Run, attempt: Attempt) -> str:
    """Returns the key of the numbers that checkpoints of this attempt are made with, and of no other that differs in
    one.
    """
    return checkpoint_key(
        run.settings,
        bundle=run.bundle_digest,
        dataset=run.dataset_digest,
        own_data=attempt.own_data_digest,
        validation_dataset=run.validation_dataset_digest,
        weights=run.weights_digest,
    )


@dataclass(frozen=True, slots=True)
class Sender:
    """The facts that a checkpoint is measured against, read before its file is."""

    run_id: str
    attempt: int
    device_id: str
    key: str
    steps: int
    most_bytes: int


def sender_of(run: Run, attempt: Attempt, bundle: Bundle) -> Sender:
    """Raises: Invalid for a run that has no checkpoints."""
    is_of_unknown_data = run.own_data is not None and attempt.own_data_digest is None
    if run.mode != "train" or is_of_unknown_data or not can_go_on(bundle.manifest):
        raise Invalid("checkpoint.none", "runs of this kind have no checkpoints", where="checkpoint", cause="device")
    return Sender(
        run.id, attempt.n, attempt.device_id, key_of(run, attempt), run.settings.steps, most_state_bytes(bundle)
    )


def most_state_bytes(bundle: Bundle) -> int:
    """Returns the most bytes that a run of the bundle may send: weights, and what its optimizer keeps beside them."""
    files = bundle.manifest.get("files")
    entry = files.get(_WEIGHTS) if isinstance(files, dict) else None
    weights_bytes = entry.get("bytes") if isinstance(entry, dict) else None
    return most_checkpoint_bytes(weights_bytes if isinstance(weights_bytes, int) else bundle.size_bytes)


def of_run_if_any(session: Session, run: Run) -> str | None:
    """Returns the digest of the run's checkpoint."""
    return session.scalar(select(Checkpoint.digest).where(Checkpoint.run_id == run.id))


def look_at(storage: Storage, stored: StoredFile, sender: Sender) -> Past:
    """Reads what a stored checkpoint says of the steps before it.

    Raises: Invalid (`checkpoint.invalid`), FileGone (bytes that nobody needed were removed when they had come again).
    """
    try:
        if stored.size_bytes > sender.most_bytes:
            raise ProtocolError("", f"{stored.size_bytes:,} bytes, at most {sender.most_bytes:,} are expected")
        with storage.local(stored.digest) as path, path.open("rb") as file:
            return _checked(file, sender)
    except MissingFile:
        raise FileGone(stored.digest) from None
    except ProtocolError as error:
        raise Invalid(
            "checkpoint.invalid",
            f"not a checkpoint of this attempt: {error}"[:1000],
            where="checkpoint",
            cause="device",
            hint="go on without it",
        ) from None


def _checked(file: IO[bytes], sender: Sender) -> Past:
    past, state_bytes = read_past(file)
    for name, actual, expected in (
        ("key", past.key, sender.key),
        ("run_id", past.run_id, sender.run_id),
        ("attempt", past.attempt, sender.attempt),
        ("device_id", past.device_id, sender.device_id),
    ):
        if actual != expected:
            raise ProtocolError(name, f"{actual!r:.90}, expected {expected!r:.90}")
    if past.step >= sender.steps:
        raise ProtocolError("step", f"{past.step:,} of {sender.steps:,}: nothing is left to do")
    check_state(file, state_bytes, past)
    return past


def take(session: Session, run: Run, attempt: Attempt, stored: StoredFile, past: Past) -> bool:
    """Makes the file the run's checkpoint, unless the run has a later one. Returns whether it did. The caller holds the
    run's row.
    """
    checkpoint = session.get(Checkpoint, run.id)
    if checkpoint is not None and checkpoint.step >= past.step and _is_of_same_data(session, checkpoint, attempt):
        return False
    if checkpoint is None:
        checkpoint = Checkpoint(run_id=run.id)
        session.add(checkpoint)
    checkpoint.attempt_id, checkpoint.step, checkpoint.tries = attempt.id, past.step, 0
    checkpoint.digest, checkpoint.size_bytes = stored.digest, stored.size_bytes
    attempt.checkpoint_step = past.step
    return True


def _is_of_same_data(session: Session, checkpoint: Checkpoint, attempt: Attempt) -> bool:
    """Whether the attempt could go on from it: always, but for data of the device's own."""
    return session.get_one(Attempt, checkpoint.attempt_id).own_data_digest == attempt.own_data_digest


def take_kept(session: Session, run: Run, attempt: Attempt, steps: Sequence[int | None]) -> None:
    """Records after which step the attempt's device has stored a checkpoint itself, if that is further than it ever
    was.

    The caller holds the run's row.
    """
    saved_steps = [step for step in steps if step is not None and 0 < step < run.settings.steps]
    if not saved_steps or run.own_data is None or run.mode != "train":
        return
    conditions = (Attempt.run_id == run.id, Attempt.device_id == attempt.device_id)
    before = session.scalar(select(func.max(Attempt.checkpoint_step)).where(*conditions)) or 0
    if max(saved_steps) > before:
        attempt.checkpoint_step = max(saved_steps)


def is_kept(session: Session, run: Run, attempt: Attempt) -> bool:
    """Whether the attempt's device alone has the checkpoint of it that counts."""
    checkpoint = session.get(Checkpoint, run.id)
    is_here = checkpoint is not None and checkpoint.attempt_id == attempt.id
    return run.own_data is not None and attempt.checkpoint_step is not None and not is_here


def waits_for_another(device: Device, settings: Settings) -> ColumnElement[bool]:
    """Returns the condition on `Run` that it waits for the board of its last attempt, which has its checkpoint, may
    have it again and is active. It waits for as long as a device does not get a run that failed on it.
    """
    waits = _OF_LAST_ATTEMPT.where(
        _LAST.device_id != device.id, _LAST.finished_at >= time.time() - settings.device_retry_s
    )
    return and_(Run.own_data.is_not(None), waits.correlate(Run).exists())


def still_open(session: Session, device_id: str, runs: Collection[str]) -> tuple[str, ...]:
    """Returns those of the runs that the device had before and that have not ended."""
    had = select(Attempt.id).where(Attempt.run_id == Run.id, Attempt.device_id == device_id).exists()
    query = select(Run.id).where(Run.id.in_(runs), Run.state.in_(OPEN_RUN_STATES), had)
    return tuple(session.scalars(query.order_by(Run.id)))


def of_run(session: Session, run: Run) -> Checkpoint:
    """Raises: NotFound."""
    checkpoint = session.get(Checkpoint, run.id)
    if checkpoint is None:
        raise NotFound("attempt.no-file", "the run starts from the first step")
    return checkpoint


def hand_out(session: Session, run: Run, storage: Storage, attempt: Attempt) -> Checkpoint | None:
    """Returns the checkpoint from which a new attempt goes on; None: it starts from the first step. The caller holds
    the run's row.
    """
    checkpoint = session.get(Checkpoint, run.id)
    if checkpoint is None:
        return None
    source = session.get_one(Attempt, checkpoint.attempt_id)
    name = session.get_one(Device, source.device_id).name
    start = f"step {checkpoint.step:,} (checkpoint of attempt {source.n}, on {name})"
    if not _is_of_same_data(session, checkpoint, attempt):
        message = f"starts from the first step instead of {start}: this device's data set {run.own_data} is another"
        events.add(session, run.id, "log", message=message, attempt=attempt.n)
        return None
    reason = ""
    if checkpoint.tries >= MOST_TRIES:
        reason = f"{checkpoint.tries} attempts came no further from there"
    elif storage.size(checkpoint.digest) is None:
        reason = "its file is not in the farm's storage any more"
    if reason:
        events.add(
            session,
            run.id,
            "log",
            message=f"starts from the first step instead of {start}: {reason}",
            attempt=attempt.n,
        )
        drop(session, run)
        return None
    checkpoint.tries += 1
    run.steps_done = checkpoint.step
    events.add(session, run.id, "log", message=f"goes on from {start}", attempt=attempt.n)
    return checkpoint


def distrust(session: Session, run: Run, attempt: Attempt) -> None:
    """Drops the checkpoint of an attempt whose report cannot be true, so that nobody goes on from it."""
    deletion = delete(Checkpoint).where(Checkpoint.run_id == run.id, Checkpoint.attempt_id == attempt.id)
    session.execute(deletion)


def drop(session: Session, run: Run) -> None:
    """Deletes the run's checkpoint: the run has ended, or nothing may go on from it."""
    session.execute(delete(Checkpoint).where(Checkpoint.run_id == run.id))
