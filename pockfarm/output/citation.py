"""A run's report as Markdown, to cite it: the figures, what explains them, and how anyone verifies them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pockfarm.output.summary import comparison_rows, curve_rows, measured_step, training_text, without_played_times
from pockfarm.output.table import bytes_text, energy_text, figure
from pockfarm.values import Json, optional_number, part, text, warnings_of

_MARKUP = re.compile(r"([|`*_\[\]\\])")
EXPLAINED = (
    ("bundle", "bundle"),
    ("model", "model"),
    ("plan", "plan"),
    ("spec", "spec"),
    ("compiler", "compiler"),
    ("dataset", "data set"),
    ("validation_dataset", "validated on"),
    ("weights", "starting weights"),
    ("settings", "settings"),
    ("device_state", "device state"),
    ("figures", "rules of the figures"),
)


def cited(run_id: str, answer: Json) -> str:
    """`answer`: what the farm says of the run's report, with its provenance."""
    report, explained = part(answer, "report"), part(answer, "provenance")
    facts = part(explained, "device_facts")
    facts_text = [_plain(f"{name} {value}") for name, value in sorted(facts.items()) if value not in (None, "")]
    lines = [
        f"**PockFarm run `{run_id}`**, {text(report, 'mode')} on "
        f"{_plain(text(explained, 'device_name')) or 'a device'} "
        f"({_plain(text(explained, 'device_class'))}, {text(report, 'measurement_class')}), "
        f"{text(explained, 'recorded_at')[:10]}, target `{text(explained, 'target')}`.",
        "",
        *_table(("what", "value"), _figures(report, part(answer, "comparison"))),
        "",
        *_table(
            ("explained by", "digest"),
            [(words, f"`{text(explained, name)}`") for name, words in EXPLAINED if text(explained, name)],
        ),
        "",
        f"Device: {', '.join(facts_text)}.",
        "",
        *(line for warning in warnings_of(answer) for line in (f"**Warning:** {_plain(str(warning))}", "")),
        f"Signed report `{text(explained, 'report')}`{_place(explained)}. `pockfarm receipt {run_id}` and "
        f"`pockfarm verify` prove it without the farm; `pockfarm reproduce {run_id}` makes it again.",
    ]
    return "\n".join(lines)


def _place(explained: Json) -> str:
    index = optional_number(explained, "log_index")
    return "" if index is None else f", entry {figure(index, 0)} of the farm's log"


def _figures(report: Json, compared: Json) -> list[tuple[str, str]]:
    report = without_played_times(report)
    measured, verdict = part(report, "measurement"), part(report, "verdict")
    rows = [("outcome", _plain(text(part(report, "outcome"), "state")))]
    if measured:
        rows.append(("step", measured_step(measured)))
        rows.append(("protocol", _plain(text(measured, "protocol"))))
    rows += [(name, _plain(formatted)) for name, formatted in curve_rows(report)]
    if verdict:
        rows.append(("verdict", _plain(f"{text(verdict, 'kind')}: {text(verdict, 'rule')}")))
    rows += [(_plain(f"step of {name}"), _plain(formatted)) for name, formatted in comparison_rows(compared)]
    memory = part(report, "memory")
    if optional_number(memory, "arena_bytes") is not None:
        rows.append(("planned arena", bytes_text(optional_number(memory, "arena_bytes"))))
    if optional_number(memory, "peak_rss_bytes") is not None:
        rows.append(("peak of the process", bytes_text(optional_number(memory, "peak_rss_bytes"))))
    energy = optional_number(part(report, "energy"), "per_step_mj")
    if energy is not None:
        rows.append(("energy of a step", energy_text(energy)))
    if training_text(report):
        rows.append(("training", _plain(training_text(report))))
    return rows


def _table(header: tuple[str, str], rows: Sequence[tuple[str, str]]) -> list[str]:
    return [f"| {header[0]} | {header[1]} |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _plain(value: str) -> str:
    """A text of a board's or of a person's, which must not become markup of ours."""
    return _MARKUP.sub(r"\\\1", " ".join(value.split())).replace("<", "&lt;")
