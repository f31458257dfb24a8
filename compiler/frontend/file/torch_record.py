"""The record that PyTorch's exporter writes into a file about the program that it exported: which tensors are
parameters, which operator each node came from, and what was folded into which constant.

Source: `torch.onnx.export(..., dynamo=True)` of PyTorch 2.5 and later; TorchScript exports carry nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

UNOPTIMIZED = "export with torch.onnx.export(..., dynamo=True, optimize=False)"
"""Advice that brings a file whose parameters the exporter has left alone."""
DETACH = "aten.detach.default"
"""The operator behind an Identity node that no gradient passes."""
CLAMPS = frozenset({"aten.clamp", "aten.clamp_min", "aten.clamp_max"})
"""The operators that bound, without their overloads; its exporter writes Clip, or Max and Min."""
SLOPE_INSIDE = "pockfarm.slope_inside"
"""Metadata of a graph: those of them whose slope on a bound that is a number is that inside. Written by `fine_tune`."""
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
CALL = "pkg.torch.onnx.fx_node"

_SPECS = (
    re.compile(r"^(?P<name>\w+): (?P<kind>[A-Z_]+)(?: target='(?P<target>[^']*)')?", re.MULTILINE),
    # Before PyTorch 2.8 the signature was printed as a data class.
    re.compile(
        r"kind=<InputKind\.(?P<kind>[A-Z_]+)[^>]*>, arg=\w+\(name='(?P<name>\w+)'\), target='?(?P<target>[^',]*)"
    ),
)
_QUOTED = re.compile(r"'([^']*)'")
_ARGUMENT = re.compile(r"%(\w+)")
_LONGEST = 4096
"""Characters of a call's arguments that are read."""
_WHOLE = re.compile(r"-?\d{1,18}")
_POSITIONAL = re.compile(r"(?:[^,()\[\]]|\([^()]*\)|\[[^][]*\])+")
"""An argument; lists and tuples in it are not taken apart."""
_CALLED = re.compile(r"^%(\w+) ")


@dataclass(frozen=True, slots=True)
class TorchRecord:
    """The exported program's signature, and the origins of folded initializers.

    `targets` maps an argument of the program (`p_head_weight`) to the tensor of the module it stands for
    (`head.weight`); a tensor that two modules share has one argument.
    """

    targets: Mapping[str, str]
    parameters: frozenset[str]
    buffers: frozenset[str]
    """Buffers and constant tensors: what the module holds and does not train."""
    inputs: frozenset[str]
    """Arguments that the user gives; the file may call them otherwise."""
    outputs: frozenset[str]
    """Results that the user gets; the file may call them otherwise."""
    folded_from: Mapping[str, tuple[str, ...]]
    """Initializer -> the names of everything that the exporter computed it from, intermediate values included."""
    inside: frozenset[str] = frozenset()
    """The operators among `CLAMPS` whose slope on a bound that is a number is the same as inside, as in the module's
    PyTorch.
    """

    def origins(self, initializer: str) -> tuple[str, ...]:
        """The parameters that an initializer was folded from."""
        return tuple(name for name in self.folded_from.get(initializer, ()) if name in self.parameters)

    def knows(self, initializer: str) -> bool:
        """Whether a tensor is of the module under its own name."""
        return initializer in self.parameters or initializer in self.buffers


@dataclass(frozen=True, slots=True)
class TorchCall:
    """A call of the exported program: its result's name and the names of its tensor arguments, in order.

    `written`: all positional arguments as the program writes them, numbers included.
    """

    result: str = ""
    arguments: tuple[str, ...] = field(default=())
    written: tuple[str, ...] = field(default=())

    def number(self, position: int) -> int | None:
        """A positional argument that is a whole number, else None."""
        text = self.written[position] if position < len(self.written) else ""
        return int(text) if _WHOLE.fullmatch(text) else None


NO_CALL = TorchCall()


def torch_record(graph: Any) -> TorchRecord | None:
    """The record in the metadata of an ONNX graph (protobuf), or None if it has none."""
    metadata = told_by(graph)
    takes, _, gives = metadata.get(SIGNATURE, "").partition("# outputs")
    signature = _signature(takes)
    if not signature:
        return None
    inputs = frozenset(name for name, (kind, _) in signature.items() if kind == "USER_INPUT")
    stored = {name: entry for name, entry in signature.items() if name not in inputs}
    parameters = frozenset(target for kind, target in stored.values() if kind == "PARAMETER")
    folded = {}
    for value in graph.value_info:
        origins = told_by(value).get(FOLDED_FROM)
        if origins is not None:
            folded[value.name] = tuple(_QUOTED.findall(origins))
    return TorchRecord(
        targets={name: target for name, (_, target) in stored.items()},
        parameters=parameters,
        buffers=frozenset(target for _, target in stored.values()) - parameters,
        inputs=inputs,
        outputs=frozenset(name for name, (kind, _) in _signature(gives).items() if kind == "USER_OUTPUT"),
        folded_from=folded,
        inside=CLAMPS.intersection(metadata.get(SLOPE_INSIDE, "").split()),
    )


def told_by(item: Any) -> dict[str, str]:
    """The metadata of a graph, node or value (protobuf). What is not UTF-8, protobuf gives as bytes: it is left out."""
    entries = [(entry.key, entry.value) for entry in item.metadata_props]
    return {key: text for key, text in entries if isinstance(key, str) and isinstance(text, str)}


def torch_call(metadata: Mapping[str, str]) -> TorchCall:
    """The call that a node's metadata tells of; empty if it tells of none."""
    text = metadata.get(CALL, "")
    called = _CALLED.match(text)
    if called is None:
        return NO_CALL
    _, _, arguments = text.partition("](args = ")
    positional = arguments.partition(", kwargs = ")[0].removeprefix("(").removesuffix(")")
    written = tuple(part.strip() for part in _POSITIONAL.findall(positional[:_LONGEST]))
    return TorchCall(called[1], tuple(_ARGUMENT.findall(arguments)), written)


def _signature(text: str) -> dict[str, tuple[str, str]]:
    """Argument name -> (kind, target)."""
    for spec in _SPECS:
        arguments = {match["name"]: (match["kind"], match["target"] or "") for match in spec.finditer(text)}
        if arguments:
            return arguments
    return {}
