"""The provenance of a run's numbers, each part by a digest: what ran, on which data, built how, on which device in
which state, and by which rules the figures were made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

import device_agents.figures
from device_agents.wire import RunSettings, default_of
from service.artefacts.bundles import service as bundles
from service.base.schemas import utc_text
from service.store.database.models import Device, Result, Run
from service.work.runs.schemas import ProvenanceView

NO_PROTOCOL = ""


def of(session: Session, run: Run, result: Result, *, now: float) -> ProvenanceView:
    """Returns the provenance of a run that has a report."""
    statement = bundles.statement(session, run.bundle_digest, now=now)
    device = session.get(Device, run.device_id) if run.device_id else None
    facts = device_state(result.report)
    return ProvenanceView(
        report=result.digest,
        log_index=result.log_index,
        bundle=run.bundle_digest,
        others=run.others,
        model=statement.model_digest,
        plan=statement.plan_digest,
        spec=statement.spec_digest,
        compiler=statement.compiler,
        target=statement.target,
        settings=digest_of_json(chosen_in(run.settings)),
        dataset=_dataset(run, result.report),
        validation_dataset=run.validation_dataset_digest,
        weights=run.weights_digest,
        device=run.device_id,
        device_name=device.name if device else None,
        device_class=device.device_class if device else None,
        device_state=digest_of_json(facts),
        device_facts=facts,
        agent=str(facts.get("agent", "")),
        protocol=protocol_of(result.report),
        figures=figures_digest(),
        recorded_at=utc_text(result.recorded_at),
    )


def chosen_in(settings: RunSettings) -> dict[str, Any]:
    """Returns the settings that differ from their defaults, and those that every run states: a setting that comes later
    changes no digest.
    """
    return {
        name: value
        for name, value in vars(settings).items()
        if name in ("mode", "steps") or value != default_of(type(settings), name)
    }


def device_state(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the device's description of itself as it ran: kernel, governor, power mode, agent, isolation, threads."""
    facts = dict(report.get("environment") or {})
    facts["isolation_level"] = report.get("isolation_level")
    facts["threads"] = _timed(report).get("threads")
    return facts


def protocol_of(report: Mapping[str, Any]) -> str:
    """Returns how the times of a report were measured; empty if it has none."""
    return str(_timed(report).get("protocol", NO_PROTOCOL))


def _timed(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the report's section of times."""
    named = (report.get(name) for name in ("comparison", "sustained", "measurement"))
    return next(filter(None, named), {})


def _dataset(run: Run, report: Mapping[str, Any]) -> str | None:
    """Identifies the run's data set; one that stayed on the device by its name and the digest that the device gave."""
    own_data = report.get("own_data")
    return f"device:{own_data['name']}@{own_data['digest']}" if own_data else run.dataset_digest


def digest_of_json(value: Any) -> str:
    """Returns the digest of its canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


@cache
def figures_digest() -> str:
    """Returns the digest of the code by which this farm makes intervals, ratios and words of raw times."""
    whole = hashlib.sha256()
    for path in sorted(Path(device_agents.figures.__file__).parent.glob("*.py")):
        whole.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"sha256:{whole.hexdigest()}"
