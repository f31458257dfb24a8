"""Remarks on what is odd about a run, made when it is sent and wherever its result is read: it may be meant, or not."""

from __future__ import annotations

from sqlalchemy.orm import Session

from device_agents.wire import RunSettings, settings_fit, settings_of
from service.artefacts.bundles.service import built
from service.artefacts.datasets import service as datasets
from service.store.database.models import Dataset, Run
from service.work.runs.schemas import RunCreate, RunWarning


def of_run(session: Session, run: Run) -> list[RunWarning]:
    """Makes the remarks on its data, and on its settings beside its bundle."""
    bundle = built(session, run.bundle_digest)
    goes_on = run.weights_digest is not None
    remarks = settings_fit.remarks(run.settings, bundle.manifest, goes_on=goes_on)
    warnings = [RunWarning(code=odd.code, where=odd.array, message=odd.message, hint=odd.hint) for odd in remarks]
    return [*of_data(session, run), *warnings]


def of_data(session: Session, run: Run) -> list[RunWarning]:
    """Makes the remarks on both data sets that were sent; what stays on a device is seen by nobody else."""
    bundle = built(session, run.bundle_digest)
    named = (("dataset", run.dataset_digest), ("validation_dataset", run.validation_dataset_digest))
    warnings = []
    for where, digest in named:
        dataset = session.get(Dataset, digest) if digest is not None else None
        for remark in datasets.remarks(dataset, bundle) if dataset is not None else ():
            place = f"{where}.{remark.array}" if remark.array else where
            warnings.append(RunWarning(code=remark.code, where=place, message=remark.message, hint=remark.hint))
    return warnings


def of_settings(body: RunCreate) -> list[RunWarning]:
    """Returns a warning for each setting that the request names and that the mode does not have."""
    settings, chosen = settings_of(RunSettings), body.settings
    requested = {name: getattr(body, name) for name in body.model_fields_set & settings.keys()}
    ignored = sorted(
        name
        for name, value in requested.items()
        if body.mode not in settings[name].modes
        and value not in (type(body).model_fields[name].default, getattr(chosen, name))
    )
    hint = "leave it out, or ask for a mode that has it"
    return [
        RunWarning(
            code="run.setting-ignored",
            where=name,
            hint=hint,
            message=f"{name} is no setting of mode {body.mode}, and was left out",
        )
        for name in ignored
    ]
