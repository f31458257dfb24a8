"""What an attempt cannot have found, by what the farm itself knows: what was asked, of which bundle, and since when."""

from __future__ import annotations

from device_agents.wire import ProtocolError, Report
from service.bundles.service import Built
from service.database.models import Attempt, Run

CLOCK_SLACK = 1.05
CLOCK_SLACK_S = 300.0
"""The farm's own clock may have been set meanwhile."""


def check_possible(report: Report, run: Run, attempt: Attempt, bundle: Built, *, now: float) -> None:
    """Raises: `ProtocolError` naming the field."""
    settings = run.settings
    if report.mode != settings.reported_mode:
        raise ProtocolError("mode", f"{report.mode!r}, and the run is of mode {settings.reported_mode!r}")
    since_s = (now - attempt.created_at) * CLOCK_SLACK + CLOCK_SLACK_S
    for name in ("run_s", "transfer_s"):
        if getattr(report, name) > since_s:
            message = f"{getattr(report, name):,.0f} s, and the attempt began {now - attempt.created_at:,.0f} s ago"
            raise ProtocolError(name, message)
    if report.mode in ("train", "profile"):
        _check_count("losses", len(report.losses), settings.steps)
        _check_count(
            "measurement.step_us", len(report.measurement.step_us) if report.measurement else 0, settings.steps
        )
    batch = bundle.manifest.get("batch")
    if report.measurement is not None and isinstance(batch, int) and report.measurement.batch != batch:
        raise ProtocolError("measurement.batch", f"{report.measurement.batch:,}, and the bundle's is {batch:,}")


def _check_count(where: str, count: int, asked: int) -> None:
    if count > asked:
        raise ProtocolError(where, f"{count:,} steps, and {asked:,} were asked for")
