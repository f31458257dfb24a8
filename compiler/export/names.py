"""Names of values in the exported training graph: the model's values keep theirs, and what we add gives way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from compiler.values import Names, Value, name_of


class OnnxNames:
    """An injective map from values, and from texts that stand for steps between them, to ONNX names.

    A value of the model is called as the model calls it. Any other is called as people read it (`labels`,
    `hyper.learning_rate`, `fc.weight'`), with marks at its end if the model has such a name, or another value does.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._taken = set(names.values())
        self._given: dict[Value | str, str] = {}

    def of(self, value: Value) -> str:
        """The name of a value."""
        name = self._names.get(value)
        return name if name is not None else self._free(value, name_of(value, self._names))

    def all_of(self, values: Iterable[Value]) -> tuple[str, ...]:
        """The names of values."""
        return tuple(map(self.of, values))

    def between(self, step: str) -> str:
        """The name of a step, which may be as it is unless it is taken."""
        return self._free(step, step)

    def mapped(self, pairs: Mapping[Value, Value]) -> dict[str, str]:
        """Name to name, sorted."""
        return dict(sorted((self.of(value), self.of(other)) for value, other in pairs.items()))

    def _free(self, key: Value | str, name: str) -> str:
        if key not in self._given:
            while name in self._taken:
                name += "'"
            self._taken.add(name)
            self._given[key] = name
        return self._given[key]
