"""The result of fine-tuning."""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from compiler.errors import CompileError
from compiler.trained.adapters import AdapterFiles
from compiler.trained.checkpoints import Held
from compiler.trained.delta import Change
from compiler.trained.files import Files
from pockfarm.errors import BELOW, UsageError
from pockfarm.fine_tuning.adapter_files import save_adapter
from pockfarm.fine_tuning.deltas import write_delta
from pockfarm.values import CompileWarning, optional_number, part, parts, text


class FineTuned(dict[str, Any]):
    """The model's complete state after training, under the model's own names.

    Of a PyTorch module it is the `state_dict` (tensors): `module.load_state_dict(tuned)`. Of an ONNX file it holds
    every parameter (NumPy arrays) under the file's names. Beside it: `onnx` and `save_onnx`, the ONNX file with the
    trained elements (of a module: its export, in evaluation mode); `changed`, the names of what training changed;
    `created`, those of biases that the plan gave to layers, which a module takes after `pockfarm.give_biases`;
    `report`, what the run said (`device_agents.wire.Report`), of which `outcome`, `losses`, `learning_rates`,
    `validations` and `weights_step` are parts; `warnings`; `checkpoint`, the trained parameters as safetensors, as the
    step knows them; `bundle`, what was built. `save_adapter` is for plans with adapters. Pickled or copied, it is the
    state alone.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        *,
        files: Files,
        changes: Mapping[str, Change],
        model: str,
        changed: tuple[str, ...],
        created: tuple[str, ...],
        report: Mapping[str, Any],
        warnings: tuple[CompileWarning, ...],
        checkpoint: Held,
        bundle: Held,
        apart: Callable[[], AdapterFiles],
    ) -> None:
        super().__init__(state)
        # What `load_state_dict` looks for: the versions of the modules that wrote the state.
        self._metadata = getattr(state, "_metadata", None)
        self.changed = changed
        self.created = created
        self.report = report
        self.warnings = warnings
        self._files, self._checkpoint, self._bundle = files, checkpoint, bundle
        self._apart = apart
        self._changes, self._model = changes, model

    @property
    def losses(self) -> list[float]:
        """The loss of each step; NaN where it was no finite number."""
        return [math.nan if loss is None else float(loss) for loss in self.report.get("losses") or []]

    @property
    def outcome(self) -> str:
        """The outcome of the training: `completed`, `stopped_early`, or `diverged` (then this is the best before)."""
        return text(part(self.report, "training"), "outcome") or "completed"

    @property
    def validations(self) -> tuple[Mapping[str, Any], ...]:
        """Lists each validation with `step`, `samples`, `loss` and `accuracy` (None without one), in order."""
        return parts(part(self.report, "training"), "validations")

    @property
    def learning_rates(self) -> list[float]:
        """The learning rate of each step."""
        rates: Any = part(self.report, "training").get("learning_rates")
        return [float(rate) for rate in rates or ()]

    @property
    def weights_step(self) -> int | None:
        """The step of the run that this state is of: the last, or with `save_best` the best."""
        step = optional_number(part(self.report, "training"), "weights_step")
        return None if step is None else int(step)

    @property
    def onnx(self) -> bytes:
        """The ONNX file, with its data inside. Raises: UsageError for more than one such file holds."""
        try:
            return self._files.as_one()
        except CompileError as problem:
            hint = "tuned.save_onnx(path) writes it with its data beside it"
            raise UsageError(problem.message, where=problem.where, hint=hint, hint_form=BELOW) from None

    def save_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the ONNX file, and beside it `NAME.data` if its data lie in other files. Raises: UsageError."""
        try:
            self._files.save(Path(path))
        except OSError as problem:
            raise UsageError(problem.strerror, where=problem.filename or path) from None

    def save_adapter(self, folder: str | os.PathLike[str]) -> None:
        """Write what `peft.PeftModel.from_pretrained(module, folder)` loads beside the module as it was before.

        Raises: UsageError without adapters, or where a rule let something learn that peft has no place for.
        """
        save_adapter(self._apart, Path(folder))

    def save_delta(self, path: str | os.PathLike[str]) -> None:
        """Write what training changed of the state, and nothing else (`pockfarm.apply_delta`). Raises: UsageError."""
        write_delta(Path(path), self._changes, self, self._model)

    @property
    def checkpoint(self) -> bytes:
        """The trained parameters as safetensors, as the step knows them."""
        return bytes(self._checkpoint)

    @property
    def bundle(self) -> bytes:
        """Returns the bundle that was built."""
        return bytes(self._bundle)

    def __reduce__(self) -> tuple[Any, ...]:
        """As a `state_dict`, which `torch.load` takes without this package."""
        state = None if self._metadata is None else {"_metadata": self._metadata}
        items: Iterator[tuple[str, Any]] = iter(self.items())
        return OrderedDict, (), state, None, items
