"""Facts that a rule states about a node's axes. Code that follows an axis reads nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from compiler.graph import Node
from compiler.values import Value

Shapes = Callable[[Value], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a value, or a factor of it, where it is seen as `count` equal runs.

    The `outer` factor says which run, the `inner` one which place within each of them.
    """

    value: Value
    axis: int
    factor: Literal["whole", "outer", "inner"] = "whole"
    count: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether it is no factor."""
        return self.factor == "whole"


@dataclass(frozen=True, slots=True)
class Alike:
    """A fact that two axes share their order: where both are put in the same other order, nothing else changes. What
    belongs to `of`, an operand's axis, carries over to `to`, a result's axis.

    Of two operands: they are multiplied place by place, and summed.
    """

    of: Axis
    to: Axis


@dataclass(frozen=True, slots=True)
class Stems:
    """Positions along `to` of a result come from positions along `of` of an operand, and both keep their order, as in a
    cut or a concatenation.
    """

    of: Axis
    to: Axis


@dataclass(frozen=True, slots=True)
class Fixed:
    """Places along it count: neighbours, or numbers by which something is looked up."""

    axis: Axis


@dataclass(frozen=True, slots=True)
class Reshaped:
    """A fact that `to` has the same elements as `of` in the same order, whatever the axes."""

    of: Value
    to: Value


@dataclass(frozen=True, slots=True)
class Unknown:
    """The answer where no rule covers this operator, or not for such operands."""


Fact = Alike | Stems | Fixed | Reshaped | Unknown
Rule = Callable[[Node, Shapes], Iterator[Fact]]
