"""PyTorch's exporter reads the sources of all its functions anew for each file: half the time of a small module's."""

from __future__ import annotations

from functools import cache


def read_once() -> None:
    """From here on it reads them once in this process, for each opset; what it writes is the same."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    if not isinstance(vars(ONNXRegistry)["from_torchlib"], staticmethod):
        ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))
