"""The list of devices, and one device with its health and history."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from sqlalchemy.orm import Session

from device_agents.wire import ISOLATION_LEVELS
from service.base.settings import Settings
from service.boards.fleet.marks import DeviceMark, marks_of
from service.dashboard import addresses, queries
from service.dashboard import format as fmt
from service.dashboard.charts import FULL_WIDTH, for_screens
from service.dashboard.charts.health import AttemptMark, attempt_strip
from service.dashboard.facts import AttemptFacts, DeviceFacts, EventFacts
from service.dashboard.pages.canaries import CanaryPart, canary_part
from service.dashboard.pages.device_condition import HeatPart, condition_facts, heat_part
from service.dashboard.pages.device_doings import NOTHING, Doings, doings
from service.dashboard.pages.device_filter import DeviceFilter
from service.dashboard.pages.device_health import IsolationPart, isolation_part, newest_times, sensor_table
from service.dashboard.pages.run_table import run_table
from service.dashboard.parts import Chip, Fact, Figure, Listing, class_chip, environment_facts, state_chip
from service.dashboard.tables import Column, Row, Table, Value, table
from service.devices.clocks import clock_s
from service.devices.conditions import condition_of
from service.devices.maintenance.standing import Calendar, Hold
from service.devices.service import is_own
from service.store.database.models import Device
from service.work.runs.filter import RunFilter

COLUMNS: tuple[Column, ...] = (
    Column("device", "Device", primary=True, sortable=True),
    Column("health", "Health", "state", sortable=True),
    Column(
        "canary_ms",
        "Canary",
        "number",
        "ms",
        fits=True,
        sortable=True,
        hint="Step median of its newest timed canary; its page says which, and how it went",
    ),
    Column("measurement_class", "Class", "class", sortable=True, hint="Measurement class: what its numbers are worth"),
    Column("device_class", "Board", sortable=True),
    Column("targets", "Targets", files_only=True),
    Column("tags", "Tags", wrap=True),
    Column("cores", "Cores", "number", sortable=True),
    Column("memory_gib", "Memory", "number", "GiB", 1, sortable=True),
    Column("sensors", "Sensors", files_only=True),
    Column("isolation_level", "Isolation", "number", hint="0 none to 4: limits, system calls, empty root, cgroup"),
    Column("agent", "Agent", "code"),
    Column("updates", "Updates itself", hint="on, off, installed (by another tool), trial; none: an older agent"),
    Column("agent_digest", "Agent's digest", "code", files_only=True),
    Column("last_seen_at", "Last seen", "time", "UTC", sortable=True),
)
EVENT_COLUMNS = (
    Column("at", "When", "time", "UTC", primary=True),
    Column("event", "Event"),
    Column("message", "Message", wrap=True),
)
DATA_COLUMNS = (
    Column("name", "Data set", primary=True),
    Column("samples", "Samples", "number"),
    Column("arrays", "Arrays", wrap=True),
    Column("label_counts", "Of each class", wrap=True),
    Column("weights", "Trained weights"),
    Column("digest", "Digest", "code"),
)
UPDATES = {
    "on": "the farm may update its agent",
    "off": "its operator has switched them off",
    "installed": "cannot update itself: installed by pip, not from one file",
    "trial": "its new agent is being tried",
    "": "its agent is older than updates: run its line of enrolment again",
}
LEFT_OUT_WHEN_SHORT = ("tags", "sensors", "isolation_level", "agent", "updates")
SHOWN = 100
"""Devices of a page; a filter brings the others."""
HISTORY = 20
STRIP = 60
TONES = {"succeeded": "good", "failed": "bad", "lost": "bad", "leased": "open", "running": "open"}


def device_table(
    found: Sequence[DeviceFacts], caption: str, canaries: Mapping[str, float] = MappingProxyType({})
) -> Table:
    """Devices as rows. `canaries`: what their newest timed canaries took, in microseconds, by their ids."""
    rows = [_row(entry, canaries.get(entry.id)) for entry in found]
    return table("devices", caption, COLUMNS, rows).hiding_empty("canary_ms", "tags", "updates")


def short_table(found: Sequence[DeviceFacts], caption: str) -> Table:
    """Without what an overview can do without."""
    whole = device_table(found, caption)
    columns = (replace(one, files_only=one.files_only or one.key in LEFT_OUT_WHEN_SHORT) for one in whole.columns)
    return replace(whole, columns=tuple(columns))


def devices_page(session: Session, sort: str, chosen: DeviceFilter) -> Listing:
    """The devices that the filter takes: all of them, in files; on a page, the first ones in this order."""
    every = queries.devices(session)
    found = [one for one in every if chosen.takes(one)]
    whole = device_table(found, "Devices by name", newest_times(session, [one.id for one in found])).sorted_by(sort)
    return Listing(
        whole,
        addresses.page("devices"),
        query=chosen.query,
        filters=chosen.filters(every),
        hidden_note=f"The first {SHOWN} of {len(found)}; choose a class, or a health." if len(found) > SHOWN else "",
    )


def first_of(whole: Listing) -> Listing:
    """What a page shows of a long list."""
    return replace(whole, table=replace(whole.table, rows=whole.table.rows[:SHOWN]))


def _row(entry: DeviceFacts, canary_us: float | None) -> Row:
    values: dict[str, Value] = {
        "device": entry.name,
        "health": entry.health,
        "canary_ms": fmt.milliseconds(canary_us),
        "measurement_class": entry.measurement_class,
        "device_class": entry.device_class,
        "targets": ", ".join(entry.targets),
        "tags": " ".join(entry.tags) or None,
        "cores": entry.cores,
        "memory_gib": entry.memory_bytes / (1 << 30),
        "sensors": ", ".join(entry.sensors) or None,
        "isolation_level": entry.isolation_level,
        "agent": entry.agent_version or None,
        "updates": entry.agent_updates or None,
        "agent_digest": entry.agent_digest or None,
        "last_seen_at": fmt.iso(entry.last_seen_at),
    }
    return Row(values, {"device": addresses.device(entry.id)}, {"device": entry.cpu_model}, anchor=entry.id)


@dataclass(frozen=True, slots=True)
class DevicePage:
    """What the page of one device shows."""

    device: DeviceFacts
    chips: tuple[Chip, ...]
    facts: tuple[Fact, ...]
    environment: tuple[Fact, ...]
    strip: Figure | None
    history: Table
    runs: Table
    own_data: Table
    """Data sets that stay on it."""
    marks: tuple[DeviceMark, ...]
    canaries: CanaryPart
    hold: Hold | None
    """What keeps new work from it because its operators say so."""
    isolation: IsolationPart
    heat: HeatPart
    """How hot it was."""
    sensors: Table
    """What it said of itself while its newest runs were measured."""
    doings: Doings
    """What its operators may do."""


def device_page(
    session: Session, settings: Settings, device_id: str, refused: Doings | None = None
) -> DevicePage | None:
    """One device, or None when there is no such device. `refused`: a form of it that comes back."""
    now = time.time()
    found = queries.device(session, device_id, now)
    if found is None:
        return None
    told = condition_of(session, device_id)
    attempts, row = queries.attempts_of_device(session, device_id, STRIP), session.get_one(Device, device_id)
    return DevicePage(
        device=found,
        chips=(state_chip(found.health), class_chip(found.measurement_class)),
        facts=(*_facts(found, now), *condition_facts(told, now)),
        environment=environment_facts(found.environment),
        strip=_strip(attempts),
        history=history_table(queries.device_history(session, device_id, HISTORY)),
        runs=run_table(queries.runs(session, RunFilter(device=device_id), 10), "Newest runs on it", short=True),
        own_data=_own_data(found),
        marks=tuple(marks_of(session, row, told)) if is_own(session, row) else (),
        canaries=canary_part(session, device_id),
        hold=Calendar.read(session).hold(row, clock_s(settings, row)),
        isolation=isolation_part(found),
        heat=heat_part(session, found, told),
        sensors=sensor_table(session, device_id) if is_own(session, row) else sensor_table(session, ""),
        doings=refused or doings(row, found) if is_own(session, row) else NOTHING,
    )


def history_table(events: Sequence[EventFacts]) -> Table:
    """Health events, newest first."""
    return table("history", "Health history, newest first", EVENT_COLUMNS, [history_row(event) for event in events])


def history_row(event: EventFacts) -> Row:
    """One line of a device's history."""
    return Row({"at": fmt.iso(event.at), "event": event.kind, "message": event.message or None})


def _own_data(found: DeviceFacts) -> Table:
    rows = [
        Row(
            {
                "name": one["name"],
                "samples": one["samples"],
                "arrays": ", ".join(f"{each['name']} {each['dtype']} {each['shape']}" for each in one["arrays"]),
                "label_counts": " ".join(map(str, one["label_counts"] or ())) or None,
                "weights": "stay on it" if one.get("weights_stay") else "are sent",
                "digest": one["digest"],
            }
        )
        for one in found.own_datasets
    ]
    return table("own-data", "Data sets that stay on it", DATA_COLUMNS, rows)


def _strip(attempts: Sequence[AttemptFacts]) -> Figure | None:
    if not attempts:
        return None
    marks = [_mark(attempt) for attempt in reversed(attempts)]
    ended = [mark for mark in marks if mark.tone != "open"]
    good = sum(1 for mark in ended if mark.tone == "good")
    note = f"{good} of the last {fmt.plural(len(ended), 'attempt')} succeeded. Oldest left; tall bars succeeded, short \
ones failed, hollow ones ended otherwise."
    drawing = for_screens(lambda width: attempt_strip(marks, width), FULL_WIDTH)
    return Figure("attempts", "Attempts", drawing, note)


def _mark(attempt: AttemptFacts) -> AttemptMark:
    reason = f", {attempt.cause} {attempt.code or ''}".rstrip() if attempt.cause else ""
    label = f"{fmt.clock(attempt.created_at)} UTC: {attempt.state}{reason}"
    return AttemptMark(TONES.get(attempt.state, "odd"), label, addresses.run(attempt.run_id))


def _facts(found: DeviceFacts, now: float) -> tuple[Fact, ...]:
    level = ISOLATION_LEVELS[found.isolation_level] if 0 <= found.isolation_level < len(ISOLATION_LEVELS) else ""
    seen = fmt.moment(now)
    return (
        Fact("Device", found.id),
        *([Fact("Calls itself", found.told_name)] if found.told_name != found.name else ()),
        Fact("Board", found.device_class),
        Fact("Processor", found.cpu_model),
        Fact("Architecture", found.architecture),
        Fact("Cores", str(found.cores)),
        Fact("Memory", fmt.size(found.memory_bytes)),
        Fact("Targets", ", ".join(found.targets)),
        Fact("Tags", " ".join(found.tags) or "none"),
        Fact("Sensors", ", ".join(found.sensors) or "none"),
        Fact("Isolation", f"{found.isolation_level}: {level}"),
        Fact("Runner", found.runner or "none: runs natively"),
        Fact("Agent", found.agent_version or fmt.ABSENT),
        Fact("Updates", UPDATES[found.agent_updates]),
        Fact("Strikes in a row", fmt.plural(found.strikes, "failed attempt")),
        Fact("Last seen", fmt.ago(found.last_seen_at, seen) if seen else fmt.ABSENT),
        Fact("Enrolled", f"{fmt.clock(found.enrolled_at)} UTC"),
    )
