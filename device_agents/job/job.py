"""The description of a job, and the check whether a device may run it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from device_agents.devices.describe import Device
from device_agents.errors import BadBundle, BadData
from device_agents.job.bundle import UnpackedBundle
from device_agents.job.checkpoints import Earlier, OnCheckpoint
from device_agents.job.dataset import DataFiles
from device_agents.wire import MOST_BUNDLES, Limits, ProtocolError, RunSettings, held_out

NO_CHECKPOINTS = "the bundle was built before there were checkpoints of unfinished runs: a run of it cannot go on"


@dataclass(frozen=True)
class Job:
    """A job to run. All paths but `keep` lie under `folder`, the working directory of the binary."""

    folder: Path
    keep: Path
    """A folder of the agent's own, out of the job's reach, for what the job has made."""
    bundle: UnpackedBundle
    settings: RunSettings
    data: DataFiles | None = None
    validation: DataFiles | None = None
    """Data that training is validated on; None: a share of `data`, or nothing."""
    weights: Path | None = None
    """Starting weights; tensors it lacks (constants) come from the bundle's own."""
    limits: Limits = field(default_factory=Limits)
    key: str = ""
    """`wire.checkpoint_key` of the run."""
    others: tuple[UnpackedBundle, ...] = ()
    """The bundles that take turns with `bundle`, in mode compare."""
    earlier: Earlier | None = None
    """The point where training goes on."""
    on_checkpoint: OnCheckpoint | None = None
    """The function that wants checkpoints of training; None: nobody wants any."""

    @property
    def validated(self) -> int:
        """Samples that each validation scores; 0: there is none."""
        if self.validation is not None:
            return self.validation.samples
        share = self.settings.validation
        return held_out(self.data.samples, share) if self.data and share is not None else 0


def check_fits(job: Job, device: Device) -> None:
    """Checks that this device may run this bundle in this mode. Raises: `BadBundle`, `BadData`."""
    mode = job.settings.mode
    for bundle in (job.bundle, *job.others):
        _check_bundle(bundle, mode, device)
    _check_turns(job, device)
    if mode == "sustained" and device.is_emulated:
        raise _emulated(mode)
    if job.data is None and job.settings.needs_data:
        raise BadData("data.missing", f"mode {mode} needs a data set")
    try:
        job.settings.check_validation("the validation data set", is_given=job.validation is not None)
    except ProtocolError as error:
        raise BadData("validation.settings", str(error)) from None
    wants_more = job.earlier is not None or job.on_checkpoint is not None or job.settings.checkpoint_s is not None
    if mode != "train" and (job.earlier is not None or job.on_checkpoint is not None):
        raise BadData("checkpoint.mode", f"mode {mode} has no checkpoints of unfinished runs; only train has")
    if wants_more and not job.bundle.can_go_on:
        raise BadBundle("bundle.checkpoints", NO_CHECKPOINTS, cause="user", hint="build it again")
    if mode in ("profile", "train", "compare") and job.settings.steps < 1:
        raise BadData("steps.missing", f"mode {mode} needs at least one step")


def _check_bundle(bundle: UnpackedBundle, mode: str, device: Device) -> None:
    description = device.description
    if bundle.target not in description.targets:
        targets = ", ".join(description.targets) or "none"
        raise BadBundle("bundle.target", f"built for {bundle.target}; this device runs {targets}", cause="user")
    missing = sorted(set(bundle.required_features) - set(description.features))
    if missing:
        message = f"the binary needs features that this device lacks: {', '.join(missing)}"
        raise BadBundle("bundle.features", message, cause="user")
    if (bundle.trials is not None) != (mode == "tune"):
        kind = "trains" if bundle.trials is None else "measures schedules"
        raise BadBundle("bundle.kind", f"mode {mode} does not go with a bundle that {kind}", cause="user")


def _check_turns(job: Job, device: Device) -> None:
    """Checks that the things which belong to mode compare come with it, and with no other mode."""
    if job.settings.mode != "compare":
        if job.others:
            raise BadData("compare.mode", f"mode {job.settings.mode} takes one bundle; only compare takes several")
        return
    if not 1 <= len(job.others) < MOST_BUNDLES:
        raise BadData("compare.bundles", f"{1 + len(job.others)} bundles; 2 to {MOST_BUNDLES} take turns")
    if job.data is not None or job.weights is not None:
        raise BadData(
            "compare.data",
            "bundles take turns on made-up samples, from their own weights",
            hint="leave out data set and weights",
        )
    if device.is_emulated:
        raise _emulated("compare")


def _emulated(mode: str) -> BadBundle:
    return BadBundle(
        f"{mode}.emulated",
        "this device is emulated: its times say nothing of a real one",
        cause="user",
        hint="run it on a board, or on this computer with a bundle for it",
    )
