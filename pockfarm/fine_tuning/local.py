"""Fine-tuning on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from device_agents.wire import RunSettings
from pockfarm.errors import BELOW, UsageError
from pockfarm.files.model_files import ModelFiles
from pockfarm.fine_tuning.documents import Document
from pockfarm.fine_tuning.flow import TuningRequest, fine_tune_with
from pockfarm.fine_tuning.result import FineTuned
from pockfarm.fine_tuning.trainer import ANSWERS, BUNDLE, TRAINED, Run, RunData, Say, Step
from pockfarm.values import Dataset


def fine_tune(
    model: Any,
    example_inputs: Any = None,
    data: Any = None,
    *,
    plan: Document = "full",
    spec: Document | None = None,
    target: str = "host",
    steps: int | None = None,
    epochs: float | None = None,
    seed: int = 0,
    learning_rate: float | None = None,
    output: str | int | None = None,
    validation_data: Any = None,
    progress: Say | None = None,
    **training: Any,
) -> FineTuned:
    """Train a model on this machine, and give back its complete state.

    `model` is a PyTorch module, or an ONNX file (bytes or a path). `example_inputs`, for a module, is a tensor, a tuple
    of them, or a mapping by `forward`'s arguments; its first axis is the batch if the spec names none. `data` holds the
    samples: `(inputs, labels)`, a mapping with labels `y`, an npz, a Dataset or DataLoader, or an iterable of (x, y).
    `plan` and `spec` say what learns and how: names of presets, JSON or YAML text, files, or plain data. `steps` or
    `epochs` (1 by default) says how long. `output` names the module's output that the loss reads, if it has several.
    `validation_data`, in any form of `data`, is what training is validated on between steps. `progress` hears lines.
    `training` is any other setting of mode train by its name: `schedule` ("constant", "cosine", "linear"),
    `warmup_steps`, `schedule_steps`, `final_ratio`; `validation` (share of the samples, the last of them, in place of
    `validation_data`), `eval_every`, `patience`, `min_delta`, `save_best`; `explosion_factor`; `threads`.

    The module itself stays as it is, also its modes and flags; parameters that do not require gradients do not learn.

    Raises: UsageError for what the caller can change; Failed when compiling or training ends without success, Diverged
    when training diverged and left no weights.
    """
    request = TuningRequest(plan, spec, steps, epochs, seed, learning_rate, output, validation_data, training)
    return fine_tune_with(Here(target), model, example_inputs, data, request, progress)


@dataclass(frozen=True)
class Here:
    """Compiles and trains on this machine."""

    target: str = "host"

    def build(self, model: ModelFiles, plan: str, spec: str, folder: Path, say: Say) -> Step:
        """As `Trainer.build`."""
        local = _local()
        built = local.build(model, plan, spec, self.target, lambda stage, share: say(f"{stage} {share:.0%}"))
        path = folder / BUNDLE
        built.write(path)
        return Step(path, built.digest, built.warnings)

    def answers(self, step: Step, data: Path, folder: Path, *, is_loss: bool) -> Any:
        """As `Trainer.answers`."""
        local, out = _local(), folder / ANSWERS
        if is_loss:
            report = local.execute(step.bundle, local.ExecOptions(RunSettings(mode="eval"), data=data))
            return np.asarray([report["evaluation_before"]["loss"]], np.float32)
        options = local.ExecOptions(RunSettings(mode="infer"), data=data, out=out)
        local.execute(step.bundle, options, progress=lambda line: None)
        return np.load(out, allow_pickle=False)

    def train(self, step: Step, data: RunData, settings: RunSettings, folder: Path, say: Say) -> Run:
        """As `Trainer.train`."""
        if isinstance(data.training, Dataset) or isinstance(data.validation, Dataset):
            raise UsageError("a data set that was uploaded lies on a farm: train there, by client.fine_tune")
        trained = folder / TRAINED
        local = _local()
        options = local.ExecOptions(settings, data=data.training, validation_data=data.validation, export=trained)
        try:
            return Run(trained, local.execute(step.bundle, options, progress=say))
        except UsageError as problem:
            argument = {str(data.training): "data", str(data.validation): "validation_data"}
            problem.where = argument.get(problem.where, problem.where)
            raise problem from None


def _local() -> ModuleType:
    """`pockfarm.local.toolchain`. Raises: UsageError where only the client is installed."""
    try:
        from pockfarm.local import toolchain as local
    except ImportError as problem:
        raise UsageError(
            f"training on this machine needs the compiler, which is not installed here ({problem})",
            hint=(
                "client.fine_tune trains on a farm; for this machine work in a checkout (`make set-up`), or "
                "install the farm's wheel beside the client's, with its parts worker and agent "
                "(docs/operations.md)"
            ),
            hint_form=BELOW,
        ) from None
    return local
