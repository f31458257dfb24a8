"""What is tried with each model of the zoo: which exporter, opset and plan."""

from __future__ import annotations

import io
import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from compiler.spec.documents import SparsePlan
from tests.compiler.agreement.module_reference import ModuleReference
from tests.models import prepare_exporter_once
from tests.zoo.entry import Entry

Exporter = Literal["unfolded", "dynamo", "torchscript"]
"""`unfolded` is PyTorch's dynamo exporter with `optimize=False`: what a round trip takes."""
PlanKind = Literal["full", "bias-only", "sparse"]


@dataclass(frozen=True)
class Trial:
    """One way to export a model and one plan to train it with."""

    exporter: Exporter
    opset: int
    plan: PlanKind

    def __str__(self) -> str:
        return f"{self.exporter} {self.opset} {self.plan}"


TRIALS = (
    Trial("unfolded", 18, "full"),
    Trial("unfolded", 18, "sparse"),
    Trial("unfolded", 23, "full"),
    Trial("dynamo", 18, "full"),
    Trial("dynamo", 23, "bias-only"),
    Trial("torchscript", 18, "full"),
)


class NotExported(Exception):
    """PyTorch's exporter did not write a file; the message is its own."""


def export(module: nn.Module, entry: Entry, example: tuple[Tensor, ...], trial: Trial) -> bytes:
    """The file that this exporter writes of the module.

    Raises: NotExported, with the first line of what PyTorch says.
    """
    buffer = io.BytesIO()
    names = {"input_names": list(entry.inputs), "output_names": ["logits"], "opset_version": trial.opset}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            if trial.exporter == "torchscript":
                # Without constant folding this exporter leaves batch norms and weights as they are.
                torch.onnx.export(module, example, buffer, dynamo=False, do_constant_folding=False, **names)
            else:
                prepare_exporter_once()
                optimize = trial.exporter == "dynamo"
                program = torch.onnx.export(module, example, dynamo=True, optimize=optimize, verbose=False, **names)
                program.save(buffer)
        except Exception as problem:  # whatever PyTorch raises: it is reported, not handled
            raise NotExported(_first_cause(problem)) from problem
        finally:
            logging.disable(logging.NOTSET)
    return buffer.getvalue()


def _first_cause(problem: BaseException) -> str:
    """The innermost exception's first line."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0] if lines else ''}"[:300]


def reference_of(module: nn.Module, entry: Entry, example: tuple[Tensor, ...], trial: Trial) -> ModuleReference:
    """What the author meant: the module, whose norms are folded where that exporter folds them."""
    names = tuple(entry.inputs)
    if trial.exporter == "dynamo":
        return ModuleReference.folded(module, names, entry.loss, example)
    return ModuleReference.of(module, names, entry.loss)


def plan_of(kind: PlanKind, reference: ModuleReference) -> SparsePlan:
    """A preset, or: the later half of the parameters, half of the input channels where a layer has them."""
    if kind != "sparse":
        return SparsePlan.parse(kind)
    names = list(reference.names)
    chosen = names[len(names) // 2 :]
    axes = reference.channel_axes()
    sliced = [name for name in chosen if name in axes]
    rules: list[dict[str, object]] = [{"parameters": _globs(chosen)}]
    if sliced:
        rules.append({"parameters": _globs(sliced[: math.ceil(len(sliced) / 2)]), "ratio": 0.5})
    return SparsePlan.parse({"name": "sparse", "update": rules})


def _globs(names: Sequence[str]) -> list[str]:
    return [name.replace("[", "[[]") for name in names]
