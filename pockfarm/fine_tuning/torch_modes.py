"""Modes of a module's parts, as `net.train(); net.bn.eval()` sets them apart.

A part that is in evaluation mode while the module itself, or a norm or dropout of it, trains, stays in evaluation
mode whatever the spec says. Where none of these trains, the modes tell nothing, and the spec decides for all.
The door to PyTorch: imported only when a caller brings a module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from compiler.warnings import few_of
from pockfarm.values import CompileWarning


@dataclass(frozen=True)
class Modes:
    """The parts (paths) of a module that were in training mode as it was brought, and those that are norms and
    dropouts.
    """

    training: frozenset[str]
    norms: frozenset[str]
    dropouts: frozenset[str]

    def staying(self, drawing: Collection[str] = ()) -> frozenset[str]:
        """Norms, dropouts and other parts that draw (`drawing`) that stay in evaluation mode."""
        parts = self.norms | self.dropouts | frozenset(drawing)
        leads = "" in self.training or bool(parts & self.training)
        return parts - self.training if leads else frozenset()


def modes_of(module: nn.Module) -> Modes:
    """The modes as they are now."""
    parts = dict(module.named_modules())
    return Modes(
        training=frozenset(path for path, part in parts.items() if part.training),
        norms=frozenset(path for path, part in parts.items() if isinstance(part, _NormBase)),
        dropouts=frozenset(path for path, part in parts.items() if drops(part)),
    )


def drops(part: nn.Module) -> bool:
    """True for PyTorch's own modules that drop values, whether or not a run reaches them."""
    if isinstance(part, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)):
        return bool(part.p > 0)
    return isinstance(part, (nn.RNNBase, nn.MultiheadAttention)) and bool(part.dropout > 0)


@contextlib.contextmanager
def marked(module: nn.Module, norms: Collection[str]) -> Iterator[Mapping[float, float]]:
    """Inside, each of these norms has a momentum that no other has; what a file then has for it -> what it should have.

    A file says how much of the old statistics stays, 1 - momentum; no norm's own is beyond 1.
    """
    parts: Sequence[Any] = [module.get_submodule(path) for path in sorted(norms)]
    before = [part.momentum for part in parts]
    try:
        for number, part in enumerate(parts, 1):
            part.momentum = -float(number)
        yield {1.0 + number: 1.0 - (momentum or 0.0) for number, momentum in enumerate(before, 1)}
    finally:
        for part, momentum in zip(parts, before):
            part.momentum = momentum


def told_of(parts: Collection[str], field: str) -> tuple[CompileWarning, ...]:
    """That these stay in evaluation mode, though the spec lets norms or dropouts train."""
    if not parts:
        return ()
    return (
        CompileWarning(
            "fine_tune.in_evaluation",
            few_of(sorted(path or "the module" for path in parts)),
            f"in evaluation mode in a module that trains otherwise, so they stay so, whatever spec.{field} says",
            "module.train() lets all of them train",
        ),
    )
