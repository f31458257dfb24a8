"""The interface that a gradient rule writes with: a protocol, so that operators do not know the builder that implements
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from compiler.graph import Array, AttrValue, Node, TensorType
from compiler.values import Value


class Emitter(Protocol):
    """Appends nodes to a graph; every output is typed by its operator's record."""

    @property
    def types(self) -> Mapping[Value, TensorType]:
        """Type of every value so far."""

    def shape(self, value: Value) -> tuple[int, ...]:
        """Shape of a value."""

    def fresh(self) -> Value:
        """A value that nothing makes yet, to be an output of `emit_many`."""

    def emit(self, op: str, *inputs: Value, output: Value | None = None, **attrs: AttrValue) -> Value:
        """Appends a single-output node and returns its output, which is `output` or a fresh value."""

    def emit_many(
        self, op: str, inputs: Iterable[Value], *, outputs: tuple[Value, ...], **attrs: AttrValue
    ) -> tuple[Value, ...]:
        """Appends a node with the given outputs."""

    def constant(self, value: Array | float) -> Value:
        """A constant; a plain number becomes an f32 scalar."""


Grads = Sequence[Value | None]
GradRule = Callable[[Emitter, Node, Value, tuple[bool, ...]], Grads]
"""(emitter, node, d_output, which inputs want a gradient) -> d_input or None, per input."""
