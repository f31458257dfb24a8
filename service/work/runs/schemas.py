"""Bodies of the run endpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from device_agents.figures.intervals import Interval
from device_agents.wire import MOST_BUNDLES, REAL_CLASSES, RunSettings, to_json
from service.base.schemas import DigestText, Ending, RequestBody, Timestamp, View, columns
from service.devices.wants import TAG, own_data
from service.store.database.models import Attempt, Holding, Run
from service.work.runs.settings import SettingsBody, SettingsView, settings_in
from service.work.runs.sustained_views import SustainedView
from service.work.runs.tags import tags_in

DatasetText = Annotated[
    str, Field(pattern=r"^(sha256:[0-9a-f]{64}|device:[a-z0-9][a-z0-9._-]{0,62}(@sha256:[0-9a-f]{64})?)$")
]


STEPPING = ("profile", "train", "compare")
"""Modes that take as many steps as they are told."""


class RunCreate(SettingsBody):
    """A request for a run: what to run, and where: a device, a class of devices, or any device that runs the bundle's
    target.
    """

    bundle: DigestText
    device: str | None = Field(default=None, max_length=100, description="Id of one device")
    device_class: str | None = Field(default=None, max_length=100, description="Any device of this class")
    target: str | None = Field(default=None, max_length=100, description="The bundle's target, as a check")
    where: list[Annotated[str, Field(max_length=170)]] = Field(
        default=[], max_length=16, description="Tags that the device must have: `key` or `key=value`"
    )
    dataset: DatasetText | None = Field(
        default=None,
        description="Needed by train and eval; profile can do without. A digest, or `device:NAME`: the device's own "
        "data set of that name, which stays there; `device:NAME@DIGEST` asks for its digest too",
    )
    validation_dataset: DigestText | None = Field(
        default=None,
        description="What training is validated on, in place of the share `validation`; a data set of the same form; "
        "train only",
    )
    weights: DigestText | None = Field(default=None, description="Starting weights: trained ones of an earlier run")
    others: list[DigestText] = Field(
        default=[],
        max_length=MOST_BUNDLES - 1,
        description="Bundles that take turns with the first one on the same device; compare only, which needs one",
    )
    allow_waiting: bool = Field(
        default=False, description="Queue it also for a class that no device of the farm has yet; else that is refused"
    )

    @model_validator(mode="after")
    def check_settings(self) -> Self:
        """Raises: ValueError, for what `RunSettings` refuses, alone or beside the data set to validate on, and for what
        goes with mode compare only, or not with it."""
        settings = settings_in(self)
        settings.check_validation("validation_dataset", is_given=self.validation_dataset is not None)
        if self.mode in STEPPING and settings.steps < 1:
            raise ValueError(f"steps: mode {self.mode} needs one step or more, not {settings.steps}")
        if self.mode != "compare" and self.others:
            raise ValueError(f"others: mode {self.mode} takes one bundle; only compare takes several")
        if self.mode == "compare" and not self.others:
            raise ValueError("others: mode compare needs one bundle beside the first, or more")
        if self.mode == "compare" and (self.dataset or self.weights):
            raise ValueError("dataset, weights: left out of mode compare: made-up samples, each bundle's own weights")
        return self

    @property
    def own_data(self) -> tuple[str, str | None] | None:
        """Name and asked digest of the device's own data set; None if there is another, or none."""
        return own_data(self.dataset)

    @property
    def settings(self) -> RunSettings:
        """All of the run's settings as one value."""
        return settings_in(self)


class AttemptView(View):
    """A device's try at a run."""

    n: int
    device_id: str
    state: str
    cause: str | None
    code: str | None
    message: str
    created_at: Timestamp
    started_at: Timestamp | None
    finished_at: Timestamp | None


OF_REAL_BOARDS = ("median_us", "p90_us", "samples_per_second", "peak_rss_bytes")
"""Figures that an emulated or simulated device has none of: its clock and its memory are the emulator's."""


class RunSummary(View):
    """The figures of a run's report that fit in a list; null: not measured, or by an emulator's clock."""

    measurement_class: str | None
    verdict: str | None
    batch: int | None
    median_us: float | None
    median_low_us: float | None = None
    median_high_us: float | None = None
    """The median's 95% interval, in the answers to `GET /runs` and `GET /runs/{id}`; null elsewhere, of fewer
    than five blocks, and of more than 1,000 steps: then the report tells."""
    p90_us: float | None
    samples_per_second: float | None
    arena_bytes: int | None
    peak_rss_bytes: int | None
    energy_per_step_mj: float | None
    training_outcome: Literal["completed", "stopped_early", "diverged", "stopped"] | None
    """How training ended, which is not how the run ended; null except in mode train."""
    loss_first: float | None
    loss_last: float | None
    accuracy_before: float | None
    accuracy_after: float | None


class RunLinks(View):
    """Paths of what belongs to a run."""

    self: str
    events: str
    bundle: str
    report: str | None
    weights: str | None


class RunView(SettingsView):
    """A run."""

    id: str
    state: Literal["queued", "leased", "running", "succeeded", "failed", "cancelled", "expired", "inconclusive"]
    bundle_digest: str
    model_name: str
    plan_name: str
    target: str
    dataset_digest: str | None
    validation_dataset_digest: str | None
    """Data set that training is validated on; null: a share of the data set (`validation`), or nothing."""
    own_data: str | None
    """Name of a local data set of the device, which stays there; used in place of `dataset_digest`."""
    own_data_digest: str | None
    """Digest that the local data set must have, if the request named one. The report says which digest it had."""
    where: list[str]
    """Tags that the device must have."""
    group_id: str | None
    """The request for many devices that it is a part of."""
    weights_digest: str | None
    """Starting weights."""
    others: list[str]
    """Digests of the bundles that take turns with the first, in mode compare."""
    name: str
    """Name that people gave it; empty: it is called by its model, plan and target."""
    note: str
    tags: list[str]
    wanted_device_id: str | None
    wanted_device_class: str | None
    device_id: str | None
    """The device of the newest attempt."""
    attempts: int
    phase: str
    steps_done: int
    cancel_requested: bool
    ending: Ending | None
    trained_weights_digest: str | None
    summary: RunSummary | None
    """Null until a report has come."""
    created_at: Timestamp
    started_at: Timestamp | None
    finished_at: Timestamp | None
    pinned_at: Timestamp | None
    """Retention leaves its files and events alone."""
    events_removed_at: Timestamp | None
    """When retention took its events."""
    links: RunLinks


class RunWarning(View):
    """A warning to the user of a run that was accepted."""

    code: str
    where: str
    message: str
    hint: str


class RunCreated(RunView):
    """A run that was just queued."""

    warnings: list[RunWarning]
    """Warnings: what is odd about its data; that it has to wait, and for what. Empty if nothing is, and a device is
    there.
    """


class RunCancelled(RunView):
    """A run that somebody wants to stop."""

    message: str
    """Outcome of the request, in words that follow the run's id."""


class RunDetail(RunView):
    """A run with its attempts, the first one first."""

    tries: list[AttemptView]


class ComparedView(View):
    """A bundle among those that took turns."""

    bundle_digest: str
    model_name: str
    plan_name: str
    threads: int
    median_us: float
    """Median over rounds of the time of the quicker of its two processes."""
    ratio: float | None
    """Ratio of its time to the first one's; null for the first."""
    ratio_low: float | None
    ratio_high: float | None
    """Interval of the ratio. All of a comparison's intervals together are wrong in 0.4% of comparisons at most. Null:
    too few rounds.
    """
    message: str
    """The result in words: faster, slower, no difference of the size that matters, or cannot tell."""


class ComparisonView(View):
    """The farm's evaluation of the raw times of bundles that took turns (docs/measurement.md)."""

    protocol: str
    """How the bundles took turns."""
    rounds: int
    ended: str
    detectable: float | None
    """The relative difference that was foreseen, after the first few rounds, to be found nineteen times of twenty."""
    bundles: list[ComparedView]
    """The bundles, in the order in which they were named."""


class ProvenanceView(View):
    """The provenance of a run's numbers. Digests are `sha256:...`; what is null was not used."""

    report: str
    """Digest of the signed report."""
    log_index: int | None
    """Its place in the log of results; null: it is appended soon."""
    bundle: str
    others: list[str]
    model: str
    plan: str
    spec: str
    compiler: str
    """The compiler's identity."""
    target: str
    settings: str
    """Digest of all settings of its user, as JSON."""
    dataset: str | None
    """A digest, or `device:NAME@DIGEST` of one that stayed on the device; null: made-up samples."""
    validation_dataset: str | None
    weights: str | None
    """Starting weights; null: the bundle's."""
    device: str | None
    device_name: str | None
    device_class: str | None
    device_state: str
    """Digest of `device_facts`, as JSON."""
    device_facts: dict[str, Any]
    """Kernel, governor, power mode, agent, isolation level, threads."""
    agent: str
    """Release of the agent."""
    protocol: str
    """How its times were measured; empty: it has none."""
    figures: str
    """Digest of the code by which this farm makes intervals and words of raw times."""
    recorded_at: str


class RunAgain(RequestBody):
    """The device on which to make a run again; by default the one that made it."""

    device: str | None = Field(default=None, max_length=100, description="Id of another device")
    device_class: str | None = Field(default=None, max_length=100, description="Any device of this class")

    @model_validator(mode="after")
    def check_place(self) -> Self:
        """Raises: ValueError."""
        if self.device is not None and self.device_class is not None:
            raise ValueError("device, device_class: name one of them")
        return self


class DifferenceView(View):
    """Something that explains a number, and is not the same of two runs."""

    what: str
    first: str
    second: str


class RatioView(View):
    """Ratio of the second run's step time to the first's; a null interval: nothing can be concluded."""

    ratio: float
    low: float | None
    high: float | None
    message: str


class BesideView(View):
    """A run beside another one."""

    first: str
    second: str
    agrees: bool | None
    """Whether the second says what the first said; null: it cannot be told."""
    message: str
    """The same in words, with the reason."""
    differences: list[DifferenceView]
    """Differences in what explains a number."""
    time: RatioView | None
    losses: str
    """How the losses compare, in words; empty if there are none."""
    weights: str
    """Whether both left the same trained weights; empty without any."""


class ReportView(View):
    """The device's own report, and its digest as signed."""

    run_id: str
    digest: str
    recorded_at: Timestamp
    report: dict[str, Any]
    comparison: ComparisonView | None
    """Mode compare only."""
    sustained: SustainedView | None
    """Mode sustained only."""
    provenance: ProvenanceView
    warnings: list[RunWarning]
    """Warnings about odd data; empty if nothing is odd."""


def run_view(run: Run, names: Holding, interval: Interval | None = None) -> RunView:
    """Returns the view of a run's row for the API; `names`: what its organisation calls its bundle."""
    return RunView(**_fields(run, names, interval))


def run_created(run: Run, names: Holding, warnings: list[RunWarning]) -> RunCreated:
    """Returns the answer to the sender."""
    return RunCreated(**_fields(run, names), warnings=warnings)


def run_detail(run: Run, names: Holding, attempts: list[Attempt], interval: Interval | None) -> RunDetail:
    """Returns a run with its attempts."""
    tries = [AttemptView.model_validate(attempt) for attempt in attempts]
    return RunDetail(**_fields(run, names, interval), tries=tries)


def _summary(run: Run, interval: Interval | None) -> RunSummary:
    summary = RunSummary.model_validate(run)
    if run.measurement_class not in REAL_CLASSES:
        return summary.model_copy(update=dict.fromkeys(OF_REAL_BOARDS))
    if interval is None:
        return summary
    return summary.model_copy(update={"median_low_us": interval.low, "median_high_us": interval.high})


def _fields(run: Run, names: Holding, interval: Interval | None = None) -> dict[str, Any]:
    ending = None
    if run.cause is not None and run.code is not None:
        ending = Ending(cause=run.cause, code=run.code, message=run.message, hint=run.hint)
    is_reported = run.measurement_class is not None
    links = RunLinks(
        self=f"/runs/{run.id}",
        events=f"/runs/{run.id}/events",
        bundle=f"/bundles/{run.bundle_digest}",
        report=f"/runs/{run.id}/report" if is_reported else None,
        weights=f"/runs/{run.id}/weights" if run.trained_weights_digest else None,
    )
    plain = columns(RunView, run)
    settings: dict[str, Any] = to_json(run.settings)
    return (
        plain
        | settings
        | {
            "where": [want.removeprefix(TAG) for want in run.wants.split("\n") if want.startswith(TAG)],
            "tags": tags_in(run.tags),
            "model_name": names.name,
            "plan_name": names.plan_name,
            "ending": ending,
            "summary": _summary(run, interval) if is_reported else None,
            "links": links,
        }
    )
