"""The filter of compile jobs, the same for the API and the dashboard."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement

from service.people.query import check_value
from service.store.database.models import JOB_STATES, OPEN_JOB_STATES, Job


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter of compile jobs; an empty field does not restrict. State `open`: any in which a job has not ended."""

    state: str = ""
    target: str = ""
    model: str = ""
    plan: str = ""
    code: str = ""
    """Code with which the job ended, as the public contract spells it (`model.unsupported`)."""

    def __post_init__(self) -> None:
        """Raises: Invalid for a state that no job can have."""
        check_value("state", self.state, (*JOB_STATES, "open"))

    def conditions(self) -> list[ColumnElement[bool]]:
        """Returns the filter as conditions on `Job`."""
        pairs = (
            (Job.state, self.state),
            (Job.target, self.target),
            (Job.model_name, self.model),
            (Job.plan_name, self.plan),
            (Job.code, self.code),
        )
        if self.state == "open":
            return [Job.state.in_(OPEN_JOB_STATES), *(column == value for column, value in pairs[1:] if value)]
        return [column == value for column, value in pairs if value]
