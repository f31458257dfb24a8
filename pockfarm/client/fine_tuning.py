"""Fine-tuning on a farm: it compiles, and one of its devices trains. Used through `Client.fine_tune`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_agents.wire import REAL_CLASSES, RunSettings
from pockfarm import values
from pockfarm.client.arguments import target_named
from pockfarm.errors import UsageError
from pockfarm.files.model_files import ModelFiles
from pockfarm.fine_tuning.documents import Document
from pockfarm.fine_tuning.flow import TuningRequest, fine_tune_with
from pockfarm.fine_tuning.result import FineTuned
from pockfarm.fine_tuning.trainer import BUNDLE, TRAINED, Run, RunData, Say, Step
from pockfarm.values import Dataset, Device

if TYPE_CHECKING:
    from pockfarm.client.synchronous.api import Api


def fine_tune(
    farm: Api,
    model: Any,
    example_inputs: Any = None,
    data: Any = None,
    *,
    plan: Document = "full",
    spec: Document | None = None,
    target: str | None = None,
    device: str | None = None,
    device_class: str | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int = 0,
    learning_rate: float | None = None,
    output: str | int | None = None,
    validation_data: Any = None,
    name: str = "model",
    progress: Say | None = None,
    **training: Any,
) -> FineTuned:
    """As `pockfarm.fine_tune`, but on a device of a farm: the one named, one of a class, or any real one.

    `target` is what to build for, by default the device's own; `name` is how the farm lists the model.
    Raises: `PockfarmError`.
    """
    trainer = OnFarm(farm, target_of(farm, target, device, device_class), device, device_class, name)
    request = TuningRequest(plan, spec, steps, epochs, seed, learning_rate, output, validation_data, training)
    return fine_tune_with(trainer, model, example_inputs, data, request, progress)


def target_of(farm: Api, target: str | None, device: str | None, device_class: str | None) -> str:
    """Returns the target that the wanted device runs best. Raises: UsageError when no device names one."""
    if target is not None:
        return target_named(farm.devices, target)
    devices = farm.devices()
    fitting = [candidate for candidate in devices if _fits(candidate, device, device_class) and candidate.targets]
    if not fitting:
        classes = ", ".join(sorted({candidate.device_class for candidate in devices})) or "none"
        raise UsageError("no device of the farm is meant", hint=f"say device=, device_class= ({classes}) or target=")
    return fitting[0].targets[0]


def _fits(candidate: Device, device: str | None, device_class: str | None) -> bool:
    if device is not None:
        return device in (candidate.id, candidate.name)
    return (
        candidate.measurement_class in REAL_CLASSES if device_class is None else candidate.device_class == device_class
    )


@dataclass(frozen=True)
class OnFarm:
    """A farm compiles, a device of it trains."""

    farm: Api
    target: str
    device: str | None
    device_class: str | None
    name: str

    def build(self, model: ModelFiles, plan: str, spec: str, folder: Path, say: Say) -> Step:
        """As `Trainer.build`."""
        job = self.farm.compile(model, plan=plan, spec=spec, target=self.target, name=self.name)
        job = self.farm.wait_for_job(job.id, on_look=_heard(say, lambda state: f"{state.stage} {state.fraction:.0%}"))
        digest = job.bundle_digest
        assert digest is not None
        self.farm.save_bundle(digest, folder / BUNDLE)
        return Step(folder / BUNDLE, digest, job.warnings)

    def answers(self, step: Step, data: Path, folder: Path, *, is_loss: bool) -> None:
        """As `Trainer.answers`: a device would have to be waited for."""

    def train(self, step: Step, data: RunData, settings: RunSettings, folder: Path, say: Say) -> Run:
        """As `Trainer.train`."""
        run = self.start(step, data, settings)
        self.farm.wait_for_run(run.id, on_look=_heard(say, lambda state: f"step {state.steps_done} of {state.steps}"))
        return trained(self.farm, run.id, folder)

    def start(self, step: Step, data: RunData, settings: RunSettings) -> values.Run:
        """Send the data, and queue the run."""
        validation = data.validation and self._send(data.validation, f"{self.name}-validation.npz")
        return self.farm.start_run(
            step.digest,
            settings.fitted(),
            device=self.device,
            device_class=self.device_class,
            dataset=self._send(data.training, f"{self.name}.npz").digest,
            validation_dataset=validation.digest if validation else None,
        )

    def _send(self, data: Path | Dataset, name: str) -> Dataset:
        return data if isinstance(data, Dataset) else self.farm.upload_dataset(data, name=name)


def trained(farm: Api, run_id: str, folder: Path) -> Run:
    """Returns a finished run, with its file of weights in `folder`."""
    if farm.run(run_id).trained_weights_digest is not None:
        farm.save_weights(run_id, folder / TRAINED)
    explained = farm.explained(run_id)
    return Run(folder / TRAINED, values.part(explained, "report"), values.warnings_of(explained))


def _heard(say: Say, words: Callable[[Any], str]) -> Callable[[values.Job | values.Run], None]:
    """Says what is seen of a job or run, once for each change."""
    last = [""]

    def look(state: values.Job | values.Run) -> None:
        line = f"{state.state}: {words(state)}"
        if line != last[0]:
            last[0] = line
            say(line)

    return look
