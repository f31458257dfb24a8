"""What fine-tuning gives back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pockfarm.values import CompileWarning


class FineTuned(dict[str, Any]):
    """The model's complete state after training, under the model's own names.

    Of a PyTorch module it is the `state_dict` (tensors): `module.load_state_dict(tuned)`. Of an ONNX file it holds
    every parameter (NumPy arrays) under the file's names. Beside it: `onnx`, the ONNX file with the trained elements
    (of a module: its export, in evaluation mode); `changed`, the names of what training changed; `report`, what the run
    said (`device_agents.wire.Report`); `warnings`; `checkpoint`, the trained parameters as safetensors, as the step
    knows them; `bundle`, what was built.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        *,
        onnx: bytes,
        changed: tuple[str, ...],
        report: Mapping[str, Any],
        warnings: tuple[CompileWarning, ...],
        checkpoint: bytes,
        bundle: bytes,
    ) -> None:
        super().__init__(state)
        # What `load_state_dict` looks for: the versions of the modules that wrote the state.
        self._metadata = getattr(state, "_metadata", None)
        self.onnx = onnx
        self.changed = changed
        self.report = report
        self.warnings = warnings
        self.checkpoint = checkpoint
        self.bundle = bundle

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [float(one) for one in self.report.get("losses") or []]
