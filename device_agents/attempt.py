"""An attempt, from the verified assignment to the signed result in the spool: download, unpack, run, report."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from device_agents.devices.describe import Device
from device_agents.errors import AttemptError, BadBundle, BadData, EnrolmentError, FarmError, Stopped, of_the_system
from device_agents.farm import retry
from device_agents.farm.checkpoints import CheckpointSender, to_farm
from device_agents.farm.client import FarmClient, as_attempt_error
from device_agents.farm.events import EventSender
from device_agents.farm.heartbeat import Heartbeat
from device_agents.farm.spool import Spool, SpooledResult
from device_agents.farm.state import seal
from device_agents.farm.unfinished import Unfinished
from device_agents.job.bundle import UnpackedBundle, make_executable, unpack
from device_agents.job.checkpoints import Earlier, take_apart
from device_agents.job.dataset import split_data_sets
from device_agents.job.disk import room_left, with_cause
from device_agents.job.execution import Execution
from device_agents.job.findings import Findings
from device_agents.job.job import Job
from device_agents.job.own_data import LocalDatasets
from device_agents.job.own_limits import lower
from device_agents.job.redaction import redact, redact_error
from device_agents.job.sandbox import Sandbox
from device_agents.job.scratch import empty
from device_agents.job.users import try_lock
from device_agents.measure.tuning import Trial
from device_agents.wire import (
    HEARTBEAT_INTERVAL_S,
    MAX_REPORT_BYTES,
    REPORT_TYPE,
    Assignment,
    Blob,
    Outcome,
    Past,
    ProtocolError,
    Report,
    check_plausible,
    dumps,
    loads,
)

log = logging.getLogger("device_agents")
FILES = {
    "bundle": "bundle.pfb",
    "dataset": "dataset.npz",
    "weights": "start.safetensors",
    "validation_dataset": "validation.npz",
    "checkpoint": "unfinished",
}
"""Files that an assignment may have fetched, by its field, with their names here."""


@dataclass(frozen=True)
class Station:
    """The parts that all attempts of a running agent share."""

    client: FarmClient
    device: Device
    sandbox: Sandbox
    spool: Spool
    is_stopping: threading.Event
    """Set when the agent has been told to go."""
    heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S
    exclusive: Path | None = None
    """A file locked while the binary runs: the agents of one machine take turns and do not disturb each other."""
    own_limits: Mapping[str, float] = field(default_factory=dict)
    """The most that this board's owner allows a job, by the limit's name."""
    datasets: LocalDatasets = field(default_factory=lambda: LocalDatasets((), Path()))
    """The data sets of the board's own that runs may use."""


class Attempt:
    """The work on an assignment, verified before (`farm/gate.py`). `run` never raises for what goes wrong: the result
    says it.
    """

    def __init__(self, station: Station, assignment: Assignment) -> None:
        self._station = station
        self._assignment = assignment
        self._limits, self._own_limits = lower(assignment.limits, station.own_limits)
        self._folder = self._kept_folder = station.client.state.scratch
        description = station.device.description
        self._findings = Findings(1, description.cores)
        self._heartbeat = Heartbeat(
            station.client,
            assignment.lease_token,
            interval_s=station.heartbeat_interval_s,
            kind=station.device.kind.name,
        )
        self._events = EventSender(station.client, assignment.lease_token)
        own_data = assignment.own_data
        self._stays = own_data is not None and station.datasets.weights_stay(own_data.name)
        self._unfinished = Unfinished(station.client.state.unfinished)
        away = to_farm(station.client, assignment.lease_token)
        self._checkpoints = CheckpointSender(self._keep_checkpoint if self._stays else away)
        self._trials: tuple[Trial, ...] | None = None
        self._phase = "download"
        self._steps_done = 0
        self._told_at_s = 0.0
        self._transfer_s = 0.0
        self._transfer_deadline_s: float | None = None

    def run(self) -> SpooledResult | None:
        """Works the assignment off and puts the signed report into the spool. Returns None when it cannot be
        written.
        """
        scratch = self._station.client.state.scratch
        empty(scratch)
        started_at = time.time()
        with self._heartbeat, self._events, self._checkpoints:
            outcome = with_cause(self._outcome(self._work), room_left(scratch, self._folder))
            self._enter("upload")
            self._checkpoints.end(last=outcome.state == "failed" and (self._stays or not self._heartbeat.lost))
            if outcome.state != "failed":
                self._unfinished.forget(self._assignment.run_id)
            empty(self._folder)  # what the job has left may fill the disk that the result needs
            result = self._finish(outcome, started_at)
        if result and self._heartbeat.lost:
            self._station.spool.keep(result, self._heartbeat.lost)
        empty(scratch)
        return result

    def _outcome(self, work: Callable[[], None]) -> Outcome:
        try:
            work()
        except AttemptError as error:
            log.warning("run %s ended: %s: %s", self._assignment.run_id, error.code, error)
            return self._with_own_limits(error.outcome())
        except OSError as error:
            log.exception("run %s: the system failed us", self._assignment.run_id)
            return of_the_system(error)
        except Exception as error:
            # A defect of ours must end this attempt with a report, not the agent without one.
            log.exception("run %s: a defect of the agent", self._assignment.run_id)
            return Outcome("failed", "infra", "agent.internal", f"a defect of the agent: {error!r:.500}")
        return Outcome("succeeded")

    def _with_own_limits(self, outcome: Outcome) -> Outcome:
        if outcome.cause != "limits" or not self._own_limits:
            return outcome
        names = ", ".join(f"{name}={value:g}" for name, value in sorted(self._own_limits.items()))
        return replace(outcome, hint=f"{outcome.hint} (this board's own limits: {names})".lstrip())

    def _finish(self, outcome: Outcome, started_at: float) -> SpooledResult | None:
        """The report, whole and checked; without its figures when those cannot be sent."""
        stored: list[SpooledResult] = []
        trouble = self._outcome(lambda: stored.append(self._put(self._report(outcome, started_at))))
        if trouble.state == "succeeded":
            return stored[0]
        bare = Findings(1, self._station.device.description.cores)
        self._findings = bare
        outcome = trouble if outcome.state == "succeeded" else outcome
        trouble = self._outcome(lambda: stored.append(self._put(self._report(outcome, started_at))))
        if trouble.state == "succeeded":
            return stored[0]
        log.critical(
            "run %s: its result is lost, for it cannot be written: %s", self._assignment.run_id, trouble.message
        )
        return None

    def _work(self) -> None:
        self._enter("download")
        files = self._download()
        self._enter("unpack")
        names = ["bundle", *(f"bundle-{place}" for place, _ in enumerate(self._assignment.others, 1))]
        bundles = [self._unpack(files[name], name) for name in names]
        job = self._job(bundles, files)
        # Everything has been checked: from here on the binaries may run.
        for bundle in bundles:
            make_executable(bundle)
        with self._alone():
            self._enter("run")
            self._quietly(job) if self._assignment.own_data else self._execute(job)

    def _unpack(self, archive: Path, name: str) -> UnpackedBundle:
        bundle = unpack(archive, self._folder / name, max_total_bytes=self._limits.disk_bytes)
        archive.unlink()
        _check_manifest(bundle, self._assignment)
        return bundle

    def _quietly(self, job: Job) -> None:
        """Runs it on data that stay here: what the binary says of its failure in words stays here too, in our log."""
        try:
            self._execute(job)
        except AttemptError as error:
            if isinstance(error, Stopped) and not error.is_said:
                raise
            log.warning("run %s: %s: %s", self._assignment.run_id, error.code, error)
            redact_error(error)
            raise

    def _download(self) -> dict[str, Path]:
        """The files of the assignment, by its fields (`bundle-1` is the first of the others); those that it has."""
        assignment = self._assignment
        self._make_folders()
        fields = {name: getattr(assignment, name) for name in FILES}
        blobs: dict[str, Blob] = {name: blob for name, blob in fields.items() if blob is not None}
        blobs |= {f"bundle-{place}": other for place, other in enumerate(assignment.others, 1)}
        self._check_room(sum(blob.size_bytes for blob in blobs.values()))
        started_s = time.monotonic()
        self._transfer_deadline_s = started_s + self._limits.transfer_s
        try:
            return {name: self._fetch(blob, FILES.get(name, f"{name}.pfb")) for name, blob in blobs.items()}
        except FarmError as error:
            raise as_attempt_error(error) from None
        except EnrolmentError as error:
            raise Stopped("agent.revoked", str(error), cause="policy") from None
        finally:
            self._transfer_s = time.monotonic() - started_s
            self._transfer_deadline_s = None

    def _make_folders(self) -> None:
        """Makes the folders of this attempt alone: files that an earlier one left behind, if they cannot be removed,
        are not in the way.
        """
        scratch = self._station.client.state.scratch
        self._folder, self._kept_folder = (
            Path(tempfile.mkdtemp(prefix=name, dir=scratch)) for name in ("job-", "kept-")
        )
        self._folder.chmod(0o755)

    def _fetch(self, blob: Blob, name: str) -> Path:
        to, client = self._folder / name, self._station.client
        retry.call(
            retry.DOWNLOAD,
            lambda: client.download(blob, to, should_stop=self._should_stop),
            sleep=lambda wait_s: self._station.is_stopping.wait(wait_s) or self._should_stop() is not None,
        )
        to.chmod(0o644)
        return to

    def _check_room(self, wanted_bytes: int) -> None:
        limit_bytes = self._limits.disk_bytes
        if wanted_bytes > limit_bytes:
            message = f"bundle, data and weights have {wanted_bytes:,} bytes, the limit is {limit_bytes:,}"
            raise AttemptError("limits.disk", message, cause="limits")
        free_bytes = shutil.disk_usage(self._folder).free
        if 3 * wanted_bytes > free_bytes:
            message = f"the job needs about {3 * wanted_bytes:,} bytes of disk, {free_bytes:,} are free"
            raise AttemptError("device.disk", message, cause="device", hint="make room on the device's disk")

    def _job(self, bundles: Sequence[UnpackedBundle], files: Mapping[str, Path]) -> Job:
        """Returns the job to be run, its data sets rewritten for the binary."""
        own_data, limits = self._assignment.own_data, self._limits
        bundle, *others = bundles
        fetched = (files.get("dataset"), files.get("validation_dataset"))
        archives = (self._station.datasets.archive(own_data) if own_data else fetched[0], fetched[1])
        data, validation = split_data_sets(
            archives, self._folder, bundle.inputs, max_bytes=limits.disk_bytes, labels=bundle.labels
        )
        if own_data:
            self._station.datasets.archive(own_data)  # it was the same all the while that it was read
        for archive in filter(None, fetched):
            archive.unlink()
        settings, key = self._assignment.settings.fitted(), self._assignment.checkpoint_key()
        send = self._checkpoints.send if settings.mode == "train" and bundle.can_go_on else None
        return Job(
            self._folder,
            self._kept_folder,
            bundle,
            settings,
            data=data,
            validation=validation,
            weights=files.get("weights"),
            limits=limits,
            others=tuple(others),
            key=key,
            earlier=self._earlier(files.get("checkpoint"), key),
            on_checkpoint=send,
        )

    def _keep_checkpoint(self, checkpoint: Path, past: Past, _: retry.Sleep) -> None:
        """Stores the checkpoint on this board: what was learned of its data does not leave it. The farm hears how far
        it is.
        """
        self._unfinished.keep(self._assignment.run_id, checkpoint)
        message = f"checkpoint after step {past.step:,}, which stays on the board"
        self._events.add("checkpoint", step=past.step, message=message)

    def _earlier(self, downloaded: Path | None, key: str) -> Earlier | None:
        """Returns where to go on, by the farm's checkpoint or the one stored here; None, for a start at the first step,
        if neither is of this run.
        """
        checkpoint = downloaded
        if downloaded is None and self._assignment.own_data is not None:
            checkpoint = self._unfinished.copy(self._assignment.run_id, self._folder / FILES["checkpoint"])
        try:
            return take_apart(checkpoint, key) if checkpoint is not None else None
        except BadData as error:
            self._events.add("log", message=f"training starts from its first step: {error.code}: {error}")
            return None

    def _execute(self, job: Job) -> None:
        station = self._station
        self._trials = job.bundle.trials
        execution = Execution(
            job,
            station.device,
            station.sandbox,
            notify=self._notify,
            should_stop=self._should_stop,
            name=str(os.getpid()),
            identity=(self._assignment.run_id, self._assignment.attempt, self._assignment.device_id),
        )
        self._findings = execution.findings
        execution.run()

    def _should_stop(self) -> Stopped | None:
        if self._heartbeat.lost:
            return Stopped("lease.lost", f"the lease was lost: {self._heartbeat.lost}", cause="infra")
        if self._heartbeat.is_cancelled:
            return Stopped("run.cancelled", "cancelled on request", cause="user", state="cancelled")
        if self._station.is_stopping.is_set():
            return Stopped("agent.stopped", "the agent was told to stop", cause="infra", hint="run it again")
        if self._transfer_deadline_s is not None and time.monotonic() > self._transfer_deadline_s:
            limit_s = self._limits.transfer_s
            return Stopped("limits.transfer", f"the downloads took more than {limit_s:.0f} s", cause="infra")
        return None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Waits for the other agents of this machine to finish their runs; the heartbeat goes on meanwhile."""
        if self._station.exclusive is None:
            yield
            return
        with self._station.exclusive.open("w") as file:
            self._enter("wait")
            while not try_lock(file.fileno()):
                stopped = self._should_stop()
                if stopped:
                    raise stopped
                time.sleep(0.2)
            yield

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._events.add("phase", message=phase)
        self._heartbeat.tell(phase, self._steps_done)

    def _notify(self, kind: str, **fields: Any) -> None:
        if kind == "log" and self._assignment.own_data:
            return  # the binary's own words may hold what it has read
        self._events.add(kind, **fields)
        if kind != "step":
            return
        self._steps_done = fields["step"]
        now_s = time.monotonic()
        if now_s - self._told_at_s >= 1.0:
            self._told_at_s = now_s
            self._heartbeat.tell(self._phase, self._steps_done)

    def _report(self, outcome: Outcome, started_at: float) -> Report:
        assignment, station = self._assignment, self._station
        description = station.device.description
        report = self._findings.report(
            outcome,
            run_id=assignment.run_id,
            attempt=assignment.attempt,
            device_id=assignment.device_id,
            bundle_digest=assignment.bundle.digest,
            mode=assignment.settings.reported_mode,
            measurement_class=description.measurement_class,
            started_at=started_at,
            finished_at=time.time(),
            transfer_s=self._transfer_s,
            isolation_level=station.sandbox.level,
            environment={**description.environment, "agent": description.agent_version},
            trials=self._trials,
            others=[other.digest for other in assignment.others],
        )
        report = replace(report, own_limits=self._own_limits or None)
        own_data, exported = assignment.own_data, self._findings.exported
        if own_data is not None:
            stay = self._station.datasets.weights_stay(own_data.name)
            report = redact(replace(report, own_data=replace(own_data, weights_stay=stay)))
            exported = None if stay else exported
        if exported is None:
            return report
        return replace(report, weights=Blob(exported.digest, exported.size_bytes))

    def _put(self, report: Report) -> SpooledResult:
        """Raises: `AttemptError` when the figures cannot be, or cannot be sent."""
        payload = dumps(report)
        try:
            check_plausible(loads(Report, payload), self._station.device.description)
        except ProtocolError as error:
            message = f"the run's figures cannot be: {error}"
            raise AttemptError("report.impossible", message, cause="compiler") from None
        if len(payload) > MAX_REPORT_BYTES:
            message = f"the run's report has {len(payload):,} bytes, the limit is {MAX_REPORT_BYTES:,}"
            raise AttemptError("report.size", message, cause="limits", hint="ask for fewer steps")
        envelope = seal(self._station.client.state.device_key(), report.device_id, REPORT_TYPE, payload)
        exported = self._findings.exported if report.weights else None
        return self._station.spool.put(
            self._assignment.lease_token,
            dumps(envelope),
            weights=exported.path if exported else None,
            weights_digest=exported.digest if exported else None,
        )


def _check_manifest(bundle: UnpackedBundle, assignment: Assignment) -> None:
    """Checks that the bundle's manifest says what was signed (its digest is checked already). Raises: `BadBundle`."""
    if bundle.target != assignment.target:
        message = f"the bundle is for {bundle.target!r:.90}, the signed assignment says {assignment.target!r:.90}"
        raise BadBundle("bundle.statement", message, cause="policy")
