"""An entry of the zoo: a module as a user brings it, the inputs that it takes, and the loss it is trained with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

Draw = Callable[[torch.Generator, int], Tensor]
"""One seeded input of a batch: its first axis is samples."""
Loss = Literal["cross_entropy", "mse"]


@dataclass(frozen=True)
class Entry:
    """A model of the zoo. `make` builds it under a seed that the zoo sets; `inputs` are in the order of its arguments.

    Its (only) output is what the loss reads: for cross-entropy the classes are its last axis.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Mapping[str, Draw]
    loss: Loss = "cross_entropy"
    batch: int = 2
    untold: bool = False
    """It cuts gradients off (`detach()`, a padding row), of which TorchScript's files do not tell."""


def normal(*shape: int) -> Draw:
    """Standard normal numbers."""
    return lambda generator, batch: torch.randn(batch, *shape, generator=generator)


def uniform(*shape: int) -> Draw:
    """Numbers between 0 and 1."""
    return lambda generator, batch: torch.rand(batch, *shape, generator=generator)


def tokens(count: int, *shape: int) -> Draw:
    """Integers below `count`."""
    return lambda generator, batch: torch.randint(0, count, (batch, *shape), generator=generator)


def padding(length: int) -> Draw:
    """Attention masks: ones, then at least one zero in some row."""

    def draw(generator: torch.Generator, batch: int) -> Tensor:
        lengths = torch.randint(length // 2, length + 1, (batch, 1), generator=generator)
        return (torch.arange(length)[None] < lengths).long()

    return draw


class Calls(nn.Module):
    """A module that calls another one by keyword and takes one field (or element) of what that returns."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], field: str | int | None = None, **fixed: Any) -> None:
        super().__init__()
        self.model = model
        self.names, self.field, self.fixed = names, field, fixed

    def forward(self, *inputs: Tensor) -> Tensor:
        found = self.model(**dict(zip(self.names, inputs, strict=True)), **self.fixed)
        if self.field is None:
            return found
        return found[self.field] if isinstance(self.field, int) else getattr(found, self.field)
