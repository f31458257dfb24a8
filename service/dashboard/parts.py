"""Small values that templates draw: chips, key figures, figures with their data, filters."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.dashboard.charts.interactive import Chart
from service.dashboard.tables import Table

CELL_BYTES = 150
"""Approximate size of a table's cell in memory."""
Tone = str
"""`good`, `bad`, `warn`, `busy` or empty; always beside a word and an icon, never alone."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A word with an icon and a tone; `hint` is shown by a pointer."""

    text: str
    icon: str
    tone: Tone = ""
    hint: str = ""


STATES: Mapping[str, tuple[str, Tone]] = {
    "queued": ("clock", ""),
    "leased": ("turning", "busy"),
    "running": ("turning", "busy"),
    "compiling": ("turning", "busy"),
    "succeeded": ("check", "good"),
    "failed": ("cross", "bad"),
    "lost": ("cross", "bad"),
    "cancelled": ("bar", ""),
    "expired": ("clock", "warn"),
    "inconclusive": ("question", "warn"),
    "online": ("check", "good"),
    "busy": ("turning", "busy"),
    "draining": ("turning", "warn"),
    "drained": ("bar", "warn"),
    "offline": ("bar", ""),
    "quarantined": ("warning", "bad"),
    "removed": ("cross", ""),
    "in force": ("check", "good"),
    "revoked": ("cross", ""),
    "used": ("check", ""),
    "closed": ("cross", ""),
    "open": ("warning", "bad"),
    "acknowledged": ("check", ""),
    "faster": ("check", "good"),
    "failing": ("warning", "bad"),
    "planned": ("clock", ""),
    "on": ("clock", "warn"),
    "over": ("check", ""),
    "offered": ("check", "good"),
    "halted": ("warning", "bad"),
}
VERDICTS: Mapping[str, tuple[str, Tone]] = {
    "valid": ("check", "good"),
    "noisy": ("wave", "warn"),
    "throttled": ("warning", "warn"),
    "disturbed": ("warning", "warn"),
    "drifting": ("wave", "warn"),
    "function": ("check", ""),
}
COUNTING = ("valid", "function")
"""Verdicts of runs that lists of benchmarks show; times of the second mean nothing."""
OUTCOMES: Mapping[str, tuple[str, Tone]] = {
    "completed": ("check", "good"),
    "stopped_early": ("check", "good"),
    "diverged": ("warning", "bad"),
    "stopped": ("cross", ""),
}
CLASSES: Mapping[str, tuple[str, str]] = {
    "hardware": ("board", "measured on a real board"),
    "host": ("screen", "measured on a computer of the farm, not on a board"),
    "emulated": ("dashed", "run by an emulator: proves function, says nothing about speed"),
    "simulated": ("dashed", "computed by a model: says nothing measured"),
}


def state_chip(state: str) -> Chip:
    """Returns the chip that shows the state of a job, run, attempt or device."""
    icon, tone = STATES.get(state, ("question", ""))
    return Chip(state, icon, tone)


def verdict_chip(verdict: str, rule: str = "") -> Chip:
    """Whether a measurement counts."""
    icon, tone = VERDICTS.get(verdict, ("question", ""))
    return Chip(verdict, icon, tone, rule)


def outcome_chip(outcome: str, hint: str = "") -> Chip:
    """Returns the chip that says how training ended."""
    icon, tone = OUTCOMES.get(outcome, ("question", ""))
    return Chip(outcome.replace("_", " "), icon, tone, hint)


def class_chip(measurement_class: str) -> Chip:
    """Makes the chip that tells what a number is worth."""
    icon, hint = CLASSES.get(measurement_class, ("question", ""))
    return Chip(measurement_class, icon, "", hint)


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A number of a page's summary, with its unit and a quiet line below."""

    label: str
    value: str
    unit: str = ""
    under: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and a value, perhaps linked."""

    label: str
    value: str
    href: str = ""
    hint: str = ""


def environment_facts(environment: Mapping[str, str]) -> tuple[Fact, ...]:
    """Returns the board's description of itself: `power_mode` is written as `Power mode`."""
    named = ((name.replace("_", " "), value) for name, value in sorted(environment.items()))
    return tuple(Fact(name[:1].upper() + name[1:], value) for name, value in named)


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its title, what to see in it, its colour key and the same data as a table."""

    id: str
    title: str
    drawing: Markup
    note: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    """(class of the key, label)."""
    table: Table | None = None
    data_href: str = ""
    """Address of the data as CSV and JSON, without the ending."""
    chart: Chart | None = None
    """The same figure for the chart library, in which readers zoom and point."""
    picture_note: str = ""
    """Note that applies only to the picture that the server draws."""
    live_note: str = ""
    """Note that applies only to the library's chart."""

    @property
    def size_bytes(self) -> int:
        """Approximate size of the figure in memory."""
        cells = len(self.table.rows) * len(self.table.columns) if self.table is not None else 0
        return sys.getsizeof(self.drawing) + CELL_BYTES * cells


@dataclass(frozen=True, slots=True)
class Filter:
    """A choice of a filter form; empty means all."""

    name: str
    label: str
    value: str
    options: tuple[tuple[str, str], ...]
    """(value, label), without the one for all."""

    @property
    def value_label(self) -> str:
        """Label of the choice."""
        return dict(self.options).get(self.value, self.value)


def choices(values: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Options whose label is their value."""
    return tuple((value, value) for value in values)


@dataclass(frozen=True, slots=True)
class Listing:
    """A table with its address, its filters and where the next page is."""

    table: Table
    path: str
    """Address of the page; CSV and JSON are there with an ending."""
    query: tuple[tuple[str, str], ...] = ()
    """Filters in force, for links that keep them."""
    filters: tuple[Filter, ...] = ()
    older: str = ""
    newest: str = ""
    hidden_note: str = ""
    show_hidden: str = ""
