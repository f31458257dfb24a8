"""Options and progress lines of a run on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from device_agents.wire import RunSettings

WARNING = "warning"
"""A kind of event beside those of `device_agents.wire.Event`: something odd, that may be meant."""


@dataclass(frozen=True)
class ExecOptions:
    """The options that `execute` hands to the binary. `validation_data`: the data that training is validated on;
    `save`: checkpoint with optimizer state; `export`: parameters alone; `out`: logits of mode infer; `checkpoint`: the
    file that `resume` continues from; `others`: bundles that take turns with the first, in mode compare.
    """

    settings: RunSettings
    data: Path | None = None
    validation_data: Path | None = None
    weights: Path | None = None
    save: Path | None = None
    export: Path | None = None
    out: Path | None = None
    checkpoint: Path | None = None
    resume: Path | None = None
    others: tuple[Path, ...] = ()
    runner: str | None = None
    device_class: str | None = None


def progress_line(kind: str, fields: Mapping[str, object]) -> str:
    """An event as a line of text; empty for one that nobody reads."""
    if kind == WARNING:
        return f"warning: {fields.get('message')}"
    if kind == "step":
        return f"step {fields.get('step')}  loss {fields.get('loss')}"
    if kind == "eval":
        return f"evaluation {fields.get('message')}: loss {fields.get('loss')}, accuracy {fields.get('accuracy')}"
    return str(fields.get("message") or "")


def hint_of(code: str | None) -> str:
    """The next step, of what the binary refuses without one."""
    is_of_weights = (code or "").startswith("weights.")
    return "start from what --export of a run of this very model wrote, or leave --weights out" if is_of_weights else ""
