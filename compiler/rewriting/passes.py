"""Passes, and how they run, the same for graphs and for programs.

A pass is a pure function from a subject (a graph, a program) to a `PassResult`. What it must know beside the subject is
bound beforehand (`functools.partial`), so that a list of passes is data. A pass leaves the subject valid: a verifier
looks at it after each pass where `VERIFY` says so, and at what the last one made always.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from compiler.errors import InternalError
from compiler.graph import Graph

VERIFY = "POCKFARM_VERIFY"
"""Environment variable: `each-pass` verifies after each pass, which the tests always do."""
MAX_ROUNDS = 50
"""Passes that still change something after so many rounds undo each other's work."""

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Declined:
    """A rewrite that did not fire: a stable dotted code, the layer concerned, and what it would have needed."""

    code: str
    where: str
    needs: str


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a rule does not fire, wherever that is: its code, and what it would have needed."""

    code: str
    needs: str

    def at(self, where: str) -> Declined:
        """The reason, at one place."""
        return Declined(self.code, where, self.needs)


@dataclass(frozen=True, slots=True)
class PassResult(Generic[Subject]):
    """The output of a pass, whether that is any other than what it was given, and where it left things as they were."""

    subject: Subject
    modified: bool
    declined: tuple[Declined, ...] = ()


Pass = Callable[[Subject], PassResult[Subject]]
Verifier = Callable[[Subject], str]
"""A function that returns what is wrong with a subject; empty if nothing is."""


def rewritten(before: Graph, after: Graph, declined: Sequence[Declined] = ()) -> PassResult[Graph]:
    """Returns the result of a graph pass; types that no node uses are no change."""
    modified = (
        after.nodes != before.nodes or after.outputs != before.outputs or after.arrays.keys() != before.arrays.keys()
    )
    return PassResult(after, modified, tuple(declined))


@dataclass(frozen=True, slots=True)
class UntilStable(Generic[Subject]):
    """Passes that run one after the other, again and again, until none of them changes anything."""

    passes: tuple[Pass[Subject], ...]


Passes = Sequence[Pass[Subject] | UntilStable[Subject]]


def until_stable(passes: Sequence[Pass[Subject]]) -> UntilStable[Subject]:
    """An entry of a list of passes: all of these until nothing changes."""
    return UntilStable(tuple(passes))


def name_of(step: Pass[Subject]) -> str:
    """The name of a pass: of its function, whatever is bound to it."""
    while isinstance(step, partial):
        step = step.func
    return str(getattr(step, "__name__", type(step).__name__))


def each_of(passes: Passes[Subject]) -> Iterator[Pass[Subject]]:
    """Yields every pass of a list, those of its rounds too."""
    for step in passes:
        if isinstance(step, UntilStable):
            yield from step.passes
        else:
            yield step


@dataclass(frozen=True, slots=True)
class Step:
    """A pass that ran, on which subject (`forward graph`, `train`)."""

    subject: str
    name: str
    modified: bool
    declined: tuple[Declined, ...]


@dataclass(slots=True)
class Trace:
    """The record of every pass that ran, in order."""

    steps: list[Step] = field(default_factory=list)

    def declined(self) -> Iterator[tuple[str, Declined]]:
        """(pass, what it declined): of a pass that ran several times on a subject, what it last said."""
        last = {(step.subject, step.name): step for step in self.steps}
        for step in last.values():
            yield from ((step.name, note) for note in step.declined)


def run(
    subject: Subject,
    passes: Passes[Subject],
    verifier: Verifier[Subject],
    trace: Trace | None = None,
    of: str = "",
    *,
    at_end: bool = True,
) -> Subject:
    """Applies passes in order; `of` is what the trace calls the subject.

    `at_end`: false if the caller has the end looked at, after still more.
    Raises: InternalError naming the pass that broke the subject and those that ran before. What a pass itself raises
    carries a note of the same.
    """
    runner = _Runner(verifier, trace if trace is not None else Trace(), of, os.environ.get(VERIFY) == "each-pass")
    transformed = runner.all(subject, passes)
    problem = verifier(transformed) if at_end and not runner.each else ""
    if problem:
        _Runner(verifier, Trace(), of, each=True).all(subject, passes)  # passes are pure: this finds the one to blame
        raise InternalError(f"{problem}, with no pass run", where=of)
    return transformed


@dataclass(slots=True)
class _Runner(Generic[Subject]):
    verifier: Verifier[Subject]
    trace: Trace
    of: str
    each: bool
    finished: list[str] = field(default_factory=list)

    def all(self, subject: Subject, passes: Passes[Subject]) -> Subject:
        for step in passes:
            if isinstance(step, UntilStable):
                subject = self._rounds(subject, step.passes)
            else:
                subject = self._one(subject, step).subject
        return subject

    def _rounds(self, subject: Subject, passes: tuple[Pass[Subject], ...]) -> Subject:
        still: list[str] = []
        for _ in range(MAX_ROUNDS):
            still = []
            for step in passes:
                result = self._one(subject, step)
                subject = result.subject
                still += [name_of(step)] if result.modified else []
            if not still:
                return subject
        raise InternalError(f"passes still change something after {MAX_ROUNDS} rounds", where=", ".join(still))

    def _one(self, subject: Subject, step: Pass[Subject]) -> PassResult[Subject]:
        name = name_of(step)
        before = f"passes run before: {', '.join(self.finished) or 'none'}"
        try:
            result = step(subject)
        except Exception as problem:
            problem.add_note(f"in {name}; {before}")
            raise
        broken = self.verifier(result.subject) if self.each else ""
        if broken:
            raise InternalError(f"{broken}; {before}", where=name)
        self.finished.append(name)
        self.trace.steps.append(Step(self.of, name, result.modified, result.declined))
        return result
