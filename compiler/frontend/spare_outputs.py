"""Outputs that no loss reads: what they alone need and the import cannot do is left out, and that is said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from compiler.errors import CompileError, ModelError, UnsupportedOperator
from compiler.frontend.file.source import SourceModel
from compiler.frontend.scope import Scope
from compiler.warnings import few_of

SHOWN_OUTPUTS = 16
"""Among so many an error looks for one that does without what is refused."""


class SpareOutputs:
    """Which values the outputs that losses read need; of the others, which are missing."""

    def __init__(self, source: SourceModel, read: Collection[str]) -> None:
        """`read` are the outputs that losses read; none of them named: the first."""
        requested = {*read} & {*source.outputs}
        self.read = requested or {*source.outputs[:1]}
        self._source, self._is_assumed = source, not requested
        self._needed = _needed(source, self.read)
        self._missing: set[str] = set()
        self._problem: CompileError | None = None

    def attempt_output(self, name: str, work: Callable[[], None]) -> None:
        """As `attempt`, for an output itself: another may read it, and need it less."""
        self.attempt([name], [name], work, is_needed=name in self.read)

    def attempt(
        self, makes: Sequence[str], reads: Sequence[str], work: Callable[[], None], *, is_needed: bool | None = None
    ) -> None:
        """Do what makes some values of others, unless one of those is missing.

        Raises: what the work raises, if a loss needs it.
        """
        if is_needed is None:
            is_needed = not self._needed.isdisjoint(makes)
        if not self._missing.isdisjoint(reads):
            self._missing.update(makes)
            return
        try:
            work()
        except (ModelError, UnsupportedOperator) as problem:
            if is_needed:
                outputs = self._source.outputs[:SHOWN_OUTPUTS]
                other = next((name for name in outputs if self._does_without(name, makes)), "")
                if other:
                    line = f"name an output that does without it, as in loss: {{output: {other}}}"
                    problem.hint = f"{problem.hint}; or {line}" if problem.hint else line
                raise
            self._problem = self._problem or problem
            self._missing.update(makes)

    def _does_without(self, output: str, values: Collection[str]) -> bool:
        return self._is_assumed and _needed(self._source, {output}).isdisjoint(values)

    def warn(self, scope: Scope, outputs: Sequence[str]) -> None:
        """Say which of the outputs are missing, and why the first of them is."""
        missing = [name for name in outputs if name in self._missing]
        if missing and self._problem is not None:
            why = f"{self._problem.where}: {self._problem.message}" if self._problem.where else self._problem.message
            scope.warn("model.outputs_left_out", f"not computed, and no loss reads it: {why}", where=few_of(missing))


def _needed(source: SourceModel, outputs: Collection[str]) -> set[str]:
    needed = set(outputs)
    for node in reversed(source.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            needed.update(node.outputs)
    return needed
