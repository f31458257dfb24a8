"""The stated limits on a model that the compiler accepts; every refusal names the limit and the actual figure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelLimits:
    """Bounds on an ONNX file and on the graph it becomes.

    Units: `_bytes` are bytes, everything else is a count. A farm may set smaller ones; the defaults admit any model
    that fits one protobuf message.
    """

    model_bytes: int = (1 << 31) - 1
    """A protobuf message cannot be larger."""
    message_depth: int = 64
    """Nested protobuf messages; a plain graph needs 7."""
    wire_fields: int = 2_000_000
    """Protobuf fields in the file: bounds the time of the scan."""
    nodes: int = 50_000
    """Nodes after all model-local functions are expanded."""
    function_depth: int = 32
    """Model-local functions that call each other."""
    initializers: int = 50_000
    node_ends: int = 1_024
    """Inputs plus outputs of one node."""
    graph_ends: int = 256
    """Inputs (initializers not counted) plus outputs of the graph."""
    name_bytes: int = 1_024
    rank: int = 8
    tensor_elements: int = (1 << 31) - 1
    """Elements of any tensor, stored or computed."""
    folded_bytes: int = 1 << 28
    """Bytes of all tensors computed at compile time from constants."""


DEFAULT_LIMITS = ModelLimits()
