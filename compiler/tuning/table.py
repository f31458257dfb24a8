"""Decisions of measurements on boards: which schedule each kernel gets. A file, or rows of a farm's database."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from compiler.codegen.choice import DEFAULT, Choice, parse_choice
from compiler.errors import TuningError

SCHEMA = "pockfarm.tuning/1"
MAX_ENTRIES = 100_000
_HEX = re.compile(r"[0-9a-f]{64}")
Key = tuple[str, str, str, int]


@dataclass(frozen=True, slots=True)
class TuningEntry:
    """The measured winner of one kernel; `choice` is empty where the default won.

    `kernel` is its signature, `version` the compiler's identity (`compiler.identity`): another compiler builds other
    code, so the measurement says nothing of it. Times are medians of one call.
    """

    kernel: str
    target: str
    version: str
    threads: int
    choice: str
    default_us: float
    tuned_us: float
    device_class: str

    @property
    def key(self) -> Key:
        """Returns what the decision is about."""
        return (self.target, self.version, self.kernel, self.threads)


@dataclass(frozen=True, slots=True)
class TuningTable:
    """Winners, one per kernel, target, version and number of threads, in order of their keys."""

    entries: tuple[TuningEntry, ...] = ()

    @classmethod
    def of(cls, entries: Mapping[Key, TuningEntry]) -> TuningTable:
        """The table of these entries, in the one order."""
        return cls(tuple(entries[key] for key in sorted(entries)))

    @classmethod
    def parse(cls, data: bytes | str) -> TuningTable:
        """The table in a file. Raises: TuningError, naming the entry."""
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as problem:
            raise TuningError(f"not JSON: {problem}", where="tuning") from None
        if not isinstance(body, dict) or body.get("schema") != SCHEMA or not isinstance(body.get("entries"), list):
            raise TuningError(
                f"not a tuning table of schema {SCHEMA}", where="tuning", hint="`pockfarm tune` makes one"
            )
        rows = body["entries"]
        if len(rows) > MAX_ENTRIES:
            raise TuningError(f"{len(rows):,} entries, the limit is {MAX_ENTRIES:,}", where="tuning")
        entries = [_entry(row, f"tuning entry {index}") for index, row in enumerate(rows)]
        table = {entry.key: entry for entry in entries}
        if len(table) != len(entries):
            raise TuningError("two entries decide the same kernel", where="tuning")
        return cls.of(table)

    def to_json(self) -> str:
        """The table as a file. Same entries, same bytes."""
        body = {"schema": SCHEMA, "entries": [asdict(entry) for entry in self.entries]}
        return json.dumps(body, indent=1, sort_keys=True, allow_nan=False) + "\n"

    def merged(self, newer: TuningTable) -> TuningTable:
        """Returns both tables as one; where both decide a kernel, the newer measurement stands."""
        return TuningTable.of({entry.key: entry for table in (self, newer) for entry in table.entries})

    def choices(self, *, target: str, version: str, threads: int) -> Mapping[str, Choice]:
        """Winners by kernel signature for one build, the defaults that won left out."""
        build = (target, version, threads)
        return {
            entry.kernel: parse_choice(entry.choice)
            for entry in self.entries
            if (entry.target, entry.version, entry.threads) == build and entry.choice
        }


NO_TUNING = TuningTable()


def choices_digest(choices: Mapping[str, Choice]) -> str:
    """`sha256:<hex>` of the schedules that differ from the default: part of what decides a build's bytes."""
    lines = [f"{kernel} {choice.text}\n" for kernel, choice in sorted(choices.items()) if choice != DEFAULT]
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def _entry(row: object, where: str) -> TuningEntry:
    types = {"str": str, "int": int, "float": (int, float)}
    field_types = {field.name: types[str(field.type)] for field in fields(TuningEntry)}
    if not isinstance(row, dict) or set(row) != set(field_types):
        raise TuningError(f"must have the fields {', '.join(sorted(field_types))}", where=where)
    for name, kind in field_types.items():
        if not isinstance(row[name], kind) or isinstance(row[name], bool):  # type: ignore[arg-type]
            raise TuningError(f"{name} is {row[name]!r:.80}", where=where)
    entry = TuningEntry(**{**row, "default_us": float(row["default_us"]), "tuned_us": float(row["tuned_us"])})
    if not _HEX.fullmatch(entry.kernel) or not _HEX.fullmatch(entry.version) or entry.threads < 1:
        raise TuningError("kernel and version must be 64 hex digits, threads at least 1", where=where)
    if not all(math.isfinite(us) and us > 0 for us in (entry.default_us, entry.tuned_us)):
        raise TuningError("times must be finite and above 0", where=where)
    try:
        parse_choice(entry.choice)
    except ValueError as problem:
        raise TuningError(str(problem), where=where) from None
    return entry
