# Made from pockfarm/client/asynchronous/reports.py by scripts/synchronous.py: change that one, then `make golden`.
"""Measurements of runs, and whether they can be reproduced. A part of `Client`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import httpx

from pockfarm.client.answers import json_of
from pockfarm.values import Job, Json, Run, job_of, part, run_of


class Reports(ABC):
    """AsyncReports of runs, with what the farm works out from them."""

    @abstractmethod
    def _get(self, path: str, query: Mapping[str, str | int | None] | None = None) -> Json:
        """A JSON object of the farm's."""

    @abstractmethod
    def _send(self, method: str, path: str, *, json_body: object = None) -> httpx.Response:
        """The farm's answer to a request, which is no refusal."""

    def explained(self, run_id: str) -> Json:
        """A run's report, what the farm works out from it (`comparison`), and what explains it (`provenance`)."""
        return self._get(f"/runs/{run_id}/report")

    def report(self, run_id: str) -> Json:
        """Returns the device's measurements: the fields of `device_agents.wire.Report`."""
        return part(self.explained(run_id), "report")

    def comparison(self, run_id: str) -> Json:
        """Returns the farm's comparison of bundles that took turns in a run of mode compare; empty for others."""
        return part(self.explained(run_id), "comparison")

    def run_again(self, run_id: str, *, device: str | None = None, device_class: str | None = None) -> Run:
        """Ask for the same run once more: on the device that made it, on another one, or on one of a class."""
        target = {"device": device, "device_class": device_class}
        fields = {name: value for name, value in target.items() if value is not None}
        return run_of(json_of(self._send("POST", f"/runs/{run_id}/retry", json_body=fields)))

    def job_again(self, job_id: str) -> Job:
        """Ask once more for a compile that ended without a bundle: the same model, plan, spec and target."""
        return job_of(json_of(self._send("POST", f"/jobs/{job_id}/retry")))

    def beside(self, run_id: str, other_id: str) -> Json:
        """Whether the other run says what the first one says, and what explains a difference."""
        return self._get(f"/runs/{run_id}/compare/{other_id}")
