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
from service.dashboard.sent import SentStep
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
        """What they take in memory, about."""
        figures = (self.steps, self.loss, *self.kernels, self.roofline, self.curve, *self.states)
        return sum(figure.size_bytes for figure in figures if figure is not None)


def drawings(
    session: Session, found: RunFacts, curve: SustainedView | None, steps: Sequence[SentStep], seen: SeenRoof | None
) -> Drawings:
    """Of the run's report, below the roof that was `seen`; while there is none, of the `steps` that were sent."""
    if found.report_key is None:
        return _drawings(session, found, curve, steps, None)

    def draw() -> Drawings:
        return _drawings(session, found, curve, (), seen)

    return lasting_of(session).recall(("drawings", *found.report_key, seen), draw, lambda made: made.size_bytes)


def _drawings(
    session: Session, found: RunFacts, curve: SustainedView | None, sent: Sequence[SentStep], seen: SeenRoof | None
) -> Drawings:
    report, here = found.report, addresses.run(found.id)
    measured = report.measurement if report else None
    losses = report.losses if report else tuple(one.loss for one in sent)
    loss_width = HALF_WIDTH if measured else FULL_WIDTH
    loss = loss_figure(
        losses, validations_of(session, found), f"{here}/losses", loss_width, is_synthetic=found.dataset_digest is None
    )
    steps_width = HALF_WIDTH if loss else FULL_WIDTH
    return Drawings(
        steps=(
            step_figure(measured, found.interval_ms, f"{here}/steps", steps_width)
            if measured
            else sent_figure(sent, here)
        ),
        loss=loss,
        kernels=kernel_figures(report.kernels if report else ()),
        roofline=roofline_figure(report.kernels, seen, f"{here}/kernels.json") if report and seen else None,
        curve=sustained_figure(curve, f"{here}/windows") if curve else None,
        states=timeline(report, here) if report else (),
    )
