"""The command line of the training binary: its words, from a job."""

from __future__ import annotations

from pathlib import Path

from device_agents.job.checkpoints import Earlier
from device_agents.job.dataset import DataFiles
from device_agents.job.job import Job
from device_agents.wire import RunSettings, default_of, settings_of

WITH_CHECKPOINTS = ("checkpoint_s",)
"""Settings that the binary is told of where somebody wants its checkpoints."""


def relative(job: Job, path: Path) -> str:
    """Returns the path as the binary, which works in the job's folder, calls it."""
    return str(path.relative_to(job.folder))


def weights_words(job: Job) -> list[str]:
    """The weights that a job starts from: the bundle's, and over them its own."""
    files = [job.bundle.weights, *([job.weights] if job.weights else [])]
    return [word for file in files for word in ("--weights", relative(job, file))]


def data_words(job: Job, data: DataFiles | None, options: str = "--", *, labels: bool = True) -> list[str]:
    """`options` begins the names of the binary's options: `--eval-` for what training is validated on."""
    if data is None:
        return []
    words: list[str] = []
    for name, file in data.inputs.items():
        words += [f"{options}input", f"{name}={relative(job, file)}"]
    several = len(data.labels) > 1
    for name, file in data.labels.items() if labels else ():
        words += [f"{options}labels", f"{name}={relative(job, file)}" if several else relative(job, file)]
    return words


def profile_words(job: Job, steps: int, warmup: int = 0) -> list[str]:
    """Returns the arguments for so many steps on made-up samples, or on those that are named beside; `warmup` steps
    before are not reported.
    """
    return ["--steps", str(steps), "--warmup", str(warmup), "--batch-seed", str(job.settings.seed)]


def train_words(job: Job, *, save: str, checkpoint: str, earlier: Earlier | None) -> list[str]:
    """Returns all arguments of `train`. `save` and `checkpoint`: where it writes."""
    settings, wants_checkpoints = job.settings, job.on_checkpoint is not None
    words = [
        *weights_words(job),
        *data_words(job, job.data),
        "--steps",
        str(settings.steps),
        "--batch-seed",
        str(settings.seed),
        "--save",
        save,
        *training_words(settings),
        *data_words(job, job.validation, "--eval-"),
    ]
    if wants_checkpoints:
        words += ["--checkpoint", checkpoint]
        if settings.checkpoint_s is not None:
            words += ["--checkpoint-every", repr(settings.checkpoint_s)]
    if earlier is not None:
        words += ["--resume", relative(job, earlier.state)]
    return words + (["--checkpoint-key", job.key] if wants_checkpoints or earlier is not None else [])


def training_words(settings: RunSettings) -> list[str]:
    """The binary's options for what only training takes; what equals its default is left out, as from assignments.

    So binaries that are older than an option work on as long as nobody asks for it.
    """
    words: list[str] = []
    for name, setting in settings_of(type(settings)).items():
        value = getattr(settings, name)
        if setting.modes != ("train",) or name in WITH_CHECKPOINTS or value == default_of(type(settings), name):
            continue
        words += [setting.option] if setting.is_flag else [setting.option, str(value)]
    return words
