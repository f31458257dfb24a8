"""Advice on what to do in the exporter that made a file: the same for each tool, in its own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Topic = Literal["opset", "decided", "sums"]
_NAMES: Mapping[str, str] = {
    "keras2onnx": "keras2onnx",
    "paddle2onnx": "paddle",
    "paddlepaddle": "paddle",
    "pytorch": "pytorch",
    "tf2onnx": "tf2onnx",
}
"""The tool, by the name of the producer in files, in small letters."""
_ADVICE: Mapping[Topic, Mapping[str, str]] = {
    "opset": {
        "": "export again in opset 18",
        "keras2onnx": "convert the model by tf2onnx (--opset 18): keras2onnx has no newer one",
        "paddle": "export again with paddle2onnx --opset_version 18",
        "pytorch": "export again with torch.onnx.export(..., opset_version=18)",
        "tf2onnx": "convert again with python -m tf2onnx.convert ... --opset 18",
    },
    "decided": {
        "": "bind the input shapes in the spec, or export with the branch or loop decided",
        "pytorch": "bind the input shapes in the spec, or export with the branch or loop decided "
        "(torch.onnx.export, dynamo=True)",
        "tf2onnx": "bind the input shapes in the spec, or convert again with fixed shapes "
        "(python -m tf2onnx.convert ... --inputs x:0[1,96] or the like)",
    },
    "sums": {
        "": "if they should add up, write the node with reduction='add'",
        "pytorch": "if they should add up (index_add of PyTorch's TorchScript exporter), export with dynamo=True",
    },
}


def advice(topic: Topic, producer: str) -> str:
    """The line for what made the file (`producer_name`); a general one where that is not known."""
    rows = _ADVICE[topic]
    return rows.get(_NAMES.get(producer.strip().lower(), ""), rows[""])
