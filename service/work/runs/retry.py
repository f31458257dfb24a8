"""Makes the same run once more, and compares the two."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from sqlalchemy.orm import Session

from device_agents.figures import separate_runs
from device_agents.figures.intervals import Interval
from device_agents.wire import REAL_CLASSES
from service.devices.wants import TAG
from service.store.database.models import Result, Run
from service.work.runs import compared, provenance, service, sustained
from service.work.runs.schemas import BesideView, DifferenceView, RatioView, RunAgain, RunCreate
from service.work.runs.variation import variations

NAMED = (
    "bundle",
    "others",
    "settings",
    "dataset",
    "validation_dataset",
    "weights",
    "device",
    "device_state",
    "protocol",
)
"""Parts of a number's explanation that are told where they differ. Who built the bundle is in its digest."""
SAME_RUN = ("bundle", "others", "settings", "dataset", "validation_dataset", "weights")
"""Those of these parts that make it the same run."""
OTHER = "other files"
BIT_EQUAL = ("train", "eval")
"""Modes whose losses are the same to the last bit each time, on one kind of processor."""


def request_of(run: Run, body: RunAgain) -> RunCreate:
    """Returns the request for the same run: on the same device, unless another one or a class is named."""
    elsewhere = body.device is not None or body.device_class is not None
    own_data = f"device:{run.own_data}" + (f"@{run.own_data_digest}" if run.own_data_digest else "")
    return RunCreate(
        **vars(run.settings),
        bundle=run.bundle_digest,
        others=run.others,
        device=body.device if elsewhere else run.device_id or run.wanted_device_id,
        device_class=body.device_class if elsewhere else None if run.device_id else run.wanted_device_class,
        where=[want.removeprefix(TAG) for want in run.wants.split("\n") if want.startswith(TAG)],
        dataset=own_data if run.own_data else run.dataset_digest,
        validation_dataset=run.validation_dataset_digest,
        weights=run.weights_digest,
    )


def beside(session: Session, run_a: Run, run_b: Run, *, now: float) -> BesideView:
    """Compares the second run with the first. Raises: NotFound, Conflict (one of them has no report)."""
    results = [service.result_of(session, run) for run in (run_a, run_b)]
    explained = [
        provenance.of(session, run, result, now=now) for run, result in zip((run_a, run_b), results, strict=True)
    ]
    first, second = (result.report for result in results)
    differences = [
        DifferenceView(what=name, first=_text(getattr(explained[0], name)), second=_text(getattr(explained[1], name)))
        for name in NAMED
        if getattr(explained[0], name) != getattr(explained[1], name)
    ]
    time, silence = _time(session, (run_a, run_b), (first, second))
    losses = _losses(first, second) if run_a.mode in BIT_EQUAL else ""
    weights = _weights(run_a, run_b)
    unlike = [difference.what.replace("_", " ") for difference in differences if difference.what in SAME_RUN]
    curves = _curves((run_a, run_b), (first, second))
    agrees, message = curves or _agrees(time, silence, losses, weights, _turns(session, (run_a, run_b), results))
    if unlike:
        agrees, message = None, f"not the same run: other {', '.join(unlike)}"
    return BesideView(
        first=run_a.id,
        second=run_b.id,
        agrees=agrees,
        message=message,
        differences=differences,
        time=time,
        losses=losses,
        weights=weights,
    )


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _time(
    session: Session, runs: tuple[Run, Run], reports: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> tuple[RatioView | None, str]:
    """Returns the ratio of the second run's step time to the first's, and, if nothing can be concluded, the reason."""
    if any(run.median_us is None for run in runs):
        return None, "no step was timed"
    if any(run.measurement_class not in REAL_CLASSES for run in runs):
        return None, "an emulated board's times say nothing"
    variability = variations(session, {run.device_id for run in runs if run.device_id}, judged=[run.id for run in runs])
    sides = [
        separate_runs.Run(_block_us(report), variability.get(run.device_id or "", separate_runs.UNKNOWN))
        for run, report in zip(runs, reports, strict=True)
    ]
    difference = separate_runs.difference(*sides)
    low, high = difference.interval or (None, None)
    silence = next((why for side in sides if (why := separate_runs.silence(side))), "")
    return RatioView(ratio=difference.ratio, low=low, high=high, message=difference.words), silence


def _block_us(report: Mapping[str, Any]) -> list[float]:
    blocks = (report.get("measurement") or {}).get("blocks", ())
    return [statistics.median(block["step_us"]) for block in blocks if block["step_us"]]


def _losses(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Compares the losses of both reports in words; empty if there are none."""
    names = ("evaluation_before", "evaluation_after")
    if not any(report.get(name) for report in (first, second) for name in ("losses", *names)):
        return ""
    for step, (first_loss, second_loss) in enumerate(zip_longest(first.get("losses", ()), second.get("losses", ())), 1):
        if first_loss != second_loss:
            return f"differ from step {step:,}: {_number(first_loss)} and {_number(second_loss)}"
    for name in names:
        if first.get(name) != second.get(name):
            return f"the losses of all steps are equal, {name.replace('_', ' ')} differs"
    return "equal to the last bit"


def _number(value: object) -> str:
    return "none" if value is None else repr(value)


def _weights(run_a: Run, run_b: Run) -> str:
    if run_a.trained_weights_digest is None and run_b.trained_weights_digest is None:
        return ""
    if run_a.trained_weights_digest is None or run_b.trained_weights_digest is None:
        return "left by one of them only"
    return "the same file" if run_a.trained_weights_digest == run_b.trained_weights_digest else OTHER


def _turns(
    session: Session, runs: tuple[Run, Run], results: Sequence[Result]
) -> Sequence[tuple[Interval, Interval]] | None:
    """Returns each bundle's intervals beside each other, for two comparisons; None if they are none."""
    comparisons = [
        view for run, result in zip(runs, results, strict=True) if (view := compared.view(session, run, result))
    ]
    if len(comparisons) < 2 or len({tuple(row.bundle_digest for row in view.bundles) for view in comparisons}) > 1:
        return None
    views = [view.bundles[1:] for view in comparisons]
    return [
        (Interval(first.ratio_low, first.ratio_high), Interval(second.ratio_low, second.ratio_high or 0.0))
        for first, second in zip(*views, strict=True)
        if first.ratio_low is not None and first.ratio_high is not None and second.ratio_low is not None
    ]


def _curves(
    runs: tuple[Run, Run], reports: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> tuple[bool | None, str] | None:
    """Tells whether two sustained runs both slow down by as much; None if they are none."""
    curves = [sustained.curve_in(report) for report in reports]
    if any(run.mode != "sustained" for run in runs):
        return None
    if curves[0] is None or curves[1] is None:
        return None, "cannot tell: one of them has no windows"
    first, second = curves[0].interval, curves[1].interval
    if first is None or second is None:
        return None, "cannot tell: one of them has too few windows for an interval"
    extents = f"{curves[0].message} / {curves[1].message}"
    overlap = first.low <= second.high and second.low <= first.high
    return overlap, f"the intervals of how much it slows down {'overlap' if overlap else 'lie apart'} ({extents})"


def _agrees(
    time: RatioView | None, silence: str, losses: str, weights: str, turns: Sequence[tuple[Interval, Interval]] | None
) -> tuple[bool | None, str]:
    """Whether the second says what the first said, and in words; None: it cannot be told."""
    if turns is not None:
        if not turns:
            return None, "cannot tell: a comparison had too few rounds for an interval"
        overlap = all(first.low <= second.high and second.low <= first.high for first, second in turns)
        return overlap, "the ratios' intervals overlap" if overlap else "the ratios' intervals lie apart"
    if losses:
        if losses != "equal to the last bit":
            return False, f"the losses {losses}"
        if weights == OTHER:
            return False, f"the losses are {losses}, the trained weights are not"
        return True, f"the losses are {losses}"
    if time is None or silence:
        return None, f"cannot tell: {silence}"
    is_same = time.low is not None and time.high is not None and time.low <= 1.0 <= time.high
    return is_same, f"no further apart than runs are there ({time.message})" if is_same else time.message
