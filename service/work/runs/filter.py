"""The filter of runs, the same for the API and the dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from sqlalchemy import ColumnElement

from device_agents.wire import MODES, MeasurementClass, VerdictKind
from service.people.query import check_value
from service.store.database.models import OPEN_RUN_STATES, RUN_STATES, Holding, Run
from service.work.runs.engines import ENGINES, ran_on
from service.work.runs.tags import has_tag


@dataclass(frozen=True, slots=True)
class RunFilter:
    """A filter of runs; an empty field does not restrict. State `open`: any in which a run has not ended.

    Canary runs, which are the farm's own, are never listed.
    """

    state: str = ""
    mode: str = ""
    bundle: str = ""
    target: str = ""
    device: str = ""
    measurement_class: str = ""
    verdict: str = ""
    model: str = ""
    plan: str = ""
    group: str = ""
    code: str = ""
    """Code with which the run ended, as the public contract spells it (`device.lost`)."""
    tag: str = ""
    engine: str = ""
    """Engine that ran its kernels (`cpu`, `opencl`)."""

    def __post_init__(self) -> None:
        """Raises: Invalid for a state, mode, class, verdict or engine that no run can have."""
        check_value("state", self.state, (*RUN_STATES, "open"))
        check_value("mode", self.mode, MODES)
        check_value("measurement_class", self.measurement_class, get_args(MeasurementClass))
        check_value("verdict", self.verdict, get_args(VerdictKind))
        check_value("engine", self.engine, ENGINES)

    def conditions(self) -> list[ColumnElement[bool]]:
        """Returns the filter as conditions on `Run` joined with the `Holding` of its bundle."""
        pairs = (
            (Run.state, self.state),
            (Run.mode, self.mode),
            (Run.bundle_digest, self.bundle),
            (Run.target, self.target),
            (Run.device_id, self.device),
            (Run.measurement_class, self.measurement_class),
            (Run.verdict, self.verdict),
            (Holding.name, self.model),
            (Holding.plan_name, self.plan),
            (Run.group_id, self.group),
            (Run.code, self.code),
        )
        ours = [Run.is_canary.is_(False), *([has_tag(self.tag)] if self.tag else [])]
        ours += [ran_on(self.engine)] if self.engine else []
        if self.state == "open":
            return [*ours, Run.state.in_(OPEN_RUN_STATES), *(column == value for column, value in pairs[1:] if value)]
        return [*ours, *(column == value for column, value in pairs if value)]
