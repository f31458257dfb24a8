"""Run a bundle file on this machine without a farm: what `pockfarm exec` does."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from device_agents.devices.accelerator import accelerator_of
from device_agents.devices.describe import Device, describe_device
from device_agents.errors import AttemptError, BadBundle, BadData, EnrolmentError
from device_agents.job.bundle import make_executable, unpack
from device_agents.job.checkpoints import hand_to, take_apart
from device_agents.job.dataset import split_data_sets
from device_agents.job.execution import EXPORTED, TRAINED, Execution
from device_agents.job.findings import Findings
from device_agents.job.job import Job
from device_agents.job.output import KeptOutput
from device_agents.job.processes import LOGITS, Notify, StopCheck
from device_agents.job.sandbox import Sandbox, probe
from device_agents.job.scratch import temporary_folder
from device_agents.job.users import DEFAULT
from device_agents.measure.tuning import Trial
from device_agents.wire import Limits, Outcome, Report, RunSettings, checkpoint_key

START = "start.safetensors"
"""The binary's name for the weights that it starts from."""


@dataclass(frozen=True)
class LocalResult:
    """The result of `run_bundle`. `report.outcome` says how it ended."""

    report: Report
    error: AttemptError | None = None


def run_bundle(
    path: Path,
    settings: RunSettings,
    *,
    data: Path | None = None,
    validation_data: Path | None = None,
    weights: Path | None = None,
    save: Path | None = None,
    export: Path | None = None,
    out: Path | None = None,
    others: Sequence[Path] = (),
    checkpoint: Path | None = None,
    resume: Path | None = None,
    limits: Limits | None = None,
    runner: str | None = None,
    device_class: str | None = None,
    notify: Notify = lambda *_, **__: None,
    should_stop: StopCheck = lambda: None,
) -> LocalResult:
    """Runs a bundle file on this machine, without a farm and without a signature: the caller vouches for the file.

    `data` is an npz (inputs by name or `x`, labels `y`), and so is `validation_data`, on which mode train is validated
    (in place of the share `settings.validation`); `weights` and `save` are checkpoints, `export` the trained
    parameters alone, `out` the logits (`.npy`) of mode infer. `checkpoint` is where mode train leaves, every
    `settings.checkpoint_s`, what `resume` goes on from: a run that was ended goes on bit for bit. `runner` and
    `device_class` emulate a board, as for the agent. `notify(kind, **fields)` gets progress as in `wire.Event`. The
    sandbox is as strong as this machine allows.

    Never raises for a run that fails: the report's outcome is typed. Training that diverged leaves no files, unless the
    best was kept (`report.training`). `others` are bundle files that take turns with the first, in mode compare.
    Raises: `EnrolmentError` (unknown runner or class), `OSError` (the bundle cannot be read, or a result not written
    where it was asked for).
    """
    started_at, limits, settings = time.time(), limits or Limits(), settings.fitted()
    sandbox = probe(users=DEFAULT, with_cgroup=False, runner=runner.split() if runner else ())
    device = describe_device(device_class=device_class, runner=runner, isolation_level=sandbox.level)
    with temporary_folder() as temporary:
        folder, outputs = temporary / "job", temporary / "kept"
        folder.mkdir(mode=0o755)
        outputs.mkdir(mode=0o700)
        error: AttemptError | None = None
        findings = Findings(1, device.description.cores)
        trials: tuple[Trial, ...] | None = None
        try:
            bundle = unpack(path, folder / "bundle", max_total_bytes=limits.disk_bytes)
            trials = bundle.trials
            if bundle.engine:
                sandbox, device = _for_engine(bundle.engine, device_class)
            those = tuple(
                unpack(other, folder / f"bundle-{place}", max_total_bytes=limits.disk_bytes)
                for place, other in enumerate(others, 1)
            )
            labels = () if settings.mode == "infer" else bundle.labels
            files, held_out = split_data_sets(
                (data, validation_data), folder, bundle.inputs, max_bytes=limits.disk_bytes, labels=labels
            )
            key = checkpoint_key(
                settings,
                bundle=file_digest(path),
                dataset=_digest(data),
                validation_dataset=_digest(validation_data),
                weights=_digest(weights),
            )
            start = _copied(weights, folder / START, "weights.missing")
            archived = _copied(resume, folder / "unfinished", "checkpoint.missing")
            job = Job(
                folder,
                outputs,
                bundle,
                settings,
                data=files,
                validation=held_out,
                limits=limits,
                weights=start,
                others=those,
                key=key,
                earlier=take_apart(archived, key, must_fit=True) if archived else None,
                on_checkpoint=hand_to(checkpoint) if checkpoint else None,
            )
            for archive in (bundle, *those):
                make_executable(archive)
            execution = Execution(job, device, sandbox, notify=notify, should_stop=should_stop)
            findings = execution.findings
            execution.run()
            _hand_over(execution, ((TRAINED, save), (EXPORTED, export), (LOGITS, out)))
        except AttemptError as failure:
            error = failure
        report = findings.report(
            error.outcome() if error else Outcome("succeeded"),
            run_id="local",
            attempt=1,
            device_id="local",
            bundle_digest=file_digest(path),
            mode=settings.reported_mode,
            measurement_class=device.description.measurement_class,
            started_at=started_at,
            finished_at=time.time(),
            transfer_s=0.0,
            isolation_level=sandbox.level,
            environment=device.description.environment,
            trials=trials,
            others=[file_digest(other) for other in others],
        )
    return LocalResult(report, error)


def _for_engine(name: str, device_class: str | None) -> tuple[Sandbox, Device]:
    """Returns the sandbox and the device of the same machine for another engine. Raises: `AttemptError` where there is
    none.
    """
    try:
        accelerator = accelerator_of(name)
        sandbox = probe(
            users=DEFAULT,
            with_cgroup=False,
            readable_paths=accelerator.engine.existing_files(),
            nodes=accelerator.engine.devices(),
        )
        device = describe_device(device_class=device_class, isolation_level=sandbox.level, accelerator=accelerator)
    except EnrolmentError as error:
        raise BadBundle("bundle.engine", str(error).removeprefix(f"--engine {name}: "), cause="user") from None
    return sandbox, device


def file_digest(path: Path) -> str:
    """`sha256:<hex>` of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def _digest(path: Path | None) -> str | None:
    try:
        return file_digest(path) if path is not None else None
    except OSError:
        return None  # whoever reads it next says what is wrong


def _copied(path: Path | None, to: Path, code: str) -> Path | None:
    if path is None:
        return None
    try:
        return Path(shutil.copyfile(path, to))
    except OSError as error:
        raise BadData(code, f"{path}: {error.strerror}") from None


def _hand_over(execution: Execution, destinations: Sequence[tuple[str, Path | None]]) -> None:
    """Copies what the caller wants, if the mode makes it. Raises: `BadOutput`, `OSError` (the caller's path)."""
    produced = {"train": (TRAINED, EXPORTED), "infer": (LOGITS,)}.get(execution.job.settings.mode, ())
    training = execution.findings.training
    if training is not None and training.saved_step is None:
        produced = ()  # it diverged, and nothing of it was kept
    outputs: dict[str, KeptOutput] = {}
    for name, to in destinations:
        if to is not None and name in produced:
            is_exported = name == EXPORTED and execution.findings.exported is not None
            outputs[name] = execution.findings.exported if is_exported else execution.keep(name)  # type: ignore[assignment]
    for name, to in destinations:
        if to is not None and name in outputs:
            shutil.copyfile(outputs[name].path, to)
