"""The pictures on a run's page. Those of a recorded report are drawn once: it never changes, and they are most of what
the page costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.dashboard import addresses
from service.dashboard.charts import FULL_WIDTH, HALF_WIDTH
from service.dashboard.facts import RunFacts
from service.dashboard.pages.roofline import SeenRoof, roofline_figure
from service.dashboard.pages.run_data import validations_of
from service.dashboard.pages.run_figures import kernel_figures, step_figure
from service.dashboard.pages.run_progress import sent_figure
from service.dashboard.pages.sustained import sustained_figure
from service.dashboard.pages.timeline import timeline
from service.dashboard.pages.training import loss_figure
from service.dashboard.parts import Figure
from service.dashboard.progress_events import SentStep
from service.store.database.memory import lasting_of
from service.work.runs.sustained_views import SustainedView


@dataclass(frozen=True, slots=True)
class Drawings:
    """Each is None, or empty, where there is nothing to draw."""

    steps: Figure | None
    loss: Figure | None
    kernels: tuple[Figure, ...]
    roofline: Figure | None
    curve: Figure | None
    states: tuple[Figure, ...]

    @property
    def size_bytes(self) -> int:
        """Approximate size of the drawings in memory."""
        figures = (self.steps, self.loss, *self.kernels, self.roofline, self.curve, *self.states)
        return sum(figure.size_bytes for figure in figures if figure is not None)


def drawings(
    session: Session,
    run: RunFacts,
    curve: SustainedView | None,
    steps: Sequence[SentStep],
    device_roof: SeenRoof | None,
) -> Drawings:
    """Draws the run's report, below the `device_roof`; while there is no report, the `steps` that were sent."""
    if run.report_key is None:
        return _drawings(session, run, curve, steps, None)

    def draw() -> Drawings:
        return _drawings(session, run, curve, (), device_roof)

    return lasting_of(session).recall(("drawings", *run.report_key, device_roof), draw, lambda drawn: drawn.size_bytes)


def _drawings(
    session: Session,
    run: RunFacts,
    curve: SustainedView | None,
    steps: Sequence[SentStep],
    device_roof: SeenRoof | None,
) -> Drawings:
    report, here = run.report, addresses.run(run.id)
    measured = report.measurement if report else None
    losses = report.losses if report else tuple(step.loss for step in steps)
    loss_width = HALF_WIDTH if measured else FULL_WIDTH
    loss = loss_figure(
        losses, validations_of(session, run), f"{here}/losses", loss_width, is_synthetic=run.dataset_digest is None
    )
    steps_width = HALF_WIDTH if loss else FULL_WIDTH
    return Drawings(
        steps=(
            step_figure(measured, run.interval_ms, f"{here}/steps", steps_width)
            if measured
            else sent_figure(steps, here)
        ),
        loss=loss,
        kernels=kernel_figures(report.kernels if report else ()),
        roofline=roofline_figure(report.kernels, device_roof, f"{here}/kernels.json")
        if report and device_roof
        else None,
        curve=sustained_figure(curve, f"{here}/windows") if curve else None,
        states=timeline(report, here) if report else (),
    )
