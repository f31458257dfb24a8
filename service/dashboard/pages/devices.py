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
from service.dashboard.pages.device_actions import NOTHING, Doings, doings
from service.dashboard.pages.device_condition import HeatPart, condition_facts, heat_part
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
    devices: Sequence[DeviceFacts], caption: str, canaries: Mapping[str, float] = MappingProxyType({})
) -> Table:
    """Returns a table of devices. `canaries`: what their newest timed canaries took, in microseconds, by their ids."""
    rows = [_row(entry, canaries.get(entry.id)) for entry in devices]
    return table("devices", caption, COLUMNS, rows).hiding_empty("canary_ms", "tags", "updates")


def short_table(devices: Sequence[DeviceFacts], caption: str) -> Table:
    """Returns a table of the devices without the columns that an overview does not need."""
    whole = device_table(devices, caption)
    columns = (
        replace(column, files_only=column.files_only or column.key in LEFT_OUT_WHEN_SHORT) for column in whole.columns
    )
    return replace(whole, columns=tuple(columns))


def devices_page(session: Session, sort: str, chosen: DeviceFilter) -> Listing:
    """Returns the devices that match the filter: all of them, in files; on a page, the first ones in this order."""
    every = queries.devices(session)
    matches = [device for device in every if chosen.takes(device)]
    whole = device_table(
        matches, "Devices by name", newest_times(session, [device.id for device in matches])
    ).sorted_by(sort)
    return Listing(
        whole,
        addresses.page("devices"),
        query=chosen.query,
        filters=chosen.filters(every),
        hidden_note=f"The first {SHOWN} of {len(matches)}; choose a class, or a health."
        if len(matches) > SHOWN
        else "",
    )


def first_of(whole: Listing) -> Listing:
    """Shortens a long list to what a page shows of it."""
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
    """The contents of a device's page."""

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
    """Reason that keeps new work from it because its operators say so."""
    isolation: IsolationPart
    heat: HeatPart
    """Temperature over time."""
    sensors: Table
    """Its reports about itself while its newest runs were measured."""
    doings: Doings
    """Actions that its operators may take."""


def device_page(
    session: Session, settings: Settings, device_id: str, refused: Doings | None = None
) -> DevicePage | None:
    """Makes the page of a device; None when there is no such device. `refused`: a form of it that comes back."""
    now = time.time()
    device = queries.device(session, device_id, now)
    if device is None:
        return None
    condition = condition_of(session, device_id)
    attempts, row = queries.attempts_of_device(session, device_id, STRIP), session.get_one(Device, device_id)
    return DevicePage(
        device=device,
        chips=(state_chip(device.health), class_chip(device.measurement_class)),
        facts=(*_facts(device, now), *condition_facts(condition, now)),
        environment=environment_facts(device.environment),
        strip=_strip(attempts),
        history=history_table(queries.device_history(session, device_id, HISTORY)),
        runs=run_table(queries.runs(session, RunFilter(device=device_id), 10), "Newest runs on it", short=True),
        own_data=_own_data(device),
        marks=tuple(marks_of(session, row, condition)) if is_own(session, row) else (),
        canaries=canary_part(session, device_id),
        hold=Calendar.read(session).hold(row, clock_s(settings, row)),
        isolation=isolation_part(device),
        heat=heat_part(session, device, condition),
        sensors=sensor_table(session, device_id) if is_own(session, row) else sensor_table(session, ""),
        doings=refused or doings(row, device) if is_own(session, row) else NOTHING,
    )


def history_table(events: Sequence[EventFacts]) -> Table:
    """Returns a table of health events, newest first."""
    return table("history", "Health history, newest first", EVENT_COLUMNS, [history_row(event) for event in events])


def history_row(event: EventFacts) -> Row:
    """Makes a line of a device's history."""
    return Row({"at": fmt.iso(event.at), "event": event.kind, "message": event.message or None})


def _own_data(device: DeviceFacts) -> Table:
    rows = [
        Row(
            {
                "name": dataset["name"],
                "samples": dataset["samples"],
                "arrays": ", ".join(f"{each['name']} {each['dtype']} {each['shape']}" for each in dataset["arrays"]),
                "label_counts": " ".join(map(str, dataset["label_counts"] or ())) or None,
                "weights": "stay on it" if dataset.get("weights_stay") else "are sent",
                "digest": dataset["digest"],
            }
        )
        for dataset in device.own_datasets
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


def _facts(device: DeviceFacts, now: float) -> tuple[Fact, ...]:
    level = ISOLATION_LEVELS[device.isolation_level] if 0 <= device.isolation_level < len(ISOLATION_LEVELS) else ""
    moment = fmt.moment(now)
    return (
        Fact("Device", device.id),
        *([Fact("Calls itself", device.told_name)] if device.told_name != device.name else ()),
        Fact("Board", device.device_class),
        Fact("Processor", device.cpu_model),
        Fact("Architecture", device.architecture),
        Fact("Cores", str(device.cores)),
        Fact("Memory", fmt.size(device.memory_bytes)),
        Fact("Targets", ", ".join(device.targets)),
        Fact("Tags", " ".join(device.tags) or "none"),
        Fact("Sensors", ", ".join(device.sensors) or "none"),
        Fact("Isolation", f"{device.isolation_level}: {level}"),
        Fact("Runner", device.runner or "none: runs natively"),
        Fact("Agent", device.agent_version or fmt.ABSENT),
        Fact("Updates", UPDATES[device.agent_updates]),
        Fact("Strikes in a row", fmt.plural(device.strikes, "failed attempt")),
        Fact("Last seen", fmt.ago(device.last_seen_at, moment) if moment else fmt.ABSENT),
        Fact("Enrolled", f"{fmt.clock(device.enrolled_at)} UTC"),
    )
