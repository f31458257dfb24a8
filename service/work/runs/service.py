"""Runs as their owners see them: checked, created, listed, cancelled."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from device_agents.wire import RunSettings
from service.artefacts.bundles import service as bundles
from service.artefacts.bundles.manifest import is_tuning
from service.artefacts.bundles.service import Built
from service.artefacts.datasets import service as datasets
from service.base.problems import Conflict, Invalid, NotFound, TooMany
from service.base.settings import Settings
from service.devices import clocks
from service.devices import service as devices
from service.people.holdings import service as holdings
from service.people.quotas import limits as quotas
from service.store import events, states
from service.store.database.models import OPEN_RUN_STATES, Attempt, Device, Holding, Result, Run
from service.store.database.paging import newest_first
from service.store.database.scope import EVERYONES
from service.store.garbage.holding import hold_files
from service.store.storage import Storage
from service.work.lanes.entering import enter
from service.work.runs import checkpoints, compared, own_data, placement, weights
from service.work.runs.filter import RunFilter
from service.work.runs.schemas import RunCreate

RETRY_AFTER_S = 30
TUNE_SHARE = 0.8
"""Largest share of a run's time for tuning: measuring ends after the rounds that have begun."""


def create(
    session: Session,
    body: RunCreate,
    bundle: Built,
    *,
    api_key_id: str,
    limits: Settings,
    storage: Storage,
    group_id: str | None = None,
) -> Run:
    """Queues a run of the bundle that `body` names. Raises: NotFound, Invalid (what does not fit it), TooMany."""
    settings = body.settings
    _check_kind(session, settings, bundle, limits)
    checkpoints.check_asked(settings, bundle.manifest)
    others = compared.compared_bundles(session, body.others, bundle)
    features = compared.features(bundle, others)
    _check_place(session, body, bundle, features)
    placement.check_class(session, body, bundle.target)
    wants = placement.wants_of(session, body)
    _check_data(session, body, bundle)
    _check_files_stay(session, body)
    weights.check(session, body, bundle, storage)
    for built in (bundle, *others):
        _check_threads(settings, built)
    _check_quota(session, api_key_id, limits)
    quotas.check(session, limits, "open_runs")
    run = Run(
        api_key_id=api_key_id,
        bundle_digest=bundle.digest,
        target=bundle.target,
        wanted_device_id=body.device,
        wanted_device_class=body.device_class,
        settings=settings,
        wants="\n".join(wants),
        own_data=body.own_data[0] if body.own_data else None,
        own_data_digest=body.own_data[1] if body.own_data else None,
        group_id=group_id,
        dataset_digest=None if body.own_data else body.dataset,
        validation_dataset_digest=body.validation_dataset,
        weights_digest=body.weights,
        queue_deadline_at=time.time() + limits.queue_s,
    )
    enter(session, run, features)
    session.add(run)
    session.flush()
    compared.add(session, run, others)
    events.add(session, run.id, "state", state="queued")
    return run


def _check_kind(session: Session, settings: RunSettings, bundle: Built, limits: Settings) -> None:
    if is_tuning(bundle.manifest) != (settings.mode == "tune"):
        kind = "measures schedules: its mode is tune" if is_tuning(bundle.manifest) else "trains"
        raise Invalid(
            "run.mode",
            f"the bundle {kind}",
            where="mode",
            hint="POST /tune makes the bundle that measures another's schedules",
        )
    clocks.check_asked(session, limits, settings)
    most_s = TUNE_SHARE * clocks.run_s(limits, settings)
    if settings.tune_s is not None and settings.tune_s > most_s:
        raise Invalid(
            "run.tune-time",
            f"{settings.tune_s:.0f} s, a run may measure for {most_s:.0f}",
            where="tune_s",
            hint="ask for less; what was measured before is kept",
        )
    if settings.compare_s is not None and settings.compare_s > most_s:
        raise Invalid(
            "run.compare-time",
            f"{settings.compare_s:.0f} s, a run may measure for {most_s:.0f}",
            where="compare_s",
            hint="ask for less time; fewer steps make a round shorter",
        )


def _check_place(session: Session, body: RunCreate, bundle: Built, features: frozenset[str]) -> None:
    if body.target is not None and body.target != bundle.target:
        raise Invalid(
            "run.target",
            f"the bundle is for {bundle.target}",
            where="target",
            hint="compile the model for the target that you want",
        )
    if body.device is None:
        return
    device = devices.find(session, body.device)
    if device.state == "removed":
        raise Invalid("device.removed", "this device was removed", where="device", hint="GET /devices?state=active")
    if body.device_class not in (None, device.device_class):
        raise Invalid(
            "run.device-class",
            f"the device is a {device.device_class}",
            where="device_class",
            hint="leave device_class out: the device says it",
        )
    _check_device(device, bundle, features)


def _check_device(device: Device, bundle: Built, features: frozenset[str]) -> None:
    if bundle.target not in device.targets:
        raise Invalid(
            "device.target",
            f"{device.name} runs {', '.join(device.targets)}, the bundle is for {bundle.target}",
            where="device",
            hint="compile for a target of that device",
        )
    lacking = features - set(device.features)
    if lacking:
        raise Invalid(
            "device.features",
            f"{device.name} lacks the CPU features {', '.join(sorted(lacking))}",
            where="device",
            hint="compile for a lesser target",
        )


def _check_data(session: Session, body: RunCreate, bundle: Built) -> None:
    if body.dataset is None and body.settings.needs_data:
        raise Invalid(
            "run.dataset", f"{body.mode} needs a data set", where="dataset", hint="send one with POST /datasets"
        )
    if body.own_data is not None:
        own_data.check_fit(session, body, bundle)
    dataset_digest = None if body.own_data else body.dataset
    for where, digest in (("dataset", dataset_digest), ("validation_dataset", body.validation_dataset)):
        if digest is None:
            continue
        dataset = datasets.find(session, digest, where=where).dataset
        datasets.check_fit(dataset, bundle, where=where)
        if body.settings.needs_data:
            datasets.check_scored(dataset, bundle, where=where)


def _check_files_stay(session: Session, body: RunCreate) -> None:
    """Makes sure that the run's weights and data sets stay, as for the bundle: retention removes none of them before
    this run is queued. Raises: Gone, if retention has removed one.
    """
    if body.weights is not None:
        holdings.refuse_taken(session, "weights", body.weights, where="weights")
        hold_files(session, [body.weights])
        holdings.refuse_taken(session, "weights", body.weights, where="weights")
    dataset = None if body.own_data else body.dataset
    for where, digest in (("dataset", dataset), ("validation_dataset", body.validation_dataset)):
        if digest is not None:
            holdings.use(session, "dataset", digest, where=where)


def _check_threads(settings: RunSettings, bundle: Built) -> None:
    most = bundle.manifest.get("threads")
    if settings.threads is not None and isinstance(most, int) and settings.threads > most:
        raise Invalid(
            "run.threads",
            f"{settings.threads} threads, the bundle was built for at most {most}",
            where="threads",
            hint="compile with more `threads` in the spec",
        )


def _check_quota(session: Session, api_key_id: str, settings: Settings) -> None:
    query = select(func.count()).select_from(Run).where(Run.api_key_id == api_key_id, Run.state.in_(OPEN_RUN_STATES))
    count = session.scalar(query, execution_options=dict(EVERYONES)) or 0  # a key is of one organisation
    if count >= settings.open_runs_per_key:
        raise TooMany(
            "limits.open-runs",
            f"this key has {count} open runs, the limit is {settings.open_runs_per_key}",
            retry_after_s=RETRY_AFTER_S,
            hint="wait until some have ended, or cancel them",
        )


def find(session: Session, run_id: str) -> Run:
    """Returns the run. Raises: NotFound."""
    run = session.get(Run, run_id)
    if run is None:
        raise NotFound("run.unknown", f"no run {run_id!r:.60}", hint="GET /runs lists them")
    return run


def newest_runs(
    session: Session, chosen: RunFilter, *, limit: int, cursor: str | None
) -> tuple[Sequence[Run], str | None]:
    """Returns a page of runs, the newest first, and the next cursor."""
    named = bundles.holds_bundle(Run.bundle_digest, Holding.organisation_id == Run.organisation_id)
    query = select(Run).join(Holding, named).where(*chosen.conditions())
    return newest_first(session, query, Run.id, limit=limit, cursor=cursor)


def attempts_of(session: Session, run_id: str) -> list[Attempt]:
    """Returns the run's attempts, the first one first."""
    return list(session.scalars(select(Attempt).where(Attempt.run_id == run_id).order_by(Attempt.n)))


def result_of(session: Session, run: Run) -> Result:
    """Returns the report that counts. Raises: NotFound (Conflict while the run is open)."""
    result = session.scalar(select(Result).where(Result.run_id == run.id, Result.state == "recorded"))
    if result is not None:
        return result
    if run.state in OPEN_RUN_STATES:
        raise Conflict(
            "run.open", f"the run is {run.state}: no report yet", hint="wait for it with GET /runs/{id}?wait=60"
        )
    raise NotFound("run.no-report", f"the run ended {run.state} without a report", hint="its `ending` says why")


def cancel(session: Session, run_id: str) -> Run:
    """Asks a run to stop. A queued one ends at once, a leased one when its device hears of it, and an ended one stays
    as it is.
    """
    run = session.scalar(select(Run).where(Run.id == run_id).with_for_update())
    if run is None:
        return find(session, run_id)
    if run.state == "queued":
        states.move(session, run, "cancel")
        run.cancel_requested, run.cause, run.code = True, "user", "run.cancelled"
        run.message = "cancelled before it started"
        checkpoints.drop(session, run)
    elif run.state in OPEN_RUN_STATES:
        run.cancel_requested = True
        events.add(session, run.id, "cancel-requested")
    return run
