"""The actions of people on a run's page: stop it, make it again, name it; take it along as a command, or to cite it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.wire import settings_of
from service.base.identifiers import new_id
from service.dashboard import addresses, visitors
from service.dashboard import format as fmt
from service.dashboard.actions import Action
from service.dashboard.facts import RunFacts
from service.dashboard.forms import Field, Form
from service.store.database.models import OPEN_RUN_STATES, Result, Run
from service.work.runs.about import MOST_NAME, MOST_NOTE, MOST_TAG, MOST_TAGS
from service.work.runs.retry import request_of
from service.work.runs.schemas import RunAgain

TAG_HINT = f"At most {MOST_TAGS}, with blanks between, of small letters, digits, dots, hyphens and underscores."
ABOUT = "about"


@dataclass(frozen=True, slots=True)
class Words:
    """A text to take along."""

    label: str
    text: str


def acts(run: RunFacts) -> tuple[Action, ...]:
    """Returns the buttons that the visitor may press."""
    if not visitors.current().may("submit"):
        return ()
    here, again = addresses.run(run.id), (("once", new_id("again")),)
    if run.state not in OPEN_RUN_STATES:
        return (Action(f"{here}/retry", "Run again", again, of=run.title),)
    sure = "A queued run ends at once; one on a device ends when the device hears of it, and leaves no weights."
    return (Action(f"{here}/cancel", "Cancel", sure=sure, of=run.title, is_grave=True),)


def about_form(run: RunFacts) -> Form | None:
    """Returns the form for name, tags and note, if the visitor may change them."""
    if not visitors.current().may("submit"):
        return None
    most = MOST_TAGS * (MOST_TAG + 1)
    fields = (
        Field("name", "Name", value=run.name, max_length=MOST_NAME),
        Field("tags", "Tags", value=" ".join(run.tags), hint=TAG_HINT, max_length=most),
        Field("note", "Note", "area", value=run.note, max_length=MOST_NOTE),
    )
    return Form(ABOUT, "Name, tags, note", f"{addresses.run(run.id)}/about", "Save", fields)


def copies(run: Run, public_url: str) -> tuple[Words, ...]:
    """Returns the same request as a command, as a call of the API, and in Python."""
    request = request_of(run, RunAgain()).model_dump(mode="json", exclude_defaults=True)
    settings = settings_of(type(run.settings))
    fields = {
        name: value for name, value in request.items() if name not in settings or run.mode in settings[name].modes
    }
    body = {"bundle": run.bundle_digest, "mode": run.mode, **fields}
    return (
        Words("Command line", _command(run, body)),
        Words("curl", _curl(body, public_url)),
        Words("Python", _python(body)),
    )


def _command(run: Run, body: Mapping[str, Any]) -> str:
    options = {
        "device": "--device",
        "device_class": "--class",
        "dataset": "--dataset",
        "validation_dataset": "--validation-dataset",
        "weights": "--weights",
    }
    options |= {name: setting.option for name, setting in settings_of(type(run.settings)).items() if setting.option}
    words = [word for name, option in options.items() if name in body for word in _option(option, body[name])]
    words += [word for tag in body.get("where", ()) for word in ("--where", tag)]
    if run.mode == "compare":
        return shlex.join(["pockfarm", "compare", body["bundle"], *body.get("others", ()), *words])
    return shlex.join(["pockfarm", "run", body["bundle"], run.mode, *words])


def _option(option: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [option] if value else []
    return [option, f"{value:g}" if isinstance(value, float) else str(value)]


def _curl(body: Mapping[str, Any], public_url: str) -> str:
    body_text = shlex.quote(json.dumps(body, ensure_ascii=False))
    return (
        f"curl -X POST {shlex.quote(f'{public_url}/runs')} \\\n"
        '  -H "Authorization: Bearer $POCKFARM_API_KEY" -H "Content-Type: application/json" \\\n'
        f"  -d {body_text}"
    )


def _python(body: Mapping[str, Any]) -> str:
    rest = ",\n".join(f"    {name}={value!r}" for name, value in body.items() if name != "bundle")
    return (
        "from pockfarm import Client\n\n"
        "client = Client()\n"
        f"run = client.start_run(\n    {body['bundle']!r},\n{rest},\n)\n"
        "print(client.wait_for_run(run.id).state)"
    )


def citation(session: Session, run: RunFacts) -> tuple[Words, ...]:
    """Returns a sentence to cite the run, and how to get the whole report; empty without a report."""
    if run.report is None:
        return ()
    columns = select(Result.digest, Result.recorded_at, Result.log_index)
    result = session.execute(columns.where(Result.run_id == run.id, Result.state == "recorded")).one()
    place = "" if result.log_index is None else f", entry {result.log_index:,} of the farm's log"
    measured = f"step median {fmt.latency(run.median_ms)}" if run.median_ms is not None else ""
    span = (
        f" ({fmt.latency_span(run.median_ms, run.interval_ms)}, 95%)"
        if (run.median_ms is not None and run.interval_ms is not None)
        else ""
    )
    summary = ", ".join(
        part
        for part in (
            f"{measured}{span}" if run.timing_means_something else "",
            f"verdict {run.verdict}" if run.verdict else "",
        )
        if part
    )
    text = (
        f"PockFarm run {run.id}: {run.what}, {run.mode} on {run.device_name or 'a device'} "
        f"({run.device_class or fmt.ABSENT}, {run.measurement_class}), {fmt.clock(result.recorded_at)} UTC; "
        f"{summary + '; ' if summary else ''}bundle {run.bundle_digest}, signed report {result.digest}{place}."
    )
    commands = f"pockfarm report {run.id} --md\npockfarm receipt {run.id}"
    return (Words("Sentence", text), Words("With all digests, and proof without the farm", commands))
